"""Data sets in one numpy archive."""

from __future__ import annotations

import io
import lzma

import numpy as np
import pytest

from isogon.lab.data import DamagedDataError, MissingDataError, load
from isogon.lab.data._npz import read_npz


@pytest.fixture
def small(made_up):
    return made_up(30, 20, classes=3, shape=(3, 5, 7))


def parts_of(arrays):
    return {
        "train_x": arrays.train_x.transpose(0, 2, 3, 1),
        "train_y": arrays.train_y.astype(np.uint8),
        "test_x": arrays.test_x.transpose(0, 2, 3, 1),
        "test_y": arrays.test_y.astype(np.uint8),
    }


def write(path, parts, **options):
    packed = io.BytesIO()
    np.savez_compressed(packed, **parts, **options)
    content = packed.getvalue()
    path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else content)
    return path


@pytest.mark.parametrize("name", ["set.npz", "set.npz.xz"])
def test_colour_images(tmp_path, small, same_arrays, name):
    write(tmp_path / name, parts_of(small))
    loaded = load(f"npz:{tmp_path / name}")
    assert same_arrays(read_npz(tmp_path / name), small)
    assert np.array_equal(loaded.train_x.numpy(), small.train_x)
    assert loaded.train_x.is_contiguous()
    assert (loaded.in_channels, loaded.image_size, loaded.num_classes) == (3, (5, 7), 3)
    assert loaded.classes == ("0", "1", "2")


def test_grey_images_need_no_axis_for_channels(tmp_path, made_up, same_arrays):
    grey = made_up(30, 20, shape=(1, 5, 7))
    parts = parts_of(grey)
    for name in ("train_x", "test_x"):
        parts[name] = parts[name][..., 0]
    assert same_arrays(read_npz(write(tmp_path / "set.npz", parts)), grey)


def test_a_relative_path_is_taken_from_the_current_folder(tmp_path, small, monkeypatch):
    write(tmp_path / "set.npz", parts_of(small))
    monkeypatch.chdir(tmp_path)
    assert load("npz:set.npz", root="elsewhere").samples == 30


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"train_x": np.zeros((30, 5, 7, 3), np.float32)}, "must be uint8"),
        ({"train_x": np.zeros((30, 3, 5, 7), np.uint8)}, "C at most 4"),
        ({"train_x": np.zeros((30, 35), np.uint8)}, "N×H×W"),
        ({"train_x": np.zeros((0, 5, 7, 3), np.uint8), "train_y": np.zeros(0, int)}, "not empty"),
        ({"train_y": np.zeros(29, np.int64)}, "30 images need as many"),
        ({"train_y": np.zeros(30)}, "whole numbers"),
        ({"train_y": np.arange(30) % 4 - 1}, "labels run from -1 to 2"),
        ({"train_y": np.full(30, 30)}, "more classes than images"),
        ({"test_y": np.full(20, 3)}, "to 3 where 3 classes"),
        ({"test_x": np.zeros((20, 5, 6, 3), np.uint8)}, r"training images are \(3, 5, 7\)"),
        ({"test_x": np.array([{"an": "object"}])}, "Object arrays cannot be loaded"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, small, change, complaint):
    path = write(tmp_path / "set.npz", {**parts_of(small), **change})
    with pytest.raises(DamagedDataError, match=complaint):
        read_npz(path)


def test_a_lacking_array_is_named(tmp_path, small):
    parts = parts_of(small)
    del parts["test_y"]
    with pytest.raises(DamagedDataError, match="lacks the array test_y"):
        read_npz(write(tmp_path / "set.npz", parts))


@pytest.mark.parametrize("name", ["set.npz", "set.npz.xz"])
@pytest.mark.parametrize("spoil", [lambda c: c[: len(c) // 2], lambda c: c[:10], lambda c: b"", lambda c: b"text" * 9])
def test_a_damaged_archive_is_refused(tmp_path, small, name, spoil):
    path = write(tmp_path / name, parts_of(small))
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DamagedDataError, match=f"{name} cannot be used: it does not unpack"):
        read_npz(path)


def test_an_altered_byte_is_noticed(tmp_path, small):
    path = write(tmp_path / "set.npz.xz", parts_of(small))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedDataError):
        read_npz(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=str(tmp_path / "no.npz")):
        load(f"npz:{tmp_path / 'no.npz'}")
