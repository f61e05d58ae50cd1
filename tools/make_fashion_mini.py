"""Make the embedded set `fashion-mini`: the first 800 training and 200 test images of each Fashion-MNIST class.

    python tools/make_fashion_mini.py fashion_mnist.npz.xz

reads the arrays train_x, train_y, test_x, test_y (uint8) of the full set and writes `fashion-mini.npz.xz` beside the
module that reads it, then prints its size and the checksum to put there. Run it with src on the path.
"""

from __future__ import annotations

import argparse
import io
import lzma
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isogon.lab.data import _codec as codec
from isogon.lab.data import _fashion_mini as fashion_mini
from isogon.lab.data._npz import read_npz

TOTAL = 1 << codec.PRECISION


def first_of_each(labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    """The places of the first `count` samples of each class, in order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]))


def stretch_levels(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """For each image the least M with all its values among ⌊255 u / M⌋, u = 0 … M."""
    used = np.stack([np.bincount(image.ravel(), minlength=256) > 0 for image in images])
    levels = np.full(len(images), 255, np.int64)
    for level in range(254, 0, -1):
        possible = np.zeros(256, bool)
        possible[np.arange(level + 1) * 255 // level] = True
        levels[~(used & ~possible).any(1)] = level
    return levels


def symbols_and_contexts(steps: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """What the decoder will meet, in its order: two rows per pixel (flag, difference), a column per image."""
    count, height, width = steps.shape
    pixels = codec.make_bordered(height, width, count)
    inner = pixels[codec.BORDER :, codec.BORDER : -codec.BORDER]
    symbols, contexts = [], []
    for row in range(height):
        for column in range(width):
            flag, prediction, context = codec.surroundings(pixels, row, column)
            value = steps[:, row, column]
            ink = value > 0
            symbols += [ink, np.where(ink, (value - prediction) & 255, 0)]
            contexts += [flag, np.where(ink, context, codec.CERTAIN)]
            inner[row, column] = value
    return np.stack(symbols).astype(np.uint8), np.stack(contexts)


def frequency_tables(symbols: NDArray[np.uint8], contexts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Whole frequencies of each context that sum to 2¹², at least 1 for each symbol that occurs."""
    flat = (contexts * 256 + symbols).ravel()
    counts = np.bincount(flat, minlength=(codec.CERTAIN + 1) * 256).reshape(-1, 256)
    counts[counts.sum(1) == 0, 0] = 1
    tables: NDArray[np.int64] = np.maximum(counts * TOTAL // counts.sum(1, keepdims=True), counts > 0)
    for table in tables:
        while (spare := TOTAL - table.sum()) != 0:
            table[table.argmax()] += max(spare, -(table.max() // 2))
    return tables


def encode(
    symbols: NDArray[np.uint8], contexts: NDArray[np.int64], tables: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """The states and the words that the decoder starts with: its steps undone, last first."""
    starts = tables.cumsum(1) - tables
    states = np.full(symbols.shape[1], 1 << 16, np.int64)
    words: list[NDArray[np.uint16]] = []
    for symbol, context in zip(symbols[::-1], contexts[::-1], strict=True):
        frequency = tables[context, symbol]
        full = states >= frequency << (32 - codec.PRECISION)
        words.append((states[full] & 0xFFFF).astype(np.uint16))
        states[full] >>= 16
        states = (states // frequency << codec.PRECISION) + states % frequency + starts[context, symbol]
    return states.astype(np.uint32), np.concatenate(words[::-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the full set, .npz or .npz.xz")
    full = read_npz(parser.parse_args().source)
    train, test = first_of_each(full.train_y, 800), first_of_each(full.test_y, 200)
    images = np.concatenate([full.train_x[train], full.test_x[test]])[:, 0]

    levels = stretch_levels(images)
    steps = -(-images.astype(np.int64) * levels[:, None, None] // 255)
    symbols, contexts = symbols_and_contexts(steps)
    tables = frequency_tables(symbols, contexts)
    states, words = encode(symbols, contexts, tables)

    packed = io.BytesIO()
    np.savez(
        packed,
        labels=np.concatenate([full.train_y[train], full.test_y[test]]).astype(np.uint8),
        levels=levels.astype(np.uint8),
        frequencies=tables.astype(np.uint16),
        states=states,
        words=words,
    )
    path = Path(fashion_mini.__file__).with_name(fashion_mini.FILE)
    path.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path.name}: {path.stat().st_size} bytes, checksum {fashion_mini.unpack(checksum=None).checksum()}")


if __name__ == "__main__":
    main()
