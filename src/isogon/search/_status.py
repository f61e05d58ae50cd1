"""`Progress`: how far a study is, read from its storage without disturbing its coordinators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from isogon.errors import ArgumentError, IsogonError, check_choice, check_number, first_line
from isogon.files import read_json
from isogon.search._outcome import OUTCOME
from isogon.search.study import UNKNOWNS, Study
from isogon.search.trials import (
    DATABASE,
    STUDY,
    StoredTrial,
    TrialStatus,
    as_template,
    engine_settings,
    read_trials,
    storage_of,
    with_driver,
)

TRIAL_STATUSES: tuple[TrialStatus, ...] = ("finished", "running", "waiting", "diverged", "failed", "pruned")


@dataclass(frozen=True)
class Progress:
    """The trials of the study in `folder` as they are now; `answer` is its `outcome.json` once it has ended.

    A trial of a process that was killed counts as running until the study resumes.
    """

    folder: Path
    study: Study
    trials: Sequence[StoredTrial]
    answer: dict[str, Any] | None

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Progress:
        root = Path(folder)
        try:
            study = Study.from_tables(read_json(root / STUDY, STUDY))
        except IsogonError as error:
            rule, reason = "one that isogon search has started", str(error).rstrip(".")
            raise ArgumentError("study folder", rule, str(folder), reason) from None
        return cls(folder=root, study=study, trials=_rows(study, root), answer=_answer(root / OUTCOME))

    def groups(self) -> dict[tuple[float, int, str], list[StoredTrial]]:
        """The trials by fraction, samples and purpose, in the order in which they were planned."""
        groups: dict[tuple[float, int, str], list[StoredTrial]] = {}
        for trial in self.trials:
            groups.setdefault((trial.planned.fraction, trial.planned.samples, trial.planned.purpose), []).append(trial)
        return groups

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "ended": self.answer is not None,
            "trials": len(self.trials),
            **counts(self.trials),
            "fractions": [
                {
                    "fraction": fraction,
                    "samples": samples,
                    "purpose": purpose,
                    **counts(trials),
                    "best": self._best(trials),
                }
                for (fraction, samples, purpose), trials in self.groups().items()
            ],
        }

    def _best(self, trials: Sequence[StoredTrial]) -> dict[str, float] | None:
        """The result of `best`, with the metric's own value under the metric's name."""
        top = best(trials)
        if top is None:
            return None
        score = top.pop("score")
        return {**top, self.study.task.metric: self.study.task.score(score)}


def _answer(file: Path) -> dict[str, Any] | None:
    """The content of `outcome.json`, once it exists."""
    if not file.exists():
        return None
    try:
        answer = read_json(file, OUTCOME)
        low, high = answer["interval"]
        for number in (answer[check_choice("unknown", answer["unknown"], UNKNOWNS)], low, high):
            check_number("answer", number, cure="")
    except (IsogonError, KeyError, TypeError, ValueError):
        cure = "the command that made it writes it again"
        raise ArgumentError("study folder", f"one whose {OUTCOME} can be read", str(file.parent), cure) from None
    return answer


def counts(trials: Sequence[StoredTrial]) -> dict[str, int]:
    """How many trials have each status."""
    return {status: sum(trial.status == status for trial in trials) for status in TRIAL_STATUSES}


def best(trials: Sequence[StoredTrial]) -> dict[str, float] | None:
    """The tuning factor with the best mean score over the seeds that have finished; None where none has."""
    scores: dict[float, list[float]] = {}
    for trial in trials:
        if trial.score is not None:
            scores.setdefault(trial.planned.tuning_factor, []).append(trial.score)
    if not scores:
        return None
    mean, factor, seeds = max((sum(values) / len(values), factor, len(values)) for factor, values in scores.items())
    return {"tuning_factor": factor, "score": mean, "seeds": seeds}


def _rows(study: Study, folder: Path) -> list[StoredTrial]:
    import optuna  # is there, since the ledger has asked for it

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file = (folder / DATABASE).resolve()
    url, name = storage_of(study, folder)
    if study.run.storage == "sqlite":
        if not file.exists():
            raise ArgumentError("study folder", f"one with {DATABASE} in it", str(folder), "call isogon search first")
        # Read-only: this connection can hold up a writer for milliseconds, and can change nothing.
        url = f"sqlite:///file:{quote(str(file))}?mode=ro&uri=true"
    try:
        url = with_driver(url)
        storage = optuna.storages.RDBStorage(as_template(url), engine_settings(url), skip_table_creation=True)
        try:
            return read_trials(optuna.load_study(study_name=name, storage=storage).trials)
        finally:
            storage.engine.dispose()
    except Exception as error:  # SQLAlchemy's, the driver's and Optuna's own
        raise IsogonError(f"The trials of {folder} cannot be read just now: {first_line(error)}.") from error
