"""The numbers of a watched run that its report draws: lines for each layer, drops of the learning rate, findings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isogon.errors import ArgumentError, check_choice, first_line
from isogon.recipe import Recipe
from isogon.report.run._metrics import MetricLine, metric_lines

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from isogon.dynamics import Finding
    from isogon.theory import Floats

#: the most points of one line in a picture; more only make the page heavy
MOST_POINTS = 1000


@dataclass(frozen=True)
class Panel:
    """One quantity: its title, the column that was measured, the one that theory predicts, and the unit's factor."""

    title: str
    measured: str
    predicted: str | None = None
    factor: float = 1.0


PANELS = (
    Panel("norm of the weights", "norm", "predicted_norm"),
    Panel("angle per step (degrees)", "step_angle", "predicted_step_angle", float(np.degrees(1))),
    Panel("angle per epoch (degrees)", "epoch_angle", "predicted_epoch_angle", float(np.degrees(1))),
    Panel("effective learning rate η/‖w‖²", "effective_lr"),
)


@dataclass(frozen=True)
class LayerLine:
    """One line of one panel; values that a logarithmic axis cannot show are left out."""

    panel: Panel
    layer: str
    predicted: bool
    step: NDArray[np.int64]
    epoch: NDArray[np.int64]
    value: Floats


@dataclass(frozen=True)
class RateDrop:
    """A drop of the learning rate: at `step` it was divided by `factor`."""

    step: int
    factor: float


@dataclass(frozen=True)
class RunSummary:
    """All that a report shows. `layers` are in the network's order, the joint one first; `joint` is its name.

    `metrics` are the losses, accuracies … of its epochs, empty if the monitor got none; `last_step` was measured last.
    """

    name: str
    recipe: Recipe | None
    findings: list[Finding]
    layers: list[str]
    joint: str
    lines: list[LayerLine]
    marks: list[RateDrop]
    metrics: list[MetricLine]
    last_step: int

    @property
    def metric_kinds(self) -> list[str]:
        """Each kind of the metrics once: the panels they need."""
        return list(dict.fromkeys(line.kind for line in self.metrics))


def summarise(path: str | os.PathLike[str], layers: Sequence[str] = (), *, under_way: bool = False) -> RunSummary:
    """What a report shows of the run in the folder (or Parquet file) `path`, for some `layers` or for all.

    Findings are always about the whole run, because a layer that is left out may be the one in trouble.
    """
    from isogon.dynamics import ALL, findings

    place = Path(path)
    records = _records(place)
    if records.empty:
        raise ArgumentError("path", "a run with measured steps", str(path), "train for an epoch first")
    folder = place if place.is_dir() else place.parent
    about = _about(folder)
    recipe = _recipe(about.get("recipe"), place)
    names = layer_names(records, ALL)
    for name in layers:
        check_choice("layer", name, names)
    shown = [name for name in names if name in layers] if layers else names
    epochs, metrics = _epochs(folder)
    return RunSummary(
        name=str(about.get("name") or place.resolve().name),
        recipe=recipe,
        findings=findings(records, recipe, about=about, epochs=epochs, under_way=under_way),
        layers=shown,
        joint=ALL,
        lines=lines(records, shown),
        marks=marks(records),
        metrics=metrics,
        last_step=int(records["step"].max()),
    )


def layer_names(records: pd.DataFrame, joint: str) -> list[str]:
    """The layers of a run in the order of its records, the joint one first."""
    names = [str(name) for name in records["layer"].unique()]
    return sorted(names, key=lambda name: name != joint)


def lines(records: pd.DataFrame, layers: Sequence[str]) -> list[LayerLine]:
    """Every line of every panel for `layers`, except those without a value."""
    layer_lines = []
    by_layer = records.groupby("layer", sort=False)
    for layer in layers:
        rows = by_layer.get_group(layer).sort_values("step")
        steps, epochs = rows["step"].to_numpy(), rows["epoch"].to_numpy()
        for panel in PANELS:
            for column in (panel.measured, panel.predicted):
                if column is None:
                    continue
                values = panel.factor * rows[column].to_numpy(dtype=float)
                shown = np.flatnonzero(np.isfinite(values) & (values > 0))
                shown = shown[thin(values[shown])]
                if len(shown):
                    predicted = column == panel.predicted
                    layer_lines.append(LayerLine(panel, layer, predicted, steps[shown], epochs[shown], values[shown]))
    return layer_lines


def thin(values: Floats, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """The places of at most `most` values that show the whole curve: its ends, and each stretch's extremes."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    bounds = np.linspace(0, count, (most - 2) // 2 + 1).astype(int)
    stretches = [(low, values[low:high]) for low, high in pairwise(bounds)]
    extremes = [low + place for low, part in stretches for place in (part.argmin(), part.argmax())]
    return np.unique([0, *extremes, count - 1])


def marks(records: pd.DataFrame) -> list[RateDrop]:
    """The drops of the learning rate in any layer; each step once."""
    from isogon.dynamics import drops

    factors: dict[int, float] = {}
    for _, rows in records.groupby("layer", sort=False):
        for drop in drops(rows.sort_values("step")):
            factors[drop.step] = max(drop.factor, factors.get(drop.step, 0.0))
    return [RateDrop(step, factor) for step, factor in sorted(factors.items())]


def _records(place: Path) -> pd.DataFrame:
    from isogon.dynamics import read

    try:
        return read(place)
    except ArgumentError:
        raise
    except Exception as error:  # a table with the right columns and wrong contents
        raise ArgumentError("path", "a run whose records can be read", str(place), first_line(error)) from None


def _epochs(folder: Path) -> tuple[pd.DataFrame, list[MetricLine]]:
    from isogon.dynamics import read_epochs

    try:
        epochs = read_epochs(folder)
        return epochs, metric_lines(epochs)
    except Exception as error:  # pyarrow raises errors of many types
        raise ArgumentError("path", "a run whose epochs can be read", str(folder), first_line(error)) from None


def _about(folder: Path) -> dict[str, Any]:
    from isogon.dynamics import read_run

    return read_run(folder)


def _recipe(fields: Any, place: Path) -> Recipe | None:
    """The run's recipe; None where isogon had none for its optimizer."""
    if fields is None:
        return None
    try:
        return Recipe(**fields)
    except (TypeError, ArgumentError) as error:
        raise ArgumentError("path", "a run with a sound recipe in run.json", str(place), first_line(error)) from None
