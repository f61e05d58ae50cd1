"""Shared by all tests: one thread each, the papers' folder where it is at hand, and exact products on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before numpy or torch start their thread pools: two processes with two threads each on two cores crawl.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("isogon", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("isogon")

ROOT = Path(__file__).parents[1]


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
