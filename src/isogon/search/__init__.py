"""Search on a fraction of the data, then transfer: study (the question) → trials (the trainings) → fit (the answer).

Names load when they are used: the fit needs numpy alone, the rest optuna and pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isogon.search._outcome import RECIPE as RECIPE
    from isogon.search._outcome import Outcome as Outcome
    from isogon.search._run import run as run
    from isogon.search._sentences import cost_sentence as cost_sentence
    from isogon.search._sentences import fraction_name as fraction_name
    from isogon.search._sentences import in_per_cent as in_per_cent
    from isogon.search._sentences import loss_sentence as loss_sentence
    from isogon.search._sentences import lost_sentence as lost_sentence
    from isogon.search._sentences import metric_value as metric_value
    from isogon.search._sentences import remarks as remarks
    from isogon.search._sentences import trend_sentence as trend_sentence
    from isogon.search._status import TRIAL_STATUSES as TRIAL_STATUSES
    from isogon.search._status import Progress as Progress
    from isogon.search._status import best as best
    from isogon.search._status import counts as counts
    from isogon.search._template import study_template as study_template
    from isogon.search.fit import Curve as Curve
    from isogon.search.fit import Trend as Trend
    from isogon.search.fit import fit_curve as fit_curve
    from isogon.search.fit import transfer_trend as transfer_trend
    from isogon.search.study import Pruned as Pruned
    from isogon.search.study import Study as Study
    from isogon.search.study import Trial as Trial
    from isogon.search.trials import TRIALS as TRIALS
    from isogon.search.trials import StoredTrial as StoredTrial
    from isogon.search.trials import make_pruner as make_pruner
    from isogon.search.trials import make_sampler as make_sampler

# Where each name is defined; the imports above are the same for type checkers, and a test compares the two.
_PLACES = {
    "_outcome": ("RECIPE", "Outcome"),
    "_run": ("run",),
    "_sentences": (
        "cost_sentence",
        "fraction_name",
        "in_per_cent",
        "loss_sentence",
        "lost_sentence",
        "metric_value",
        "remarks",
        "trend_sentence",
    ),
    "_status": ("TRIAL_STATUSES", "Progress", "best", "counts"),
    "_template": ("study_template",),
    "fit": ("Curve", "Trend", "fit_curve", "transfer_trend"),
    "study": ("Pruned", "Study", "Trial"),
    "trials": ("TRIALS", "StoredTrial", "make_pruner", "make_sampler"),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}
__all__ = sorted(_MODULES)
#: names of version 0.1, for one version more
_OLD_NAMES = {"Row": "StoredTrial"}


if not TYPE_CHECKING:  # or every misspelt name would be Any

    def __getattr__(name: str) -> Any:
        name = _OLD_NAMES.get(name, name)
        if name in _MODULES:
            return getattr(import_module(f"isogon.search.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
