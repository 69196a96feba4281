# SPDX-License-Identifier: Apache-2.0
"""The ancestors without training: against loops, scikit-image, scikit-learn, and against their descendants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import widefield
from widefield.attention import Bilateral, MeanShift, MeanShiftFlat, NonLocalBare, NonLocalMeans, patches
from widefield.measure import count


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mean_by(x: Tensor, weight: Any) -> np.ndarray:
    """Every position the mean of all, weighted by a function of two indices."""
    a = x.numpy()
    y, places = np.zeros_like(a), list(np.ndindex(*a.shape[2:]))
    for b, p in ((b, p) for b in range(len(a)) for p in places):
        weights = np.array([weight(b, p, q) for q in places])
        values = np.array([a[(b, slice(None), *q)] for q in places])
        y[(b, slice(None), *p)] = weights @ values / weights.sum()
    return y


@pytest.mark.parametrize("space", [(1, 1), (4, 5), (7,), (2, 3, 2)])
@pytest.mark.parametrize("window", [None, 3, 9])
def test_bilateral_by_loops(space: tuple[int, ...], window: int | None) -> None:
    x, s, r = draw(2, 3, *space), 1.7, 1.2
    a = x.numpy()

    def weight(b: int, p: tuple[int, ...], q: tuple[int, ...]) -> float:
        away = np.abs(np.array(p) - np.array(q))
        if window is not None and away.max() > window // 2:
            return 0.0
        apart = a[(b, slice(None), *p)] - a[(b, slice(None), *q)]
        return math.exp(-(away @ away) / (2 * s**2) - (apart @ apart) / (2 * r**2))

    module = Bilateral(3, sigma_space=s, sigma_range=r, window=window)
    np.testing.assert_allclose(module(x).numpy(), mean_by(x, weight), atol=1e-12)
    y = (module.operator(x) @ x.flatten(2).mT).mT
    torch.testing.assert_close(y, module(x).flatten(2))


def test_bilateral_is_scikit_images_away_from_the_border() -> None:
    """Without nearness: its table of distances in space is one entry too wide for an odd window."""
    restoration = pytest.importorskip("skimage.restoration")
    image = draw(14, 15).sigmoid()
    expected = restoration.denoise_bilateral(
        image.numpy(), win_size=5, sigma_color=0.3, sigma_spatial=1e6, bins=100_000
    )
    found = Bilateral(1, sigma_space=1e6, sigma_range=0.3, window=5)(image[None, None])[0, 0].numpy()
    np.testing.assert_allclose(found[2:-2, 2:-2], expected[2:-2, 2:-2], atol=2e-5)


def test_bilateral_without_space_is_a_step_of_mean_shift() -> None:
    x = draw(2, 4, 3, 5)
    expected = MeanShift(4, steps=1, bandwidth=1.5)(x)
    torch.testing.assert_close(Bilateral(4, sigma_space=math.inf, sigma_range=1.5)(x), expected)


@pytest.mark.parametrize("bandwidth", [0.5, 1.0, 2.0])
def test_non_local_attention_is_a_step_of_mean_shift(bandwidth: float) -> None:
    """On features of one length: exp(-|a - b|^2 / 2 h^2) is exp(a . b / h^2) up to a constant."""
    x = F.normalize(draw(2, 16, 5, 6), dim=1)
    step = MeanShift(16, steps=1, bandwidth=bandwidth)
    # non-local's logits are products of features: those of x / h are a . b / h^2.
    attention = NonLocalBare(16)
    torch.testing.assert_close(step.operator(x), attention.operator(x / bandwidth))
    torch.testing.assert_close(step(x), bandwidth * attention.context(x / bandwidth))


def test_mean_shift_by_its_formula() -> None:
    x, h = draw(1, 3, 4, 5), 1.1
    data = x.flatten(2)[0].T.numpy()
    z = data
    for _ in range(3):
        weights = np.exp(-((z[:, None] - data) ** 2).sum(-1) / (2 * h**2))
        z = weights @ data / weights.sum(1, keepdims=True)
    module = MeanShift(3, bandwidth=h)
    np.testing.assert_allclose(module(x).flatten(2)[0].T.numpy(), z, atol=1e-12)
    torch.testing.assert_close((module.operator(x) @ x.flatten(2).mT).mT, module(x).flatten(2))


@pytest.mark.parametrize("kind", [MeanShift, MeanShiftFlat])
def test_blurring_moves_the_data_along(kind: Any) -> None:
    x = draw(2, 3, 4, 5)
    once, blurring = kind(3, steps=1), kind(3, steps=3, blurring=True)
    torch.testing.assert_close(blurring(x), once(once(once(x))))
    torch.testing.assert_close((blurring.operator(x) @ x.flatten(2).mT).mT, blurring(x).flatten(2))
    rows = torch.tensor([3, 7])
    torch.testing.assert_close(blurring.operator(x, rows), blurring.operator(x)[:, rows])


def test_the_flat_kernel_finds_the_modes_of_scikit_learn() -> None:
    cluster, neighbors = pytest.importorskip("sklearn.cluster"), pytest.importorskip("sklearn.neighbors")
    centres = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]], dtype=torch.float64)
    data = (centres.repeat(12, 1) + 0.6 * draw(36, 2)).numpy()
    x = torch.from_numpy(data).T.reshape(1, 2, 6, 6)
    found = neighbors.NearestNeighbors(radius=1.5).fit(data).radius_neighbors(data, return_distance=False)
    expected = np.array([data[index].mean(0) for index in found])
    once = MeanShiftFlat(2, steps=1, bandwidth=1.5)(x).flatten(2)[0].T.numpy()
    np.testing.assert_allclose(once, expected, atol=1e-12)
    modes = cluster.MeanShift(bandwidth=3.0, seeds=data).fit(data).cluster_centers_
    settled = MeanShiftFlat(2, steps=40, bandwidth=3.0)(x).flatten(2)[0].T.numpy()
    gaps = np.linalg.norm(settled[:, None] - modes, axis=-1).min(1)
    assert len(modes) == 3
    assert gaps.max() < 1e-6


def test_a_vector_far_from_all_data_stays() -> None:
    a, b = torch.full((1, 2, 1), 9.0), torch.zeros(1, 2, 3)
    assert torch.equal(widefield.attention.flat_mean(a, b, b, 1.0), a)


def test_distances_survive_a_large_common_offset() -> None:
    x = draw(1, 8, 4, 6)
    for name in ("mean-shift", "bilateral", "non-local-means"):
        module = widefield.create(name, 8)
        torch.testing.assert_close(module((x + 1000).float()) - 1000, module(x).float(), atol=2e-3, rtol=0)


def mirrored(i: int, size: int) -> int:
    while not 0 <= i < size:
        i = -i if i < 0 else 2 * (size - 1) - i
    return i if size > 1 else 0


@pytest.mark.parametrize("sigma", [None, math.inf])
@pytest.mark.parametrize(("space", "patch"), [((4, 5), 3), ((2, 3), 5), ((6,), 3), ((2, 2, 3), 3), ((3, 3), 1)])
def test_non_local_means_by_loops(space: tuple[int, ...], patch: int, sigma: float | None) -> None:
    x, h = draw(1, 2, *space), 1.3
    a, radius = x.numpy(), patch // 2
    width = (patch - 1) / 4 if sigma is None and patch > 1 else math.inf
    offsets = list(np.ndindex(*(patch,) * len(space)))
    kernel = np.array([math.exp(-sum((o - radius) ** 2 for o in offset) / (2 * width**2)) for offset in offsets])
    kernel /= kernel.sum()

    def around(b: int, p: tuple[int, ...]) -> np.ndarray:
        at = [
            tuple(mirrored(i + o - radius, size) for i, o, size in zip(p, offset, space, strict=True))
            for offset in offsets
        ]
        return np.array([a[(b, slice(None), *q)] for q in at])

    def weight(b: int, p: tuple[int, ...], q: tuple[int, ...]) -> float:
        return math.exp(-(kernel @ ((around(b, p) - around(b, q)) ** 2).sum(1)) / h**2)

    module = NonLocalMeans(2, patch=patch, patch_sigma=sigma, bandwidth=h)
    np.testing.assert_allclose(module(x).numpy(), mean_by(x, weight), atol=1e-12)
    torch.testing.assert_close((module.operator(x) @ x.flatten(2).mT).mT, module(x).flatten(2))


@pytest.mark.parametrize("patch", [3, 5])
def test_non_local_means_is_scikit_images(patch: int) -> None:
    """Within what its quick exponential is off by."""
    restoration = pytest.importorskip("skimage.restoration")
    image = draw(9, 11).sigmoid()
    expected = restoration.denoise_nl_means(
        image.numpy(), patch_size=patch, patch_distance=11, h=0.5, fast_mode=False, sigma=0.0
    )
    found = NonLocalMeans(1, patch=patch, bandwidth=0.5)(image[None, None])[0, 0].numpy()
    assert np.abs(found - expected).max() < 2e-3
    assert np.abs(image.numpy() - expected).max() > 0.1


def test_patches_of_one_position_are_a_step_of_mean_shift() -> None:
    x = draw(2, 4, 3, 5)
    expected = MeanShift(4, steps=1, bandwidth=1.0)(x)
    torch.testing.assert_close(NonLocalMeans(4, patch=1, bandwidth=2**0.5)(x), expected)


def test_tiles_of_every_size_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x, g = NonLocalMeans(3, patch=3), draw(2, 3, 17, 19), draw(2, 3, 17, 19, seed=2)
    expected = torch.autograd.grad(module(x.requires_grad_()), x, g)[0]
    whole = module(x)
    monkeypatch.setattr(patches, "TILE_NUMBERS", 1)
    assert len(list(patches.tiles((17, 19), 1))) > 4
    torch.testing.assert_close(module(x), whole)
    torch.testing.assert_close(torch.autograd.grad(module(x), x, g)[0], expected)


@pytest.mark.parametrize("name", ["bilateral", "mean-shift", "non-local-means"])
def test_derivatives_of_both_orders(name: str) -> None:
    module, x = widefield.create(name, 2), draw(1, 2, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(module, (x,))
    assert torch.autograd.gradgradcheck(module, (x,))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bilateral", {"sigma_space": 0.0}),
        ("bilateral", {"sigma_range": -1.0}),
        ("bilateral", {"window": 4}),
        ("mean-shift", {"steps": 0}),
        ("mean-shift-flat", {"bandwidth": 0.0}),
        ("non-local-means", {"patch": 2}),
        ("non-local-means", {"patch_sigma": 0.0}),
        ("non-local-means", {"bandwidth": 0.0}),
    ],
)
def test_options_out_of_range(name: str, options: dict[str, Any]) -> None:
    (option,) = options
    with pytest.raises(ValueError, match=f"{option}.* must be"):
        widefield.create(name, 4, **options)


@pytest.mark.parametrize(
    ("name", "options", "space"),
    [
        ("bilateral", {"window": 3}, (5, 6)),
        ("mean-shift", {"steps": 2, "blurring": True}, (7,)),
        ("mean-shift-flat", {"steps": 1}, (2, 3, 4)),
        ("non-local-means", {"patch": 5}, (60, 62)),
        ("non-local-means", {}, (40,)),
    ],
)
def test_cost_with_options_is_what_is_counted(name: str, options: dict[str, Any], space: tuple[int, ...]) -> None:
    module, shape = widefield.create(name, 4, **options), (2, 4, *space)
    assert module.cost(shape).multiply_adds == count(module, shape).multiply_adds
