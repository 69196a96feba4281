# SPDX-License-Identifier: Apache-2.0
"""What a module does with its input: sizes, dimensions, layouts, batches, repeats, state."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from widefield.testing.subject import Subject, check

SIZES = [(1, 1), (1, 9), (3, 5), (7, 9), (13, 8), (33, 47)]
SPACES = {1: (11,), 2: (5, 7), 3: (3, 4, 5)}


def close(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Raises `AssertionError` with the largest difference; the tolerance is for numbers of up to 1 in size."""
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, not {tuple(expected.shape)}"
    difference = float((found.detach().double() - expected.detach().double()).abs().max())
    allowed = tolerance * max(1.0, float(expected.detach().abs().max()))
    assert difference <= allowed, f"{what}: off by {difference:.2g}, at most {allowed:.2g} is allowed"


def finite(y: Tensor, what: str) -> None:
    """Raises `AssertionError` where a number is infinite or NaN."""
    assert torch.isfinite(y).all(), f"{what} is not finite"


def gradients(module: nn.Module, x: Tensor, cotangent: Tensor | None = None) -> dict[str, Tensor]:
    """Of the output's sum (or its product with a cotangent), for the input ("x") and every parameter."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = module(x)
    wanted = {"x": x, **{name: p for name, p in module.named_parameters() if p.requires_grad}}
    loss = y.sum() if cotangent is None else (y * cotangent).sum()
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {k: torch.zeros_like(p) if g is None else g for (k, p), g in zip(wanted.items(), found, strict=True)}


def _runs(module: nn.Module, x: Tensor) -> None:
    y = module(x)
    assert isinstance(y, Tensor), f"returns {type(y).__name__}, not a tensor"
    kept = (y.shape[0], *y.shape[2:]) == (x.shape[0], *x.shape[2:])
    assert kept, f"output {tuple(y.shape)}; batch and map must stay as they are"
    finite(y, "the output")
    for name, gradient in gradients(module, x).items():
        finite(gradient, f"the gradient of {name}")


@check
def sizes(s: Subject) -> None:
    """Takes any map, 1x1 and odd ones too, at any call, in training and evaluation, forward and backward."""
    module = s.build()
    spaces = SIZES if len(s.space) == 2 else [(1,) * len(s.space), s.space, tuple(2 * n + 1 for n in s.space)]
    for train in (False, True):
        module.train(train)
        for space in spaces:
            mode = "training" if train else "evaluation"
            with s.given(f"randn(2, {s.channels}, {', '.join(map(str, space))}), {mode}"):
                _runs(module, s.randn(2, s.channels, *space))


@check
def dimensions(s: Subject) -> None:
    """Takes maps of every number of dimensions that it claims; others are a clear ValueError."""
    for dims, space in SPACES.items():
        with s.given(f"randn(2, {s.channels}, {', '.join(map(str, space))})"):
            module, x = s.build(), s.randn(2, s.channels, *space)
            if dims in s.dims:
                _runs(module, x if dims != len(s.space) else s.randn())
            else:
                try:
                    module(x)
                except (ValueError, RuntimeError):
                    continue
                raise AssertionError(f"runs, although only {s.dims} spatial dimensions are claimed")


@check
def batch_of_one(s: Subject) -> None:
    """Trains on a batch of one."""
    shape = (1, s.channels, *s.space)
    with s.given(f"randn{shape}, training"):
        _runs(s.build().train(), s.randn(*shape))


@check
def batch_independence(s: Subject) -> None:
    """In evaluation a sample's output does not depend on its neighbours in the batch, nor on its place there."""
    module, x = s.build().eval(), s.randn()
    with s.given(f"randn{tuple(x.shape)} and its first sample alone, evaluation"), torch.no_grad():
        close(module(x[:1]), module(x)[:1], 1e-5, "the first sample")
    with s.given(f"randn{tuple(x.shape)} and the same samples in the other order, evaluation"), torch.no_grad():
        close(module(x.flip(0)), module(x).flip(0), 1e-5, "the samples")


def _every_second(x: Tensor) -> Tensor:
    wide = torch.full((x.shape[0], 2 * x.shape[1], *x.shape[2:]), 7.0)
    wide[:, ::2] = x
    return wide[:, ::2]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.clone(),
    "channels-last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "transposed": lambda x: x.transpose(-2, -1).contiguous().transpose(-2, -1),
    "every second channel of a wider tensor": _every_second,
}


@check
def layouts(s: Subject) -> None:
    """The memory layout of the input changes no number of the output (a dropout draws by layout: build it off)."""
    x = s.randn()
    for train in (False, True):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            expected = s.build().train(train)(x)
        for name, arrange in LAYOUTS.items():
            with s.given(f"randn{tuple(x.shape)}, {name}"), torch.random.fork_rng():
                torch.manual_seed(0)
                close(s.build().train(train)(arrange(x)), expected, 1e-5, "the output")


@check
def input_untouched(s: Subject) -> None:
    """The input is not written into, and the output shares no memory with it."""
    for train in (False, True):
        for name, arrange in LAYOUTS.items():
            module, x = s.build().train(train), s.randn()
            given = arrange(x).requires_grad_(train)
            with s.given(f"randn{tuple(x.shape)}, {name}, {'training' if train else 'evaluation'}"):
                with torch.set_grad_enabled(train):
                    y = module(given)
                assert torch.equal(given, x), "the forward wrote into its input"
                assert y.untyped_storage().data_ptr() != given.untyped_storage().data_ptr(), (
                    "the output shares memory with the input"
                )
                if train:
                    y.sum().backward()
                    assert torch.equal(given, x), "the backward wrote into the input"


@check
def repeats(s: Subject) -> None:
    """Evaluation repeats bit for bit and leaves the global generator alone; training repeats after a seed."""
    x = s.randn()
    with s.given(f"randn{tuple(x.shape)} twice, evaluation"), torch.random.fork_rng(), torch.no_grad():
        module, before = s.build().eval(), torch.get_rng_state()
        first = module(x)
        assert torch.equal(torch.get_rng_state(), before), "draws from the global generator"
        assert torch.equal(module(x), first), "a second call gives another answer"
        torch.manual_seed(1234)
        assert torch.equal(module(x), first), "the global seed changes the answer"
    with s.given(f"randn{tuple(x.shape)} twice after the same seed, training"), torch.random.fork_rng():
        one = s.build().train()
        two = copy.deepcopy(one)
        torch.manual_seed(3)
        first = one(x)
        torch.manual_seed(3)
        assert torch.equal(two(x), first), "differs although everything started the same"


def _state(module: nn.Module) -> dict[str, Tensor]:
    buffers = {f"{name} (buffer)": b.detach().clone() for name, b in module.named_buffers()}
    return buffers | {name: p.detach().clone() for name, p in module.named_parameters()}


@check
def state(s: Subject) -> None:
    """The constructor makes all state; evaluation moves none of it, training moves no parameter."""
    x = s.randn()
    for train in (False, True):
        with s.given(f"randn{tuple(x.shape)}, {'training' if train else 'evaluation'}"):
            module = s.build().train(train)
            before, parts = _state(module), {name for name, _ in module.named_modules()}
            module(x)
            after = _state(module)
            created = sorted((after.keys() - before.keys()) | ({n for n, _ in module.named_modules()} - parts))
            assert not created, f"the forward created {', '.join(created)}"
            kept = [name for name in before if not train or not name.endswith("(buffer)")]
            moved = [name for name in kept if name not in after or not torch.equal(before[name], after[name])]
            assert not moved, f"the forward moved {', '.join(moved)}"
    with s.given("its own state_dict, into a fresh module, strictly"):
        module = s.build().train()
        module(x)
        s.build().load_state_dict(module.state_dict(), strict=True)
