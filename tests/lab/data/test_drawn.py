"""Drawn pictures in ImageNet's layout."""

from __future__ import annotations

import pytest

from isogon.lab.data import load
from isogon.lab.data._drawn import CLASSES, LONGEST, SIZE, TEST, TRAIN, write_drawn_folders
from isogon.lab.data._loading import _read

image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def test_the_files_are_as_varied_as_imagenets(tmp_path):
    write_drawn_folders(tmp_path)
    for part, count in (("train", TRAIN), ("val", TEST)):
        assert [len(list(folder.iterdir())) for folder in (tmp_path / part).iterdir()] == [count] * CLASSES
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".JPEG", ".png"}
    sizes = {image.open(file).size for file in files}
    assert len(sizes) > 20
    assert all(SIZE <= side <= LONGEST for size in sizes for side in size)


def test_they_are_loaded_by_name_and_the_same_in_every_process():
    loaded = load("drawn-folders", subset=200)
    assert loaded.train_x.shape == (200, 3, SIZE, SIZE)
    assert loaded.train_y.bincount().tolist() == [20] * CLASSES
    assert len(loaded.test_x) == TEST * CLASSES
    _read.cache_clear()
    again = load("drawn-folders", subset=200)
    assert again.train_x.data_ptr() != loaded.train_x.data_ptr()
    assert again.fingerprint == loaded.fingerprint
