# SPDX-License-Identifier: Apache-2.0
"""Layouts on disk, made of tiny files."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_files import camvid, folder, labels, mask, picture, voc
from torchvision.datasets import VOCSegmentation

from widefield.data import DataError, load_segmentation


def test_folder_is_paired_split_and_read(tmp_path):
    data = load_segmentation(folder(tmp_path))
    assert (len(data.train), len(data.val)) == (8, 2)
    assert data.classes == ("0", "1", "2")
    names = [pair.image.name for split in (data.train, data.val) for pair in split.pairs]
    assert sorted(names) == [f"p{i}.png" for i in range(10)]
    again = load_segmentation(tmp_path)
    assert [p.image for p in again.val.pairs] == [p.image for p in data.val.pairs]
    image, label = data.val[0]
    stored = np.array(Image.open(data.val.pairs[0].image))
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), stored)
    np.testing.assert_array_equal(label.numpy(), labels(0, 1, 2, 255))
    assert label.dtype == torch.int64
    assert data.problems == []


@pytest.mark.parametrize("shape", ["{split}/{kind}", "{kind}/{split}"])
def test_folders_with_splits(tmp_path, shape):
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        for i in range(count):
            picture(tmp_path / shape.format(split=split, kind="images") / f"{split}{i}_image.jpg")
            mask(tmp_path / shape.format(split=split, kind="labels") / f"{split}{i}_label.png", labels(0, 1))
    data = load_segmentation(tmp_path)
    assert (len(data.train), len(data.val)) == (3, 2)
    assert {p.image.name[:3] for p in data.val.pairs} == {"val"}


def test_folder_split_by_lists_of_names(tmp_path):
    folder(tmp_path, 4)
    (tmp_path / "train.txt").write_text("p0\np3.png\n")
    (tmp_path / "val.txt").write_text("p1\np9\n")
    data = load_segmentation(tmp_path)
    assert [p.image.stem for p in data.train.pairs] == ["p0", "p3"]
    assert [p.image.stem for p in data.val.pairs] == ["p1"]
    assert any("p9" in problem for problem in data.problems)


@pytest.mark.parametrize("prefix", ["", "/SegNet/CamVid/"])
@pytest.mark.parametrize("classes", [True, False])
def test_camvid_lists(tmp_path, prefix, classes):
    data = load_segmentation(camvid(tmp_path, prefix, classes))
    assert (len(data.train), len(data.val)) == (3, 2)
    assert len(data.classes) == 11
    assert data.classes[0] == "Sky"
    _, label = data.train[0]
    expected = np.where(labels(*range(12)) == 11, 255, labels(*range(12)))
    np.testing.assert_array_equal(label.numpy(), expected)


def test_camvid_folders_without_lists(tmp_path):
    camvid(tmp_path)
    for name in ("train.txt", "val.txt"):
        (tmp_path / name).unlink()
    data = load_segmentation(tmp_path)
    assert (len(data.train), len(data.val), len(data.classes)) == (3, 2, 11)


def test_a_set_laid_out_like_camvid_keeps_its_own_classes(tmp_path):
    for i in range(5):
        picture(tmp_path / "train" / f"{i}.png")
        mask(tmp_path / "trainannot" / f"{i}.png", labels(0, 1, 2))
    data = load_segmentation(tmp_path)
    assert (data.classes, len(data.train), len(data.val)) == (("0", "1", "2"), 4, 1)


@pytest.mark.parametrize("given", [".", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_voc_from_any_of_its_directories_agrees_with_torchvision(tmp_path, given):
    voc(tmp_path)
    data = load_segmentation(tmp_path / given)
    assert len(data.classes) == 21
    for split, ours in (("train", data.train), ("val", data.val)):
        theirs = VOCSegmentation(str(tmp_path), year="2012", image_set=split)
        assert [str(pair.image) for pair in ours.pairs] == list(theirs.images)
        assert [str(pair.mask) for pair in ours.pairs] == list(theirs.masks)
        image, target = theirs[0]
        np.testing.assert_array_equal(ours[0][0].permute(1, 2, 0).numpy(), np.array(image))
        np.testing.assert_array_equal(ours[0][1].numpy(), np.array(target))


def test_voc_takes_trainaug_when_it_is_usable(tmp_path):
    voc(tmp_path, augmented=True)
    data = load_segmentation(tmp_path)
    assert [p.image.stem for p in data.train.pairs] == ["2007_01", "2007_02", "2008_09"]
    assert {p.mask.parent.name for p in data.train.pairs} == {"SegmentationClassAug"}
    assert {p.mask.parent.name for p in data.val.pairs} == {"SegmentationClass"}
    plain = load_segmentation(tmp_path, train_list="train")
    assert len(plain.train) == 2
    with pytest.raises(DataError, match="there are: train, trainaug, val"):
        load_segmentation(tmp_path, train_list="trainval")


def test_voc_deeplab_lists_with_two_columns(tmp_path):
    base = voc(tmp_path, augmented=True)
    (base / "ImageSets" / "Segmentation" / "trainaug.txt").write_text(
        "/JPEGImages/2008_09.jpg /SegmentationClassAug/2008_09.png\n"
    )
    assert [p.image.stem for p in load_segmentation(base).train.pairs] == ["2008_09"]


def test_voc_without_lists(tmp_path):
    base = voc(tmp_path)
    for path in (base / "ImageSets" / "Segmentation").iterdir():
        path.unlink()
    data = load_segmentation(base)
    assert (len(data.train), len(data.val), data.problems) == (2, 1, [])


def test_train_list_is_for_voc(tmp_path):
    with pytest.raises(DataError, match="VOC layout"):
        load_segmentation(folder(tmp_path), train_list="trainaug")


def test_what_is_not_a_data_set(tmp_path):
    with pytest.raises(DataError, match=r"(?s)does not exist.*'scenes'.*CamVid.*VOC.*images/"):
        load_segmentation("scene")
    with pytest.raises(DataError, match=r"(?s)it holds nothing.*CamVid"):
        load_segmentation(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match=r"(?s)it holds a\.txt.*CamVid"):
        load_segmentation(tmp_path)
    with pytest.raises(DataError, match="is a file"):
        load_segmentation(tmp_path / "a.txt")
    with pytest.raises(DataError, match="takes no options"):
        load_segmentation("scenes", num_classes=3)
