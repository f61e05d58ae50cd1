"""Where the best rate lay, beside what the rule says: the numbers behind every interval that a transfer prints.

Measured by `benchmarks/rules.py` (benchmarks/results/rules.md), in octaves, that is, factors of 2: the best rate of a
sweep moved by `shift` per octave of change away from the rule, and lay within `half_width` of that in 90 % of changes.
`tests/recipe/test_intervals.py` recounts what Yun et al. printed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from isogon.theory import horizon, rule_of

SEVERAL_EPOCHS, ONE_EPOCH, SHORT_RUN = "several epochs", "one epoch", "short run"
REGIMES = (SEVERAL_EPOCHS, ONE_EPOCH, SHORT_RUN)


@dataclass(frozen=True)
class Evidence:
    """How far the best lay from the rule, in octaves, and who says so."""

    shift: float
    half_width: float
    source: str


#: no interval ends nearer to the rule than this
_LEAST = 0.5
_NOT_MEASURED = "no public sweep varies weight decay here, so that the width is our judgement"
_YUN_DATA = (
    "Yun et al.'s printed tables, where the best tuning factor grows as samples^0.3 (benchmarks/results/rules.md)"
)
_YUN_BATCH = "Yun et al.'s printed tables 3, 10 and 11 (benchmarks/results/rules.md)"
_YUN_PLAIN = "Yun et al.'s printed table 4, SGD without momentum (benchmarks/results/rules.md)"
_YUN_CELLS = (
    "Yun et al.'s printed tables: the best cell lies within a factor 2 of the rule in 148 of 152 columns, which differ "
    "in data and batch; that a changed learning rate or momentum moves it no further is our judgement"
)
_STEPLAW = "2,619 language models of StepLaw (benchmarks/results/rules.md)"
_POWER_LINES = "Power Lines (arXiv 2505.13738), λ ∝ B up to the critical batch; the width is our judgement"
_HORIZON = (
    "F ∝ samples^m: m near 0 in a tiny GPT, 0.53 by Power Lines (arXiv 2505.13738), 1 where λ is never varied; no "
    "public sweep under AdamW varies λ and data, so that taking all of these is our judgement"
)


def find_evidence(regime: str, optimizer: str, momentum: float, solve: str, changed: str) -> Evidence:
    """What is known for this regime when `changed` ("data", "batch" or "other") changes and `solve` is solved for."""
    by_lr = solve == "lr"
    if regime == ONE_EPOCH:
        if optimizer != "adamw":
            source = f"measured under AdamW alone, so that for {optimizer} the width is our judgement"
            return Evidence(0.0, 2.0 if by_lr else 1.0, source)
        if changed == "data":
            return Evidence(0.5, 1.0, _STEPLAW) if by_lr else Evidence(0.0, 1.0, _HORIZON)
        if changed == "batch":
            return Evidence(-0.7, 1.2, _STEPLAW) if by_lr else Evidence(0.0, 1.0, _POWER_LINES)
        return Evidence(0.0, 1.0, _NOT_MEASURED)
    if not rule_of(optimizer).coupled:
        return Evidence(0.0, 2.0, _NOT_MEASURED)
    if changed == "data":
        return Evidence(0.3, 1.0 if by_lr else 0.8, _YUN_DATA)
    if changed == "batch":
        return Evidence(0.0, 1.0, _YUN_BATCH) if momentum > 0 else Evidence(-0.65, 1.4, _YUN_PLAIN)
    return Evidence(0.0, 1.0, _YUN_CELLS)


def interval_octaves(
    regime: str, optimizer: str, momentum: float, solve: str, ratios: Mapping[str, float]
) -> tuple[float, float, tuple[str, ...]]:
    """From how many octaves below the solved rate to how many above it the best is expected, and the sources.

    `ratios` are new over old of "data" and "batch"; where both changed, widths add in quadrature. Half an octave to
    either side of the rule's own answer is always inside.

    >>> low, high, sources = interval_octaves("several epochs", "sgd", 0.9, "weight_decay", {"data": 16, "batch": 1})
    >>> round(low, 3), round(high, 3)
    (-0.5, 2.0)
    """
    changed = [name for name, ratio in ratios.items() if not math.isclose(ratio, 1.0)] or ["other"]
    parts = {name: find_evidence(regime, optimizer, momentum, solve, name) for name in changed}
    shift = sum(part.shift * math.log2(ratios.get(name, 1.0)) for name, part in parts.items())
    halves = {name: part.half_width for name, part in parts.items()}
    if regime == ONE_EPOCH and solve == "weight_decay" and "data" in parts:
        # m of 0 and of 1 must both be inside, whatever the change.
        horizons = max(horizon.LARGEST - horizon.ONE_EPOCH, horizon.ONE_EPOCH - horizon.LEAST)
        halves["data"] = max(halves["data"], abs(math.log2(ratios["data"])) * horizons)
    half = math.hypot(*halves.values())
    sources = tuple(dict.fromkeys(part.source for part in parts.values()))
    return min(-_LEAST, shift - half), max(_LEAST, shift + half), sources
