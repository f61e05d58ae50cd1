"""Data beside the project where it is at hand, and small made-up sets."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from isogon.lab.data._arrays import Arrays
from isogon.lab.data._npz import read_npz


@pytest.fixture(scope="session")
def shared_data(root) -> Path:
    folder = root.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the data folder is not beside the project")
    return folder


@pytest.fixture(scope="session")
def full_fashion(shared_data) -> Arrays:
    """All of Fashion-MNIST; decoded once."""
    file = shared_data / "fashion_mnist.npz.xz"
    if not file.exists():
        pytest.skip("Fashion-MNIST is not in the data folder")
    return read_npz(file)


@pytest.fixture(scope="session")
def make_fashion_mini(root) -> ModuleType:
    """The script that made the embedded set."""
    spec = importlib.util.spec_from_file_location("make_fashion_mini", root / "tools" / "make_fashion_mini.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def made_up() -> Callable[..., Arrays]:
    """Random images with balanced labels in mixed order."""

    def make(train: int, test: int, classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32)) -> Arrays:
        generator = np.random.default_rng(train)
        parts = []
        for count in (train, test):
            images = generator.integers(0, 256, (count, *shape), dtype=np.uint8)
            parts += [images, generator.permutation(np.arange(count) % classes)]
        return Arrays(*parts, classes=tuple(str(label) for label in range(classes)))

    return make


@pytest.fixture(scope="session")
def same_arrays() -> Callable[[Arrays, Arrays], bool]:
    def same(one: Arrays, other: Arrays) -> bool:
        names = ("train_x", "train_y", "test_x", "test_y")
        return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)

    return same
