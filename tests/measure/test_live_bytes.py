# SPDX-License-Identifier: Apache-2.0
"""Peak memory against sums of tensor sizes done by hand."""

import pytest
import torch
from torch import nn

from widefield.measure import LiveBytes
from widefield.measure.cost import training_step
from widefield.measure.memory import peak_bytes
from widefield.measure.workload import prepare

CPU = torch.device("cpu")


def test_a_product_holds_its_output():
    x, w = torch.randn(64, 32), torch.randn(32, 16)
    with LiveBytes() as memory:
        y = x @ w
    assert memory.peak == memory.live == 64 * 16 * 4
    del y
    assert memory.live == 0
    assert memory.peak == 64 * 16 * 4


def test_temporaries_count_while_they_live():
    x = torch.randn(1000)

    def chain(steps):
        y = x
        for _ in range(steps):
            y = y + 1
        return y

    # The old and the new value are alive together, never more.
    assert peak_bytes(lambda: chain(1), CPU) == 4000
    assert peak_bytes(lambda: chain(2), CPU) == peak_bytes(lambda: chain(9), CPU) == 8000


def test_views_in_place_and_inputs_are_free():
    x = torch.randn(10, 100)
    with LiveBytes() as memory:
        x.view(100, 10).T[3:].add_(1)
        x.mul_(2)
    assert memory.peak == 0
    with LiveBytes() as memory:
        y = x * 2
        views = [y.view(-1), y[3], y.T]
        del y
        assert memory.live == 4000
        del views
        assert memory.live == 0


def test_resizing_and_literals():
    with LiveBytes() as memory:
        a = torch.empty(10)
        a.resize_(1000)
        b = torch.tensor([1.0, 2.0])
    assert memory.live == 4008
    del a, b
    assert memory.live == 0


def test_saved_activations_last_until_the_backward():
    x = torch.randn(1000, requires_grad=True)
    with LiveBytes() as memory:
        y = x.exp().exp().exp()
        assert memory.live == 12000
        torch.autograd.grad(y, x, torch.ones(1000))
        assert memory.live == 4000  # y alone
    with LiveBytes() as memory, torch.no_grad():
        x.exp().exp().exp()
    assert memory.peak == 8000


@pytest.mark.parametrize("shadow", [True, False])
def test_training_step_of_a_linear_layer(shadow):
    work = prepare(nn.Linear(30, 20, bias=False), (50, 30), requires_grad=True, shadow=shadow)
    with work.context():
        forward = peak_bytes(work.forward, CPU)
        training = peak_bytes(lambda: training_step(work), CPU)
    assert forward == 50 * 20 * 4
    # Output, its cotangent, the gradients of input and weight.
    assert training == 4 * (2 * 50 * 20 + 50 * 30 + 20 * 30)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Upsample(scale_factor=2)
        ),
        nn.Sequential(nn.Flatten(2), nn.Softmax(-1), nn.Linear(64, 5), nn.GELU(), nn.LayerNorm(5)),
        nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(64, 4, 32, batch_first=True, dropout=0.0)),
        nn.Sequential(nn.Flatten(2), nn.GRU(64, 7)),
    ],
)
def test_shadow_and_real_run_agree(module):
    peaks = []
    for shadow in (True, False):
        work = prepare(module, (2, 3, 8, 8), requires_grad=True, shadow=shadow)
        with work.context():
            peaks.append((peak_bytes(work.forward, CPU), peak_bytes(lambda work=work: training_step(work), CPU)))
    assert peaks[0] == peaks[1]
    assert min(peaks[0]) > 0


def test_checkpointing_saves_memory():
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)))

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.layers, x, use_reentrant=False)

    held = []
    for module in (layers, Checkpointed()):
        work = prepare(module, (2000, 64), requires_grad=True, shadow=True)
        with work.context(), LiveBytes() as memory:
            outputs = work.forward_with_graph()
            held.append(memory.live)
            del outputs
    activation = 2000 * 64 * 4
    assert held[1] == activation
    # A tanh is saved and feeds the next layer; the product before it is let go.
    assert held[0] == 8 * activation
