# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the original implementations: every combination of options, and every way not to fit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import widefield
from widefield.attention import ChannelAttention, NonLocal
from widefield.core import Context
from widefield.weights import list_sources, load_reference, reference_names

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
POOL = {1: nn.MaxPool1d(2), 2: nn.MaxPool2d(2), 3: nn.MaxPool3d((1, 2, 2))}
SPACE = {1: (8,), 2: (4, 6), 3: (3, 4, 2)}
NAMES = {
    "embedded": "nonlocal",
    "gaussian": "nonlocal-gaussian",
    "dot": "nonlocal-dot",
    "concat": "nonlocal-concat",
}


class Written(nn.Module):
    """A non-local block from torch's own layers, with the two published namings and the full map."""

    def __init__(self, pairwise: str, dims: int, sub: bool, norm: bool, style: str) -> None:
        super().__init__()
        self.pairwise, self.style = pairwise, style

        def conv(i: int, o: int, bias: bool = True) -> nn.Module:
            layer = CONV[dims](i, o, 1, bias=bias)
            return nn.ModuleDict({"conv": layer}) if style == "mmcv" else layer

        def pooled(layer: nn.Module) -> nn.Module:
            return nn.Sequential(layer, POOL[dims]) if sub else layer

        self.g = pooled(conv(6, 3))
        if pairwise != "gaussian":
            self.theta, self.phi = conv(6, 3), pooled(conv(6, 3))
        self.pool = POOL[dims] if sub else nn.Identity()
        if pairwise == "concat":
            project = conv(6, 1, bias=False) if style == "mmcv" else CONV[2](6, 1, 1, bias=False)
            self.concat_project = project if style == "mmcv" else nn.Sequential(project, nn.ReLU())
        if style == "mmcv":
            out: dict[str, nn.Module] = {"conv": CONV[dims](3, 6, 1, bias=not norm)}
            self.conv_out = nn.ModuleDict({**out, **({"bn": NORM[dims](6)} if norm else {})})
        else:
            out_conv = CONV[dims](3, 6, 1)
            self.W = nn.Sequential(out_conv, NORM[dims](6)) if norm else out_conv

    @staticmethod
    def apply_to(layer: nn.Module, x: Tensor) -> Tensor:
        if isinstance(layer, nn.Sequential):
            return layer[1](Written.apply_to(layer[0], x))
        if isinstance(layer, nn.ModuleDict):
            for part in layer.values():
                x = part(x)
            return x
        return layer(x)

    def forward(self, x: Tensor) -> Tensor:
        g = self.apply_to(self.g, x).flatten(2)
        gaussian = self.pairwise == "gaussian"
        q = (x if gaussian else self.apply_to(self.theta, x)).flatten(2)
        k = (self.pool(x) if gaussian else self.apply_to(self.phi, x)).flatten(2)
        if self.pairwise == "concat":
            layer = self.concat_project
            weight = (layer["conv"] if isinstance(layer, nn.ModuleDict) else layer[0]).weight.flatten(1)
            n, m = q.shape[-1], k.shape[-1]
            both = torch.cat([q[..., None].expand(-1, -1, -1, m), k[:, :, None].expand(-1, -1, n, -1)], 1)
            f = torch.relu(torch.einsum("oc,bcnm->bonm", weight, both)).squeeze(1) / m
        elif self.pairwise == "dot":
            f = torch.einsum("bdn,bdm->bnm", q, k) / k.shape[-1]
        else:
            f = torch.einsum("bdn,bdm->bnm", q, k).softmax(-1)
        y = torch.einsum("bnm,bem->ben", f, g).reshape(x.shape[0], 3, *x.shape[2:])
        return x + self.apply_to(self.conv_out if self.style == "mmcv" else self.W, y)


@pytest.mark.parametrize(
    ("pairwise", "dims", "sub", "norm", "style"),
    list(itertools.product(NAMES, (1, 2, 3), (False, True), (False, True), ("non-local", "mmcv"))),
)
def test_non_local_of_every_shape(pairwise: str, dims: int, sub: bool, norm: bool, style: str) -> None:
    torch.manual_seed(0)
    original = Written(pairwise, dims, sub, norm, style).double().train()
    options: dict[str, Any] = {"scale": False} if pairwise == "embedded" else {}
    module = widefield.create(
        NAMES[pairwise], 6, sub_sample=sub, norm="batch" if norm else "none",
        project_bias=not (style == "mmcv" and norm), **options,
    ).double()  # fmt: skip
    load_reference(module, original.state_dict(), source=style)
    x = torch.randn(2, 6, *SPACE[dims], dtype=torch.float64)
    torch.testing.assert_close(module(x), original(x))
    kept = original.state_dict()
    for theirs, ours in reference_names(module, style).items():
        torch.testing.assert_close(module.state_dict()[ours].flatten(), kept[theirs].flatten())


def state_of(module: nn.Module, source: str) -> dict[str, Tensor]:
    own = module.state_dict()
    return {theirs: own[ours].clone() for theirs, ours in reference_names(module, source).items()}


def test_prefix_of_data_parallel_and_absent_counter() -> None:
    source = NonLocal(6, gate=0.7)
    state = state_of(source, "non-local")
    del state["W.1.num_batches_tracked"]
    module = NonLocal(6)
    load_reference(module, {f"module.{name}": value for name, value in state.items()}, source="non-local")
    x = torch.randn(1, 6, 3, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(module(x), source(x))


def test_one_by_one_kernels_load_in_any_number_of_dimensions() -> None:
    module = NonLocal(6)
    state = state_of(module, "non-local")
    state["theta.weight"] = torch.arange(18.0).reshape(3, 6, 1, 1, 1)
    load_reference(module, state, source="non-local")
    assert torch.equal(module.query.weight, torch.arange(18.0).reshape(3, 6))


def test_nothing_is_loaded_when_something_is_wrong() -> None:
    module = NonLocal(6)
    state = state_of(module, "non-local")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state["theta.weight"] = torch.full((3, 6, 1, 1), 5.0)
    state["g.weight"] = torch.zeros(6, 3, 1, 1)
    del state["phi.bias"]
    state["psi.bias"] = torch.zeros(3)
    with pytest.raises(ValueError, match="does not fit NonLocal") as error:
        load_reference(module, state, source="non-local")
    for part in ("missing: phi.bias", "unknown: psi.bias", "g.weight is (6, 3, 1, 1), ours (3, 6)"):
        assert part in str(error.value)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_transposed_matrices_are_not_reshaped() -> None:
    module = ChannelAttention(4)
    load_reference(module, {"gamma": torch.tensor(0.5)}, source="danet")
    assert module.gate.item() == 0.5
    with pytest.raises(ValueError, match="gamma"):
        load_reference(module, {"gamma": torch.zeros(2)}, source="danet")


def test_sources_are_listed_and_misuse_is_answered() -> None:
    sources = list_sources()
    for name in ("non-local", "mmcv", "cgnl", "danet", "semseg", "torchvision"):
        assert sources[name]
    module = NonLocal(6)
    with pytest.raises(KeyError, match="non-local"):
        load_reference(module, {}, source="nonlocal")
    with pytest.raises(TypeError, match="PyramidPooling"):
        load_reference(module, {}, source="semseg")


def test_an_option_that_the_original_lacks() -> None:
    """A sub-sampled module takes its own names only."""
    state = state_of(NonLocal(6), "non-local")
    with pytest.raises(ValueError, match=r"missing: .*g\.0\.weight"):
        load_reference(NonLocal(6, sub_sample=True), state, source="non-local")


def test_torchvision_aspp_itself() -> None:
    deeplab = pytest.importorskip("torchvision.models.segmentation.deeplabv3")
    torch.manual_seed(0)
    original = deeplab.ASPP(8, [2, 4], 5).double().eval()
    module = widefield.create("aspp", 8, out_channels=5, rates=(2, 4)).double().eval()
    load_reference(module, original.state_dict(), source="torchvision")
    assert isinstance(module, Context)
    x = torch.randn(2, 8, 6, 5, dtype=torch.float64)
    torch.testing.assert_close(module(x), original(x))
