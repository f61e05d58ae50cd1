"""The 8×8 digits that come with scikit-learn: 1,797 images, of which every fifth is for testing."""

from __future__ import annotations

import numpy as np

from isogon.lab.data._arrays import Arrays, make_arrays, require_package

#: grey levels are 0 … 16
WHITE = 16


def read_digits() -> Arrays:
    """1,438 training and 359 test images; scikit-learn itself makes no split."""
    datasets = require_package("sklearn.datasets", "scikit-learn", "to load digits")
    images, labels = datasets.load_digits(return_X_y=True)
    grey = np.rint(images * (255 / WHITE)).astype(np.uint8).reshape(-1, 1, 8, 8)
    test = np.arange(len(grey)) % 5 == 4
    return make_arrays("digits", (grey[~test], labels[~test]), (grey[test], labels[test]), tuple("0123456789"))
