"""Folders of image files."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from isogon.errors import ArgumentError, MissingExtraError
from isogon.lab.data import DamagedDataError, MissingDataError, load
from isogon.lab.data._folders import TinyImageNet, read_image_folder, read_tiny_imagenet

image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

TINY = TinyImageNet(classes=3, train=4, test=6, size=8)


def write_picture(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels).save(path, **options)


@pytest.fixture
def pictures():
    return np.random.default_rng(0).integers(0, 256, (6, 8, 10, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path, pictures):
    for place, name in enumerate(["train/cat/b", "train/cat/a", "train/ant/x", "val/cat/q", "val/ant/p", "val/ant/o"]):
        write_picture(tmp_path / f"{name}.png", pictures[place])
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    return tmp_path


def test_imagenet_layout(folder, pictures):
    loaded = load(f"imagefolder:{folder}")
    assert loaded.classes == ("ant", "cat")
    assert loaded.train_y.tolist() == [0, 1, 1]
    assert loaded.test_y.tolist() == [0, 0, 1]
    assert np.array_equal(loaded.train_x.permute(0, 2, 3, 1).numpy(), pictures[[2, 1, 0]])
    assert np.array_equal(loaded.test_x.permute(0, 2, 3, 1).numpy(), pictures[[5, 4, 3]])


def test_test_may_be_called_test(folder):
    (folder / "val").rename(folder / "test")
    assert len(read_image_folder(folder).test_x) == 3


def test_resizing_takes_the_centre_of_the_shorter_side(tmp_path):
    # Three bands of 20 columns: the centre square of a 60×20 picture is the middle band.
    bands = np.repeat(np.array([0, 90, 255], np.uint8), 20)
    wide = np.broadcast_to(bands[None, :, None], (20, 60, 3)).copy()
    for place, picture in (("train/a/wide", wide), ("train/a/tall", wide.transpose(1, 0, 2)), ("val/a/wide", wide)):
        write_picture(tmp_path / f"{place}.png", picture)
    loaded = load(f"imagefolder:{tmp_path}?size=10")
    assert loaded.train_x.shape == (2, 3, 10, 10)
    assert (loaded.train_x[:, :, 1:-1, 1:-1] == 90).all()


def test_pictures_of_several_sizes_need_a_size(folder, pictures):
    write_picture(folder / "train" / "cat" / "c.png", pictures[0, :5])
    with pytest.raises(DamagedDataError, match=r"c\.png cannot be used: it is 10×5 where 10×8 .*\?size=64"):
        read_image_folder(folder)
    assert read_image_folder(folder, size=4).train_x.shape == (4, 3, 4, 4)


@pytest.mark.parametrize("option", ["?size=", "?size=0", "?size=-3", "?side=4", "?size=4.5"])
def test_a_bad_size_is_refused(folder, option):
    with pytest.raises(ArgumentError, match="size=PIXELS"):
        load(f"imagefolder:{folder}{option}")


def test_grey_pictures_become_colour(folder, pictures):
    write_picture(folder / "train" / "ant" / "x.png", pictures[0, ..., 0])
    assert np.array_equal(read_image_folder(folder).train_x[0], np.stack([pictures[0, ..., 0]] * 3))


def test_a_broken_picture_is_named(folder):
    path = folder / "val" / "cat" / "q.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DamagedDataError, match=r"q\.png cannot be used: it does not decode"):
        read_image_folder(folder)


def test_a_test_class_without_training_images_is_refused(folder, pictures):
    write_picture(folder / "val" / "dog" / "d.png", pictures[0])
    with pytest.raises(DamagedDataError, match="class dog is not in"):
        read_image_folder(folder)


def test_missing_parts_are_named(tmp_path):
    with pytest.raises(MissingDataError, match="train/CLASS"):
        load(f"imagefolder:{tmp_path}")
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "val").mkdir()
    with pytest.raises(MissingDataError, match="train holds no images"):
        load(f"imagefolder:{tmp_path}")


def test_without_pillow_the_cure_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"isogon\[data\]"):
        read_image_folder(folder)


@pytest.fixture
def tiny(tmp_path):
    """Tiny ImageNet's tree at 3 classes × 4 images, with flat grey pictures that JPEG keeps."""
    base = tmp_path / "tiny-imagenet-200"
    ids = ["n02", "n01", "n03"]
    for name in ids:
        for number in range(4):
            grey = np.full((8, 8, 3), 40 * int(name[1:]) + number, np.uint8)
            write_picture(base / "train" / name / "images" / f"{name}_{number}.JPEG", grey, quality=95)
        (base / "train" / name / f"{name}_boxes.txt").write_text("boxes\n")
    (base / "wnids.txt").write_text("\n".join(ids) + "\n")
    (base / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tbullfrog\nn99\tother\n")
    lines = []
    for number, name in enumerate(["n03", "n01", "n01", "n02", "n02", "n03"]):
        write_picture(base / "val" / "images" / f"val_{number}.JPEG", np.full((8, 8, 3), 200 + number, np.uint8))
        lines.append(f"val_{number}.JPEG\t{name}\t0\t32\t44\t62")
    (base / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_tiny_imagenet_as_published(tiny):
    arrays = read_tiny_imagenet(tiny, TINY)
    assert arrays.classes == ("goldfish, Carassius auratus", "bullfrog", "n03")
    assert arrays.train_y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert arrays.test_y.tolist() == [2, 0, 0, 1, 1, 2]
    assert arrays.train_x.shape == (12, 3, 8, 8)
    grey = 40 * (arrays.train_y + 1) + np.arange(12) % 4
    assert np.abs(arrays.train_x.mean((1, 2, 3)) - grey).max() < 1
    assert np.abs(arrays.test_x.mean((1, 2, 3)) - (200 + np.arange(6))).max() < 1


def test_tiny_imagenet_must_be_complete(tiny):
    with pytest.raises(DamagedDataError, match=r"3 classes, 12 training and 6 validation .* 200, 100000 and 10000"):
        load("tiny-imagenet", tiny)
    (tiny / "tiny-imagenet-200" / "train" / "n01" / "images" / "n01_2.JPEG").unlink()
    with pytest.raises(DamagedDataError, match="11 training"):
        read_tiny_imagenet(tiny, TINY)


def test_a_part_of_tiny_imagenet_will_do_where_its_classes_are_even(tiny):
    """A quarter of it, for example; a run records which images it saw by the data's fingerprint."""
    published = TinyImageNet(classes=3, train=16, test=24, size=8)
    assert len(read_tiny_imagenet(tiny, published).train_x) == 12
    (tiny / "tiny-imagenet-200" / "train" / "n01" / "images" / "n01_2.JPEG").unlink()
    with pytest.raises(DamagedDataError, match=r"11 training .* a part must have as many images of each class"):
        read_tiny_imagenet(tiny, published)


def test_tiny_imagenet_names_what_is_missing(tmp_path, tiny):
    (tiny / "tiny-imagenet-200" / "val" / "val_annotations.txt").unlink()
    with pytest.raises(MissingDataError, match=r"val_annotations\.txt: unpack tiny-imagenet-200\.zip"):
        load("tiny-imagenet", tiny)


def test_tiny_imagenet_with_an_unknown_class_is_refused(tiny):
    annotations = tiny / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text().replace("n02", "n07"))
    with pytest.raises(DamagedDataError, match=r"val_3\.JPEG.*names no class"):
        read_tiny_imagenet(tiny, TINY)


def test_tiny_imagenet_of_another_size_is_refused(tiny):
    with pytest.raises(DamagedDataError, match="8×8 where 64×64 is needed"):
        read_tiny_imagenet(tiny, TinyImageNet(classes=3, train=4, test=6))
