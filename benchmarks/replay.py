"""A table of real trainings as a function that any searcher can call: `Landscape`.

    landscape = Landscape.read("benchmarks/tables/cnn4-sgd.parquet")
    run = landscape.train(lr=0.1, tuning_factor=0.16, fraction=1 / 8, random=numpy.random.default_rng(0))
    run.value, run.history

A run's results are interpolated between the four cells round it, linearly in log lr and log F; outside the grid the
nearest edge counts. Its noise is that of the table's seeds: their spread about their cell's mean, pooled over the cells
of one fraction that are about as good, and correlated over checkpoints as they are. Where some seeds of a cell diverged
a run there diverges with their share. Scores are to be high: accuracies in points, losses with a minus.

`Replayed` is the same as the objective of a study, `def objective(trial) -> float`, and through Optuna's interface.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from isogon import Recipe
from isogon.errors import ArgumentError
from isogon.search import Trial

#: key of the description in a table's file
ABOUT = b"isogon_table"
#: cells are pooled with those of their quarter, from the best to the worst
_QUARTERS = 4


def read_table(file: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows of a table and its description."""
    try:
        table = pq.read_table(file)
        return table.to_pandas(), json.loads(table.schema.metadata[ABOUT])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        raise ArgumentError("table", "a file of make_table.py", str(file), "name another, or remove it") from None


@dataclass(frozen=True)
class ReplayedRun:
    """What a run reports: its score after each of some epochs, and at the end; NaN where it diverged."""

    history: tuple[tuple[int, float], ...]
    score: float


class Landscape:
    """The table's `rows` and its description `about`, as `make_table.py` writes them."""

    def __init__(self, name: str, rows: pd.DataFrame, about: dict[str, Any]) -> None:
        self.name, self.about = name, about
        self.metric: str = about["metric"]
        self.recipe = Recipe(**about["work"]["recipe"])
        sign = -1.0 if self.metric == "test_loss" else 100.0
        rows = rows.assign(score=(sign * rows[self.metric].astype("float64")).where(~rows.diverged))
        columns, lines = (sorted(set(rows[axis])) for axis in ("column", "row"))
        work = about["work"]
        self.lrs = work["lr"] * float(work["step"]) ** np.array(columns)
        self.factors = work["factor"] * float(work["step"]) ** np.array(lines)
        cells = rows.groupby("fraction")[["column", "row"]].apply(lambda part: len(part.drop_duplicates()))
        #: those parts of the data at which every cell was trained
        self.fractions = sorted(cells.index[cells == len(columns) * len(lines)])
        self.epochs = sorted(set(rows.epoch[rows.fraction == self.fractions[-1]][~rows.diverged]))
        worst = float(
            rows[rows.epoch == rows.groupby(["column", "row", "fraction", "seed"]).epoch.transform("max")].score.min()
        )
        self._layers = {part: _Layer(rows[rows.fraction == part], columns, lines, self.epochs, worst)
                        for part in self.fractions}  # fmt: skip
        #: of all cells on the whole data, the best mean
        #: what a run is worth that diverges: the worst that was reached at an end
        self.worst = worst
        self.best = float(np.nanmax(self._layers[self.fractions[-1]].worth))

    @classmethod
    def read(cls, file: str | Path) -> Self:
        rows, about = read_table(Path(file))
        return cls(Path(file).stem, rows, about)

    @property
    def box(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The grid's ends: learning rates, tuning factors."""
        return (float(self.lrs[0]), float(self.lrs[-1])), (float(self.factors[0]), float(self.factors[-1]))

    @property
    def spread_at_best(self) -> float:
        """The spread of seeds at the end among the better quarter of cells, on the largest part that has several."""
        spreads = []
        for part in self.fractions:
            worth = self.means(part)
            spreads.append(self._layers[part].spreads[np.unravel_index(np.argmax(worth), worth.shape)][-1])
        return float(next(spread for spread in reversed(spreads) if spread > 0))

    def train(self, lr: float, tuning_factor: float, fraction: float, random: np.random.Generator) -> ReplayedRun:
        """A run at these rates on this part of the data, one of the table's."""
        part = min(self.fractions, key=lambda known: abs(math.log(known / fraction)))
        if abs(part / fraction - 1) > 0.01:
            raise ValueError(f"{self.name} has the parts {self.fractions} of its data, not {fraction}")
        layer = self._layers[part]
        weights = self._weights(lr, tuning_factor)
        lost = float(np.sum(weights * layer.lost))
        chance, normal = random.random(), random.standard_normal(len(self.epochs))
        means, spreads = (layer.at(weights, values) for values in (layer.means, layer.spreads))
        at_end = layer.correlation
        scores = means + spreads * (at_end * normal[-1] + np.sqrt(1 - at_end**2) * normal)
        scores[-1] = means[-1] + spreads[-1] * normal[-1]
        if chance < lost or not np.isfinite(scores[-1]):
            return ReplayedRun((), math.nan)
        return ReplayedRun(tuple(zip(self.epochs, map(float, scores), strict=True)), float(scores[-1]))

    def worth(self, lr: float, tuning_factor: float) -> float:
        """The mean score of such runs on all of the data; one that diverges is worth the table's worst."""
        return float(np.sum(self._weights(lr, tuning_factor) * self._layers[self.fractions[-1]].worth))

    def regret(self, lr: float, tuning_factor: float) -> float:
        """By how much less such runs are worth than those of the best cell."""
        return self.best - self.worth(lr, tuning_factor)

    def means(self, fraction: float) -> NDArray[Any]:
        """The mean scores at the end, learning rates × tuning factors."""
        return self._layers[fraction].worth

    def _weights(self, lr: float, tuning_factor: float) -> NDArray[Any]:
        """The share of each cell in a point, learning rates × tuning factors."""
        return np.outer(_shares(np.log(self.lrs), math.log(lr)), _shares(np.log(self.factors), math.log(tuning_factor)))


class _Layer:
    """One part of the data: by cell the means and spreads over checkpoints, the share that diverged, the worth."""

    def __init__(
        self, rows: pd.DataFrame, columns: list[int], lines: list[int], epochs: list[int], worst: float
    ) -> None:
        shape = len(columns), len(lines)
        place = {cell: index for index, cell in enumerate((c, r) for c in columns for r in lines)}
        rows = rows.assign(cell=[place[cell] for cell in zip(rows.column, rows.row, strict=True)])
        runs = rows.set_index(["cell", "seed", "epoch"]).score.unstack("epoch").reindex(columns=epochs)
        lost = rows.groupby(["cell", "seed"]).diverged.any()
        every = range(len(place))
        self.lost = lost.groupby("cell").mean().reindex(every, fill_value=1.0).to_numpy().reshape(shape)
        alive = runs[~lost.reindex(runs.index)]
        means = alive.groupby("cell").mean().reindex(every)
        self.means = means.to_numpy().reshape(*shape, -1)
        self.worth = (1 - self.lost) * np.nan_to_num(self.means[..., -1], nan=worst) + self.lost * worst
        residuals = alive - means.reindex(alive.index.get_level_values("cell")).to_numpy()
        counts = alive.groupby("cell").size()
        repeated = counts[counts > 1].index
        # Without a second seed anywhere there is no noise to go by.
        order = means[epochs[-1]].rank(pct=True, ascending=False).fillna(1.0)
        quarter = np.minimum((order * _QUARTERS).astype(int), _QUARTERS - 1)
        spreads = np.zeros((len(place), len(epochs)))
        pooled: dict[int, NDArray[Any]] = {}
        for part in range(_QUARTERS):
            chosen = [cell for cell in repeated if quarter[cell] == part]
            if chosen:
                of_these = residuals[residuals.index.get_level_values("cell").isin(chosen)]
                freedom = sum(counts[cell] - 1 for cell in chosen)
                pooled[part] = np.sqrt((of_these**2).sum().to_numpy() / freedom)
        for cell in every:
            if pooled:
                spreads[cell] = pooled[min(pooled, key=lambda part, cell=cell: abs(part - quarter[cell]))]
        self.spreads = spreads.reshape(*shape, -1)
        some = residuals[residuals.index.get_level_values("cell").isin(repeated)].to_numpy()
        self.correlation = np.array([_correlation(some[:, k], some[:, -1]) for k in range(len(epochs))])

    def at(self, weights: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        """`values` of the cells, weighted; those of which every run diverged have none."""
        weights = np.where(np.isfinite(self.means[..., -1]), weights, 0.0)
        total = weights.sum()
        if total == 0:
            return np.full(values.shape[-1], np.nan)
        return np.asarray(np.tensordot(weights / total, np.nan_to_num(values), 2))


def _shares(grid: NDArray[Any], value: float) -> NDArray[Any]:
    """The weights of a grid's points in linear interpolation at `value`."""
    shares = np.zeros(len(grid))
    place = float(np.clip(np.interp(value, grid, np.arange(len(grid))), 0, len(grid) - 1))
    low = min(int(place), len(grid) - 2)
    shares[low], shares[low + 1] = low + 1 - place, place - low
    return shares


def _correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    both = np.isfinite(a) & np.isfinite(b)
    if both.sum() < 3 or not a[both].std() or not b[both].std():
        return 0.0
    return float(np.clip(np.corrcoef(a[both], b[both])[0, 1], -1, 1))


class Replayed:
    """`landscape` as the objective of a study or of Optuna; `seed` is that of the replay.

    The same rates, data and trial's seed give the same result again; other rates or seeds have other noise.
    """

    def __init__(self, landscape: Landscape, seed: int) -> None:
        self.landscape, self._seed = landscape, seed

    def run(self, lr: float, tuning_factor: float, fraction: float = 1.0, seed: int = 0) -> ReplayedRun:
        key = f"{self._seed}/{seed}/{fraction:.6g}/{lr:.9g}/{tuning_factor:.9g}"
        digest = hashlib.sha256(key.encode()).digest()
        random = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        return self.landscape.train(lr, tuning_factor, fraction, random)

    def __call__(self, trial: Trial) -> float:
        """The metric itself, as a study wants it: an accuracy from 0 to 1, or a loss."""
        recipe = trial.recipe
        share = recipe.samples / self.landscape.recipe.samples
        run = self.run(recipe.lr, recipe.tuning_factor, share, trial.seed)
        for epoch, score in run.history:
            trial.report(epoch - 1, self.metric_of(score))
        return self.metric_of(run.score)

    def metric_of(self, score: float) -> float:
        return -score if self.landscape.metric == "test_loss" else score / 100

    def optuna(self, report: Callable[[Any, int, float], None] | None = None) -> Callable[[Any], float]:
        """An objective to maximize for `optuna.Study.optimize`, on all of the data, over the table's box."""
        (low_lr, high_lr), (low, high) = self.landscape.box

        def objective(trial: Any) -> float:
            lr = trial.suggest_float("lr", low_lr, high_lr, log=True)
            factor = trial.suggest_float("tuning_factor", low, high, log=True)
            run = self.run(lr, factor, seed=trial.number)
            for epoch, score in run.history:
                if report is not None:
                    report(trial, epoch, score)
            # A failed trial would teach the sampler nothing.
            return self.landscape.worst if math.isnan(run.score) else run.score

        return objective
