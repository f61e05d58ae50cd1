"""From sums to rows of the record: joins tensors, adds what theory predicts, follows the equilibrium."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isogon.dynamics.measure import ALL, Chunk, Settings, Watched
from isogon.dynamics.measures import angle_from_sums
from isogon.dynamics.record._detector import JUMP, SPACING, Detector
from isogon.dynamics.record._predictions import norm_factor, prediction
from isogon.dynamics.record._state_tensors import to_array, to_tensor
from isogon.theory import COUPLED, Floats

#: steps over which the adjusted unit gradient is averaged for the predicted norm (Wan et al. average over 200)
MEAN_STEPS = 200
#: root mean square of the radial leak above which a weight does not pass for invariant
LEAK = 0.01
#: measured steps after which the radial leak has decided, where no map is at hand …
DECIDED_AFTER = 4
# … about a weight of n dimensions, to which any direction is nearly at right angles, up to 1/√n by chance. It passes
# only where its leak is below this share of that; rounding leaves a tenth of it, even in bfloat16. By chance that
# happens once in 600,000: P(χ² of 4 degrees of freedom ≤ 4 · 0.03²) = 1.6e-6.
_SHARE_OF_CHANCE, CHANCES_AGAINST = 0.03, 600_000
#: share of the other tensors' unit gradient, root mean square, below which a tensor's is taken for rounding noise: a
#: bias before a normalisation has no effect, and its gradient is what rounding leaves
NOISE = 1e-2

Columns = dict[str, NDArray[Any] | pd.api.extensions.ExtensionArray]
Bools = NDArray[np.bool_]
# Sums to which a tensor without a gradient adds nothing.
_OF_GRADIENT = ("grad_sq", "weight_dot_grad", "adjusted")
# Arrays that a row maker carries from one chunk to the next.
_REMEMBERED = ("leak_sq", "leaks", "unit_sq", "energy_steps", "energies", "settled", "members", "last_rate")


class RowMaker:
    """Makes rows, chunk after chunk of steps; remembers running means, leaks and the equilibrium of each layer.

    Arrays below are (steps, tensors), or (steps, layers): single tensors first, then groups, the layer `all` last.
    """

    def __init__(self, watched: Watched, *, steps_per_epoch: float) -> None:
        self.watched, self.steps_per_epoch = watched, steps_per_epoch
        singles = [name for name, has_rows in zip(watched.names, watched.layers, strict=True) if has_rows]
        self.layers = [*singles, *watched.groups, ALL]
        #: the layers that theory is not about, whatever is measured
        self.lawless = [name for name, lawful in zip(watched.names, watched.lawful, strict=True) if not lawful]
        every = np.arange(len(watched.names))
        self._groups = [np.isin(every, places)[None] for places in watched.groups.values()]
        self._names = pd.Series(self.layers, dtype="str").array
        self._leak_sq, self._leaks = np.zeros(len(watched.names)), np.zeros(len(watched.names))
        self._unit_sq = np.zeros(len(watched.names))
        self._energy_steps, self._energies = np.zeros(0, dtype=np.int64), np.zeros((0, len(self.layers)))
        self._detector = Detector(len(self.layers))
        self._settled = np.zeros(len(self.layers), dtype=bool)
        self._members = np.zeros(len(watched.names), dtype=bool)
        self._tested_at = -1
        self._last_rate = np.full(len(self.layers), np.nan)

    def rows(self, chunk: Chunk) -> Columns:
        """The columns of the record, one entry per step and layer that the chunk has, each of its type there."""
        lawful = self._find_lawful(chunk.sums)
        members = self._find_members(lawful)
        sums = self._sum_by_layer(chunk.sums, members)
        weight_sq = sums["weight_sq"]
        setting, lr, weight_decay = self._settings(chunk, members)
        known = self._find_lawful_layers(lawful)
        law = self._predict(chunk, np.where(known, setting, -1))
        with np.errstate(divide="ignore", invalid="ignore"):
            effective_lr = lr / weight_sq
            unit_grad_sq = sums["grad_sq"] * weight_sq
            adjusted = sums["adjusted"] * weight_sq
            radial = sums["weight_dot_grad"] / np.sqrt(unit_grad_sq)
            start_sq = sums["epoch_weight_sq"] - 2 * sums["epoch_change_dot_after"] + sums["epoch_change_sq"]
        shape = weight_sq.shape
        columns = {
            "step": np.broadcast_to(chunk.step[:, None], shape),
            "epoch": np.broadcast_to(chunk.epoch[:, None], shape),
            "lr": lr,
            "weight_decay": weight_decay,
            "norm": np.sqrt(weight_sq),
            "predicted_norm": self._predict_norms(chunk, law["setting"], members, adjusted),
            "step_angle": angle_from_sums(weight_sq, sums["change_sq"], sums["change_dot_after"]),
            "epoch_angle": angle_from_sums(start_sq, sums["epoch_change_sq"], sums["epoch_change_dot_after"]),
            "effective_lr": effective_lr,
            "effective_lr_epoch": effective_lr * self.steps_per_epoch,
            "unit_grad_sq": unit_grad_sq,
            "adjusted_grad_sq": adjusted,
            "radial": radial,
            "predicted_step_angle": law["step_angle"],
            "predicted_epoch_angle": law["epoch_angle"],
        }
        settled = self._test_equilibrium(chunk, members, weight_sq, adjusted, law)
        present = np.isfinite(weight_sq)
        return {
            **{name: values[present] for name, values in columns.items()},
            # Made as they are kept: a cast from objects would take as long as all the rest.
            "layer": self._names.take(np.nonzero(present)[1]),
            "in_equilibrium": pd.arrays.BooleanArray(settled[present], np.isnan(law["rate"])[present]),
        }

    def state(self) -> dict[str, Any]:
        """Everything remembered, in numbers and tensors."""
        arrays = {name: to_tensor(getattr(self, f"_{name}")) for name in _REMEMBERED}
        return {**arrays, "tested_at": self._tested_at, "detector": self._detector.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from `state`."""
        for name in _REMEMBERED:
            if name in state:  # states that isogon 0.1 saved lack some
                setattr(self, f"_{name}", to_array(state[name]))
        self._tested_at = int(state["tested_at"])
        self._detector.load_state(state["detector"])

    def _find_lawful(self, sums: Mapping[str, Floats]) -> Bools:
        """To which tensors the law applies at each step, by what was measured so far.

        To none where theory is silent. With a map, to those that it calls invariant and whose gradient is more than
        rounding noise. Without one, to those whose leak was nil in the first measured steps: decided once, so that
        neither laws nor the members of `all` change during a run. A weight that leaks later is a finding.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            unit_sq = sums["weight_sq"] * sums["grad_sq"]
            leak_sq = sums["weight_dot_grad"] ** 2 / unit_sq
        known = np.isfinite(leak_sq)
        decided = bool(self._leaks.max(initial=0) >= DECIDED_AFTER)
        leaked = self._leak_sq + np.cumsum(np.where(known, leak_sq, 0.0), axis=0)
        energy = self._unit_sq + np.cumsum(np.where(known, unit_sq, 0.0), axis=0)
        count = self._leaks + np.cumsum(known, axis=0)
        if len(count):
            self._leak_sq, self._unit_sq, self._leaks = leaked[-1], energy[-1], count[-1]
        if self.watched.silence is not None:
            return np.zeros(known.shape, dtype=bool)
        if not self.watched.mapped:
            return np.broadcast_to(self._members, known.shape) if decided else self._decide(leaked, count)
        mean = np.where(count > 0, energy / np.maximum(count, 1), 0.0)
        # In a network of which every convolution has a bias, half of the tensors are such.
        usual = np.quantile(mean, 0.75, axis=1, keepdims=True)
        return np.asarray(self.watched.lawful & ((count == 0) | (mean >= NOISE**2 * usual)))

    def _decide(self, leaked: Floats, count: Floats) -> Bools:
        """Which tensors pass for invariant: none before the step that decides, the same ones from it on."""
        lawful = np.zeros(count.shape, dtype=bool)
        deciding = np.flatnonzero(count.max(axis=1, initial=0) >= DECIDED_AFTER)
        if len(deciding):
            first = deciding[0]
            bound = np.minimum(_SHARE_OF_CHANCE / np.sqrt(np.maximum(self.watched.sizes, 1)), LEAK)
            lawful[first:] = (count[first] >= DECIDED_AFTER) & (leaked[first] <= bound**2 * count[first])
        return lawful

    def _find_lawful_layers(self, lawful: Bools) -> Bools:
        """To which layers the law applies at each step; by a map also to groups, and to `all` where it is invariant.

        Invariant weights make an invariant `all`, of which theory can speak unless all of them are without effect.
        """
        silent = self.watched.silence is not None
        of_groups = np.full((len(lawful), len(self._groups)), not silent)
        joined = self.watched.joined
        # Where nothing but vectors is invariant, `all` joins the others too, and no law is about that.
        alike = not self.watched.mapped or bool(self.watched.lawful[joined].all())
        jointly = (alike & (lawful & joined).any(axis=1, keepdims=True)) | (self.watched.joint and not silent)
        return np.concatenate([lawful[:, self.watched.layers], of_groups, jointly], axis=1)

    def _find_members(self, lawful: Bools) -> Bools:
        """Which tensors make up `all`: all that a map chose, or, where theory is silent, all; else those that pass."""
        if self.watched.mapped or self.watched.silence is not None:
            return np.broadcast_to(self.watched.joined, lawful.shape)
        return lawful

    def _join(self, values: NDArray[Any], members: Bools, combine: Callable[..., NDArray[Any]]) -> NDArray[Any]:
        """Values of tensors as those of layers: of single ones as they are, of groups and `all` combined.

        `combine` takes the values and a mask of those that count.
        """
        joined = [combine(values, which)[:, None] for which in (*self._groups, members)]
        return np.concatenate([values[:, self.watched.layers], *joined], axis=1)

    def _sum_by_layer(self, sums: Mapping[str, Floats], members: Bools) -> dict[str, Floats]:
        """Each sum for the layers; a member without a gradient adds nothing to those of the gradient."""
        has_gradient = ~np.isnan(sums["grad_sq"])
        by_layer = {}
        for name, values in sums.items():
            counted = has_gradient if name in _OF_GRADIENT else np.ones_like(has_gradient)
            by_layer[name] = self._join(values, members, partial(_sum, counted=counted))
        return by_layer

    def _settings(self, chunk: Chunk, members: Bools) -> tuple[NDArray[np.int64], Floats, Floats]:
        """For each layer the place of its setting (−1: none, or not the same for all members), η and λ."""
        lr = np.array([*(float(s.lr) for s in chunk.settings), np.nan])
        decay = np.array([*(s.weight_decay for s in chunk.settings), np.nan])
        return (
            self._join(chunk.setting, members, partial(_shared_value, otherwise=-1)).astype(np.int64),
            self._join(lr[chunk.setting], members, partial(_shared_value, otherwise=np.nan)),
            self._join(decay[chunk.setting], members, partial(_shared_value, otherwise=np.nan)),
        )

    def _predict(self, chunk: Chunk, setting: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The law's predictions for each layer: angles, x' (`rate`) and `power`; `setting` is −1 where it has none."""
        predicted = {name: np.full(setting.shape, np.nan) for name in ("step_angle", "epoch_angle", "rate", "power")}
        lag = np.where(chunk.epoch_steps > 0, chunk.epoch_steps, self.steps_per_epoch)
        lawful_setting = setting.copy()
        for steps in np.unique(lag).tolist():
            at = (lag == steps)[:, None]
            for place in np.unique(setting[lag == steps]).tolist():
                law = prediction(chunk.settings[place], steps) if place >= 0 else None
                where = at & (setting == place)
                lawful_setting[where] = place if law else -1
                for name, values in predicted.items():
                    values[where] = getattr(law, name) if law else np.nan
        return {**predicted, "setting": lawful_setting}

    def _predict_norms(self, chunk: Chunk, setting: NDArray[np.int64], members: Bools, adjusted: Floats) -> Floats:
        """‖w‖ in equilibrium; for coupled decay c·L^(1/4), L the mean of h̃ over the last 200 steps."""
        sizes = np.broadcast_to(np.array(self.watched.sizes, dtype=np.float64), members.shape)
        counts = self._join(sizes, members, _sum)
        with np.errstate(invalid="ignore"):
            fourth_root = np.maximum(self._mean_energy(chunk.step, adjusted), 0.0) ** 0.25
        norms = np.full(setting.shape, np.nan)
        for place in set(setting.ravel().tolist()) - {-1}:
            where = setting == place
            of_place: Settings = chunk.settings[place]
            scale = fourth_root if of_place.kind in COUPLED else np.sqrt(counts)
            norms[where] = (norm_factor(of_place) * scale)[where]
        return np.where(norms > 0, norms, np.nan)

    def _mean_energy(self, steps: NDArray[np.int64], adjusted: Floats) -> Floats:
        """The mean of `adjusted` over the measurements of the last `MEAN_STEPS` steps, at each step."""
        all_steps = np.append(self._energy_steps, steps)
        energies = np.concatenate([self._energies, adjusted])
        known = np.isfinite(energies)
        zero = np.zeros((1, energies.shape[1]))
        total = np.concatenate([zero, np.cumsum(np.where(known, energies, 0.0), axis=0)])
        count = np.concatenate([zero, np.cumsum(known, axis=0)])
        end = np.arange(len(energies) - len(steps), len(energies)) + 1
        start = np.searchsorted(all_steps, steps - MEAN_STEPS, side="right")
        with np.errstate(divide="ignore", invalid="ignore"):
            means: Floats = (total[end] - total[start]) / (count[end] - count[start])
        recent = all_steps > steps[-1] - MEAN_STEPS
        self._energy_steps, self._energies = all_steps[recent], energies[recent]
        return means

    def _test_equilibrium(
        self, chunk: Chunk, members: Bools, weight_sq: Floats, adjusted: Floats, law: Mapping[str, NDArray[Any]]
    ) -> Bools:
        """Which layers are in equilibrium, where something is predicted; the detector looks as often as it tests."""
        rates, settled = law["rate"], np.empty(weight_sq.shape, dtype=bool)
        changed = self._changes(members, rates)
        fastest = np.nan_to_num(rates).max(axis=1).tolist()
        unseen = 0
        for i, step in enumerate(chunk.step.tolist()):
            if changed[i] or fastest[i] * (step - self._tested_at) >= SPACING:
                since, unseen = slice(unseen, i + 1), i + 1
                self._settled = self._detector.update(
                    step, norm_sq=weight_sq[i], rate=rates[i], power=law["power"][i], unit_grad_sq=adjusted[since]
                )
                self._tested_at = step
            settled[i] = self._settled
        return settled

    def _changes(self, members: Bools, rates: Floats) -> list[bool]:
        """At which steps the rates jump, or other tensors than before make up `all`; that layer then starts again."""
        before = np.concatenate([self._last_rate[None], rates[:-1]])
        with np.errstate(invalid="ignore"):
            jumped = ~(np.abs(rates - before) <= JUMP * before) & ~(np.isnan(rates) & np.isnan(before))
        regrouped = (members != np.concatenate([self._members[None], members[:-1]])).any(axis=1)
        if regrouped.any():
            self._detector.reset(np.arange(len(self.layers)) == len(self.layers) - 1)
        self._last_rate, self._members = rates[-1].copy(), members[-1].copy()
        changes: list[bool] = (jumped.any(axis=1) | regrouped).tolist()
        return changes


def _sum(values: Floats, members: Bools, counted: Bools | bool = True) -> Floats:
    """At each step the sum over the members that count, NaN where there is none."""
    which = members & counted
    return np.where(which.any(axis=1), np.where(which, values, 0.0).sum(axis=1), np.nan)


def _shared_value(values: NDArray[Any], members: Bools, otherwise: float) -> NDArray[Any]:
    """At each step the value that all members share, else `otherwise`."""
    low = np.where(members, values, np.inf).min(axis=1, initial=np.inf)
    high = np.where(members, values, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(low == high, low, otherwise)
