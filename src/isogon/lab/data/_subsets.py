"""Which samples make a smaller training set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def balanced_subset(labels: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """The places of `count` samples, ascending: balanced over classes, and nested for one seed.

    Each sample gets a random 64-bit key from PCG64 and a rank among its class by that key; samples are then taken by
    rank, and within a rank by key. So class counts differ by at most one as long as no class runs out, and a smaller
    subset is always part of a larger one. numpy promises the raw stream of PCG64 for all versions and machines, which
    it does not for `permutation`.
    """
    keys = np.random.PCG64(seed).random_raw(len(labels))
    by_class = np.lexsort((keys, labels))
    first = np.searchsorted(labels[by_class], labels[by_class])
    rank = np.empty(len(labels), np.int64)
    rank[by_class] = np.arange(len(labels)) - first
    return np.sort(np.lexsort((keys, rank))[:count])
