"""What the script encodes, the package decodes."""

from __future__ import annotations

import numpy as np
import pytest

from isogon.lab.data._codec import decode


def round_trip(tool, images):
    levels = tool.stretch_levels(images)
    steps = -(-images.astype(np.int64) * levels[:, None, None] // 255)
    symbols, contexts = tool.symbols_and_contexts(steps)
    tables = tool.frequency_tables(symbols, contexts)
    states, words = tool.encode(symbols, contexts, tables)
    height, width = images.shape[1:]
    packed = levels.astype(np.uint8), tables.astype(np.uint16), states, words
    return decode(*packed, height=height, width=width), sum(array.nbytes for array in packed[2:])


@pytest.mark.parametrize("shape", [(50, 6, 9), (1, 28, 28), (7, 1, 1), (300, 5, 5)])
def test_any_images_come_back(make_fashion_mini, shape):
    generator = np.random.default_rng(0)
    noise = generator.integers(0, 256, shape, dtype=np.uint8)
    sparse = np.where(generator.random(shape) < 0.1, noise, 0).astype(np.uint8)
    stretched = (generator.integers(0, 38, shape) * 255 // 37).astype(np.uint8)
    flat = np.broadcast_to(generator.choice([0, 1, 254, 255], (shape[0], 1, 1)), shape).astype(np.uint8)
    images = np.concatenate([noise, sparse, stretched, flat])
    assert np.array_equal(round_trip(make_fashion_mini, images)[0], images)


def test_stretched_images_cost_as_if_they_were_not(make_fashion_mini):
    generator = np.random.default_rng(1)
    steps = generator.integers(0, 32, (500, 10, 10))
    plain, stretched = steps.astype(np.uint8), (steps * 255 // 31).astype(np.uint8)
    (_, small), (_, large) = round_trip(make_fashion_mini, stretched), round_trip(make_fashion_mini, plain)
    assert small < 1.05 * large
