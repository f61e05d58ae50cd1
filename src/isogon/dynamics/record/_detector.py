"""Has the norm settled? A test on its drift, for many series at once.

Over a window of T steps, with x' = ηλ/(1−μ) (ηλ where weight decay is decoupled),

    e = ln(‖w_T‖²/‖w_0‖²) / (2x'T)

is the relative excess of the mean squared step angle over the law. The excess dies away like e^(−ρs/T), ρ = 4x'T
(2x'T decoupled), so at the window's end it is e' = e·ρ/(e^ρ − 1). Its noise has sd = √(r (1 − e^(−ρ)) / (ρT)) with
r = Var h̃/L². A series is declared to be in equilibrium after `CONFIRM` tests in a row with |ln(1 + e')| ≤ 2·max(δ, sd),
and undeclared after as many with more than twice that. The logarithm makes norms too large and too small by the same
factor count alike: ln(1 + e') is −4 times the log of norm over equilibrium norm (−2 times, decoupled).

The window is as short as the noise allows: x'T is at least `WINDOW`, more where sd would exceed δ, and at most
`LONGEST`; tests are `SPACING` apart. Time is counted in Σx', so that a smooth schedule changes nothing; a jump of the
learning rate or the weight decay by more than `JUMP` starts all over.

On simulated runs (x' up to 2e-3, norms off by 1.5 to 4 at the start) the declaration comes at 0.9 to 1.2 times the step
at which the norm map is within 5 % of equilibrium, of ‖w‖ or of ‖w‖², within 1.5 times in 98 % of the runs, and before
it is within 10 % in under 5 %.

Where it is late, that is after 1.5 times that step, in 1200 runs for each x' and momentum (r from 0.02 to 0.5, at most
1e-3/x'):

- Norms that start too large, as after a drop of the learning rate: never up to x' = 8e-3; measured every 10th step, in
  4 % of the runs at 8e-3.
- Norms that start too small have a short wait, 0.4/x', and momentum makes it shorter still: they overshoot. Against 5 %
  of ‖w‖ they are late in 4 % of the runs at x' = 1e-3, 20 % at 2e-3, 80 % at 4e-3 and always at 8e-3 with momentum 0.9,
  in 2 to 8 % without. Measured every 10th step: 10, 28, 99 and 100 %, and without momentum 5, 8, 35 and 98 %.
- Against 5 % of ‖w‖², which is 5 % of the step angle, none is late up to 2e-3; at 4e-3 it is 29 % (42 %) of the small
  ones with momentum 0.9 and none without.

False alarms, more than 10 % off, stay under 5 % of those runs for ‖w‖; for ‖w‖² they are 2 % at 5e-4, 4 to 7 % at 1e-3
and 2e-3, and 2 to 20 % above. A wider δ would only trade one fault for the other: 0.09 has 10 to 16 % of them at 2e-3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isogon.dynamics.record._state_tensors import to_array, to_tensor
from isogon.theory import Floats, approach_rate, steps_still_to_wait

#: δ: half the relative distance of the squared step angle from the law that still counts as there
NEAR_LAW = 0.075
#: the shortest and the longest window, and the time between tests, in units of 1/x'
WINDOW, LONGEST, SPACING = 0.1, 0.3, 0.0125
#: tests in a row that make or unmake a declaration
CONFIRM = 3
#: relative change of x' between two measurements that starts a new phase
JUMP = 0.05

_SLOTS = int(LONGEST / SPACING) + 2
# Measurements that count in the estimate of r.
_MEMORY = 100


class Detector:
    """The test for `count` series side by side, fed one measurement at a time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._state = {
            "declared": np.zeros(count, dtype=bool),
            "streak": np.zeros(count, dtype=np.int64),
            "last_step": np.full(count, -1, dtype=np.int64),
            "rate": np.full(count, np.nan),
            "time": np.zeros(count),
            "kept": np.zeros(count, dtype=np.int64),
            "times": np.full((count, _SLOTS), np.nan),
            "steps": np.zeros((count, _SLOTS), dtype=np.int64),
            "logs": np.full((count, _SLOTS), np.nan),
            "seen": np.zeros(count),
            "mean": np.zeros(count),
            "mean_sq": np.zeros(count),
        }

    def update(
        self, step: int, *, norm_sq: ArrayLike, rate: ArrayLike, power: ArrayLike, unit_grad_sq: ArrayLike
    ) -> NDArray[np.bool_]:
        """Which series are in equilibrium, given ‖w‖² before `step`, x' = `rate` and h̃ = `unit_grad_sq`.

        `unit_grad_sq` may be several measurements since the last update, one per row. `power` is 4 for coupled weight
        decay and 2 for decoupled (`theory.equilibrium.norm_power`). A rate of 0 or NaN has no equilibrium; an unknown
        h̃ (NaN) counts as free of noise.
        """
        s = self._state
        norm_sq, rate, power = (
            np.broadcast_to(np.asarray(x, dtype=np.float64), self.count) for x in (norm_sq, rate, power)
        )
        usable = (rate > 0) & (norm_sq > 0)
        same = np.abs(rate - s["rate"]) <= JUMP * s["rate"]
        self.reset(~(usable & same))
        s["time"] = s["time"] + np.where(same & usable, s["rate"] * (step - s["last_step"]), 0.0)
        s["rate"], s["last_step"] = np.where(usable, rate, np.nan), np.full(self.count, step)
        self._learn_noise(np.atleast_2d(np.asarray(unit_grad_sq, dtype=np.float64)))

        index = np.arange(self.count)
        newest = s["times"][index, (s["kept"] - 1) % _SLOTS]
        due = usable & ((s["kept"] == 0) | (s["time"] - newest >= SPACING * (1 - 1e-9)))
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(norm_sq)
        self._test(due, step, log, power)
        slot = s["kept"] % _SLOTS
        s["times"][index[due], slot[due]] = s["time"][due]
        s["steps"][index[due], slot[due]] = step
        s["logs"][index[due], slot[due]] = log[due]
        s["kept"] = s["kept"] + due
        return s["declared"].copy()

    def reset(self, which: ArrayLike = True) -> None:
        """Forget the past of the series in the mask `which`; the estimate of the noise stays."""
        s, mask = self._state, np.broadcast_to(np.asarray(which, dtype=bool), self.count)
        s["declared"] = s["declared"] & ~mask
        for name in ("streak", "time", "kept"):
            s[name] = np.where(mask, 0, s[name])
        s["times"][mask] = np.nan

    def state(self) -> dict[str, Any]:
        """Everything remembered, as tensors."""
        return {name: to_tensor(values) for name, values in self._state.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from `state`."""
        self._state = {name: to_array(values) for name, values in state.items()}

    def _learn_noise(self, energies: Floats) -> None:
        s, known = self._state, np.isfinite(energies)
        count = known.sum(axis=0)
        s["seen"] = s["seen"] + count
        share = np.minimum(1.0, count / np.clip(s["seen"], 1, _MEMORY))
        values = np.where(known, energies, 0.0)
        for name, total in (("mean", values.sum(axis=0)), ("mean_sq", (values**2).sum(axis=0))):
            s[name] = s[name] + share * (total / np.maximum(count, 1) - s[name])

    def _noise(self) -> Floats:
        """r = Var h̃/L²."""
        s = self._state
        with np.errstate(divide="ignore", invalid="ignore"):
            r = s["mean_sq"] / s["mean"] ** 2 - 1
        return np.where(s["seen"] > 1, np.nan_to_num(np.clip(r, 0.0, None), nan=0.0, posinf=0.0), 0.0)

    def _test(self, due: NDArray[np.bool_], step: int, log: Floats, power: Floats) -> None:
        s, r = self._state, self._noise()
        wanted = np.clip(s["rate"] * r / NEAR_LAW**2, WINDOW, LONGEST)
        age = s["time"][:, None] - s["times"]
        with np.errstate(invalid="ignore"):
            old_enough = age >= wanted[:, None] * (1 - 1e-9)
        chosen = np.argmin(np.where(old_enough, age, np.inf), axis=1)
        index = np.arange(self.count)
        tested = due & old_enough.any(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            window, length = age[index, chosen], step - s["steps"][index, chosen]
            drift = (log - s["logs"][index, chosen]) / (2 * window)
            now = drift * power * window / np.expm1(power * window)  # e'
            excess = np.abs(np.log1p(np.clip(now, -0.99, None)))
            sd = np.sqrt(r * -np.expm1(-power * window) / (power * window * length))
        bound = 2 * np.maximum(NEAR_LAW, sd) * np.where(s["declared"], 2.0, 1.0)
        # A streak counts tests that contradict the present state.
        against = tested & ((excess <= bound) != s["declared"])
        s["streak"] = np.where(tested, np.where(against, s["streak"] + 1, 0), s["streak"])
        flip = s["streak"] >= CONFIRM
        s["declared"] = s["declared"] ^ flip
        s["streak"] = np.where(flip, 0, s["streak"])


def remaining_steps(
    step_angle: float,
    *,
    predicted_step_angle: float,
    optimizer: str,
    lr: float,
    weight_decay: float,
    momentum: float,
    within: float = 0.05,
) -> float:
    """Steps until a measured step angle will be within a relative `within` of the law: ln(|(Δ*/Δ)² − 1|/(2δ))/(4x')."""
    rate = approach_rate(optimizer, lr=lr, weight_decay=weight_decay, momentum=momentum)
    return steps_still_to_wait(step_angle, final_angle=predicted_step_angle, rate=rate, within=within)
