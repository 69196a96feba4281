# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds against counts done by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import widefield
from registry import build, facts
from widefield.measure import OperatorCounter, count


class Apply(nn.Module):
    """A function as a module, so that it is counted without numbers."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


FORWARD = {
    "linear": (nn.Linear(7, 5), (3, 7), 3 * 7 * 5),
    "mv": (Apply(lambda a: a @ a[0]), (6, 9), 6 * 9),
    "dot": (Apply(lambda a: a[0] @ a[1]), (2, 9), 9),
    "bmm": (Apply(lambda a: a @ a.mT), (2, 6, 9), 2 * 6 * 6 * 9),
    "in place": (Apply(lambda a: torch.zeros(2, 6, 6).baddbmm_(a, a.mT)), (2, 6, 9), 2 * 6 * 6 * 9),
    "into a buffer": (Apply(lambda a: torch.mm(a, a.T, out=torch.empty(6, 6))), (6, 9), 6 * 6 * 9),
    "addbmm": (Apply(lambda a: torch.addbmm(torch.zeros(6, 6), a, a.mT)), (2, 6, 9), 2 * 6 * 6 * 9),
    "einsum": (Apply(lambda a: torch.einsum("bnc,bmc->bnm", a, a)), (2, 6, 9), 2 * 6 * 6 * 9),
    "bilinear": (nn.Bilinear(5, 4, 3), ((2, 5), (2, 4)), 2 * 5 * 4 * 3),
    "complex": (Apply(lambda a: torch.complex(a, a) @ torch.complex(a, a).T), (6, 9), 4 * 6 * 6 * 9),
    "conv1d": (nn.Conv1d(4, 6, 3), (2, 4, 10), 2 * 6 * 8 * 4 * 3),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 10, 12), 2 * 6 * 5 * 6 * 4 * 9),
    "conv3d": (nn.Conv3d(2, 3, 3, padding=1), (1, 2, 4, 5, 6), 3 * 4 * 5 * 6 * 2 * 27),
    "grouped": (nn.Conv2d(8, 12, 3, groups=4, padding=1), (2, 8, 5, 5), 2 * 12 * 25 * 2 * 9),
    "depthwise": (nn.Conv2d(8, 8, 3, groups=8, padding=1), (2, 8, 5, 5), 2 * 8 * 25 * 9),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5), 2 * 4 * 25 * 6 * 9),
    "lstm": (nn.LSTM(8, 16), (5, 2, 8), 5 * 2 * 4 * 16 * (8 + 16)),
    "lstm two ways": (nn.LSTM(8, 16, 2, bidirectional=True), (5, 2, 8), 10 * 2 * 64 * (8 + 16 + 32 + 16)),
    "gru": (nn.GRU(8, 16), (5, 2, 8), 5 * 2 * 3 * 16 * (8 + 16)),
    "rnn": (nn.RNN(8, 16), (5, 2, 8), 5 * 2 * 16 * (8 + 16)),
    "cdist": (Apply(torch.cdist), ((2, 6, 9), (2, 5, 9)), 2 * 6 * 5 * 9),
    "cdist by products": (Apply(torch.cdist), ((2, 40, 9), (2, 30, 9)), 2 * 40 * 30 * 9),
    "fft": (Apply(lambda a: torch.fft.fft(torch.complex(a, a))), (4, 32), round(2.5 * 4 * 32 * 5)),
    "fft of real numbers": (Apply(torch.fft.fft), (4, 32), round(1.25 * 4 * 32 * 5)),
    "fft2": (Apply(lambda a: torch.fft.fft2(torch.complex(a, a))), (3, 8, 16), round(2.5 * 3 * 128 * 7)),
    "rfft, irfft": (Apply(lambda a: torch.fft.irfft(torch.fft.rfft(a))), (4, 32), 2 * round(1.25 * 4 * 32 * 5)),
    "cholesky": (Apply(lambda a: torch.linalg.cholesky(a @ a.mT)), (12, 12), 12**3 + 12**3 // 6),
    "solve": (Apply(torch.linalg.solve), ((2, 12, 12), (2, 12, 3)), 2 * (12**3 // 3 + 12 * 12 * 3)),
    "inverse": (Apply(torch.linalg.inv), (2, 12, 12), 2 * 12**3),
    "determinant": (Apply(torch.linalg.det), (2, 12, 12), 2 * 12**3 // 3),
    "triangular": (
        Apply(lambda a, b: torch.linalg.solve_triangular(a, b, upper=True)),
        ((2, 12, 12), (2, 12, 3)),
        2 * 12 * 12 * 3 // 2,
    ),
    "qr": (Apply(torch.linalg.qr), (30, 12), 2 * (30 * 144 - 12**3 // 3)),
    "svd": (Apply(lambda a: torch.linalg.svd(a, full_matrices=False)), (9, 40), 3 * 40 * 81 + 10 * 9**3),
    "svd values": (Apply(lambda a: torch.ops.aten._linalg_svd(a, False, False)), (12, 12), round(4 / 3 * 12**3)),
    "eigh": (Apply(torch.linalg.eigh), (2, 12, 12), round(2 * 4.5 * 12**3)),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_by_hand(name):
    module, shape, expected = FORWARD[name]
    counted = count(module, shape)
    assert counted.multiply_adds == expected
    assert counted.operations == 2 * expected
    assert counted.uncounted == ()
    assert not counted.lower_bound
    assert not counted.executed


@pytest.mark.parametrize(
    "name", ["linear", "bmm", "conv2d", "grouped", "depthwise", "transposed", "lstm", "gru", "rnn"]
)
def test_the_backward_of_a_product_is_two_products(name):
    module, shape, expected = FORWARD[name]
    counted = count(module, shape, backward=True)
    # The first state of an unrolled recurrence is a constant: no gradient flows to it.
    skipped = {"gru": 2 * 3 * 16 * 16, "rnn": 2 * 16 * 16}.get(name, 0)
    assert counted.multiply_adds_backward == 2 * expected - skipped
    assert counted.multiply_adds_training == expected + counted.multiply_adds_backward


def test_no_gradient_for_the_input_saves_one_product():
    x, layer = torch.randn(2, 8, 5, 5), nn.Conv2d(8, 12, 3, groups=4, padding=1)
    with OperatorCounter() as counter:
        y = layer(x)
        forward = counter.multiply_adds
        y.sum().backward()
    assert counter.multiply_adds == 2 * forward


@pytest.mark.parametrize("heads", [1, 4])
def test_attention_and_its_backward(heads):
    n, m, d, v = 10, 14, 8, 6
    shapes = ((2, heads, n, d), (2, heads, m, d), (2, heads, m, v))
    counted = count(Apply(F.scaled_dot_product_attention), shapes, backward=True)
    scores = 2 * heads * n * m
    assert counted.multiply_adds == scores * (d + v)
    written_out = Apply(lambda q, k, v: (q @ k.mT / d**0.5).softmax(-1) @ v)
    assert count(written_out, shapes).multiply_adds == counted.multiply_adds
    # The plain backward has four products; a fused kernel may compute the scores once more.
    assert counted.multiply_adds_backward in (2 * scores * (d + v), scores * (3 * d + 2 * v))


def test_encoder_layer_has_no_hidden_fast_path():
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=20, batch_first=True).eval()
    n = 5
    expected = 2 * n * (4 * 8 * 8 + 2 * 8 * 20) + 2 * n * n * (8 + 8)
    enabled = torch.backends.mha.get_fastpath_enabled()
    assert count(layer, (2, n, 8)).multiply_adds == expected
    assert torch.backends.mha.get_fastpath_enabled() is enabled


def test_custom_autograd_functions_count_both_ways():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x @ x.mT

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return (grad + grad.mT) @ x

    counted = count(Apply(Square.apply), (6, 9), backward=True)
    assert counted.multiply_adds == 6 * 6 * 9
    assert counted.multiply_adds_backward == 6 * 6 * 9


def test_recomputation_is_counted():
    class Checkpointed(nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    layers = (nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    plain = count(nn.Sequential(*layers), (2, 8), backward=True)
    again = count(Checkpointed(*layers), (2, 8), backward=True)
    assert again.multiply_adds_backward == plain.multiply_adds_backward + plain.multiply_adds


def test_elementwise_work_stands_apart():
    counted = count(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Softmax(1)), (2, 3, 5, 5))
    assert counted.multiply_adds == 2 * 4 * 25 * 3
    assert counted.elementwise == {"relu": 200, "_softmax": 200}


def test_an_operator_without_formula_is_named():
    counted = count(Apply(lambda a: torch.linalg.matrix_exp(a) @ a), (6, 6))
    assert counted.uncounted == ("aten.linalg_matrix_exp",)
    assert counted.lower_bound
    assert counted.multiply_adds == 6**3
    assert counted.as_dict()["lower_bound"] is True


def test_an_operator_of_a_third_party_is_named_until_it_is_registered():
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    @torch.library.custom_op("widefield_test::triple", mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    triple.register_fake(torch.empty_like)
    packet = torch.ops.widefield_test.triple
    assert count(Apply(packet), (4, 5)).uncounted == ("widefield_test.triple",)
    try:
        register_flop_formula(packet)(lambda x_shape, out_shape=None, **kwargs: 2 * math.prod(x_shape))
        counted = count(Apply(packet), (4, 5))
    finally:
        flop_registry.pop(packet, None)
    assert counted.uncounted == ()
    assert counted.multiply_adds == 20


def test_code_that_reads_numbers_is_run_for_real():
    counted = count(Apply(lambda a: a @ a if a.sum().item() == 7.5 else a @ a @ a), (6, 6))
    assert counted.executed
    assert counted.multiply_adds == 2 * 6**3


def test_a_function_is_counted_as_it_runs():
    counted = count(lambda a: a @ a.mT, (6, 9))
    assert counted.executed
    assert counted.multiply_adds == 6 * 6 * 9


def test_what_a_module_closes_over_never_meets_a_tensor_without_numbers():
    layer = nn.Linear(4, 4)
    counted = count(Apply(lambda x: layer(x)), (2, 4), backward=True)
    assert counted.executed
    assert counted.multiply_adds_training == 3 * 2 * 4 * 4
    assert type(layer.weight.grad) is torch.Tensor


def test_large_shapes_cost_nothing():
    counted = count(Apply(lambda x: (x.mT @ x).softmax(-1)), (1, 512, 400_000))
    assert counted.multiply_adds == 512 * 400_000**2


def test_train_and_eval_are_told_apart():
    class Loop(nn.Module):
        def forward(self, x):
            for _ in range(2 if self.training else 3):
                x = x @ x
            return x

    loop = Loop()
    assert count(loop, (5, 5)).multiply_adds == 3 * 125
    assert count(loop, (5, 5), train=True).multiply_adds == 2 * 125
    # x is squared: both factors of each product need the gradient.
    assert count(loop, (5, 5), backward=True).multiply_adds_training == 2 * 125 * 3
    assert count(loop, (5, 5), backward=True, train=False).multiply_adds_training == 3 * 125 * 3
    assert loop.training


def test_compiled_and_half_precision_modules():
    assert count(torch.compile(nn.Linear(4, 6)), (2, 4)).multiply_adds == 48
    assert count(nn.Linear(4, 6), (2, 4), dtype=torch.bfloat16).multiply_adds == 48


def test_the_module_and_the_generator_stay_as_they_were():
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.get_rng_state()
    count(module, (2, 3, 5, 5), backward=True)
    count(lambda x: F.dropout(x @ x), (4, 4))
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(type(value) is torch.Tensor for value in module.state_dict().values())
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("shape", [(), (0, 3), (2, -1), "23", ((2, 3), 4), 5, None])
def test_bad_shapes_are_answered(shape):
    with pytest.raises(ValueError, match="such as"):
        count(nn.Linear(3, 3), shape)


def test_bad_modules_are_answered():
    with pytest.raises(TypeError, match=r"nn\.Module or a function"):
        count(torch.zeros(3), (3, 3))
    with pytest.raises(ValueError, match="run the lazy module once"):
        count(nn.LazyLinear(3), (2, 3))
    with pytest.raises(ValueError, match="backward=False"):
        count(lambda x: x.detach(), (2, 3), backward=True)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        count(nn.Linear(3, 3), (2, 4))


@pytest.mark.parametrize("name", [name for name in widefield.list_modules() if "n^2" in facts(name).complexity])
def test_attention_in_tiles_leaves_nothing_uncounted(name: str) -> None:
    module = build(name, 16, size=(65, 64))
    shape = (1, 16, 65, 64)
    counted = count(module, shape, backward=True)
    assert not counted.uncounted
    assert counted.multiply_adds == module.cost(shape).multiply_adds
