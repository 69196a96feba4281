# SPDX-License-Identifier: Apache-2.0
"""FR-08, "running bases move when they should not"."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from registry import MOVING, NAMES, build, facts, moved, own_buffers, randn
from widefield.core.numerics import unit

STATEFUL = [name for name in NAMES if facts(name).has_state]
STEPS = 3


def stateful(name: str) -> nn.Module:
    return build(name, **MOVING).train()


@pytest.mark.parametrize("name", NAMES)
def test_fr08_a_evaluation_moves_nothing(name: str) -> None:
    module = build(name, **MOVING).eval()
    before = {key: buffer.clone() for key, buffer in module.state_dict().items()}
    module(randn(2, 64, 16, 16))
    module(randn(2, 64, 16, 16, seed=1) if facts(name).fixed_size else randn(2, 64, 9, 7, seed=1))
    after = module.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)


def updated(module: nn.Module, x: Tensor) -> Tensor:
    """What one training forward on x makes of the bases, from the factors that it finds."""
    part = module if hasattr(module, "momentum") else module.ham
    found = module.solve(x).bases
    if part is module:
        return module.momentum * part.bases + (1 - module.momentum) * found.mean(0, keepdim=True)
    mean = found.unflatten(0, (-1, part.heads)).mean(0)
    return unit(part.bases + 0.9 * (mean - part.bases), -2)


@pytest.mark.parametrize("name", STATEFUL)
def test_fr08_b_two_forwards_are_two_updates_and_one_backward_works(name: str) -> None:
    module, twin = stateful(name), stateful(name)
    a, b = randn(2, 64, 16, 16).requires_grad_(), randn(2, 64, 16, 16, seed=1).requires_grad_()
    first, second = module(a), module(b)
    (first.sum() + second.sum()).backward()
    assert torch.isfinite(a.grad).all()
    assert torch.isfinite(b.grad).all()
    part = twin if hasattr(twin, "momentum") else twin.ham
    for x in (a, b):
        part.bases.copy_(updated(twin, x))
    found = (module if hasattr(module, "momentum") else module.ham).bases
    torch.testing.assert_close(found, part.bases, rtol=1e-4, atol=1e-5)


def train_on_a_rank(rank: int, folder: str) -> None:
    """Three steps on this rank's own data; writes the buffers of all modules."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    after = {}
    for name in STATEFUL:
        module = stateful(name)
        for step in range(STEPS):
            module(randn(2, 64, 8, 8, seed=10 * step + rank))
        after[name] = own_buffers(module)
    torch.save(after, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    mp.spawn(train_on_a_rank, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", STATEFUL)
def test_fr08_c_ranks_agree_on_the_mean_over_ranks(name: str, ranks: list[dict[str, dict[str, Tensor]]]) -> None:
    zero, one = (rank[name] for rank in ranks)
    module = stateful(name)
    before = own_buffers(module)
    for step in range(STEPS):
        # The mean over ranks is the mean over the joined batch.
        module(torch.cat([randn(2, 64, 8, 8, seed=10 * step + rank) for rank in range(2)]))
    assert moved(before, module)
    for key, expected in own_buffers(module).items():
        assert torch.equal(zero[key], one[key])
        torch.testing.assert_close(zero[key], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", STATEFUL)
def test_fr08_d_a_frozen_module_and_the_switch(name: str) -> None:
    module, x = stateful(name).requires_grad_(False), randn(2, 64, 8, 8)
    before = own_buffers(module)
    module(x)
    assert moved(before, module), "as documented, requires_grad_(False) does not stop a buffer"
    switches = [part for part in module.modules() if hasattr(part, "moving")]
    assert switches
    for part in switches:
        assert any("requires_grad_(False)" in (kind.__doc__ or "") for kind in type(part).mro())
        part.moving = False
    before = own_buffers(module)
    module(x)
    assert not moved(before, module)
