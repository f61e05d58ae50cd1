"""`Experiment`: a table or figure of a paper as data: what to train, what to keep of it, the claim, how to show it.

Its steps are independent: `plan` lists the trainings it needs, `keep` turns an ended one into rows, `judge` and `show`
read the table of all rows and nothing else. So the same trainings serve several experiments, and a saved table can be
judged and shown without any training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pandas as pd

from isogon.errors import IsogonError
from isogon.lab import Config, Run
from isogon.report import Cell, Exhibit

#: `tiny` proves the machinery on a CPU in seconds, `small` takes an hour or less of a GPU, `paper` is as printed
Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "paper")
Verdict = Literal["holds", "fails", "undecided", "not run"]
Label = str | int | float


class UnavailableError(IsogonError):
    """What `compute` needs is missing here; the message becomes the reason why the experiment was not run."""


@dataclass(frozen=True)
class Options:
    """Which part of an experiment to run; None for `panels`, `columns` or `seeds` means all of the scale's own.

    `folder` is no part of that: `compute` may save there what takes long, and read it at the next call.
    """

    scale: Scale = "tiny"
    panels: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    seeds: int | None = None
    first_seed: int = 0
    folder: Path | None = field(default=None, repr=False, compare=False)

    def seed_range(self, default: int) -> range:
        """The seeds to run, from `first_seed` on; `default` of them if their number is not given."""
        count = default if self.seeds is None else self.seeds
        return range(self.first_seed, self.first_seed + count)

    @property
    def seeds_from_0(self) -> int | None:
        """How many seeds from 0 on include these; None for the scale's own."""
        return None if self.seeds is None else self.first_seed + self.seeds


@dataclass(frozen=True)
class Planned:
    """A training, and what it is in the experiment: panel, row, column, seed …"""

    config: Config
    labels: Mapping[str, Label]


@dataclass(frozen=True)
class Judgement:
    """Whether the claim holds, in a sentence, with the numbers behind it."""

    verdict: Verdict
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Args:
        id: like `yun/table1`.
        title: one line.
        claim: what the paper says that it shows, in our words.
        plan: the trainings at a scale; none for a simulation.
        keep: the rows of an ended training; the planned labels are added to each as columns.
        compute: the rows at a scale that need no training by the lab; it may raise `UnavailableError`.
        computed_images: training images that `compute` sees at a scale.
        judge, show: the verdict and the exhibits of a table of rows.
        choices: what the paper leaves open, and what was chosen.
        unavailable: why the `paper` scale cannot be run with public data, if it cannot.
    """

    id: str
    title: str
    claim: str
    judge: Callable[[pd.DataFrame], Judgement]
    show: Callable[[pd.DataFrame], Sequence[Exhibit]]
    plan: Callable[[Options], Sequence[Planned]] = lambda options: ()
    keep: Callable[[Run], pd.DataFrame] | None = None
    compute: Callable[[Options], pd.DataFrame] | None = None
    computed_images: Callable[[Scale], int] = lambda scale: 0
    choices: Sequence[str] = ()
    unavailable: str | None = None

    def images(self, scale: Scale) -> int:
        """Training images that its runs see at a scale; a run in several places is trained once."""
        configs = {planned.config.key: planned.config for planned in self.plan(Options(scale=scale))}
        return self.computed_images(scale) + sum(config.images for config in configs.values())


def final_row(run: Run) -> pd.DataFrame:
    """One row: how the run ended, its last test accuracy, and what it cost."""
    row = {"status": run.status, "accuracy": run.accuracy, "images": run.images, "seconds": run.seconds}
    return pd.DataFrame([row])


def curves(run: Run, layer: str = "all") -> pd.DataFrame:
    """One row per epoch: losses and accuracies; norm, effective rates, angles and predictions of `layer`.

    A run that ended within its first epoch gives no rows; without a monitor the columns of `layer` are NaN.
    """
    if not len(run.epochs):
        return pd.DataFrame()
    epochs = run.epochs[["epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy"]]
    measured = [
        "epoch",
        "lr",
        "weight_decay",
        "norm",
        "effective_lr",
        "effective_lr_epoch",
        "epoch_angle",
        "predicted_epoch_angle",
        "step_angle",
        "predicted_step_angle",
    ]
    if not run.config.monitor_every:
        return epochs.reindex(columns=[*epochs.columns, *measured[1:]]).assign(status=run.status)
    records = run.records
    ends = records[(records["layer"] == layer) & records["epoch_angle"].notna()].drop_duplicates("epoch", keep="last")
    return epochs.merge(ends[measured], on="epoch", how="left").assign(status=run.status)


def cell_of(rows: pd.DataFrame, value: str = "accuracy", *, unit: float = 1.0) -> Cell:
    """The cell of a table from rows of `final_row`, one per seed; runs that diverged are left out of its mean."""
    survived = unit * rows.loc[rows["status"] == "finished", value].dropna()
    return Cell(
        mean=float(survived.mean()),
        spread=float(survived.std()),
        survived=len(survived),
        runs=len(rows),
        failed=int((rows["status"] == "failed").sum()),
    )
