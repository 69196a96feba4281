# SPDX-License-Identifier: Apache-2.0
"""PPM, ASPP, image pooling and the global average, against torch's own layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import widefield
from widefield.core import Context
from widefield.core.branch import DilatedBranch, PointwiseBranch
from widefield.pooling import ASPP, GlobalAverage, ImagePool, PyramidPooling

NAMES = ["ppm", "aspp", "image-pool", "global-average"]
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(name: str, channels: int, dims: int = 2, **options: Any) -> Context:
    torch.manual_seed(0)
    small = {"out_channels": 5, "rates": (2, 5), "dropout": 0.0, "dims": dims} if name == "aspp" else {}
    module = widefield.create(name, channels, **{**small, **options}).double().eval()
    assert isinstance(module, Context)
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            assert isinstance(part.running_var, Tensor)
            part.running_var.fill_(2.0)
    return module


def normed(x: Tensor) -> Tensor:
    return torch.relu(x / (2 + 1e-5) ** 0.5)  # running mean 0, variance 2, scale 1, shift 0


def pointwise(branch: PointwiseBranch, x: Tensor) -> Tensor:
    return normed(torch.einsum("oc,bc...->bo...", branch.project.weight, x))


@pytest.mark.parametrize("align", [True, False])
def test_ppm(align: bool) -> None:
    module = build("ppm", 6, bins=(1, 3, 7), branch_channels=2, align_corners=align)
    assert isinstance(module, PyramidPooling)
    x = draw(2, 6, 5, 4)
    views = [x]
    for branch, s in zip(module.branches, module.bins, strict=True):
        assert isinstance(branch, PointwiseBranch)
        view = pointwise(branch, F.adaptive_avg_pool2d(x, s))
        views.append(F.interpolate(view, size=(5, 4), mode="bilinear", align_corners=align))
    torch.testing.assert_close(module(x), torch.cat(views, 1))
    assert module.out_channels == 12


@pytest.mark.parametrize("space", [(9,), (5, 4), (1, 1), (3, 4, 2)])
def test_aspp(space: tuple[int, ...]) -> None:
    module = build("aspp", 4, dims=len(space))
    assert isinstance(module, ASPP)
    x = draw(2, 4, *space)
    views = [pointwise(module.pointwise, x)]
    for branch in module.dilated:
        assert isinstance(branch, DilatedBranch)
        views.append(normed(CONV[len(space)](x, branch.weight, padding=branch.rate, dilation=branch.rate)))
    mean = x.flatten(2).mean(-1).unflatten(1, (4, *(1,) * len(space)))
    views.append(pointwise(module.pooled, mean).expand(2, 5, *space))
    torch.testing.assert_close(module(x), pointwise(module.fuse, torch.cat(views, 1)))
    assert module.out_channels == 5


def test_aspp_says_how_many_dimensions() -> None:
    with pytest.raises(ValueError, match="2 spatial"):
        ASPP(4)(torch.zeros(1, 4, 9))
    with pytest.raises(ValueError, match="dims"):
        ASPP(4, dims=4)


@pytest.mark.parametrize("space", [(9,), (5, 4), (1, 1), (3, 4, 2)])
def test_averages(space: tuple[int, ...]) -> None:
    x = draw(2, 6, *space)
    mean = x.mean(tuple(range(2, x.dim())), keepdim=True)
    average = build("global-average", 6, weight=0.5)
    torch.testing.assert_close(average(x), x + 0.5 * mean)
    pool = build("image-pool", 6)
    assert isinstance(pool, ImagePool)
    torch.testing.assert_close(pool(x), x + pointwise(pool.branch, mean))
    for module in (average, pool):
        n = mean.new_tensor(x[0, 0].numel())
        torch.testing.assert_close(module.operator(x), (1 / n).expand(2, int(n), int(n)))
        assert module.operator(x, torch.tensor([0])).shape == (2, 1, int(n))
        context = module.operator(x) @ x.flatten(2).mT
        torch.testing.assert_close(module.context(x).flatten(2), context.mT)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name: str) -> None:
    module = build(name, 4)
    x = draw(2, 4, 3, 4).requires_grad_()
    if any(True for _ in module.parameters()):
        assert torch.autograd.gradcheck(lambda x, *_: module(x), (x, *module.parameters()), fast_mode=True)
    else:
        assert torch.autograd.gradcheck(module, x)


@pytest.mark.parametrize("name", NAMES)
def test_batch_layout_and_zeros(name: str) -> None:
    module = build(name, 8).float()
    x = draw(3, 8, 5, 4).float()
    before = x.clone()
    y = module(x)
    torch.testing.assert_close(module(x[1:2]), y[1:2], atol=1e-5, rtol=0)
    last = module(x.to(memory_format=torch.channels_last))
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, y, atol=1e-5, rtol=0)
    assert torch.equal(x, before)
    zeros = torch.zeros(2, 8, 5, 4, requires_grad=True)
    module.train()(zeros).sum().backward()
    assert zeros.grad is not None
    assert torch.isfinite(zeros.grad).all()
    assert zeros.grad.abs().max() < 1e6


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", [(1, 1), (1, 9), (16, 16)])
def test_batch_of_one_trains(name: str, space: tuple[int, int]) -> None:
    """FR-05."""
    module = build(name, 8).float().train()
    x = draw(1, 8, *space).float().requires_grad_()
    y = module(x)
    assert y.shape == (1, module.out_channels, *space)
    y.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", [(1, 1), (5, 4), (40, 7)])
def test_cost_is_what_is_counted(name: str, space: tuple[int, int]) -> None:
    module = build(name, 8)
    shape = (2, 8, *space)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(shape, dtype=torch.float64))
    cost = module.cost(shape)
    assert counter.get_total_flops() == 2 * cost.multiply_adds
    assert cost.parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_exported_graph_serves_other_sizes(name: str) -> None:
    module = build(name, 8).float()
    dynamic = torch.export.Dim.DYNAMIC
    program = torch.export.export(
        module, (draw(2, 8, 12, 9).float(),), dynamic_shapes=({0: dynamic, 2: dynamic, 3: dynamic},)
    )
    other = draw(3, 8, 4, 10).float()
    torch.testing.assert_close(program.module()(other), module(other), atol=1e-5, rtol=1e-5)


def test_paper_sizes_of_parameters() -> None:
    """512 channels: PPM has four 512 x 128 projections, ASPP at 256 is 1x1, three 3x3s, the mean, the fusion."""
    ppm = sum(p.numel() for p in PyramidPooling(512, norm="none").parameters())
    assert ppm == 4 * 512 * 128
    aspp = sum(p.numel() for p in ASPP(512, norm="none").parameters())
    assert aspp == 512 * 256 * (1 + 3 * 9 + 1) + 5 * 256 * 256
    assert not list(GlobalAverage(512).parameters())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ppm", {"bins": ()}, "bins"),
        ("ppm", {"bins": (0, 2)}, "bins"),
        ("ppm", {"branch_channels": 0}, "branch_channels"),
        ("aspp", {"rates": (0,)}, "rates"),
        ("aspp", {"out_channels": 0}, "out_channels"),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        widefield.create(name, 8, **options)
