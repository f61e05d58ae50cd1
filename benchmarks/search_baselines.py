"""What people do today, to compare with: Optuna over log lr × log weight decay, every trial a run on the full data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isogon.errors import IsogonError, MissingExtraError, check_whole
from isogon.lab import STOP, Config, FolderLock, train
from isogon.recipe import Recipe
from isogon.search import make_pruner, make_sampler

try:
    import optuna
    from optuna.distributions import BaseDistribution, FloatDistribution
    from optuna.trial import TrialState
except ImportError as error:  # pragma: no cover - exercised in a subprocess
    raise MissingExtraError("optuna", extra="search", purpose="to search with it") from error

DATABASE = "rates.db"


@dataclass(frozen=True)
class RatesFound:
    """The `recipe` with the best accuracy of `trials` runs, that `accuracy`, and what they cost.

    `images` counts those of runs that were lost too; `lost` has the numbers of runs that diverged and were pruned.
    """

    recipe: Recipe
    accuracy: float
    trials: int
    images: int
    lost: Mapping[str, int]


def search_rates(
    config: Config,
    out: str | os.PathLike[str],
    *,
    lr: tuple[float, float],
    weight_decay: tuple[float, float],
    trials: int,
    sampler: str = "tpe",
    pruner: str = "none",
    seed: int = 0,
    device: str | None = None,
) -> RatesFound:
    """Train `trials` runs like `config` with rates from within `lr` and `weight_decay`; Optuna proposes each pair.

    Each run is one seed, that of the config, as usual; `seed` is the sampler's. The runs and the study (SQLite) are in
    `out`, where the same call resumes: a stopped run continues, and the next ones are those it would have had.
    """
    trials = check_whole("trials", trials, cure="count the runs")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    try:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            storage=f"sqlite:///{folder.resolve() / DATABASE}",
            study_name="rates",
            direction="maximize",
            pruner=make_pruner(pruner, epochs=config.epochs),
            load_if_exists=True,
        )
        space: dict[str, BaseDistribution] = {
            "lr": FloatDistribution(*lr, log=True),
            "weight_decay": FloatDistribution(*weight_decay, log=True),
        }
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            _train(config, optuna.trial.Trial(study, trial._trial_id), study, folder, device)
        while len(study.trials) < trials:
            # A sampler for each trial, so that a stopped search samples what it would have sampled.
            study.sampler = make_sampler(sampler, seed=seed + len(study.trials))
            _train(config, study.ask(space), study, folder, device)
        return _summarise(config, study)
    finally:
        lock.release()


def _train(config: Config, trial: optuna.trial.Trial, study: optuna.Study, folder: Path, device: str | None) -> None:
    place = folder / f"trial-{trial.number}"
    known = study.get_trials(deepcopy=False)[trial.number].intermediate_values

    def report(row: Mapping[str, Any]) -> None:
        if row["epoch"] not in known and row["test_accuracy"] == row["test_accuracy"]:
            trial.report(row["test_accuracy"], int(row["epoch"]))
            if trial.should_prune():
                (place / STOP).touch()

    run = train(
        replace(config, recipe=_recipe(config, trial.params)), place, device=device, progress=False, report=report
    )
    trial.set_user_attr("status", run.status)
    trial.set_user_attr("images", run.images)
    states = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
    study.tell(
        trial.number, run.accuracy if run.status == "finished" else None, state=states.get(run.status, TrialState.FAIL)
    )


def _recipe(config: Config, rates: Mapping[str, float]) -> Recipe:
    return replace(config.recipe, lr=rates["lr"], weight_decay=rates["weight_decay"])


def _summarise(config: Config, study: optuna.Study) -> RatesFound:
    ended = study.get_trials()
    statuses = [trial.user_attrs["status"] for trial in ended]
    if "finished" not in statuses:
        raise IsogonError(f"None of {len(ended)} runs finished: search at smaller rates.")
    best = study.best_trial
    return RatesFound(
        recipe=_recipe(config, best.params),
        accuracy=float(study.best_value),
        trials=len(ended),
        images=sum(trial.user_attrs["images"] for trial in ended),
        lost={status: statuses.count(status) for status in ("diverged", "pruned")},
    )
