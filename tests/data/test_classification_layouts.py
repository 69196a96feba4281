# SPDX-License-Identifier: Apache-2.0
"""Data sets with classes: every layout, written out byte by byte here."""

import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits

from widefield.data import DataError
from widefield.data.classification import load_classification, read_cifar, read_idx, read_table


def idx(path, values, code=8, zipped=False):
    content = bytes([0, 0, code, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    content += values.astype(values.dtype.newbyteorder(">")).tobytes()
    path.write_bytes(gzip.compress(content) if zipped else content)


def mnist(root, zipped=False, dot="-"):
    root.mkdir(parents=True, exist_ok=True)
    rng, end = np.random.default_rng(0), ".gz" if zipped else ""
    made = {}
    for name, n in (("train", 7), ("t10k", 4)):
        images = rng.integers(0, 256, (n, 5, 6), dtype=np.uint8)
        labels = rng.integers(0, 10, n, dtype=np.uint8)
        idx(root / f"{name}-images{dot}idx3-ubyte{end}", images, zipped=zipped)
        idx(root / f"{name}-labels{dot}idx1-ubyte{end}", labels, zipped=zipped)
        made[name] = images, labels
    return made


@pytest.mark.parametrize(
    ("zipped", "dot", "folder"), [(False, "-", ""), (True, "-", "MNIST/raw"), (False, ".", "raw")]
)
def test_idx(tmp_path, zipped, dot, folder):
    made = mnist(tmp_path / folder, zipped, dot)
    data = load_classification(tmp_path)
    for split, name in ((data.train, "train"), (data.val, "t10k")):
        assert np.array_equal(torch.stack([split[i] for i in range(len(split))])[:, 0], made[name][0])
        assert split.labels.tolist() == made[name][1].tolist()
    assert data.classes == tuple("0123456789")
    assert data.channels == 1
    assert not data.natural
    assert "7 training and 4 validation pictures (6x5)" in data.summary()


@pytest.mark.parametrize(("code", "dtype"), [(0x09, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")])
def test_idx_of_every_type(tmp_path, code, dtype):
    values = np.array([[1, -2, 3], [4, 5, -6]], dtype)
    idx(tmp_path / "x", values, code)
    assert np.array_equal(read_idx(tmp_path / "x"), values)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda b: b[:-1], "truncated: 7x5x6 values take 226 bytes, it has 225"),
        (lambda b: b + b"\0", "too long"),
        (lambda b: b[:9], "truncated within its header"),
        (lambda b: b"\0\0\7\3" + b[4:], "not an IDX file: it begins with 00 00 07 03"),
        (lambda b: b"", "begins with nothing"),
        (lambda b: b"PK" + b[2:], "not an IDX file"),
    ],
)
def test_a_damaged_idx_file(tmp_path, damage, match):
    mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=match):
        load_classification(tmp_path)


def test_a_truncated_gzip_file(tmp_path):
    mnist(tmp_path, zipped=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="truncated gzip"):
        load_classification(tmp_path)


def test_idx_files_that_do_not_belong_together(tmp_path):
    mnist(tmp_path)
    idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(6, np.uint8))
    with pytest.raises(DataError, match="6 labels for 7 pictures; both must agree"):
        load_classification(tmp_path)
    idx(tmp_path / "train-labels-idx1-ubyte", np.zeros((7, 5, 6), np.uint8))
    with pytest.raises(DataError, match="labels are n bytes"):
        load_classification(tmp_path)
    mnist(tmp_path)
    idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((4, 5, 7), np.uint8))
    with pytest.raises(DataError, match=r"\(5, 6\) for training and of \(5, 7\)"):
        load_classification(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="val-labels missing"):
        load_classification(tmp_path)


def cifar(path, n, labels, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (n, labels + 3072), dtype=np.uint8)
    rows[:, :labels] = rng.integers(0, 10, (n, labels))
    path.write_bytes(rows.tobytes())
    return rows


def test_cifar_10(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rows = [cifar(folder / f"data_batch_{i}.bin", 3, 1, i) for i in (1, 2)]
    test = cifar(folder / "test_batch.bin", 2, 1, 9)
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    data = load_classification(tmp_path)
    assert data.classes == tuple("abcdefghij")
    assert data.natural
    assert len(data.train) == 6
    # Red, green and blue planes of 1024 bytes, row by row.
    assert data.train[4][2, 3, 5] == rows[1][1, 1 + 2 * 1024 + 3 * 32 + 5]
    assert data.train.labels.tolist() == [*rows[0][:, 0].tolist(), *rows[1][:, 0].tolist()]
    assert data.val.labels.tolist() == test[:, 0].tolist()


def test_cifar_100_has_fine_labels(tmp_path):
    rows = cifar(tmp_path / "train.bin", 3, 2, 1)
    cifar(tmp_path / "test.bin", 2, 2, 2)
    data = load_classification(tmp_path)
    assert data.train.labels.tolist() == rows[:, 1].tolist()
    assert data.num_classes == 100
    assert data.train[0][0, 0, 0] == rows[0, 2]


def test_damaged_cifar(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"\0" * 3072)
    with pytest.raises(DataError, match="3072 bytes are no multiple of the 3073"):
        read_cifar(tmp_path / "x.bin")


def test_pickles_are_refused(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"")
    with pytest.raises(DataError, match="pickles"):
        load_classification(tmp_path)


def picture(path, value, size=(6, 4), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def test_folders_with_splits(tmp_path):
    for split, n in (("train", 3), ("Validation", 2)):
        for k, name in enumerate(("cat", "dog")):
            for i in range(n):
                picture(tmp_path / split / name / f"{i}.png", (10 * k + i, 0, 0))
    (tmp_path / "train" / "cat" / "broken.png").write_bytes(b"no picture")
    data = load_classification(tmp_path)
    assert data.classes == ("cat", "dog")
    assert [len(data.train), len(data.val)] == [6, 4]
    assert data.val.labels.tolist() == [0, 0, 1, 1]
    assert data.val[3][0, 0, 0] == 11
    assert data.train.sizes == [(4, 6)]
    assert len(data.problems) == 1
    assert "broken.png" in data.problems[0]


def test_folders_without_a_split_are_split_alike_everywhere(tmp_path):
    for name in ("a", "b", "c"):
        for i in range(10):
            picture(tmp_path / name / f"{i}.png", i, mode="L")
    data = load_classification(tmp_path, val_fraction=0.3)
    assert torch.bincount(data.val.labels).tolist() == [3, 3, 3]
    assert torch.bincount(data.train.labels).tolist() == [7, 7, 7]
    again = load_classification(tmp_path, val_fraction=0.3)
    assert [p.name for p in data.val.paths] == [p.name for p in again.val.paths]
    before = data.fingerprint()
    assert before == again.fingerprint()
    picture(tmp_path / "a" / "0.png", 99, mode="L")
    assert load_classification(tmp_path, val_fraction=0.3).fingerprint() != before


def test_a_class_that_training_has_not(tmp_path):
    picture(tmp_path / "train" / "a" / "0.png", 0)
    picture(tmp_path / "train" / "b" / "0.png", 0)
    picture(tmp_path / "val" / "z" / "0.png", 0)
    with pytest.raises(DataError, match="classes that training has not: z"):
        load_classification(tmp_path)


def test_digits_are_scikit_learns():
    data, found = load_classification("digits"), load_digits()
    assert len(data.train) + len(data.val) == 1797
    ours = torch.cat([data.train.samples, data.val.samples])[:, 0].double().mul(16 / 255).round()
    rows = {tuple(row) for row in found.data.tolist()}
    assert {tuple(row) for row in ours.flatten(1).tolist()} == rows
    counts = torch.bincount(data.val.labels) / torch.bincount(torch.cat([data.train.labels, data.val.labels]))
    assert float((counts - 0.2).abs().max()) < 0.02  # each class in proportion


def test_a_table_of_scikit_learn_is_standardised_by_its_training_rows():
    data, found = load_classification("breast-cancer"), load_breast_cancer()
    x = data.train.samples.double()
    torch.testing.assert_close(x.mean(0), torch.zeros(30, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(30, dtype=torch.float64), atol=1e-4, rtol=0)
    assert data.columns[0] == found.feature_names[0]
    assert sorted(data.classes) == sorted(found.target_names)
    assert data.is_table


def test_tables_with_words_missing_values_and_any_separator(tmp_path):
    header = "size,colour,kind,flat\n"
    rows = [f"{i},{'red' if i % 3 else '?'},{'x' if i % 2 else 'y'},5" for i in range(20)]
    rows.append("?,red,x,5")
    (tmp_path / "a.csv").write_text(header + "\n".join(rows))
    data = read_table(tmp_path / "a.csv", target="kind")
    assert data.classes == ("x", "y")
    assert data.columns == ("size", "colour=?", "colour=red")
    assert len(data.train) + len(data.val) == 20
    assert any("1 rows with a missing value" in problem for problem in data.problems)
    assert any("flat" in problem for problem in data.problems)
    (tmp_path / "b.data").write_text("\n".join(row.replace(",", " ") for row in rows[:-1]))
    plain = read_table(tmp_path / "b.data", target=2)
    torch.testing.assert_close(plain.train.samples, data.train.samples)
    assert plain.columns == ("0", "1=?", "1=red")


@pytest.mark.parametrize(
    ("text", "options", "match"),
    [
        ("a,b\n1,2\n3\n", {}, "row 3: 1 fields"),
        ("a,b\n", {}, "at least two lines"),
        ("a,b\n1,x\n2,y\n", {"target": "c"}, "no column 'c'; there are a, b"),
        ("a,b\n1,x\n2,y\n", {"target": 7}, "no column 7"),
        ("a,b\n1,x\n2,x\n", {}, "has 1 values"),
        ("1\n2\n3\n", {}, "one column only"),
        ("a,b\n1,x\n1,y\n1,x\n1,y\n1,x\n1,y\n", {}, "every feature is constant"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, text, options, match):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=match):
        read_table(tmp_path / "t.csv", **options)


def test_what_is_no_data_set(tmp_path):
    with pytest.raises(DataError, match="does not exist; accepted are 'digits'"):
        load_classification(tmp_path / "nowhere")
    with pytest.raises(DataError, match="it holds nothing"):
        load_classification(tmp_path)
    with pytest.raises(DataError, match="for tables"):
        load_classification("digits", target="x")
    (tmp_path / "x.png").write_bytes(b"")
    with pytest.raises(DataError, match="read as a table"):
        load_classification(tmp_path / "x.png")
