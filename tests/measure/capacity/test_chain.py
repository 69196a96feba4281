# SPDX-License-Identifier: Apache-2.0
"""Chains of plain layers, all copies at once, against each copy alone."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from widefield.measure.capacity import Copies
from widefield.measure.capacity.chain import chain_of

CHAINS = {
    "linear": (lambda: nn.Linear(6, 3), (6,)),
    "no bias": (lambda: nn.Sequential(nn.Linear(6, 4, bias=False), nn.GELU(), nn.Linear(4, 3)), (6,)),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.Tanh()), nn.Linear(4, 3)), (6,)),
    "flattened": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 3)), (2, 3, 4)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, 1, 1), nn.ReLU(), nn.Conv2d(3, 4, 2, 2, bias=False), nn.Flatten(),
                              nn.Linear(16, 3)), (2, 4, 4),
    ),
    "last dimension": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.Linear(12, 3)), (2, 3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_as_each_copy_alone(name):
    build, shape = CHAINS[name]
    copies = Copies(build, shape, 3, dtype=torch.float64)
    assert copies.chain is not None
    flat, buffers = copies.fresh([1, 2, 3])
    x = torch.randn(3, 5, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    flat.requires_grad_()
    found = copies.forward(flat, buffers, x)
    (gradient,) = torch.autograd.grad(found.square().sum(), flat)
    for i in range(3):
        row = flat[i].detach().requires_grad_()
        expected = functional_call(copies.base, copies.unflatten(row), (x[i],)).flatten(1)
        torch.testing.assert_close(found[i], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient[i], torch.autograd.grad(expected.square().sum(), row)[0])


def test_what_is_no_plain_chain():
    class Twice(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    frozen = nn.Linear(2, 2)
    frozen.weight.requires_grad_(False)
    for model in (Twice(2, 2), hooked, frozen, nn.BatchNorm1d(2), nn.Conv2d(2, 2, 1, groups=2), nn.Flatten(0),
                  nn.Sequential(nn.Linear(2, 2), nn.Dropout())):  # fmt: skip
        assert chain_of(model) is None
