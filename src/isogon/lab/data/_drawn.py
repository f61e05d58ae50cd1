"""A few drawn pictures in ImageNet's layout, written to files and read by the loader of the real ones."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from isogon.lab.data._arrays import Arrays, require_package
from isogon.lab.data._folders import read_image_folder

CLASSES = 10
#: pictures of each class
TRAIN, TEST = 50, 10
#: pixels of a side at most, and after the loader has cut the pictures to one size
LONGEST, SIZE = 40, 28


def read_drawn_folders() -> Arrays:
    """Pictures of `write_drawn_folders`, cut to 28×28; the same in every process."""
    with TemporaryDirectory() as folder:
        write_drawn_folders(Path(folder))
        return read_image_folder(Path(folder), SIZE)


def write_drawn_folders(folder: Path) -> None:
    """Stripes whose direction is the class, of any phase, size and colour and under noise; JPEG, and some PNG."""
    pillow = require_package("PIL.Image", "pillow", "to draw pictures")
    rng = np.random.default_rng(0)
    for part, count in (("train", TRAIN), ("val", TEST)):
        for label in range(CLASSES):
            place = folder / part / f"n{label:08d}"
            place.mkdir(parents=True)
            for number in range(count):
                ending, options = (".png", {}) if number % 10 == 0 else (".JPEG", {"quality": 90})
                pillow.fromarray(_stripes(label, rng)).save(place / f"{place.name}_{number}{ending}", **options)


def _stripes(label: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    height, width = (int(side) for side in rng.integers(SIZE, LONGEST, 2, endpoint=True))
    y, x = np.mgrid[:height, :width]
    angle = math.pi * label / CLASSES
    wave = np.sin((x * math.cos(angle) + y * math.sin(angle)) * 2 * math.pi / 8 + rng.uniform(0, 2 * math.pi))
    colour = rng.uniform(10, 50, 3)
    # So much that a small network cannot learn them by heart: its gradients would vanish.
    noise = rng.normal(0, 90, (height, width, 3))
    pixels: NDArray[np.uint8] = np.clip(128 + wave[..., None] * colour + noise, 0, 255).astype(np.uint8)
    return pixels
