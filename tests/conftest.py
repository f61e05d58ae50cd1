"""Shared by all tests: one thread each, the papers' folder where it is at hand, and exact products on a GPU.

`tools/test_machines.py` runs the numerical folders as other machines would, by three environment variables:
ISOGON_TEST_THREADS, ISOGON_TEST_ORDER (a number that shuffles the tests) and ISOGON_TEST_SEED (a number added to every
seed that a test gives to torch or numpy).
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before numpy or torch start their thread pools: two processes with two threads each on two cores crawl.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = os.environ.get("ISOGON_TEST_THREADS", "1")

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("isogon", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("isogon")

ROOT = Path(__file__).parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = os.environ.get("ISOGON_TEST_ORDER")
    if order:
        random.Random(int(order)).shuffle(items)


def _called_by_a_test(depth: int) -> bool:
    return str(ROOT / "tests") in sys._getframe(depth + 1).f_code.co_filename


def _shift_seed(seeded: Callable[..., Any], offset: int) -> Callable[..., Any]:
    """`seeded` with `offset` added to the seed wherever a test calls it; the library's own calls stay as they are."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], int) and _called_by_a_test(1):
            args = (args[0] + offset, *args[1:])
        return seeded(*args, **kwargs)

    return call


if os.environ.get("ISOGON_TEST_SEED"):
    _OFFSET = int(os.environ["ISOGON_TEST_SEED"])
    torch.manual_seed = _shift_seed(torch.manual_seed, _OFFSET)
    np.random.default_rng = _shift_seed(np.random.default_rng, _OFFSET)

    class _MovedGenerator(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            return super().manual_seed(seed + _OFFSET if _called_by_a_test(1) else seed)

    torch.Generator = _MovedGenerator


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def shared_papers() -> Path:
    """The papers and their catalogue, beside the project; tests that need them skip without."""
    folder = ROOT.parent / "shared" / "papers"
    if not folder.is_dir():
        pytest.skip("the papers' folder is not beside the project")
    return folder


@pytest.fixture
def exact_products() -> Iterator[None]:
    """Float32 is float32: no TF32 in a GPU's convolutions and products."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
