"""Tables of real trainings, on which searches are replayed: learning rate × tuning factor × part of the data × seed.

    python benchmarks/make_table.py cnn4-sgd [--minutes 30] [--engine local] [--workers 2]
    python benchmarks/make_table.py gpt-adamw resnet18-sgd --engine lanes --minutes 8 --out FOLDER

A table is a file of `benchmarks/tables`; a row holds what one run was worth at one of its checkpoints. The grid starts
as the work says and grows until at every part of the data the best cell, or one that the noise does not tell from it,
has two cells on each side. Then the best five
cells on all of the data are trained with more seeds, since the best of many cells is luck. The table is written after
every batch of runs, so a call that is stopped loses one batch; the next call does what is missing. `--plan` says what
that is and trains nothing.

To add a table, add a `Work`. Rates are the recipe's: at learning rate η and tuning factor F the weight decay is what
makes the recipe's tuning factor F, whatever the part of the data.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from machine import processor
from replay import ABOUT, read_table

import isogon
from isogon import Recipe
from isogon.errors import ArgumentError
from isogon.files import write_whole
from isogon.lab import Config, Run, lanes, run_all

TABLES = Path(__file__).parent / "tables"
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1.0)
#: seeds of a cell on parts of the data; on all of it those of the best cells once the grid is done, and how many cells
_SEEDS, _SEEDS_OF_BEST, _BEST = 3, 5, 5
#: cells that the best one is to have on each side, and the most cells that a grid may grow to along a side
_MARGIN, _LONGEST = 2, 13
_CHECKPOINTS = 10
# Of one batch of runs: a batch is what is lost when a call is stopped.
_BATCH_OF_RUNS = 48


@dataclass(frozen=True)
class Work:
    """What is trained, and where its grid starts: rates are `lr` and `factor` times powers of `step`.

    The recipe's rates do not count; its samples are all of the data.
    """

    recipe: Recipe
    lr: float
    factor: float
    step: float = 2.0
    columns: tuple[int, int] = (-3, 3)
    rows: tuple[int, int] = (-3, 3)
    seeds_at_full: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self, run: PlannedRun) -> Config:
        lr, factor = self.lr * self.step**run.column, self.factor * self.step**run.row
        samples = round(self.recipe.samples * run.fraction)
        recipe = replace(self.recipe, lr=lr, weight_decay=1.0, samples=samples)
        recipe = replace(recipe, weight_decay=factor / recipe.tuning_factor)
        every = max(1, round(self.recipe.epochs / _CHECKPOINTS))
        return Config(
            recipe=recipe,
            seed=run.seed,
            subset_seed=run.seed,
            test_every=every,
            **{"monitor_every": 0, "save_weights": False, **self.settings},
        )


class PlannedRun(NamedTuple):
    """A cell of the grid by its powers (columns: learning rates, rows: tuning factors), part of the data, and seed."""

    column: int
    row: int
    fraction: float
    seed: int


_CIFAR = Recipe(lr=0.1, weight_decay=0.0, momentum=0.9, batch_size=128, samples=20_000, epochs=40)
_ADAMW = {"optimizer": "adamw", "momentum": 0.9, "weight_decay": 0.0, "lr": 1e-3}
_GPT = Recipe(**_ADAMW, beta2=0.95, batch_size=16, samples=16_384, epochs=4)
_GPT_SETTINGS = {
    "net": "gpt",
    "net_options": {"depth": 4, "width": 128, "heads": 4},
    "data": "python-stdlib",
    "augmentation": "none",
    "schedule": "warmup:0.2(cosine)",
    "precision": "bfloat16",
    "decay_on": "matrices",
    "clip": 1.0,
}
_RESNET_SETTINGS = {"net": "resnet18", "data": "cifar10", "schedule": "cosine", "precision": "bfloat16"}
_VIT_SETTINGS = {
    "net": "vit",
    "net_options": {"depth": 12, "width": 192, "heads": 3},
    "data": "cifar10",
    "schedule": "warmup:2(cosine)",
    "precision": "bfloat16",
    "decay_on": "matrices",
    "clip": 1.0,
}

WORKS: dict[str, Work] = {
    # a ResNet's landscape in little, for a CPU
    "cnn4-sgd": Work(
        Recipe(lr=0.1, weight_decay=0.0, momentum=0.9, batch_size=32, samples=4096, epochs=20),
        lr=0.1,
        factor=0.16,
        seeds_at_full=2,
        settings={
            "net": "cnn4",
            "net_options": {"width": 12},
            "data": "fashion-mini",
            "augmentation": "none",
            "schedule": "cosine",
        },
    ),
    "resnet18-sgd": Work(_CIFAR, lr=0.1, factor=0.16, settings=_RESNET_SETTINGS | {"net_options": {}}),
    "resnet18-invariant-sgd": Work(
        _CIFAR,
        lr=0.1,
        factor=0.16,
        settings=_RESNET_SETTINGS | {"net_options": {"scale_invariant": "affine", "norm": "ghost", "ghost_batch": 64}},
    ),
    "resnet18-adamw": Work(
        replace(_CIFAR, **_ADAMW, beta2=0.999),
        lr=2e-3,
        factor=0.16,
        settings=_RESNET_SETTINGS | {"net_options": {}},
    ),
    "vit-adamw": Work(replace(_CIFAR, **_ADAMW, beta2=0.999), lr=1e-3, factor=0.16, settings=_VIT_SETTINGS),
    "vit-adamw-batch512": Work(
        replace(_CIFAR, **_ADAMW, beta2=0.999, batch_size=512), lr=1e-3, factor=0.16, settings=_VIT_SETTINGS
    ),
    "gpt-adamw": Work(_GPT, lr=4e-3, factor=0.5, settings=_GPT_SETTINGS),
    "gpt-adamw-one-epoch": Work(
        replace(_GPT, samples=65_536, epochs=1),
        lr=4e-3,
        factor=0.5,
        settings=_GPT_SETTINGS | {"schedule": "warmup:0.05(cosine)"},
    ),
    "gpt-adamw-batch64": Work(replace(_GPT, batch_size=64), lr=4e-3, factor=0.5, settings=_GPT_SETTINGS),
}  # fmt: skip


class Table:
    """The rows so far of a work, and the file that holds them."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.work, self._file = name, WORKS[name], folder / f"{name}.parquet"
        known = next((file for file in (self._file, TABLES / f"{name}.parquet") if file.exists()), None)
        self.rows, self._about = pd.DataFrame(), {}
        if known is not None:
            self.rows, self._about = read_table(known)
            if self._about["work"] != self._description():
                rule = "made with the settings that the work has now"
                raise ArgumentError("table", rule, str(known), "remove it, or take the settings back")
        places = self.rows[list(PlannedRun._fields)].itertuples(index=False) if len(self.rows) else ()
        self._ended = {PlannedRun(*place) for place in places}

    def _description(self) -> dict[str, Any]:
        work = self.work
        return json.loads(
            json.dumps(
                {
                    "recipe": work.recipe.to_dict(),
                    "lr": work.lr,
                    "factor": work.factor,
                    "step": work.step,
                    "settings": {name: value for name, value in work.settings.items() if name != "data_root"},
                }
            )
        )

    @property
    def lowest_is_best(self) -> bool:
        return self.work.settings["data"] == "python-stdlib"

    def add(self, runs: Mapping[PlannedRun, Run], command: str) -> None:
        """Take over what the runs' epochs were worth, and write the file."""
        parts = [_rows_of(self.work, planned, run) for planned, run in runs.items()]
        self.rows = pd.concat([self.rows, *parts], ignore_index=True)
        self._ended |= set(runs)
        made = self._about.get("made", [])
        here = {
            "command": command,
            "hardware": processor("cuda" if torch.cuda.is_available() else "cpu"),
            "versions": f"torch {torch.__version__}, python {platform.python_version()}, isogon {isogon.__version__}",
            "date": datetime.date.today().isoformat(),
        }
        fingerprints = sorted({*self._about.get("data", []), *(run.data_fingerprint for run in runs.values())})
        self._about = {
            "work": self._description(),
            "metric": "test_loss" if self.lowest_is_best else "test_accuracy",
            "data": fingerprints,
            "made": made if here in made else [*made, here],
        }
        self._about["complete"] = not self.missing()
        table = pa.Table.from_pandas(self.rows, preserve_index=False)
        table = table.replace_schema_metadata({ABOUT: json.dumps(self._about).encode()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        write_whole(self._file, memoryview(sink.getvalue()))

    def missing(self) -> list[PlannedRun]:
        """The next stage: the parts of the data, all of it, more seeds of the best cells; empty when all is done."""
        columns, rows = self.ranges()
        cells = [(column, row) for column in range(columns[0], columns[1] + 1) for row in range(rows[0], rows[1] + 1)]
        for stage in (FRACTIONS[:-1], FRACTIONS[-1:]):
            seeds = range(_SEEDS if stage[0] < 1 else self.work.seeds_at_full)
            wanted = [PlannedRun(*cell, part, seed) for part in stage for seed in seeds for cell in cells]
            if lacking := [run for run in wanted if run not in self._ended]:
                return lacking
        best = [cell for cell, _ in self._ranked(1.0)][:_BEST]
        wanted = [PlannedRun(*cell, 1.0, seed) for cell in best for seed in range(_SEEDS_OF_BEST)]
        return [run for run in wanted if run not in self._ended]

    def ranges(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """First and last column and row, wide enough for the best cells so far."""
        columns, rows = self.work.columns, self.work.rows
        if not self._ended:
            return columns, rows
        columns = (
            min(columns[0], *(run.column for run in self._ended)),
            max(columns[1], *(r.column for r in self._ended)),
        )
        rows = min(rows[0], *(run.row for run in self._ended)), max(rows[1], *(run.row for run in self._ended))
        count = (columns[1] - columns[0] + 1) * (rows[1] - rows[0] + 1)
        for part in FRACTIONS:
            seeds = _SEEDS if part < 1 else self.work.seeds_at_full
            if sum(run.fraction == part and run.seed < seeds for run in self._ended) < count * seeds:
                continue  # it has not been trained everywhere yet
            best = self._best(part)
            if not any(_has_margin(columns, column) and _has_margin(rows, row) for column, row in best):
                columns, rows = _widen(columns, best[0][0]), _widen(rows, best[0][1])
        return columns, rows

    def _best(self, fraction: float) -> list[tuple[int, int]]:
        """The best cell of a part of the data, and those that the noise does not tell from it."""
        ranked = self._ranked(fraction)
        ends = self._ends(fraction)
        spread = ends.groupby([ends.column, ends.row]).value.agg(["mean", "var", "count"]).sort_values("mean")
        near = spread[spread["count"] > 1].head(max(3, len(spread) // 4))
        seeds = float(spread["count"].median())
        if near.empty:  # one seed each
            return [cell for cell, _ in ranked[:1]]
        error = math.sqrt(2 * float(near["var"].mean()) / seeds)
        return [cell for cell, mean in ranked if mean <= ranked[0][1] + error]

    def _ranked(self, fraction: float) -> list[tuple[tuple[int, int], float]]:
        """The cells of a part of the data and their mean results at the end, the best first; diverged is worst."""
        ends = self._ends(fraction)
        means = ends.value.fillna(math.inf).groupby([ends.column, ends.row]).mean().sort_values()
        return [((int(column), int(row)), float(mean)) for (column, row), mean in means.items()]

    def _ends(self, fraction: float) -> pd.DataFrame:
        """The last rows of all runs, with a `value` that is to be low and NaN where the run diverged."""
        ends = self.rows[self.rows.fraction == fraction].groupby(["column", "row", "seed"], as_index=False).last()
        value = ends.test_loss if self.lowest_is_best else -ends.test_accuracy
        return ends.assign(value=value.where(~ends.diverged).astype("float64"))


def _has_margin(ends: tuple[int, int], best: int) -> bool:
    return ends[0] + _MARGIN <= best <= ends[1] - _MARGIN


def _widen(ends: tuple[int, int], best: int) -> tuple[int, int]:
    low, high = min(ends[0], best - _MARGIN), max(ends[1], best + _MARGIN)
    return (low, high) if high - low < _LONGEST else ends


def _rows_of(work: Work, planned: PlannedRun, run: Run) -> pd.DataFrame:
    """One row for each checkpoint that was tested; a run that diverged has a last one without values."""
    config, diverged = run.config, run.status == "diverged"
    epochs = run.epochs[run.epochs.test_accuracy.notna()]
    columns = ["epoch", "train_loss", "test_loss", "test_accuracy"]
    values = epochs[columns].astype(dict.fromkeys(columns[1:], "float32"))
    if diverged:
        last = int(run.epochs.epoch.iloc[-1]) if len(run.epochs) else 0
        values = pd.concat([values[values.epoch < last], pd.DataFrame({"epoch": [last]})], ignore_index=True)
    place = planned._asdict() | {"lr": config.recipe.lr, "tuning_factor": config.recipe.tuning_factor}
    rows = pd.DataFrame({**place, "epoch": values.epoch.astype("int32") + 1}, index=values.index)
    rows["column"], rows["row"], rows["seed"] = (rows[name].astype("int16") for name in ("column", "row", "seed"))
    for name in columns[1:]:
        rows[name] = values.get(name, pd.Series(dtype="float32")).astype("float32")
    rows["diverged"] = diverged & (rows.epoch == rows.epoch.max())
    return rows


def _batches(runs: Sequence[PlannedRun]) -> Iterator[list[PlannedRun]]:
    """The cheapest first, a batch of whole data smaller than one of parts."""
    ordered = sorted(runs, key=lambda run: (run.fraction, run.seed))
    while ordered:
        share, count = ordered[0].fraction, 1
        while count < len(ordered) and count < _BATCH_OF_RUNS and share < _BATCH_OF_RUNS / 4:
            share += ordered[count].fraction
            count += 1
        yield ordered[:count]
        ordered = ordered[count:]


def fill(table: Table, *, engine: str, workers: int | None, until: float, command: str, scratch: Path) -> bool:
    """Train what is missing until the time is over; whether the table is complete."""
    longest = 0.0  # seconds per full run, with which the next batch is judged
    while runs := table.missing():
        for batch in _batches(runs):
            cost = sum(run.fraction for run in batch)
            left = until - time.monotonic()
            while len(batch) > 1 and cost * longest > left:
                cost -= batch.pop().fraction
            if left <= 0 or cost * longest > left:
                return False
            start = time.monotonic()
            table.add(_train(table.work, batch, engine, workers, scratch), command)
            longest = max(longest / 2, (time.monotonic() - start) / cost)
            best = table._ranked(batch[-1].fraction)[0]
            print(
                f"{table.name}: {len(batch)} runs more, {longest:.1f} s per full run; best so far on "
                f"{batch[-1].fraction:.4g} of the data {abs(best[1]):.4g} in cell {best[0]}",
                flush=True,
            )
    return True


def _train(
    work: Work, batch: Sequence[PlannedRun], engine: str, workers: int | None, scratch: Path
) -> dict[PlannedRun, Run]:
    configs = {planned: work.config(planned) for planned in batch}
    if engine == "lanes":  # here, for a process of its own would start anew for every batch
        runs = lanes(list(configs.values()))
    else:
        runs = run_all(list(configs.values()), engine, scratch, workers=workers, progress=False)
    ended = dict(zip(configs, runs, strict=True))
    failed = [run for run in runs if run.status == "failed"]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(runs)} runs failed, the first with: {failed[0].error}")
    return ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="+", choices=list(WORKS), metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--minutes", type=float, default=1e6, help="stop in time")
    parser.add_argument("--engine", default="lanes" if torch.cuda.is_available() else "local")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path, default=TABLES, help="write the tables here; those known are continued")
    parser.add_argument("--data-root", help="folder of the data sets")
    parser.add_argument("--plan", action="store_true", help="say what is missing, and train nothing")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    # Without folders, which say nothing about the numbers.
    command = shlex.join(["python", "benchmarks/make_table.py", *options.works, "--engine", options.engine])
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.works:
        try:
            table = Table(name, options.out)
        except ArgumentError as error:
            parser.error(str(error))
        if options.data_root is not None:
            table.work = replace(table.work, settings={**table.work.settings, "data_root": options.data_root})
        if options.plan:
            runs = table.missing()
            print(
                f"{name}: {len(runs)} runs in the next stage, {sum(run.fraction for run in runs):.1f} full ones' cost"
            )
            continue
        with tempfile.TemporaryDirectory() as scratch:
            done = fill(
                table,
                engine=options.engine,
                workers=options.workers,
                until=until,
                command=command,
                scratch=Path(scratch),
            )
        print(f"{name}: {'complete' if done else 'to be continued'}")


if __name__ == "__main__":
    main()
