"""Curves in MLflow: `MlflowSink`."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import pandas as pd

from isogon.errors import MissingExtraError
from isogon.integrations._scalars import scalars_by_step

# MLflow takes no more numbers in one call, and no other characters in a name.
_BATCH = 1000
_FOREIGN = re.compile(r"[^A-Za-z0-9_\-. :/]")


class MlflowSink:
    """A sink of the Monitor that logs `isogon/<layer>/<quantity>` at the optimizer's step.

    Args:
        run: a run that is yours to end (`mlflow.start_run()`), or its id. Without it the active run is used, and where
            there is none, one is started when the monitor opens and ended with it.
    """

    def __init__(self, run: Any = None) -> None:
        try:
            import mlflow
        except ImportError:
            raise MissingExtraError("mlflow", extra="mlflow", purpose="to log to MLflow") from None
        self._mlflow: Any = mlflow
        self._run_id: str | None = run if run is None or isinstance(run, str) else run.info.run_id
        self._ours: str | None = None

    def open(self, run: Mapping[str, Any]) -> None:
        """Find or start the run, on the rank that measures alone."""
        if self._run_id is None:
            active = self._mlflow.active_run()
            if active is None:
                active = self._mlflow.start_run()
                self._ours = active.info.run_id
            self._run_id = active.info.run_id

    def __call__(self, rows: pd.DataFrame) -> None:
        """Log every finite number of `rows`."""
        self.open({})
        now = int(1000 * time.time())
        metrics = [
            self._mlflow.entities.Metric(_FOREIGN.sub("_", name), value, now, step)
            for step, numbers in scalars_by_step(rows)
            for name, value in numbers.items()
        ]
        client = self._mlflow.MlflowClient()
        for start in range(0, len(metrics), _BATCH):
            client.log_batch(self._run_id, metrics=metrics[start : start + _BATCH])

    def close(self) -> None:
        """End the run if this sink started it."""
        if self._ours is not None:
            active = self._mlflow.active_run()
            if active is not None and active.info.run_id == self._ours:
                self._mlflow.end_run()
            else:
                self._mlflow.MlflowClient().set_terminated(self._ours)
            self._run_id = self._ours = None
