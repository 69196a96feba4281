# SPDX-License-Identifier: Apache-2.0
"""Files as they come: broken, unpaired, of other modes, with labels that are no classes."""

import numpy as np
import pytest
from PIL import Image
from tiny_files import camvid, folder, labels, mask, picture

from widefield.data import DataError, load_segmentation


def truncate(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


@pytest.mark.parametrize("name", ["big.png", "big.jpg"])
def test_a_truncated_picture_is_named_and_the_rest_goes_on(tmp_path, name):
    folder(tmp_path, 5)
    truncate(picture(tmp_path / "images" / name, (64, 48)))
    mask(tmp_path / "masks" / "big.png", labels(0, 1, shape=(48, 64)))
    data = load_segmentation(tmp_path)
    assert len(data.train) + len(data.val) == 5
    assert len(data.problems) == 1
    assert name in data.problems[0]
    assert "broken" in data.problems[0]
    assert name in data.summary()


def test_a_truncated_mask_and_a_file_that_is_no_picture(tmp_path):
    folder(tmp_path, 5)
    values = np.random.default_rng(0).integers(0, 2, (64, 64), dtype=np.uint8)
    picture(tmp_path / "images" / "q.png", (64, 64))
    truncate(mask(tmp_path / "masks" / "q.png", values))
    (tmp_path / "images" / "r.png").write_text("this is text")
    mask(tmp_path / "masks" / "r.png", labels(0, 1))
    (tmp_path / "images" / "notes.txt").write_text("hello")
    (tmp_path / "images" / ".hidden").write_text("hello")
    problems = load_segmentation(tmp_path).problems
    assert len(problems) == 3
    for name, reason in (("masks/q.png", "broken"), ("r.png", "known format"), ("notes.txt", "not a picture")):
        assert any(name in text and reason in text for text in problems), (name, problems)


def test_unverified_broken_files_raise_when_read(tmp_path):
    camvid(tmp_path)
    truncate(tmp_path / "train" / "1.png")
    data = load_segmentation(tmp_path, verify=False)
    assert len(data.train) == 3
    with pytest.raises(DataError, match=r"1\.png"):
        data.train[1]


def test_files_without_a_partner_are_named(tmp_path):
    folder(tmp_path, 5)
    picture(tmp_path / "images" / "lonely.png")
    mask(tmp_path / "masks" / "orphan.png", labels(0, 1))
    data = load_segmentation(tmp_path)
    assert len(data.problems) == 2
    assert "lonely.png: no mask" in " ".join(data.problems)
    assert "orphan.png: no picture" in " ".join(data.problems)


def test_nothing_pairs(tmp_path):
    picture(tmp_path / "images" / "a.png")
    mask(tmp_path / "masks" / "b.png", labels(0, 1))
    with pytest.raises(DataError, match=r"(?s)no usable pair.*a\.png: no mask.*b\.png: no picture"):
        load_segmentation(tmp_path)


def test_empty_folders(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    with pytest.raises(DataError, match=r"(?s)no usable pair.*there are none"):
        load_segmentation(tmp_path)


def test_a_listed_file_that_is_missing(tmp_path):
    camvid(tmp_path)
    (tmp_path / "train" / "2.png").unlink()
    data = load_segmentation(tmp_path)
    assert len(data.train) == 2
    assert "2.png: no such file" in data.problems[0]


def test_a_list_with_one_column(tmp_path):
    camvid(tmp_path)
    (tmp_path / "train.txt").write_text("train/0.png trainannot/0.png\ntrain/1.png\n")
    with pytest.raises(DataError, match=r"train\.txt, line 2.*got 1"):
        load_segmentation(tmp_path)


def test_a_picture_in_both_lists_is_kept_for_validation(tmp_path):
    camvid(tmp_path)
    with (tmp_path / "val.txt").open("a") as file:
        file.write("\ntrain/0.png trainannot/0.png\n")
    data = load_segmentation(tmp_path)
    assert (len(data.train), len(data.val)) == (2, 3)
    assert "training and validation" in data.problems[0]


def test_another_size_of_picture_and_mask(tmp_path):
    folder(tmp_path, 5)
    picture(tmp_path / "images" / "z.png", (9, 6))
    mask(tmp_path / "masks" / "z.png", labels(0, 1))
    problems = load_segmentation(tmp_path).problems
    assert len(problems) == 1
    assert "9x6" in problems[0]
    assert "8x6" in problems[0]


def test_a_label_value_that_is_no_class(tmp_path):
    camvid(tmp_path)
    mask(tmp_path / "trainannot" / "1.png", labels(0, 37))
    with pytest.raises(DataError, match=r"(?s)trainannot/1\.png.*holds 37.*11 classes.*0\.\.11, 255.*label_map"):
        load_segmentation(tmp_path)


def test_label_options(tmp_path):
    folder(tmp_path, 4, values=(0, 1, 3))
    with pytest.raises(DataError, match=r"0\.\.1, 3.*num_classes=4"):
        load_segmentation(tmp_path)
    assert len(load_segmentation(tmp_path, num_classes=4).classes) == 4
    assert load_segmentation(tmp_path, ignore_index=3).val[0][1].unique().tolist() == [0, 1, 255]
    mapped = load_segmentation(tmp_path, label_map={0: 1, 1: 255, 3: 0}, classes=["a", "b"])
    np.testing.assert_array_equal(mapped.val[0][1], np.array([1, 255, 0])[labels(0, 1, 2)])
    with pytest.raises(DataError, match="holds 1, which"):
        load_segmentation(tmp_path, label_map={0: 0, 3: 1})
    assert load_segmentation(tmp_path, binary=True).classes == ("background", "object")
    with pytest.raises(DataError, match="one of them"):
        load_segmentation(tmp_path, classes=["a"], num_classes=2)
    with pytest.raises(DataError, match="between 0 and 1"):
        load_segmentation(tmp_path, num_classes=4, val_fraction=1.5)


def test_zero_and_255_asks_which_is_meant(tmp_path):
    folder(tmp_path, 4, values=(0, 255))
    with pytest.raises(DataError, match="binary=True"):
        load_segmentation(tmp_path)
    assert load_segmentation(tmp_path, binary=True).val[0][1].unique().tolist() == [0, 1]
    assert load_segmentation(tmp_path, label_map={0: 0, 255: 1}).val[0][1].unique().tolist() == [0, 1]


def test_sixteen_bit_instance_masks(tmp_path):
    for i in range(4):
        picture(tmp_path / "images" / f"{i}.png")
        mask(tmp_path / "masks" / f"{i}.png", labels(*range(0, 48 * 255, 255), dtype=np.uint16))
    with pytest.raises(DataError, match=r"16 bits.*binary=True"):
        load_segmentation(tmp_path)
    expected = labels(*range(48)).astype(bool)
    np.testing.assert_array_equal(load_segmentation(tmp_path, binary=True).val[0][1], expected)


def test_palette_masks_give_indices(tmp_path):
    folder(tmp_path, 3)
    for path in (tmp_path / "masks").iterdir():
        indexed = Image.fromarray(labels(0, 1, 2, 255)).convert("P")
        indexed.putpalette([200, 10, 10] * 256)
        indexed.save(path)
    np.testing.assert_array_equal(load_segmentation(tmp_path).val[0][1], labels(0, 1, 2, 255))


def test_colour_masks(tmp_path):
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 0]], dtype=np.uint8)
    for i in range(3):
        picture(tmp_path / "images" / f"{i}.png")
        mask(tmp_path / "masks" / f"{i}.png", colours[labels(0, 1, 2)])
    with pytest.raises(DataError, match=r"(?s)painted in colours.*palette=.*classes\.txt"):
        load_segmentation(tmp_path)
    data = load_segmentation(tmp_path, palette={(255, 0, 0): 0, (0, 255, 0): 1, (0, 0, 0): 255})
    np.testing.assert_array_equal(data.val[0][1], labels(0, 1, 255))
    assert len(data.classes) == 2
    with pytest.raises(DataError, match=r"1 colours are not in the palette, such as \[\(0, 0, 0\)\]"):
        load_segmentation(tmp_path, palette={(255, 0, 0): 0, (0, 255, 0): 1})
    (tmp_path / "classes.txt").write_text("255 0 0 plant\n0 255 0 soil # brown\n0 0 0 void\n")
    listed = load_segmentation(tmp_path)
    assert listed.classes == ("plant", "soil")
    np.testing.assert_array_equal(listed.val[0][1], labels(0, 1, 255))


def test_a_grey_mask_saved_in_colour(tmp_path):
    folder(tmp_path, 3)
    for path in (tmp_path / "masks").iterdir():
        Image.fromarray(labels(0, 1, 2)).convert("RGB").save(path)
    np.testing.assert_array_equal(load_segmentation(tmp_path).val[0][1], labels(0, 1, 2))


@pytest.mark.parametrize("text", ["a\n1 b\n", "0 a\n0 b\n", "void\n", ""])
def test_class_lists_that_make_no_sense(tmp_path, text):
    folder(tmp_path, 3)
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(DataError, match=r"classes\.txt"):
        load_segmentation(tmp_path)


def test_a_void_class_in_the_middle(tmp_path):
    folder(tmp_path, 3, values=(0, 1, 2))
    (tmp_path / "classes.txt").write_text("0: road\n1: void\n2: traffic sign\n")
    data = load_segmentation(tmp_path)
    assert data.classes == ("road", "traffic sign")
    np.testing.assert_array_equal(data.val[0][1], labels(0, 255, 1))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "LA", "CMYK"])
def test_pictures_of_any_mode(tmp_path, mode):
    folder(tmp_path, 3)
    for path in (tmp_path / "images").glob("*"):
        name = path.with_suffix(".tif" if mode == "CMYK" else ".png")
        stored = Image.open(path).convert(mode)
        path.unlink()
        stored.save(name)
    data = load_segmentation(tmp_path)
    stored = Image.open(data.val.pairs[0].image)
    np.testing.assert_array_equal(data.val[0][0].permute(1, 2, 0), np.array(stored.convert("RGB")))


def test_sixteen_bit_grey_pictures_are_scaled(tmp_path):
    folder(tmp_path, 3)
    values = np.arange(48, dtype=np.uint16).reshape(6, 8) * 1300
    for path in (tmp_path / "images").iterdir():
        mask(path, values)
    image, _ = load_segmentation(tmp_path).val[0]
    np.testing.assert_array_equal(image[1].numpy(), values // 256)


@pytest.mark.parametrize("drawn_upright", [True, False])
def test_exif_orientation(tmp_path, drawn_upright):
    values = np.arange(48 * 3, dtype=np.uint8).reshape(6, 8, 3)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    for i in range(3):
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(values).save(tmp_path / "images" / f"{i}.png", exif=exif)
        mask(tmp_path / "masks" / f"{i}.png", labels(0, 1, shape=(8, 6) if drawn_upright else (6, 8)))
    image, label = load_segmentation(tmp_path).val[0]
    assert image.shape[1:] == label.shape
    expected = np.rot90(values, -1) if drawn_upright else values
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_mixed_sizes(tmp_path):
    for i, size in enumerate([(8, 6), (10, 4), (5, 5)]):
        picture(tmp_path / "images" / f"{i}.png", size)
        mask(tmp_path / "masks" / f"{i}.png", labels(0, 1, shape=size[::-1]))
    data = load_segmentation(tmp_path)
    assert {*data.train.sizes, *data.val.sizes} == {(6, 8), (4, 10), (5, 5)}
    assert "3 sizes" in data.summary()
