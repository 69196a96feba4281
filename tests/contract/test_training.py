# SPDX-License-Identifier: Apache-2.0
"""What a training set-up does to a module: dimensions, checkpointing, several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import widefield
from registry import MOVING, NAMES, build, facts, gradients, having, randn

SHAPES = {1: (2, 16, 11), 2: (2, 16, 5, 7), 3: (2, 16, 3, 4, 5)}
DISTRIBUTED = [
    "afnb", "apnb", "aspp", "ccnet", "danet", "dgmn", "emau", "external-attention", "gcnet", "hamburger-nmf",
    "hamburger-v2plus-vq", "isa", "nonlocal", "ocnet-asp", "ocnet-base", "ocnet-pyramid", "ppm", "psanet",
]  # fmt: skip


@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_spatial_dimensions(name: str, dims: int) -> None:
    module, x = build(name, 16, dims=dims, size=SHAPES[2][2:]).train(), randn(*SHAPES[dims])
    if dims not in module.space_dims:
        with pytest.raises(ValueError, match="spatial dimensions, got the shape"):
            module(x)
        return
    y = module(x)
    assert y.shape == (2, module.out_channels, *x.shape[2:])
    assert all(torch.isfinite(gradient).all() for gradient in gradients(module, x).values())


@pytest.mark.parametrize("name", having("dims"))
def test_dimensions_that_a_module_was_not_built_for(name: str) -> None:
    with pytest.raises(ValueError, match=r"with 2 spatial dimensions, got the shape \(2, 16, 11\)"):
        build(name, 16, dims=2)(randn(*SHAPES[1]))


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_one_clear_error(name: str) -> None:
    module = build(name, 16)
    with pytest.raises(ValueError, match=r"built for 16 channels, got 8 in the shape \(2, 8, 5, 7\)"):
        module(randn(2, 8, 5, 7))
    with pytest.raises(TypeError, match=r"floating-point features, got torch\.int64; convert"):
        module(torch.ones(2, 16, 5, 7, dtype=torch.int64))
    with pytest.raises(ValueError, match="channels must be a positive integer, got 0"):
        widefield.create(name, 0)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.inner, x, use_reentrant=False)
        assert isinstance(y, Tensor)
        return y


@pytest.mark.parametrize("name", NAMES)
def test_checkpointing_gives_the_same_gradients_and_moves_buffers_once(name: str) -> None:
    plain, inner = (build(name, 16, size=(5, 7), **MOVING).train() for _ in range(2))
    x, cotangent = randn(2, 16, 5, 7), randn(2, plain.out_channels, 5, 7, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = gradients(plain, x, cotangent)
        torch.manual_seed(0)
        found = gradients(Checkpointed(inner), x, cotangent)
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key if key == "x" else f"inner.{key}"], gradient)
    for key, buffer in plain.named_buffers():
        torch.testing.assert_close(inner.get_buffer(key), buffer)


@pytest.mark.parametrize("name", [name for name in NAMES if facts(name).has_state])
def test_checkpointing_two_forwards_before_a_backward(name: str) -> None:
    plain, inner = (build(name, 16, **MOVING).train() for _ in range(2))
    xs = [randn(2, 16, 5, 7, seed=seed) for seed in range(2)]

    def both(module: nn.Module) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in xs]
        outputs = [module(x).square().sum() for x in leaves]
        for y in outputs:
            y.backward()
        return [x.grad for x in leaves]

    for found, expected in zip(both(Checkpointed(inner)), both(plain), strict=True):
        torch.testing.assert_close(found, expected)


def train_on_a_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = {}
    for name in DISTRIBUTED:
        module = DistributedDataParallel(build(name, 16, norm="group", dropout=0.0).double().train())
        x, cotangent = batch(module.module.out_channels)
        mine = slice(2 * rank, 2 * rank + 2)
        (module(x[mine]) * cotangent[mine]).sum().backward()
        found[name] = {key: p.grad for key, p in module.module.named_parameters()}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def batch(out_channels: int) -> tuple[Tensor, Tensor]:
    # In float64: group norm of small groups makes the order of float32 sums visible.
    return randn(4, 16, 5, 7).double(), randn(4, out_channels, 5, 7, seed=1).double()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    mp.spawn(train_on_a_rank, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_two_processes_have_the_gradients_of_one(name: str, ranks: list[dict[str, dict[str, Tensor]]]) -> None:
    module = build(name, 16, norm="group", dropout=0.0).double().train()
    x, cotangent = batch(module.out_channels)
    expected = gradients(module, x, cotangent / 2)  # DistributedDataParallel averages over processes
    del expected["x"]
    for rank in ranks:
        for key, gradient in expected.items():
            torch.testing.assert_close(rank[name][key], gradient, rtol=1e-8, atol=1e-9)
