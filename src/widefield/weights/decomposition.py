# SPDX-License-Identifier: Apache-2.0
"""Names of decomposition modules in their original implementations.

hamburger   Gsunshine/Enjoy-Hamburger: lower_bread, cheese, upper_bread, coef_ham, coef_shortcut; a ham's
            bases have a name only where they are online, so build with bases="online" for such a state
emanet      XiaLiPKU/EMANet: mu, conv1, conv2
mmseg       open-mmlab mmsegmentation: EMAModule, LightHamHead
double-attention   nguyenvo09/Double-Attention-Network: convA, convB, convV, conv_reconstruct
cgnl        KaiyuYue/cgnl-network.pytorch, SpatialCGNL(x): t, p, g, z, gn
"""

from __future__ import annotations

from widefield.decomposition.a2 import DoubleAttention
from widefield.decomposition.cgnl import CGNLBase
from widefield.decomposition.emanet import EMAU, EMAttention
from widefield.decomposition.factoriser import SpatialHam
from widefield.decomposition.ham import Ham
from widefield.decomposition.hamburger import Hamburger, HamburgerV2, HamburgerV2Plus
from widefield.weights.reference import Table, reference


def _bases(ham: SpatialHam, name: str) -> str | None:
    return name if ham.start == "online" else None


@reference("hamburger", Ham)
def ham(module: Ham) -> Table:
    """The decomposition alone has no parameters."""
    return {"ham.bases": _bases(module.ham, "bases")}


def _lower(module: Hamburger | HamburgerV2Plus) -> str:
    # NMF's lower bread is a Sequential with its ReLU.
    return "lower_bread.0" if module.ham.method.nonnegative else "lower_bread"


@reference("hamburger", Hamburger)
def v1(module: Hamburger) -> Table:
    """Two breads."""
    return {
        "lower_bread": _lower(module),
        "upper_bread": "upper_bread.0",
        "norm": "upper_bread.1",
        "ham.bases": _bases(module.ham, "ham.bases"),
    }


@reference("hamburger", HamburgerV2)
def v2(module: HamburgerV2) -> Table:
    """With cheese."""
    return {
        "lower_bread": _lower(module),
        "cheese": "cheese.conv",
        "norm": "cheese.bn",
        "upper_bread": "upper_bread",
        "ham.bases": _bases(module.ham, "ham.bases"),
    }


@reference("hamburger", HamburgerV2Plus)
def v2plus(module: HamburgerV2Plus) -> Table:
    """With cheese and learned scalars."""
    return {
        "lower_bread": _lower(module),
        "cheese": "cheese.conv",
        "norm": "cheese.bn",
        "upper_bread": "upper_bread",
        "ham_scale": "coef_ham",
        "shortcut_scale": "coef_shortcut",
        "ham.bases": _bases(module.ham, "ham.bases"),
    }


@reference("emanet", EMAU)
def emau(module: EMAU) -> Table:
    """The unit."""
    return {"bases": "mu", "lower": "conv1", "upper": "conv2.0", "norm": "conv2.1"}


@reference("mmseg", EMAttention)
def em_attention(module: EMAttention) -> Table:
    """EMAModule: EM alone."""
    return {"bases": "bases"}


@reference("double-attention", DoubleAttention)
def double_attention(module: DoubleAttention) -> Table:
    """A: values, B: gathering, V: distributing. The original's residual and norm are its caller's."""
    return {"value": "convA", "gather": "convB", "distribute": "convV", "out": "conv_reconstruct"}


@reference("cgnl", CGNLBase)
def cgnl(module: CGNLBase) -> Table:
    """Both kernels."""
    return {"theta": "t", "phi": "p", "value": "g", "project": "z", "norm": "gn"}
