"""`Ledger`: every trial of a search in an Optuna storage, each exactly once, whoever is killed when.

A trial is one training run. It is written down before it is trained, claimed by whoever trains it, and ended once;
Optuna's storages do each of these in one transaction. So the dashboard shows a search as it goes, and a search that
was killed finds all that was ended, and what was under way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from isogon.errors import IsogonError, MissingExtraError, first_line

try:
    import optuna
    from optuna.distributions import FloatDistribution
    from optuna.trial import FrozenTrial, TrialState, create_trial
except ImportError as error:  # pragma: no cover - exercised in a subprocess
    raise MissingExtraError("optuna", extra="search", purpose="to keep the trials of a search") from error

Status = Literal["waiting", "running", "finished", "diverged", "failed"]
#: the range of tuning factors that a trial may have
_RANGE = FloatDistribution(1e-9, 1e9, log=True)
_PASSWORD = re.compile(r"(://[^\s:/@]*):[^\s/@]*@")
_ENDED = (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)


@dataclass(frozen=True)
class Cell:
    """A trial to make: tuning factor, data size and seed; `purpose` is `search` or `verify`."""

    tuning_factor: float
    samples: int
    fraction: float
    seed: int
    purpose: str = "search"


@dataclass(frozen=True)
class Row:
    """A trial as the ledger has it; `accuracy` is None unless it finished."""

    cell: Cell
    number: int
    status: Status
    accuracy: float | None
    images: int
    seconds: float
    error: str | None


class Ledger:
    """The trials of the study called `name` in the storage at `url`; `key` is the fingerprint of its study file."""

    def __init__(self, url: str, name: str, key: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._storage = _opened(url)
        study = optuna.create_study(storage=self._storage, study_name=name, direction="maximize", load_if_exists=True)
        self._study = study
        self._id = self._storage.get_study_id_from_name(name)
        before = study.user_attrs.get("key")
        if before is None:
            study.set_user_attr("key", key)
        elif before != key:
            raise StudyChangedError(
                f"The study {name} in the storage was made from another study file: call it with --fresh to begin "
                "anew, or give it another folder."
            )

    @staticmethod
    def delete(url: str, name: str) -> None:
        """Forget the study called `name`, if there is one."""
        storage = _opened(url)
        if name in [one.study_name for one in storage.get_all_studies()]:
            optuna.delete_study(study_name=name, storage=storage)

    def plan(self, cells: Iterable[Cell]) -> None:
        """Write down the cells that are not there yet."""
        known = {row.cell for row in self.rows()}
        for cell in cells:
            if cell not in known:
                known.add(cell)
                attributes = {name: value for name, value in asdict(cell).items() if name != "tuning_factor"}
                self._study.add_trial(
                    create_trial(
                        state=TrialState.WAITING,
                        params={"tuning_factor": cell.tuning_factor},
                        distributions={"tuning_factor": _RANGE},
                        user_attrs=attributes,
                    )
                )

    def claim(self, row: Row) -> bool:
        """Take a waiting trial; False where another process was faster."""
        return bool(self._storage.set_trial_state_values(self._trial_id(row.number), TrialState.RUNNING))

    def report(self, row: Row, epoch: int, value: float) -> None:
        """Keep a running trial's accuracy after an epoch, for the dashboard."""
        if value == value:  # the storage takes no NaN
            self._storage.set_trial_intermediate_value(self._trial_id(row.number), epoch, value)

    def end(
        self, row: Row, status: Status, accuracy: float | None, *, images: int, seconds: float, error: str | None = None
    ) -> None:
        """Close a trial for good: `finished` with its accuracy, `diverged`, or `failed` with its error."""
        number = self._trial_id(row.number)
        notes: dict[str, Any] = {"status": status, "images": images, "seconds": seconds, "error": error}
        for name, value in notes.items():
            if value is not None:
                self._storage.set_trial_user_attr(number, name, value)
        if status == "finished" and accuracy is not None:
            self._storage.set_trial_state_values(number, TrialState.COMPLETE, [accuracy])
        else:
            self._storage.set_trial_state_values(number, TrialState.FAIL)

    def rows(self) -> list[Row]:
        """Every trial, in the order in which they were planned."""
        return [row_of(trial) for trial in self._storage.get_all_trials(self._id)]

    def open_rows(self) -> list[Row]:
        """The trials that have not ended; one that runs in a process that was killed is among them."""
        return [row for row in self.rows() if row.status in ("waiting", "running")]

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)


class StudyChangedError(IsogonError):
    """A study file that is not the one the trials were made from."""


def _opened(url: str) -> optuna.storages.RDBStorage:
    try:
        return optuna.storages.RDBStorage(url)
    except Exception as error:  # SQLAlchemy's, the driver's and Optuna's own
        raise IsogonError(f"The storage {without_passwords(url)} cannot be used: {first_line(error)}") from error


def row_of(trial: FrozenTrial) -> Row:
    """A trial of the storage as a row."""
    notes = trial.user_attrs
    cell = Cell(
        tuning_factor=trial.params["tuning_factor"],
        samples=notes["samples"],
        fraction=notes["fraction"],
        seed=notes["seed"],
        purpose=notes["purpose"],
    )
    open_states: dict[TrialState, Status] = {TrialState.WAITING: "waiting", TrialState.RUNNING: "running"}
    status: Status = notes.get("status", "failed") if trial.state in _ENDED else open_states[trial.state]
    return Row(
        cell=cell,
        number=trial.number,
        status=status,
        accuracy=trial.value if trial.state == TrialState.COMPLETE else None,
        images=int(notes.get("images", 0)),
        seconds=float(notes.get("seconds", 0.0)),
        error=notes.get("error"),
    )


def without_passwords(text: str) -> str:
    """
    >>> without_passwords('storage = "postgresql://me:secret@host/db"')
    'storage = "postgresql://me:***@host/db"'
    """
    return _PASSWORD.sub(r"\1:***@", text)
