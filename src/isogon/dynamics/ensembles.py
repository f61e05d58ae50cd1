"""Do two groups of runs predict alike? The total-variation estimate of Li, Lyu and Arora (figures 3b and 9)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isogon.errors import ArgumentError, check_whole


def total_variation(left: ArrayLike, right: ArrayLike, *, classes: int) -> float:
    """The mean over images of ½ Σ_c |p_c − q_c|, p and q the class histograms of an image over the runs of a group.

    `left` and `right` are predicted classes (runs, images). Each histogram is made of n runs, so that the estimate is
    too high, by an amount that falls like n^(−1/2) even between equal groups: see `null_variation`.

    >>> total_variation([[0, 1], [0, 1]], [[0, 2], [0, 2]], classes=3)
    0.5
    """
    p, q = _histograms(left, classes), _histograms(right, classes)
    if p.shape != q.shape:
        raise ArgumentError("right", f"predictions for {len(p)} images like left", len(q), "use the same test images")
    return float(np.abs(p - q).sum(axis=1).mean() / 2)


def null_variation(group: ArrayLike, *, classes: int, splits: int = 20, seed: int = 0) -> float:
    """What `total_variation` finds between random halves of one group, on average: the estimate's bias, n/2 runs each.

    Compare it with two groups of n/2 runs.
    """
    check_whole("splits", splits, cure="20 is plenty")
    runs = _predictions(group)
    half = len(runs) // 2
    if half == 0:
        raise ArgumentError("group", "two runs or more", len(runs), "a single run cannot be split")
    rng = np.random.default_rng(seed)
    variations = []
    for _ in range(splits):
        order = rng.permutation(len(runs))
        variations.append(total_variation(runs[order[:half]], runs[order[half : 2 * half]], classes=classes))
    return float(np.mean(variations))


def error_sum(left: ArrayLike, right: ArrayLike, targets: ArrayLike) -> float:
    """The sum of the two groups' mean test errors: the variation if the groups never erred on the same image alike."""
    truth = np.asarray(targets)
    return float(sum(np.mean(_predictions(group) != truth) for group in (left, right)))


def _predictions(group: ArrayLike) -> NDArray[np.int64]:
    runs = np.asarray(group)
    if runs.ndim != 2 or runs.size == 0 or runs.dtype.kind not in "iu":
        raise ArgumentError("group", "whole numbers of shape (runs, images)", runs.shape, "give predicted classes")
    return runs.astype(np.int64)


def _histograms(group: ArrayLike, classes: int) -> NDArray[np.float64]:
    """(images, classes): the share of runs that predict each class."""
    check_whole("classes", classes, cure="count the classes")
    runs = _predictions(group)
    if runs.min() < 0 or runs.max() >= classes:
        raise ArgumentError("group", f"classes from 0 to {classes - 1}", int(runs.max()), "count the classes from 0")
    images = runs.shape[1]
    counts = np.zeros((images, classes))
    np.add.at(counts, (np.broadcast_to(np.arange(images), runs.shape), runs), 1.0)
    return counts / len(runs)
