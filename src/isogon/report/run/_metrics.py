"""The losses, accuracies … of a run's epochs, as the lines that its report draws."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from isogon.theory import Floats

_SPLIT = re.compile(r"^(train|training|val|valid|validation|eval|test)[/_.\- ](?=.)", re.IGNORECASE)


@dataclass(frozen=True)
class MetricLine:
    """One column of the epochs' table: its `name`, and the `kind` that it shares a panel with."""

    name: str
    kind: str
    step: NDArray[np.int64]
    epoch: NDArray[np.int64]
    value: Floats


def metric_lines(epochs: pd.DataFrame) -> list[MetricLine]:
    """One line per column with a finite number in it, those of one kind next to each other."""
    import pandas as pd

    rows = epochs.sort_values("epoch")
    by_kind: dict[str, list[MetricLine]] = {}
    for name in (str(column) for column in rows.columns if column not in ("epoch", "step")):
        values = pd.to_numeric(rows[name], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        known = np.isfinite(values)
        if known.any():
            step, epoch = (rows[column].to_numpy(dtype=np.int64)[known] for column in ("step", "epoch"))
            line = MetricLine(name, kind_of(name), step, epoch, values[known])
            by_kind.setdefault(line.kind, []).append(line)
    return [line for lines in by_kind.values() for line in lines]


def kind_of(name: str) -> str:
    """What a metric measures, of whichever split of the data.

    >>> [kind_of(name) for name in ("loss", "val/loss", "eval_loss", "test")]
    ['loss', 'loss', 'loss', 'test']
    """
    return _SPLIT.sub("", name)
