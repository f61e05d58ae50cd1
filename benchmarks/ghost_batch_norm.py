"""How long ghost batch norm takes against splitting the batch by hand and calling batch norm on the pieces.

    python benchmarks/ghost_batch_norm.py [--repeats 15] [--threads 1]

Forward and backward in float32 on the CPU. The three ways take turns within each repeat, so that a slow moment hits
them alike; printed is the median over repeats of the ratio to the naive split, with its quartiles. "Folded" is the
rejected design: the ghost batches become channels of one call of batch norm.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from machine import processor
from torch import nn
from torch.nn import functional

from isogon.nets import GhostBatchNorm2d

GHOST_BATCH = 64
SHAPES = [(128, 64, 32, 32), (256, 128, 16, 16), (256, 512, 4, 4)]
FORMATS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}
CALLS = 3  # in one measurement

Way = Callable[[nn.BatchNorm2d, torch.Tensor], torch.Tensor]


def isogon_layer(layer: nn.BatchNorm2d, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = layer(x)
    return y


def naive(layer: nn.BatchNorm2d, x: torch.Tensor) -> torch.Tensor:
    return torch.cat(
        [
            functional.batch_norm(piece, layer.running_mean, layer.running_var, layer.weight, layer.bias, training=True)
            for piece in torch.split(x, GHOST_BATCH)
        ]
    )


def fold_batches(layer: nn.BatchNorm2d, x: torch.Tensor) -> torch.Tensor:
    samples, channels, *image = x.shape
    pieces = samples // GHOST_BATCH
    y = x.reshape(pieces, GHOST_BATCH, channels, *image).transpose(0, 1)
    weight, bias = layer.weight.repeat(pieces), layer.bias.repeat(pieces)
    y = y.reshape(GHOST_BATCH, pieces * channels, *image)
    y = functional.batch_norm(y, None, None, weight, bias, training=True)
    return y.reshape(GHOST_BATCH, pieces, channels, *image).transpose(0, 1).reshape(x.shape)


def seconds(way: Way, layer: nn.BatchNorm2d, x: torch.Tensor, gradient: torch.Tensor) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        torch.autograd.grad(way(layer, x), (x, layer.weight, layer.bias), gradient)
    return (time.perf_counter() - start) / CALLS


def compare(shape: tuple[int, ...], memory_format: torch.memory_format, repeats: int) -> str:
    layer = GhostBatchNorm2d(shape[1], GHOST_BATCH)
    x = torch.randn(shape).to(memory_format=memory_format).requires_grad_()
    gradient = torch.randn(shape).to(memory_format=memory_format)
    ways: list[Way] = [naive, isogon_layer, fold_batches]
    times: dict[str, list[float]] = {way.__name__: [] for way in ways}
    for repeat in range(repeats + 1):
        turn = repeat % len(ways)
        for way in ways[turn:] + ways[:turn]:
            elapsed = seconds(way, layer, x, gradient)
            if repeat:  # the first one warms up
                times[way.__name__].append(elapsed)
    cells = [f"{1e3 * statistics.median(times['naive']):8.1f} ms"]
    for name in ("isogon_layer", "fold_batches"):
        ratios = [a / b for a, b in zip(times[name], times["naive"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cells.append(f"{middle:5.2f} ({low:.2f} to {high:.2f})")
    return "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{processor()}, {options.threads} thread(s), torch {torch.__version__}, Python {platform.python_version()}")
    print(f"{options.repeats} repeats of {CALLS} calls; ratios to the naive split: median (quartiles)\n")
    print(f"{'shape':20} {'memory':16} {'naive split':>11}  {'isogon':20} {'folded':20}")
    for shape in SHAPES:
        for name, memory_format in FORMATS.items():
            print(f"{shape!s:20} {name:16} {compare(shape, memory_format, options.repeats)}", flush=True)


if __name__ == "__main__":
    main()
