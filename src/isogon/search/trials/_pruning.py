"""Stopping trials early, by one of Optuna's pruners.

Off unless asked for. Before the weights are in equilibrium, which takes 1/(2F) epochs and more, and before the learning
rate has decayed, trials may rank otherwise than at their end; and the seeds that a pruner leaves alive are those that
had luck. A trial that is to stop finds a file in its folder, so that it stays stopped if the search is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from isogon.errors import MissingExtraError, check_choice
from isogon.lab import STOP
from isogon.search.study import Study
from isogon.search.trials._ledger import Ledger, StoredTrial, TrialStatus

try:
    import optuna
    from optuna.trial import TrialState
except ImportError as error:  # pragma: no cover - exercised in a subprocess
    raise MissingExtraError("optuna", extra="search", purpose="to stop trials early") from error


#: name in a study → what makes it for trials of so many epochs
PRUNERS: Mapping[str, Callable[[int], optuna.pruners.BasePruner]] = {
    "none": lambda _: optuna.pruners.NopPruner(),
    "median": lambda _: optuna.pruners.MedianPruner(),
    "hyperband": lambda epochs: optuna.pruners.HyperbandPruner(max_resource=epochs),
}


def make_pruner(name: str, *, epochs: int) -> optuna.pruners.BasePruner:
    """Optuna's pruner of that name, for trials that report after each of `epochs` epochs."""
    check_choice("pruner", name, PRUNERS)
    return PRUNERS[name](epochs)


def judge_of(study: Study, ledger: Ledger) -> PruningJudge:
    """A judge that knows what the ledger holds; one that stops no trial where the study has no pruner."""
    if study.search.pruner == "none":
        return PruningJudge("none", epochs=study.recipe.epochs, trials=[], reports={})
    return PruningJudge(
        study.search.pruner, epochs=study.recipe.epochs, trials=ledger.trials(), reports=ledger.reports()
    )


class PruningJudge:
    """Gets the reports of trials and stops those that the pruner gives up.

    A trial is compared with others of the same data size, since a smaller one would always look worse. Optuna compares
    all trials of a study, and keeps notes with them; so each size has a study in memory, which begins with what the
    ledger's `trials` and `reports` hold of it. Verification is never stopped.
    """

    def __init__(
        self, pruner: str, *, epochs: int, trials: Sequence[StoredTrial], reports: Mapping[int, Mapping[int, float]]
    ) -> None:
        self._asked: dict[int, optuna.trial.Trial] = {}
        self._studies: dict[int, optuna.Study] = {}
        judged = [trial for trial in trials if trial.planned.purpose == "search"]
        for samples in {trial.planned.samples for trial in judged}:
            self._studies[samples] = optuna.create_study(
                # Hyperband samples a trial's bracket from this name and the trial's number.
                study_name=f"{samples}",
                direction="maximize",
                pruner=make_pruner(pruner, epochs=epochs),
                sampler=optuna.samplers.RandomSampler(seed=0),
            )
        # In the order of the ledger, so that numbers are the same whenever this is made.
        for trial in judged:
            self._asked[trial.number] = self._studies[trial.planned.samples].ask()
        for trial in judged:
            for epoch, value in sorted(reports.get(trial.number, {}).items()):
                if epoch >= 0:  # others were stored before they were refused
                    self._gives_up(trial, epoch, value)
            self.end(trial, trial.status, trial.score)

    def report(self, trial: StoredTrial, epoch: int, value: float, folder: Path) -> None:
        """A trial's score after an epoch; leaves `STOP` in its `folder` where the pruner gives it up."""
        if trial.number in self._asked and value == value and self._gives_up(trial, epoch, value):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / STOP).touch()

    def end(self, trial: StoredTrial, status: TrialStatus, score: float | None) -> None:
        """Note the end of a trial: others are compared with it where it finished, not where it was lost."""
        if trial.number not in self._asked or status in ("waiting", "running"):
            return
        lost = TrialState.PRUNED if status == "pruned" else TrialState.FAIL
        state = TrialState.COMPLETE if score is not None else lost
        self._studies[trial.planned.samples].tell(
            self._asked.pop(trial.number), score, state=state, skip_if_finished=True
        )

    def _gives_up(self, trial: StoredTrial, epoch: int, value: float) -> bool:
        asked = self._asked[trial.number]
        asked.report(value, epoch)
        return asked.should_prune()
