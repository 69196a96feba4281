# SPDX-License-Identifier: Apache-2.0
"""Hamburger and EMANet with every normalised copy and every code in memory, as their papers write them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.plain import plain
from benchmarks.plain.layers import conv
from widefield.decomposition import NMF, ConceptDecomposition
from widefield.decomposition.factoriser import ChannelHam, SpatialHam

GUARD = 1e-6


def nmf_step(x: Tensor, bases: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    codes = codes * (x.mT @ bases) / (codes @ (bases.mT @ bases) + GUARD)
    return bases * (x @ codes) / (bases @ (codes.mT @ codes) + GUARD), codes


def nmf_finish(x: Tensor, bases: Tensor, codes: Tensor) -> Tensor:
    return codes * (x.mT @ bases) / (codes @ (bases.mT @ bases) + GUARD)


def concept_step(x: Tensor, bases: Tensor, temperature: float) -> Tensor:
    codes = F.softmax(F.normalize(x, dim=1).mT @ bases / temperature, dim=-1)
    return F.normalize(x @ (codes / (GUARD + codes.sum(1, keepdim=True))), dim=1)


def word_step(x: Tensor, bases: Tensor, temperature: float) -> Tensor:
    codes = F.softmax(F.normalize(x, dim=1).mT @ F.normalize(bases, dim=1) / temperature, dim=-1)
    return x @ (codes / (GUARD + codes.sum(1, keepdim=True)))


def concept_finish(x: Tensor, bases: Tensor, beta: float) -> Tensor:
    gram = bases.mT @ bases + beta * torch.eye(bases.shape[-1], dtype=x.dtype)
    return x.mT @ bases @ torch.inverse(gram)


def word_finish(x: Tensor, bases: Tensor, temperature: float) -> Tensor:
    unit = x / (GUARD + x.norm(dim=1, keepdim=True))
    return F.softmax(unit.mT @ F.normalize(bases, dim=1) / temperature, dim=-1)


def factorise(ham: SpatialHam, x: Tensor) -> Tensor:
    """`M(x)`, `(b, c, n)`; the last step and the closing codes are differentiated, or everything if unrolled."""
    matrix = x.reshape(-1, ham.length, x.shape[-1])
    matrix = matrix.mT if isinstance(ham, ChannelHam) else matrix
    method: Any = ham.method
    with nullcontext() if ham.gradient == "unrolled" else torch.no_grad():
        bases = ham.starting_bases(matrix)
        codes = F.softmax(matrix.mT @ bases, dim=-1)
    for step in range(ham.steps):
        last = step == ham.steps - 1
        with nullcontext() if last or ham.gradient == "unrolled" else torch.no_grad():
            if isinstance(method, NMF):
                bases, codes = nmf_step(matrix, bases, codes)
            elif isinstance(method, ConceptDecomposition):
                bases = concept_step(matrix, bases, method.temperature)
            else:
                bases = word_step(matrix, bases, method.temperature)
    if isinstance(method, NMF):
        codes = nmf_finish(matrix, bases, codes)
    elif isinstance(method, ConceptDecomposition):
        codes = concept_finish(matrix, bases, method.beta)
    else:
        codes = word_finish(matrix, bases, method.temperature)
    y = bases @ codes.mT
    return (y.mT if isinstance(ham, ChannelHam) else y).reshape(x.shape)


@plain("ham-nmf", "ham-cd", "ham-vq")
def ham(m: Any, x: Tensor) -> Tensor:
    tokens = x.flatten(2)
    return factorise(m.ham, torch.relu(tokens) if m.ham.method.nonnegative else tokens).reshape(x.shape)


def lower_bread(m: Any, x: Tensor) -> Tensor:
    z = conv(m.lower_bread, x)
    return (torch.relu(z) if m.ham.method.nonnegative else z).flatten(2)


@plain("hamburger-nmf", "hamburger-cd", "hamburger-vq")
def hamburger(m: Any, x: Tensor) -> Tensor:
    context = factorise(m.ham, lower_bread(m, x)).unflatten(2, x.shape[2:])
    return torch.relu(x + m.norm(conv(m.upper_bread, context)))


@plain("hamburger-minus-nmf", "hamburger-minus-cd", "hamburger-minus-vq")
def hamburger_minus(m: Any, x: Tensor) -> Tensor:
    z = lower_bread(m, x)
    context = (z - factorise(m.ham, z)).unflatten(2, x.shape[2:])
    return torch.relu(x + m.norm(conv(m.upper_bread, context)))


@plain("hamburger-v2-nmf", "hamburger-v2-cd", "hamburger-v2-vq")
def hamburger_v2(m: Any, x: Tensor) -> Tensor:
    context = factorise(m.ham, lower_bread(m, x)).unflatten(2, x.shape[2:])
    return torch.relu(x + conv(m.upper_bread, torch.relu(m.norm(conv(m.cheese, context)))))


@plain("hamburger-v2plus-nmf", "hamburger-v2plus-cd", "hamburger-v2plus-vq")
def hamburger_v2plus(m: Any, x: Tensor) -> Tensor:
    spatial, channel = lower_bread(m, x).chunk(2, dim=1)
    context = torch.cat([factorise(m.ham, spatial), factorise(m.channel_ham, channel)], dim=1)
    cheese = torch.relu(m.norm(conv(m.cheese, context.unflatten(2, x.shape[2:]))))
    return torch.relu(m.ham_scale * conv(m.upper_bread, cheese) + m.shortcut_scale * x)


def expectation_maximisation(m: Any, tokens: Tensor) -> Tensor:
    bases = m.bases.clone().expand(tokens.shape[0], -1, -1)
    for step in range(m.steps):
        last = step == m.steps - 1
        with nullcontext() if last or m.gradient == "unrolled" else torch.no_grad():
            z = F.softmax(tokens.mT @ bases, dim=-1)
            bases = tokens @ (z / (GUARD + z.sum(dim=1, keepdim=True)))
            bases = bases / (GUARD + bases.norm(dim=1, keepdim=True))
    return bases @ z.mT


@plain("em-attention")
def em_attention(m: Any, x: Tensor) -> Tensor:
    return expectation_maximisation(m, x.flatten(2)).reshape(x.shape)


@plain("emau")
def emau(m: Any, x: Tensor) -> Tensor:
    context = expectation_maximisation(m, conv(m.lower, x).flatten(2)).reshape(x.shape)
    return torch.relu(x + m.norm(conv(m.upper, torch.relu(context))))
