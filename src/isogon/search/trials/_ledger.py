"""`Ledger`: every trial of a search in an Optuna storage, each exactly once, even when coordinators are killed.

A trial is one training run. It is planned before it is trained, claimed by the coordinator that trains it, and ended
once; Optuna's storages do each of these in one transaction. So the dashboard shows a search as it runs, and a search
that was killed finds all trials that had ended or were running.

Several coordinators may share a ledger. Each sends a heartbeat every few seconds. A trial of one that has not done so
for long is closed by another, marked as taken over, and planned again; later reports of its first coordinator are
ignored. Trials that were replaced, in this way or by a retry, stay in the storage and are no rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from isogon.errors import IsogonError, MissingExtraError
from isogon.search.trials._storage import Heart, MessageListener, Storage

try:
    import optuna
    from optuna.distributions import FloatDistribution
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import FrozenTrial, TrialState, create_trial
except ImportError as error:  # pragma: no cover - exercised in a subprocess
    raise MissingExtraError("optuna", extra="search", purpose="to keep the trials of a search") from error

TrialStatus = Literal["waiting", "running", "finished", "diverged", "failed", "pruned"]
#: the range of tuning factors that a trial may have
_RANGE = FloatDistribution(1e-9, 1e9, log=True)
_ENDED = (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)
#: user attributes: the coordinator of a trial; that it was taken over; the number of the trial that it replaces
_DRIVER, _TAKEN_OVER, _INSTEAD_OF = "driver", "taken_over", "instead_of"
#: user attribute of the study: the tuning factors that its sampler has proposed, in order
_PROPOSALS = "proposals"

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class PlannedTrial:
    """A trial to make: tuning factor, data size and seed; `purpose` is `search` or `verify`."""

    tuning_factor: float
    samples: int
    fraction: float
    seed: int
    purpose: str = "search"


@dataclass(frozen=True)
class StoredTrial:
    """A trial as the ledger has it; `score`, the metric or minus a metric to minimize, is None unless it finished."""

    planned: PlannedTrial
    number: int
    status: TrialStatus
    score: float | None
    images: int
    seconds: float
    error: str | None
    coordinator: str | None = None


def _retry_storage(
    method: Callable[Concatenate[Ledger, _Arguments], _Answer],
) -> Callable[Concatenate[Ledger, _Arguments], _Answer]:
    """Call the method again for a while where the storage does not answer."""

    @wraps(method)
    def call(self: Ledger, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        try:
            return self._storage.ask_patiently(partial(method, self, *args, **kwargs))
        except KeyError as error:
            if "Record does not exist" not in str(error):
                raise
            raise IsogonError(f"The study {self._name} has gone from the storage: start it again.") from error

    return call


class Ledger:
    """The trials of the study called `name` in the storage at `url`; `key` is the fingerprint of its study file.

    `coordinator` names this process among those that share the storage. Without it there is no other, and every trial
    that runs is our own, from before. `tell` is called when the storage does not answer.
    """

    def __init__(
        self, url: str, name: str, key: str, *, coordinator: str | None = None, tell: MessageListener | None = None
    ) -> None:
        self._storage = Storage(url, heartbeat=coordinator is not None, tell=tell)
        self._rdb = self._storage.rdb
        self._name, self._coordinator = name, coordinator
        #: tells this study from one of the same name that was deleted before it
        self.birth = self._begin(key)
        self._heart = Heart(self._rdb) if coordinator is not None else None

    @_retry_storage
    def _begin(self, key: str) -> str:
        with self._storage.lock(self._name):
            study = optuna.create_study(
                storage=self._rdb, study_name=self._name, direction="maximize", load_if_exists=True
            )
            self._id = self._rdb.get_study_id_from_name(self._name)
            known = study.user_attrs
            for attribute, value in (("key", key), ("birth", uuid.uuid4().hex)):
                if attribute not in known:
                    study.set_user_attr(attribute, value)
            if known.get("key", key) != key:
                raise StudyChangedError(
                    f"The study {self._name} in the storage was made from another study file: call it with --fresh to "
                    "start again, or give it another folder or name."
                )
            return str(study.user_attrs["birth"])

    def close(self) -> None:
        """End this coordinator's heartbeat."""
        if self._heart is not None:
            self._heart.stop()
        self._storage.close()

    @staticmethod
    def delete(url: str, name: str, *, coordinator: str | None = None) -> None:
        """Forget the study called `name`, if there is one, unless another coordinator uses it."""
        storage = Storage(url, heartbeat=coordinator is not None)

        def forget() -> None:
            for study in storage.rdb.get_all_studies():
                if study.study_name == name:
                    if coordinator is not None and _others_at(storage.rdb, study._study_id, coordinator):
                        raise IsogonError(f"Another coordinator is at the study {name}: stop it first.")
                    storage.rdb.delete_study(study._study_id)

        storage.ask_patiently(forget)
        storage.close()

    @_retry_storage
    def plan(self, trials: Collection[PlannedTrial]) -> None:
        """Add the trials that are not there yet."""
        wanted = dict.fromkeys(trials)
        if not wanted.keys() <= {row.planned for row in self.trials()}:
            with self._storage.lock(self._name):
                known = {row.planned for row in self.trials()}
                for trial in wanted:
                    if trial not in known:
                        self._add(trial)

    @_retry_storage
    def retry(self) -> int:
        """Plan every failed trial again, to replace it; their number."""
        with self._storage.lock(self._name):
            failed = [row for row in self.trials() if row.status == "failed"]
            for row in failed:
                self._add(row.planned, **{_INSTEAD_OF: row.number})
            return len(failed)

    def _add(self, planned: PlannedTrial, **notes: Any) -> None:
        attributes = {name: value for name, value in asdict(planned).items() if name != "tuning_factor"}
        trial = create_trial(
            state=TrialState.WAITING,
            params={"tuning_factor": planned.tuning_factor},
            distributions={"tuning_factor": _RANGE},
            user_attrs=attributes | notes,
        )
        self._rdb.create_new_trial(self._id, trial)

    def is_open(self, row: StoredTrial) -> bool:
        """Whether this coordinator may train it: it waits, or this coordinator itself left it running."""
        ours = self._coordinator is None or row.coordinator == self._coordinator
        return row.status == "waiting" or (row.status == "running" and ours)

    @_retry_storage
    def claim(self, row: StoredTrial) -> bool:
        """Take a trial that is open; False where another coordinator was faster.

        The coordinator's name is written before the trial runs, both under a lock: a storage that goes away in between
        leaves a trial that waits, or one that its coordinator knows as its own when it asks again.
        """
        trial_id = self._trial_id(row)
        if self._heart is None:
            return row.status == "running" or self._start(trial_id)
        with self._storage.lock(self._name):
            trial = self._rdb.get_trial(trial_id)
            waits = trial.state == TrialState.WAITING
            ours = trial.state == TrialState.RUNNING and trial.user_attrs.get(_DRIVER) == self._coordinator
            if waits or ours:
                # Before it runs: a running trial without any heartbeat would never count as stale.
                self._rdb.record_heartbeat(trial_id)
            if waits:
                with suppress(UpdateFinishedTrialError):  # asleep between these lines, while another ended it
                    self._rdb.set_trial_user_attr(trial_id, _DRIVER, self._coordinator)
                ours = self._start(trial_id)
        if ours:
            self._heart.add(trial_id)
        return ours

    def _start(self, trial_id: int) -> bool:
        """Start the trial; True where it waited until now, which the storage answers to one coordinator alone."""
        with suppress(UpdateFinishedTrialError):
            return self._rdb.set_trial_state_values(trial_id, TrialState.RUNNING)
        return False

    @_retry_storage
    def take_over(self) -> int:
        """Close the trials of coordinators without a heartbeat, so that they are planned again; their number."""
        if self._heart is None:
            return 0
        closed = 0
        for trial_id in self._rdb._get_stale_trial_ids(self._id):
            with suppress(UpdateFinishedTrialError):  # another coordinator was faster, or its own came back to life
                self._rdb.set_trial_user_attr(trial_id, _TAKEN_OVER, f"by {self._coordinator}")
                self._rdb.set_trial_state_values(trial_id, TrialState.FAIL)
                closed += 1
        return closed

    @_retry_storage
    def report(self, row: StoredTrial, epoch: int, value: float) -> None:
        """Keep a running trial's score after an epoch, for the dashboard."""
        if value == value:  # the storage takes no NaN
            with suppress(UpdateFinishedTrialError):  # taken over
                self._rdb.set_trial_intermediate_value(self._trial_id(row), epoch, value)

    @_retry_storage
    def end(
        self,
        row: StoredTrial,
        status: TrialStatus,
        score: float | None,
        *,
        images: int,
        seconds: float,
        error: str | None = None,
    ) -> None:
        """Close a trial for good: `finished` with its score, `diverged`, `pruned`, or `failed` with its error.

        Nothing happens to a trial that has ended: another coordinator took it over from this one, which was asleep.
        """
        trial_id = self._trial_id(row)
        notes: dict[str, Any] = {"status": status, "images": images, "seconds": seconds, "error": error}
        with suppress(UpdateFinishedTrialError):
            for name, value in notes.items():
                if value is not None:
                    self._rdb.set_trial_user_attr(trial_id, name, value)
            if status == "finished" and score is not None:
                self._rdb.set_trial_state_values(trial_id, TrialState.COMPLETE, [score])
            else:
                state = TrialState.PRUNED if status == "pruned" else TrialState.FAIL
                self._rdb.set_trial_state_values(trial_id, state)
        if self._heart is not None:
            self._heart.discard(trial_id)

    @_retry_storage
    def reports(self) -> dict[int, dict[int, float]]:
        """The scores that each trial has reported: its number, the epoch, the value."""
        return {trial.number: dict(trial.intermediate_values) for trial in self._rdb.get_all_trials(self._id)}

    @_retry_storage
    def proposal(self, place: int, make: Callable[[], float]) -> float:
        """The tuning factor that a sampler proposed in that place: the stored one, else a new one from `make`."""
        with self._storage.lock(self._name):
            known = list(self._rdb.get_study_user_attrs(self._id).get(_PROPOSALS, []))
            if place >= len(known):
                known.append(make())
                self._rdb.set_study_user_attr(self._id, _PROPOSALS, known)
            return float(known[place])

    @_retry_storage
    def trials(self) -> list[StoredTrial]:
        """Every trial, in the order in which they were planned."""
        return read_trials(self._rdb.get_all_trials(self._id))

    def _trial_id(self, row: StoredTrial) -> int:
        return self._rdb.get_trial_id_from_study_id_trial_number(self._id, row.number)


class StudyChangedError(IsogonError):
    """A study file that is not the one the trials were made from."""


def read_trials(trials: Sequence[FrozenTrial]) -> list[StoredTrial]:
    """Trials of the storage as rows, without those that others replace."""
    replaced = {trial.user_attrs.get(_INSTEAD_OF) for trial in trials}
    rows = [read_trial(trial) for trial in trials if trial.number not in replaced and not _was_taken_over(trial)]
    # Where coordinators planned a trial twice, since a dying database released their lock, the first counts.
    first: dict[PlannedTrial, StoredTrial] = {}
    for row in rows:
        first.setdefault(row.planned, row)
    return list(first.values())


def read_trial(trial: FrozenTrial) -> StoredTrial:
    """A trial of the storage as a row."""
    notes = trial.user_attrs
    planned = PlannedTrial(
        tuning_factor=trial.params["tuning_factor"],
        samples=notes["samples"],
        fraction=notes["fraction"],
        seed=notes["seed"],
        purpose=notes["purpose"],
    )
    open_states: dict[TrialState, TrialStatus] = {TrialState.WAITING: "waiting", TrialState.RUNNING: "running"}
    status: TrialStatus = notes.get("status", "failed") if trial.state in _ENDED else open_states[trial.state]
    return StoredTrial(
        planned=planned,
        number=trial.number,
        status=status,
        score=trial.value if trial.state == TrialState.COMPLETE else None,
        images=int(notes.get("images", 0)),
        seconds=float(notes.get("seconds", 0.0)),
        error=notes.get("error"),
        coordinator=notes.get(_DRIVER),
    )


def _was_taken_over(trial: FrozenTrial) -> bool:
    """Whether it was closed by another coordinator; one that ended well after all, at that moment, was not."""
    return trial.state == TrialState.FAIL and _TAKEN_OVER in trial.user_attrs


def _others_at(rdb: optuna.storages.RDBStorage, study_id: int, coordinator: str) -> bool:
    """Whether another live coordinator runs a trial."""
    stale = rdb._get_stale_trial_ids(study_id)
    running = rdb.get_all_trials(study_id, states=(TrialState.RUNNING,))
    return any(trial._trial_id not in stale and trial.user_attrs.get(_DRIVER) != coordinator for trial in running)
