# SPDX-License-Identifier: Apache-2.0
"""How an iteration went, as a value; the one momentum rule."""

from __future__ import annotations

import torch

from widefield.core import Outcome, Status
from widefield.core.moving import Starts, in_recomputation, move_, rank_mean


def test_status_says_how_it_went() -> None:
    status = Status(
        torch.tensor([0, 0, 1, 3]), torch.tensor([1e-7, 2e-6, 0.25, torch.nan]), torch.tensor([3, 4, 9, 9])
    )
    assert status.converged.tolist() == [True, True, False, False]
    assert status.summary() == "2 converged, 1 budget_spent, 1 non_finite; worst residual 2.5e-01; at most 9 steps"
    assert len({outcome.meaning for outcome in Outcome}) == len(Outcome)


def test_the_momentum_rule() -> None:
    buffer, observed = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0], dtype=torch.float64)
    move_(buffer, observed, 0.25)
    assert buffer.tolist() == [1.5, 1.5]
    assert buffer.dtype == torch.float32
    assert rank_mean(observed) is observed, "one process"


def test_a_replay_moves_nothing_and_starts_where_the_forward_did() -> None:
    buffer, starts, seen = torch.tensor([1.0]), Starts(), []
    inputs = [torch.tensor([float(i)]) for i in range(3)]
    for x in inputs:
        assert starts.of(buffer, x).item() == buffer.item()
        move_(buffer, torch.tensor([9.0]), 0.5)
    assert buffer.item() == 8.0

    class Replay(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            assert not in_recomputation()
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            assert in_recomputation()
            seen.extend(starts.of(buffer, x).item() for x in inputs)
            move_(buffer, torch.tensor([0.0]), 0.5)
            return g

    Replay.apply(torch.ones(1, requires_grad=True)).sum().backward()
    assert seen == [1.0, 5.0, 7.0]
    assert buffer.item() == 8.0
