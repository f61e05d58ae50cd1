"""Curves in Weights & Biases: `WandbSink`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from isogon.errors import MissingExtraError
from isogon.integrations._scalars import scalars_by_step

_STEP = "isogon/step"


class WandbSink:
    """A sink of the Monitor that logs `isogon/<layer>/<quantity>` against `isogon/step`, the optimizer's step.

    Rows arrive when an epoch ends, later than what the training logs itself, and W&B's own step cannot go back; hence
    the step of our own.

    Args:
        run: what `wandb.init` returned, yours to finish. Without it the active run is used, and where there is none,
            one is started when the monitor opens and finished with it.
    """

    def __init__(self, run: Any = None) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtraError("wandb", extra="wandb", purpose="to log to Weights & Biases") from None
        self._wandb: Any = wandb
        self._given = run
        self._run: Any = None
        self._ours = False

    def open(self, run: Mapping[str, Any]) -> None:
        """Find or start the run, on the rank that measures alone."""
        if self._run is not None:
            return
        active = self._wandb.run if self._given is None else self._given
        self._ours = active is None
        self._run = self._wandb.init() if active is None else active
        self._run.define_metric(_STEP)
        self._run.define_metric("isogon/*", step_metric=_STEP)

    def __call__(self, rows: pd.DataFrame) -> None:
        """Log every finite number of `rows`."""
        self.open({})
        for step, numbers in scalars_by_step(rows):
            self._run.log({_STEP: step, **numbers})

    def close(self) -> None:
        """Finish the run if this sink started it."""
        if self._ours:
            self._run.finish()
        self._run, self._ours = None, False
