# SPDX-License-Identifier: Apache-2.0
"""Folders of cubes as the benchmark lays them out, a laboratory's own, and the embedded scene."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.io
import torch

from widefield.data.cube_sets import fitted, load_cubes
from widefield.data.images import DataError


def scene(path, key="img", h=8, w=8, bands=3, seed=0, factor=1.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).random((h, w, bands))
    scipy.io.savemat(path, {key: values * factor})
    return torch.from_numpy(values.astype(np.float32)).permute(2, 0, 1)


def benchmark(root):
    for i in (1, 2, 10):
        scene(root / "cave_1024_28" / f"scene{i}.mat", "img_expand", seed=i, factor=65536)
    scene(root / "CAVE_512_28" / "apple.mat", "data_slice", seed=20, factor=65535)
    scene(root / "KAIST_CVPR2021" / "1.mat", "HSI", h=9, w=11, seed=30)
    truths = [scene(root / "TSA_simu_data" / "Truth" / f"scene{i:02d}.mat", seed=40 + i) for i in (1, 2)]
    mask = np.random.default_rng(0).random((8, 8))
    scipy.io.savemat(root / "TSA_simu_data" / "mask.mat", {"mask": mask})
    scipy.io.savemat(root / "TSA_simu_data" / "mask_3d_shift.mat", {"mask_3d_shift": np.ones((8, 12, 3))})
    return truths, torch.from_numpy(mask.astype(np.float32))


def test_the_benchmark(tmp_path):
    truths, mask = benchmark(tmp_path)
    data = load_cubes(tmp_path)
    assert data.train.names == ["scene1", "scene2", "scene10", "apple", "1"]
    assert data.val.names == ["scene01", "scene02"]
    assert data.train.sizes[-1] == (9, 11)
    torch.testing.assert_close(data.val[0], truths[0])
    torch.testing.assert_close(data.mask, mask)
    assert data.phi.shape == (3, 8, 12)
    assert data.bands == 3
    assert "5 training and 2 held-out" in data.summary()
    alone = load_cubes(tmp_path / "TSA_simu_data")
    assert (len(alone.train), alone.val.names) == (0, ["scene01", "scene02"])
    assert alone.mask is not None
    training = load_cubes(tmp_path / "cave_1024_28")
    assert len(training.train) + len(training.val) == 3


def test_own_folders(tmp_path):
    for i in range(10):
        scene(tmp_path / "own" / f"p{i}.mat", "cube", seed=i)
    data = load_cubes(tmp_path / "own")
    assert (len(data.train), len(data.val)) == (8, 2)
    assert load_cubes(tmp_path / "own").val.names == data.val.names
    scene(tmp_path / "two" / "train" / "a.mat")
    scene(tmp_path / "two" / "test" / "b.mat")
    data = load_cubes(tmp_path / "two")
    assert (data.train.names, data.val.names) == (["a"], ["b"])
    one = load_cubes(tmp_path / "own" / "p3.mat")
    assert (len(one.train), one.val.names) == (0, ["p3"])


def test_broken_files_are_named_and_the_rest_goes_on(tmp_path):
    for i in range(4):
        scene(tmp_path / f"p{i}.mat", "cube", seed=i)
    whole = (tmp_path / "p1.mat").read_bytes()
    (tmp_path / "p1.mat").write_bytes(whole[: len(whole) // 2])
    scene(tmp_path / "wide.mat", "cube", bands=5)
    data = load_cubes(tmp_path)
    assert len(data.train) + len(data.val) == 3
    assert "left out: 2" in data.summary()
    assert any("p1.mat" in line for line in data.problems)
    assert any("5 bands, the others have 3; --bands" in line for line in data.problems)
    together = load_cubes(tmp_path, bands=4)
    assert together.bands == 4
    assert len(together.train) + len(together.val) == 4
    assert together.val[0].shape[0] == 4


def test_nothing_usable(tmp_path):
    with pytest.raises(DataError, match=r"no usable cube:\n  there are none"):
        load_cubes(tmp_path)
    with pytest.raises(DataError, match="Did you mean 'indian_pines'"):
        load_cubes("indian_pine")


def test_fingerprint_follows_the_contents(tmp_path):
    for i in range(4):
        scene(tmp_path / f"p{i}.mat", "cube", seed=i)
    first = load_cubes(tmp_path).fingerprint()
    assert load_cubes(tmp_path).fingerprint() == first
    scene(tmp_path / "p0.mat", "cube", seed=99)
    assert load_cubes(tmp_path).fingerprint() != first


def test_fitted_takes_the_middle_or_reflects():
    values = torch.arange(5.0).expand(2, 3, 5)
    assert fitted(values, None, (3, 3))[0, 0].tolist() == [1, 2, 3]
    wide = fitted(values, None, (3, 12))[0, 0]
    assert wide.tolist() == np.pad(np.arange(5.0), (0, 7), mode="symmetric").tolist()
    assert fitted(values, 4, None).shape == (4, 3, 5)


def test_the_embedded_scene():
    data = load_cubes("indian_pines")
    assert data.bands == 28
    assert data.train.names == ["north-west", "north-east", "south-west"]
    assert data.val.names == ["south-east"]
    assert data.val[0].shape == (28, 64, 64)
    cubes = [data.train[i] for i in range(3)] + [data.val[0]]
    assert min(float(c.min()) for c in cubes) >= 0
    assert max(float(c.max()) for c in cubes) == 1
    assert load_cubes("indian_pines", bands=8, size=(32, 32)).val[0].shape == (8, 32, 32)
