"""What the tables' landscapes look like: a picture of each work, and the numbers of docs/landscapes.md.

    python benchmarks/draw_landscapes.py [--works cnn4-sgd] [--out docs/images]

For each part of the data: the best cell, the best tuning factor at each learning rate within a factor of 4 of the best
one, how wide the region is that is within one spread of seeds of the best (in octaves of each rate, along lines through
the best cell), and how much less the best cell of that part is worth on all of the data than the best one there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from make_table import TABLES
from replay import Landscape


def draw(landscape: Landscape, file: Path) -> None:
    """Contours of the score by part of the data, the best cell of each, that of all the data beside it."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    parts = landscape.fractions
    figure, panels = pyplot.subplots(1, len(parts), figsize=(3.4 * len(parts), 3.4), sharey=True, squeeze=False)
    for panel, part in zip(panels[0], parts, strict=True):
        values = landscape.means(part)
        best = values.max()
        steps = np.array([8, 4, 2, 1, 0.5, 0.25]) * (1.0 if landscape.metric == "test_accuracy" else 0.05)
        filled = panel.contourf(
            landscape.lrs, landscape.factors, values.T, levels=[*(best - steps), best + 1e-9], extend="min"
        )
        panel.contour(landscape.lrs, landscape.factors, values.T, levels=filled.levels, colors="white", linewidths=0.5)
        for of, mark in ((parts[-1], "+"), (part, "o")):
            column, row = best_cell(landscape, of)
            panel.plot(landscape.lrs[column], landscape.factors[row], mark, color="crimson", ms=9, mfc="none", mew=1.5)
        panel.set(xscale="log", yscale="log", xlabel="learning rate", title=f"{part:.4g} of the data")
    panels[0][0].set_ylabel("tuning factor F")
    unit = "points" if landscape.metric == "test_accuracy" else "nats"
    figure.suptitle(
        f"{landscape.name}: contours at {', '.join(f'{step:g}' for step in steps[::-1])} {unit} below the best"
    )
    figure.tight_layout()
    figure.savefig(file, dpi=80)


def best_cell(landscape: Landscape, part: float) -> tuple[int, int]:
    """Column and row."""
    values = landscape.means(part)
    column, row = np.unravel_index(int(np.argmax(values)), values.shape)
    return int(column), int(row)


def describe(landscape: Landscape) -> str:
    lines = [f"{landscape.name}, seeds' spread near the best {landscape.spread_at_best:.2g}"]
    for part in landscape.fractions:
        values = landscape.means(part)
        column, row = best_cell(landscape, part)
        lr, factor = landscape.lrs[column], landscape.factors[row]
        near = [k for k in range(len(landscape.lrs)) if abs(math.log2(landscape.lrs[k] / lr)) < 2.1]
        at_each = ", ".join(f"{landscape.lrs[k]:.3g}: {landscape.factors[int(np.argmax(values[k]))]:.3g}" for k in near)
        floor = values.max() - landscape.spread_at_best
        wide = [_octaves(line, floor, place) for line, place in ((values[:, row], column), (values[column], row))]
        lines.append(
            f"  {part:6.4g} of the data: best {values.max():.2f} at lr {lr:.3g}, F {factor:.3g};"
            f" best F by lr {at_each}; within one spread over {wide[0]:.0f} octaves of lr and {wide[1]:.0f} of F; "
            f"on all of the data {landscape.regret(lr, factor):.2f} below the best"
        )
    return "\n".join(lines)


def _octaves(line: Sequence[float], floor: float, place: int) -> int:
    """Steps of the grid, an octave each, from the first cell to the last that is above the floor without a gap."""
    low = high = place
    while low > 0 and line[low - 1] >= floor:
        low -= 1
    while high < len(line) - 1 and line[high + 1] >= floor:
        high += 1
    return high - low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="+", default=sorted(file.stem for file in TABLES.glob("*.parquet")))
    parser.add_argument("--out", type=Path, help="write landscape-NAME.png of each work into this folder")
    options = parser.parse_args()
    for name in options.works:
        landscape = Landscape.read(TABLES / f"{name}.parquet")
        print(describe(landscape))
        if options.out is not None:
            draw(landscape, options.out / f"landscape-{name}.png")


if __name__ == "__main__":
    main()
