"""Lossless decoding of the small grey images embedded in the package: prediction, contexts and a range coder.

General compressors do poorly on Fashion-MNIST: xz leaves 3.8 of 7.8 MB. Three things about the images bring it to
3.2 MB with a decoder of one page. Many were stretched to the full range of grey, ⌊255 u / M⌋ with whole u ≤ M, so u is
what is coded. Half of the pixels are background: a flag says so, given which of ten neighbours are. Any other pixel is
coded as its difference from the median edge predictor, given how busy and how bright its surroundings are.

The flags and differences go through a range coder of the asymmetric kind (rANS): a state s and a table of frequencies
f that sum to 2¹² decode a symbol of frequency f and first slot c by s ← f ⌊s / 2¹²⌋ + (s mod 2¹²) − c, and 16 bits are
shifted in when s falls below 2¹⁶. Every image has its own state, so that one numpy operation serves all of them; the
words that they shift in lie in one stream, in the order of need. All arithmetic is in whole numbers, hence exact on
every machine. `tools/make_fashion_mini.py` holds the encoder.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PRECISION = 12
#: a border of background, so that each pixel has all its neighbours
BORDER = 2

# Above and to the left of a pixel, as (row, column); the first six are W, N, NW, NE, WW, NN of image coding.
_NEIGHBOURS = ((0, -1), (-1, 0), (-1, -1), (-1, 1), (0, -2), (-2, 0), (-2, 1), (-1, 2), (-1, -2), (-2, -1))
_BUSY = (1, 3, 6, 10, 15, 20, 26, 34, 44, 56, 70, 90, 120, 160, 220, 300)
_BRIGHT = (1, 30, 128, 200, 225)

#: contexts in the table of frequencies: flags, differences, and one that is certain of its only symbol 0
DIFFERENCES = 1 << len(_NEIGHBOURS)
CERTAIN = DIFFERENCES + (len(_BUSY) + 1) * (len(_BRIGHT) + 1)

_BUSY_LEVEL = np.digitize(np.arange(5 * 256), _BUSY) * (len(_BRIGHT) + 1) + DIFFERENCES
_BRIGHT_LEVEL = np.digitize(np.arange(256), _BRIGHT)


def make_bordered(height: int, width: int, count: int) -> NDArray[np.int16]:
    """Room for `count` images, pixel by pixel: (row, column, image)."""
    return np.zeros((height + BORDER, width + 2 * BORDER, count), np.int16)


def surroundings(pixels: NDArray[np.int16], row: int, column: int) -> tuple[Any, Any, Any]:
    """The context of a pixel in all images: the flag's context, the prediction, the difference's context."""
    near = [pixels[row + BORDER + down, column + BORDER + right] for down, right in _NEIGHBOURS]
    flag = np.zeros(pixels.shape[2], np.int64)
    for place, neighbour in enumerate(near):
        flag |= (neighbour == 0).astype(np.int64) << place
    w, n, nw, ne, ww, nn = near[:6]
    prediction = np.clip(w + n - nw, np.minimum(w, n), np.maximum(w, n))
    busy = np.abs(w - nw) + np.abs(n - nw) + np.abs(n - ne) + np.abs(w - ww) + np.abs(n - nn)
    return flag, prediction, _BUSY_LEVEL[busy] + _BRIGHT_LEVEL[prediction]


class _Decoder:
    """Symbols out of the stream of words, one for each image at a time."""

    def __init__(self, frequencies: NDArray[np.uint16], states: NDArray[np.uint32], words: NDArray[np.uint16]) -> None:
        self.frequency = frequencies.astype(np.int64)
        self.start = self.frequency.cumsum(1) - self.frequency
        symbols = np.broadcast_to(np.arange(256, dtype=np.uint8), frequencies.shape)
        self.symbol = np.repeat(symbols.ravel(), self.frequency.ravel()).reshape(len(frequencies), 1 << PRECISION)
        self.states, self.words, self.read = states.astype(np.int64), words, 0

    def __call__(self, contexts: Any) -> Any:
        slot = self.states & ((1 << PRECISION) - 1)
        symbol = self.symbol[contexts, slot]
        self.states = (
            self.frequency[contexts, symbol] * (self.states >> PRECISION) + slot - self.start[contexts, symbol]
        )
        short = np.flatnonzero(self.states < 1 << 16)
        self.states[short] = self.states[short] << 16 | self.words[self.read : self.read + len(short)]
        self.read += len(short)
        return symbol


def decode(
    levels: NDArray[np.uint8],
    frequencies: NDArray[np.uint16],
    states: NDArray[np.uint32],
    words: NDArray[np.uint16],
    *,
    height: int = 28,
    width: int = 28,
) -> NDArray[np.uint8]:
    """The images, count × height × width; `levels` are the M above."""
    decoder = _Decoder(frequencies, states, words)
    pixels = make_bordered(height, width, len(levels))
    for row in range(height):
        for column in range(width):
            flag, prediction, context = surroundings(pixels, row, column)
            ink = decoder(flag) == 1
            difference = decoder(np.where(ink, context, CERTAIN))
            pixels[row + BORDER, column + BORDER] = np.where(ink, (prediction + difference) & 255, 0)
    steps = pixels[BORDER:, BORDER:-BORDER].transpose(2, 0, 1).astype(np.int32)
    return (steps * 255 // levels[:, None, None]).astype(np.uint8)
