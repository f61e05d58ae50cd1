"""Which tuning factor to try next, by one of Optuna's samplers instead of a grid.

A proposal follows from the cells that have ended and from how many they are, and from nothing else: a new sampler is
made for each, seeded by that number, and sees those cells as the trials of a study in memory. So a search that was
killed resumes as if it had not been.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from isogon.errors import MissingExtraError, check_choice
from isogon.search.fit import ROUNDING

try:
    import optuna
    from optuna.distributions import FloatDistribution
    from optuna.trial import TrialState, create_trial
except ImportError as error:  # pragma: no cover - exercised in a subprocess
    raise MissingExtraError("optuna", extra="search", purpose="to propose the trials of a search") from error

# Random proposals before a model is asked: as many cells as a curve needs. Optuna's ten would be the whole search.
_STARTUP = 3
# Octaves within which a cell repeats its neighbour, with the same seeds on the same samples.
_ALIKE = 1 / 16


class TriedFactor(NamedTuple):
    """A tuning factor that has been trained, and its mean accuracy over the seeds that survived; None without any."""

    tuning_factor: float
    accuracy: float | None


def propose(sampler: str, tried: Sequence[TriedFactor], limits: tuple[float, float], *, seed: int = 0) -> float:
    """The next tuning factor within `limits`, on a logarithmic scale.

    Where the sampler would repeat itself, the middle of the widest gap between what was tried is taken instead.

    >>> limits = (0.01, 1.0)
    >>> first = propose("tpe", [], limits)
    >>> following = propose("tpe", [TriedFactor(first, 0.9)], limits)
    >>> 0.01 <= first <= 1.0, first == propose("tpe", [], limits), first == following
    (True, True, False)
    """
    low, high = (math.log2(end) for end in limits)
    octaves = FloatDistribution(0.0, high - low)
    study = optuna.create_study(
        direction="maximize", sampler=make_sampler(sampler, seed=seed + len(tried), startup=_STARTUP)
    )
    for trial in tried:
        place = min(max(math.log2(trial.tuning_factor) - low, 0.0), high - low)
        study.add_trial(
            create_trial(
                state=TrialState.FAIL if trial.accuracy is None else TrialState.COMPLETE,
                value=trial.accuracy,
                params={"octaves": place},
                distributions={"octaves": octaves},
            )
        )
    wanted = low + study.ask({"octaves": octaves}).params["octaves"]
    known = sorted(math.log2(trial.tuning_factor) for trial in tried)
    if any(abs(wanted - factor) < _ALIKE for factor in known):
        wanted = _widest_gap(low, high, known)
    return float(2.0 ** min(max(round(wanted * ROUNDING) / ROUNDING, low), high))


def _widest_gap(low: float, high: float, known: Sequence[float]) -> float:
    """The middle of the widest stretch without a cell; the stretch beside an end is filled at the end itself."""
    inner = [(after - before, (before + after) / 2) for before, after in pairwise(known)]
    return max([(known[0] - low, low), *inner, (high - known[-1], high)])[1]


def make_sampler(name: str, *, seed: int, startup: int = 10) -> optuna.samplers.BaseSampler:
    """Optuna's sampler of that name; `startup` random trials before its model is asked, if it has one."""
    check_choice("sampler", name, tuple(SAMPLERS))
    return SAMPLERS[name](seed, startup)


def _gp(seed: int, startup: int) -> optuna.samplers.BaseSampler:
    try:
        importlib.import_module("scipy")  # Optuna looks for it only when it fits its model
    except ImportError as error:
        raise MissingExtraError("scipy", extra="search", purpose="for the sampler gp") from error
    with warnings.catch_warnings():
        # Experimental in Optuna 4.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup)


#: the samplers that propose one tuning factor after another, each made from a seed and a number of random trials first;
#: a new one is a line here and its name in `search.study.Sampler`
SAMPLERS: dict[str, Callable[[int, int], optuna.samplers.BaseSampler]] = {
    "tpe": lambda seed, startup: optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup),
    "gp": _gp,
    "random": lambda seed, startup: optuna.samplers.RandomSampler(seed=seed),
}
