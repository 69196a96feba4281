# SPDX-License-Identifier: Apache-2.0
"""`simulate`, `reconstruct`, `train` and `evaluate` as a person types them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from widefield.cli import main
from widefield.data.cubes import read_cube
from widefield.imaging import Snapshot, dispersed_mask
from widefield.models.spectral import create_network


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    values = generator.random((20, 24, 4)).astype(np.float32)
    scipy.io.savemat("cube.mat", {"cube": values})
    scipy.io.savemat("mask.mat", {"mask": (generator.random((20, 24)) > 0.5).astype(np.float32)})
    return values


def run(capsys, *words):
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def weights(path="w.pth", **options):
    torch.manual_seed(0)
    network = create_network("mst-s", bands=4, blocks=(1, 1), **options)
    torch.save(network.state_dict(), path)
    return network.eval()


def test_simulate_measures_as_the_operator(capsys, here):
    status, out, _ = run(capsys, "simulate", "cube.mat", "--mask", "mask.mat", "--out", "y.npz")
    assert status == 0
    assert "20 x 30 of a scene 20 x 24 with 4 bands" in out
    cube = torch.from_numpy(here.transpose(2, 0, 1).copy())
    mask = torch.from_numpy(scipy.io.loadmat("mask.mat")["mask"])
    expected = Snapshot.cassi(mask, 4, 2).forward(cube[None])[0]
    with np.load("y.npz") as file:
        np.testing.assert_allclose(file["measurement"], expected, rtol=1e-5, atol=1e-6)
        assert int(file["step"]) == 2


@pytest.mark.parametrize("noise", ["shot", "gaussian"])
def test_noise_repeats_with_the_seed(capsys, noise):
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(capsys, "simulate", "cube.mat", "--mask", "mask.mat", "--out", f"{name}.npz", "--noise", noise,
            "--seed", seed)  # fmt: skip
        with np.load(f"{name}.npz") as file:
            found.append(file["measurement"])
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.parametrize("ending", [".npz", ".mat", ".hdr"])
def test_reconstruct_without_training(capsys, here, ending):
    run(capsys, "simulate", "cube.mat", "--mask", "mask.mat", "--out", "y.npz")
    status, out, _ = run(capsys, "reconstruct", "y.npz", "--model", "gap-tv+iterations=10", "--truth", "cube.mat",
                         "--out", f"x{ending}")  # fmt: skip
    assert status == 0
    assert "PSNR" in out
    found = read_cube(f"x{ending}")
    assert found.values.shape == (4, 20, 24)
    with Image.open("x.png") as picture:
        assert picture.size[0] > 200


def test_reconstruct_with_weights_in_strips(capsys):
    network = weights()
    run(capsys, "simulate", "cube.mat", "--mask", "mask.mat", "--out", "y.npz")
    words = ("reconstruct", "y.npz", "--model", "mst-s+blocks=1/1", "--weights", "w.pth", "--json")
    status, out, _ = run(capsys, *words, "--out", "whole.npz")
    assert status == 0
    assert json.loads(out)["shape"] == [4, 20, 24]
    with np.load("y.npz") as file:
        y, mask = torch.from_numpy(file["measurement"]), torch.from_numpy(file["mask"])
    with torch.no_grad():
        expected = network(y[None], dispersed_mask(mask, 4, 2))[0]
    with np.load("whole.npz") as file:
        np.testing.assert_allclose(file["cube"], expected.numpy().transpose(1, 2, 0), atol=1e-5)
    status, _, _ = run(capsys, *words, "--out", "strips.npz", "--rows", 12, "--overlap", 4)
    assert status == 0
    with np.load("strips.npz") as file:
        assert file["cube"].shape == (20, 24, 4)


def test_train_then_evaluate(capsys):
    words = ("train", "--model", "first-estimate,mst-s+blocks=1/1", "--steps", 2, "--bands", 4, "--size", "32,32",
             "--batch-size", 2, "--seeds", 2, "--out", "runs")  # fmt: skip
    status, out, err = run(capsys, *words)
    assert status == 0
    assert "mst-s+blocks=1/1" in out
    assert "report:" in err
    status, out, _ = run(capsys, *words, "--json")
    table = json.loads(out)
    row = next(r for r in table["rows"] if r["trains"])
    folder = f"runs/runs/{row['folders'][0]}"
    weights = f"{folder}/model.safetensors"
    status, out, _ = run(capsys, "evaluate", "--model", "mst-s+blocks=1/1", "--weights", weights, "--bands", 4,
                         "--size", "32,32", "--json")  # fmt: skip
    assert status == 0
    assert json.loads(out)["psnr"] == pytest.approx(row["psnr"]["values"][0], abs=1e-4)
    assert "remark" not in json.loads(out)


def test_evaluate_beside_methods_without_training(capsys):
    words = ("evaluate", "--model", "first-estimate", "--bands", 4, "--size", "32,32")
    status, alone, _ = run(capsys, "evaluate", "--model", "gap-tv+iterations=3", *words[3:], "--json")
    assert status == 0
    status, out, _ = run(capsys, *words, "--beside", "gap-tv+iterations=3", "--json")
    assert status == 0
    assert json.loads(out)["beside"]["gap-tv+iterations=3"]["psnr"] == json.loads(alone)["psnr"]
    status, _, err = run(capsys, *words, "--beside", "first-estimate")
    assert status == 2
    assert "stands twice" in err


def test_published_weights_outside_their_domain_are_said_to_be(capsys, tmp_path):
    import torch

    from widefield.models.spectral import create_network

    torch.manual_seed(0)
    torch.save(create_network("mst-s", bands=4, blocks=(1, 1)).state_dict(), tmp_path / "own.pt")
    status, out, err = run(capsys, "evaluate", "--model", "mst-s+blocks=1/1", "--weights", tmp_path / "own.pt",
                           "--bands", 4, "--size", "32,32")  # fmt: skip
    assert status == 0, err
    assert "outside its training domain" in out


def test_evaluate_a_folder_in_the_benchmarks_layout(capsys, here):
    from pathlib import Path

    (Path("TSA_simu_data") / "Truth").mkdir(parents=True)
    for i in (1, 2):
        scipy.io.savemat(f"TSA_simu_data/Truth/scene{i:02d}.mat", {"img": here})
    scipy.io.savemat("TSA_simu_data/mask.mat", {"mask": scipy.io.loadmat("mask.mat")["mask"]})
    status, out, _ = run(capsys, "evaluate", "--model", "gap-tv+iterations=3", "--data", "TSA_simu_data")
    assert status == 0
    assert all(word in out for word in ("scene01", "scene02", "mean", "mask: data"))


SIMULATE = ("simulate", "cube.mat", "--out", "y.npz")
RECONSTRUCT = ("reconstruct", "y.npz", "--model")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("simulate", "nothing.mat", "--out", "y.npz"), "no such file"),
        (("simulate", "cube.mat", "--out", "y.tif"), "write .npz, .mat"),
        ((*SIMULATE, "--key", "hsi"), "no array 'hsi'; it holds cube 20x24x4"),
        ((*SIMULATE, "--bands", 0), "bands must be at least 1"),
        ((*SIMULATE, "--step", -1), "step"),
        ((*SIMULATE, "--size", "20"), "--size takes height,width"),
        (("simulate", "nan.npz", "--out", "y.npz"), "not finite"),
        (("simulate", "cut.mat", "--out", "y.npz"), "cut.mat: broken file"),
        ((*RECONSTRUCT, "gap-tw"), "Did you mean 'gap-tv'"),
        ((*RECONSTRUCT, "gap-tv+iteration=3"), "Did you mean 'iterations'"),
        ((*RECONSTRUCT, "mst-s"), "needs --weights"),
        ((*RECONSTRUCT, "gap-tv", "--weights", "w.pth"), "has no weights"),
        ((*RECONSTRUCT, "gap-tv", "--mask", "small.mat"), "do not explain a measurement"),
        ((*RECONSTRUCT, "gap-tv", "--step", 4), "do not explain a measurement"),
        ((*RECONSTRUCT, "mst-s+blocks=1/1", "--weights", "wide.pth"), "wide.pth"),
        ((*RECONSTRUCT, "mst-s+blocks=1/1", "--weights", "cube.mat"), "cannot be read as weights"),
        ((*RECONSTRUCT, "gap-tv", "--rows", 0), "rows"),
        ((*RECONSTRUCT, "gap-tv", "--truth", "nan.npz"), "not finite"),
        (("reconstruct", "cube.mat", "--model", "gap-tv"), "a measurement is not to be told apart"),
        (("train", "--model", "mst-x"), "Did you mean"),
        (("train", "--model", ","), "no model given"),
        (("train", "--data", "nowhere"), "nowhere"),
        (("train", "--mask", "data"), "brings no mask"),
        (("train", "--crop", "999,999"), "does not fit"),
        (("train", "--steps", 0), "steps"),
        (("train", "--seeds", 0), "seeds must be at least 1"),
        (("evaluate", "--model", "dauhst-2stg"), "needs --weights"),
        (("evaluate", "--model", "gap-tv", "--mask", "data"), "brings no mask"),
    ],
)
def test_bad_words_give_one_line_and_status_two(capsys, here, words, said):
    run(capsys, "simulate", "cube.mat", "--mask", "mask.mat", "--out", "y.npz")
    scipy.io.savemat("small.mat", {"mask": np.ones((2, 2))})
    bad = here.copy()
    bad[0, 0, 0] = np.nan
    np.savez("nan.npz", cube=bad)
    with open("cube.mat", "rb") as file, open("cut.mat", "wb") as cut:
        cut.write(file.read()[:-3000])
    torch.manual_seed(0)
    torch.save(create_network("mst-s", bands=5, blocks=(1, 1)).state_dict(), "wide.pth")
    weights()
    status, _, err = run(capsys, *words)
    assert status == 2
    assert said in err
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if line.startswith("widefield:")]) == 1
