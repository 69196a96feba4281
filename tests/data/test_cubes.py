# SPDX-License-Identifier: Apache-2.0
"""Cubes, masks and snapshots in every layout, written by other software, and what is said of broken ones."""

from __future__ import annotations

import warnings

import h5py
import numpy as np
import pytest
import scipy.io
import torch

from widefield.data.cubes import (
    TSA_WAVELENGTHS,
    cube_size,
    read_cube,
    read_mask,
    read_measurement,
    resample_evenly,
    resample_wavelengths,
    write_cube,
    write_measurement,
)
from widefield.data.images import DataError


def cube(h=5, w=7, bands=4, seed=0):
    return np.random.default_rng(seed).random((h, w, bands)).astype(np.float32)


def as_bands(values):
    return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))


@pytest.mark.parametrize(
    ("key", "factor", "scale"),
    [
        ("img_expand", 65536.0, "divided by 65536"),
        ("img", 65536.0, "divided by 65536"),
        ("data_slice", 65535.0, "divided by 65535"),
        ("HSI", 1.0, "clipped to [0, 1]"),
        ("img", 1.0, "kept"),
        ("mine", 1.0, "kept"),
    ],
)
def test_mat_layouts_of_the_field(tmp_path, key, factor, scale):
    values = cube()
    scipy.io.savemat(tmp_path / "scene1.mat", {key: values.astype(np.float64) * factor, "note": "text"})
    found = read_cube(tmp_path / "scene1.mat")
    assert found.name == "scene1"
    assert found.scale == scale
    torch.testing.assert_close(found.values, as_bands(values))
    assert cube_size(tmp_path / "scene1.mat") == (4, 5, 7)


def test_matlab_7_3(tmp_path):
    values = cube()
    with h5py.File(tmp_path / "scene.mat", "w") as file:
        file["HSI"] = values.T  # MATLAB stores columns first
        file["#refs#"] = np.zeros(3)
    assert cube_size(tmp_path / "scene.mat") == (4, 5, 7)
    torch.testing.assert_close(read_cube(tmp_path / "scene.mat").values, as_bands(values))


def test_values_beyond_one_are_divided_by_their_maximum(tmp_path):
    values = (cube() * 4000).astype(np.uint16)
    np.savez(tmp_path / "own.npz", radiance=values)
    found = read_cube(tmp_path / "own.npz")
    assert float(found.values.max()) == 1
    torch.testing.assert_close(found.values, as_bands(values.astype(np.float32) / values.max()))
    assert "their maximum" in found.scale


def test_bands_first_in_npy(tmp_path):
    values = cube()
    np.save(tmp_path / "own.npy", values.transpose(2, 0, 1))
    torch.testing.assert_close(read_cube(tmp_path / "own.npy").values, as_bands(values))


def test_a_matrix_of_bands_by_pixels_is_folded_column_after_column(tmp_path):
    values = cube()
    matrix = np.stack([values[:, :, band].ravel(order="F") for band in range(4)])
    scipy.io.savemat(tmp_path / "samson.mat", {"V": matrix, "lines": 5, "cols": 7})
    torch.testing.assert_close(read_cube(tmp_path / "samson.mat").values, as_bands(values))


@pytest.mark.parametrize("interleave", ["bsq", "bil", "bip"])
@pytest.mark.parametrize(("kind", "dtype"), [(4, "<f4"), (5, "<f8"), (12, ">u2"), (2, "<i2")])
def test_envi(tmp_path, interleave, kind, dtype):
    values = cube() if kind in (4, 5) else (cube() * 1000).astype(np.int64)
    order = {"bsq": (2, 0, 1), "bil": (0, 2, 1), "bip": (0, 1, 2)}[interleave]
    raw = b"1234" + values.transpose(order).astype(dtype).tobytes()
    (tmp_path / "scene.raw").write_bytes(raw)
    (tmp_path / "scene.hdr").write_text(
        f"ENVI\nsamples = 7\nlines = 5\nbands = 4\nheader offset = 4\ndata type = {kind}\n"
        f"interleave = {interleave}\nbyte order = {int(dtype[0] == '>')}\nwavelength units = Micrometers\n"
        "wavelength = {0.4, 0.5,\n 0.6, 0.7}\n"
    )
    found = read_cube(tmp_path / "scene.hdr")
    assert found.wavelengths == pytest.approx((400, 500, 600, 700))
    scaled = values if kind in (4, 5) else values / values.max()
    torch.testing.assert_close(found.values, as_bands(np.asarray(scaled, dtype=np.float32)))


@pytest.mark.parametrize("ending", [".mat", ".npz", ".hdr"])
def test_written_cubes_read_back(tmp_path, ending):
    values = torch.rand(4, 5, 7)
    write_cube(tmp_path / f"out{ending}", values, wavelengths=(400, 500, 600.5, 700))
    found = read_cube(tmp_path / f"out{ending}")
    assert torch.equal(found.values, values)
    assert found.wavelengths == pytest.approx((400, 500, 600.5, 700))


@pytest.mark.parametrize("ending", [".mat", ".npz"])
@pytest.mark.parametrize("shape", [(5, 7), (4, 5, 13)])
def test_written_measurements_read_back(tmp_path, ending, shape):
    y, mask = torch.rand(5, 13), torch.rand(shape)
    write_measurement(tmp_path / f"y{ending}", y, mask=mask, step=2)
    found = read_measurement(tmp_path / f"y{ending}")
    assert torch.equal(found.values, y)
    assert torch.equal(found.mask, mask)
    assert found.step == 2


def test_measurements_without_a_mask(tmp_path):
    scipy.io.savemat(tmp_path / "scene1.mat", {"meas_real": np.ones((5, 13))})
    found = read_measurement(tmp_path / "scene1.mat")
    assert found.mask is None
    assert found.step is None


def test_another_name_is_listed_and_selectable(tmp_path):
    scipy.io.savemat(tmp_path / "two.mat", {"first": cube(), "second": cube(seed=1)})
    with pytest.raises(DataError, match=r"first 5x7x4, second 5x7x4.*--key"):
        read_cube(tmp_path / "two.mat")
    torch.testing.assert_close(read_cube(tmp_path / "two.mat", "second").values, as_bands(cube(seed=1)))
    with pytest.raises(DataError, match=r"no array 'third'; it holds first 5x7x4"):
        read_cube(tmp_path / "two.mat", "third")
    scipy.io.savemat(tmp_path / "flat.mat", {"picture": np.ones((5, 7))})
    with pytest.raises(DataError, match="no array fits a cube of 3 dimensions; it holds picture 5x7"):
        read_cube(tmp_path / "flat.mat")
    with pytest.raises(DataError, match="picture has 2 dimensions, a cube has 3"):
        read_cube(tmp_path / "flat.mat", "picture")


def test_a_cube_of_one_pixel_is_a_copy_of_its_file(tmp_path):
    np.save(tmp_path / "one.npy", np.full((1, 1, 4), 0.5, dtype=np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = read_cube(tmp_path / "one.npy").values
    values += 1
    assert np.load(tmp_path / "one.npy").tolist() == [[[0.5] * 4]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_no_numbers(tmp_path, bad):
    values = cube()
    values[1, 2, 3] = bad
    np.savez(tmp_path / "c.npz", cube=values)
    with pytest.raises(DataError, match=r"c\.npz: the cube has entries that are not finite"):
        read_cube(tmp_path / "c.npz")
    np.savez(tmp_path / "m.npz", mask=values[..., 3], measurement=values[..., 3])
    with pytest.raises(DataError, match="mask has negative or non-finite"):
        read_mask(tmp_path / "m.npz")
    with pytest.raises(DataError, match="measurement has entries that are not finite"):
        read_measurement(tmp_path / "m.npz")


def test_a_cube_of_zeros(tmp_path):
    np.savez(tmp_path / "c.npz", cube=np.zeros((5, 7, 4)))
    assert float(read_cube(tmp_path / "c.npz").values.abs().max()) == 0
    np.savez(tmp_path / "n.npz", cube=-np.ones((5, 7, 4)))
    with pytest.raises(DataError, match="no entry of the cube is above 0"):
        read_cube(tmp_path / "n.npz")


@pytest.mark.parametrize("ending", [".mat", ".npz", ".npy"])
def test_truncated_files_are_named(tmp_path, ending):
    path = tmp_path / f"scene{ending}"
    if ending == ".mat":
        scipy.io.savemat(path, {"HSI": cube(64, 64, 28)})
    elif ending == ".npz":
        np.savez(path, HSI=cube(64, 64, 28))
    else:
        np.save(path, cube(64, 64, 28))
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(DataError, match=f"scene{ending}: broken file"):
        read_cube(path)


def test_truncated_envi_and_bad_headers(tmp_path):
    write_cube(tmp_path / "s.hdr", torch.rand(4, 5, 7))
    data = tmp_path / "s.img"
    data.write_bytes(data.read_bytes()[:-8])
    with pytest.raises(DataError, match=r"s\.img: 552 bytes, s\.hdr promises 560"):
        read_cube(tmp_path / "s.hdr")
    data.unlink()
    with pytest.raises(DataError, match="no data beside it"):
        read_cube(tmp_path / "s.hdr")
    (tmp_path / "t.hdr").write_text("not a header")
    with pytest.raises(DataError, match="not an ENVI header"):
        read_cube(tmp_path / "t.hdr")
    (tmp_path / "u.hdr").write_text("ENVI\nsamples = 7\nlines = many\nbands = 4\n")
    with pytest.raises(DataError, match="whole number for 'lines', it says 'many'"):
        read_cube(tmp_path / "u.hdr")


def test_pickled_objects_are_refused(tmp_path):
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="objects or complex values, not real numbers"):
        read_cube(tmp_path / "evil.npy")


def test_other_endings(tmp_path):
    (tmp_path / "scene.tif").write_bytes(b"x")
    with pytest.raises(DataError, match=r"accepted are \.mat, \.npz, \.npy and ENVI"):
        read_cube(tmp_path / "scene.tif")
    with pytest.raises(DataError, match="no such file"):
        read_cube(tmp_path / "scene.mat")
    with pytest.raises(DataError, match=r"write \.npz, \.mat"):
        write_cube(tmp_path / "scene.tif", torch.rand(4, 5, 7))


def test_resampling_is_linear_interpolation():
    values = torch.rand(5, 2, 3, dtype=torch.float64)
    flat = values.flatten(1).numpy()
    found = resample_evenly(values, 9).flatten(1).numpy()
    expected = np.stack([np.interp(np.linspace(0, 4, 9), np.arange(5), flat[:, i]) for i in range(6)], 1)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    wavelengths = [400, 450, 520, 600, 700]
    found = resample_wavelengths(values, wavelengths, TSA_WAVELENGTHS).flatten(1).numpy()
    expected = np.stack([np.interp(TSA_WAVELENGTHS, wavelengths, flat[:, i]) for i in range(6)], 1)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert resample_evenly(values[:1], 3).shape == (3, 2, 3)
    with pytest.raises(ValueError, match="bands must be at least 1"):
        resample_evenly(values, 0)
    with pytest.raises(ValueError, match="rising wavelengths"):
        resample_wavelengths(values, wavelengths[::-1], TSA_WAVELENGTHS)
