"""Folders of image files: ImageNet's layout, and Tiny ImageNet as published. Needs Pillow.

All images are decoded into memory as RGB: N × 3 × size × size bytes, which is 1.4 GB for Tiny ImageNet.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isogon.errors import ArgumentError, first_line
from isogon.lab.data._arrays import Arrays, DamagedDataError, MissingDataError, make_arrays, require_package
from isogon.lab.data._unpacking import check_memory

#: pixels of an image's side at most, when it is resized, and of an image in a file
_MOST_SIDE, _MOST_PIXELS = 2048, 2**26
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".webp"}


def read_image_folder(folder: Path, size: int | None = None) -> Arrays:
    """`folder/train/CLASS/*` and `folder/val/CLASS/*` (or `test`), classes in the order of their names.

    With `size` the shorter side is resized to it (bilinear, antialiased) and the centre cut out; without, all images
    must be of one size.
    """
    train = folder / "train"
    test = next((folder / name for name in ("val", "test") if (folder / name).is_dir()), None)
    if not train.is_dir() or test is None:
        raise MissingDataError(
            f"{folder} does not hold train and val (or test): put the images into {train}/CLASS and {folder}/val/CLASS."
        )
    classes = tuple(sorted(entry.name for entry in train.iterdir() if entry.is_dir()))
    strangers = sorted({entry.name for entry in test.iterdir() if entry.is_dir()} - set(classes))
    if strangers:
        raise DamagedDataError(test, f"its class {strangers[0]} is not in {train}")
    parts = []
    for part in (train, test):
        files = [(path, label) for label, name in enumerate(classes) for path in _images_in(part / name)]
        if not files:
            raise MissingDataError(f"{part} holds no images: put them into {part}/CLASS.")
        parts.append((_decode([path for path, _ in files], size), np.array([label for _, label in files])))
    return make_arrays(folder, parts[0], parts[1], classes)


@dataclass(frozen=True)
class TinyImageNet:
    """The published numbers: classes, training images of each, validation images in all, pixels per side."""

    classes: int = 200
    train: int = 500
    test: int = 10_000
    size: int = 64


def read_tiny_imagenet(root: Path, published: TinyImageNet = TinyImageNet()) -> Arrays:
    """`tiny-imagenet-200` below the root; its validation images are the test set, as its test labels are secret.

    A part will do where each class has as many training and as many validation images as any other; which images a
    run was trained on is in its fingerprint.
    """
    folder = root / "tiny-imagenet-200"
    annotations = folder / "val" / "val_annotations.txt"
    for needed in (folder / "wnids.txt", folder / "train", annotations):
        if not (needed.is_dir() if needed.suffix == "" else needed.is_file()):
            raise MissingDataError(
                f"tiny-imagenet lacks {needed}: unpack tiny-imagenet-200.zip in {root} as published, "
                "or set ISOGON_DATA to the folder where it is unpacked."
            )
    ids = sorted((folder / "wnids.txt").read_text().split())
    label_of = {name: label for label, name in enumerate(ids)}
    train = [(path, label_of[name]) for name in ids for path in _images_in(folder / "train" / name / "images")]
    test = []
    for line in annotations.read_text().splitlines():
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0]
        if name not in label_of:
            raise DamagedDataError(annotations, f"its line {line!r} names no class of wnids.txt")
        test.append((folder / "val" / "images" / file, label_of[name]))
    counts = [np.bincount([label for _, label in files], minlength=len(ids)) for files in (train, test)]
    even = all(count.size and count.min() == count.max() > 0 for count in counts)
    most = published.classes * published.train, published.test
    if len(ids) != published.classes or not even or len(train) > most[0] or len(test) > most[1]:
        raise DamagedDataError(
            folder,
            f"it has {len(ids)} classes, {len(train)} training and {len(test)} validation images where the published "
            f"set has {published.classes}, {most[0]} and {most[1]}; a part must have as many images of each class",
        )
    parts = [
        (_decode([path for path, _ in files], None, published.size), np.array([label for _, label in files]))
        for files in (train, test)
    ]
    return make_arrays(folder, parts[0], parts[1], _class_names(folder, ids))


def _class_names(folder: Path, ids: Sequence[str]) -> tuple[str, ...]:
    """The classes' names where words.txt has them."""
    lines = (folder / "words.txt").read_text().splitlines() if (folder / "words.txt").is_file() else []
    names = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return tuple(names.get(key, key) for key in ids)


def _images_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    # A pipe would make the reader wait for ever.
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


def _decode(paths: Sequence[Path], size: int | None, exactly: int | None = None) -> NDArray[np.uint8]:
    """All images, N×3×H×W; `exactly` is the side they must have."""
    pillow = require_package("PIL.Image", "pillow", "to read image files")
    images: NDArray[np.uint8] | None = None
    for place, path in enumerate(paths):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
                with pillow.open(path) as file:
                    if file.width * file.height > _MOST_PIXELS:
                        raise ValueError(f"it has {file.width}×{file.height} pixels")
                    picture = file.convert("RGB")
                if size:
                    picture = _resize_and_crop(picture, size, pillow)
        except Exception as error:  # Pillow raises errors of any type
            raise DamagedDataError(path, f"it does not decode ({first_line(error)})") from error
        pixels = np.asarray(picture).transpose(2, 0, 1)
        if images is None:
            check_memory(path.parent, len(paths) * pixels.size)
            images = np.empty((len(paths), *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:] or (exactly and pixels.shape[1:] != (exactly, exactly)):
            raise DamagedDataError(
                path,
                f"it is {pixels.shape[2]}×{pixels.shape[1]} where {exactly or images.shape[3]}×"
                f"{exactly or images.shape[2]} is needed (imagefolder:PATH?size=64 resizes all to one size)",
            )
        images[place] = pixels
    assert images is not None
    return images


def _resize_and_crop(picture: Any, size: int, pillow: Any) -> Any:
    """Shorter side to `size`, then the centre."""
    width, height = picture.size
    scale = size / min(width, height)
    width, height = max(size, round(width * scale)), max(size, round(height * scale))
    if width * height > _MOST_PIXELS:
        raise ValueError(f"resized it would have {width}×{height} pixels")
    left, top = (width - size) // 2, (height - size) // 2
    resized = picture.resize((width, height), pillow.Resampling.BILINEAR)
    return resized.crop((left, top, left + size, top + size))


def split_size(text: str) -> tuple[str, int | None]:
    """PATH or PATH?size=64 taken apart.

    >>> split_size("photos?size=64")
    ('photos', 64)
    """
    path, mark, option = text.partition("?")
    if not mark:
        return path, None
    key, _, number = option.partition("=")
    if key != "size" or not re.fullmatch("[0-9]{1,4}", number) or not 1 <= int(number) <= _MOST_SIDE:
        rule = f"imagefolder:PATH or imagefolder:PATH?size=PIXELS with 1 to {_MOST_SIDE} pixels"
        raise ArgumentError("name", rule, text, "write ?size=64, for example")
    return path, int(number)
