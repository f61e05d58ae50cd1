"""From sums to rows of the record: joins tensors, adds what theory predicts, follows the equilibrium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isogon.dynamics.measure import Chunk, Settings, Watched
from isogon.dynamics.measures import angle_from_sums
from isogon.dynamics.record._detector import JUMP, SPACING, Detector
from isogon.dynamics.record._predictions import norm_factor, prediction
from isogon.dynamics.record._state_tensors import to_array, to_tensor
from isogon.theory import COUPLED, Floats

#: the layer that joins tensors
ALL = "all"
#: steps over which the adjusted unit gradient is averaged for the predicted norm (Wan et al. average over 200)
MEAN_STEPS = 200
#: root mean square of the radial leak above which a weight does not pass for invariant
LEAK = 0.01
# Any direction is nearly at right angles to a weight of many dimensions n, up to 1/√n by chance. So a weight passes
# without a map only where its leak is below this share of that; rounding leaves a tenth of it, even in bfloat16.
_SHARE_OF_CHANCE, _LEAST_LEAK = 0.03, 1e-5
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

    Arrays below are (steps, tensors), or (steps, layers) with the layer `all` last.
    """

    def __init__(self, watched: Watched, *, steps_per_epoch: float) -> None:
        self.watched, self.steps_per_epoch = watched, steps_per_epoch
        self.layers = [name for name, has_rows in zip(watched.names, watched.layers, strict=True) if has_rows] + [ALL]
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
        # By a map all of them together are invariant; a guess holds while none of them leaks.
        joint = np.full(len(lawful), self.watched.silence is None)
        if not self.watched.mapped:
            joint &= (lawful | ~members).all(axis=1)
        known = np.append(lawful[:, self.watched.layers], joint[:, None], axis=1)
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

        To none where theory is silent. With a map, to those whose gradient is more than rounding noise; without one, to
        those that did not leak.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            unit_sq = sums["weight_sq"] * sums["grad_sq"]
            leak_sq = sums["weight_dot_grad"] ** 2 / unit_sq
        known = np.isfinite(leak_sq)
        leaked = self._leak_sq + np.cumsum(np.where(known, leak_sq, 0.0), axis=0)
        energy = self._unit_sq + np.cumsum(np.where(known, unit_sq, 0.0), axis=0)
        count = self._leaks + np.cumsum(known, axis=0)
        if len(count):
            self._leak_sq, self._unit_sq, self._leaks = leaked[-1], energy[-1], count[-1]
        if self.watched.silence is not None:
            return np.zeros(known.shape, dtype=bool)
        if not self.watched.mapped:
            by_chance = _SHARE_OF_CHANCE / np.sqrt(np.maximum(self.watched.sizes, 1))
            bound = np.clip(by_chance, _LEAST_LEAK, LEAK)
            return np.asarray((count > 0) & (leaked <= bound**2 * count))
        mean = np.where(count > 0, energy / np.maximum(count, 1), 0.0)
        # In a network of which every convolution has a bias, half of the tensors are such.
        usual = np.quantile(mean, 0.75, axis=1, keepdims=True)
        return np.asarray((count == 0) | (mean >= NOISE**2 * usual))

    def _find_members(self, lawful: Bools) -> Bools:
        """Which tensors make up `all`, the same at every step: all that a map chose, or, where theory is silent, all.

        Without a map those that do not leak at the first step at which any does not: a member that leaks later takes
        the law from `all`, and stays, since its norm must not jump.
        """
        if self.watched.mapped or self.watched.silence is not None:
            return np.ones(lawful.shape, dtype=bool)
        if not self._members.any():
            first = np.flatnonzero(lawful.any(axis=1))
            members = np.zeros(lawful.shape, dtype=bool)
            if len(first):
                members[first[0] :] = lawful[first[0]]
            return members
        return np.broadcast_to(self._members, lawful.shape)

    def _sum_by_layer(self, sums: Mapping[str, Floats], members: Bools) -> dict[str, Floats]:
        """Each sum for the layers and, last, over the members of `all`; one without a gradient adds nothing to that."""
        no_gradient = np.isnan(sums["grad_sq"])
        has_member = members.any(axis=1)
        has_gradient = (members & ~no_gradient).any(axis=1)
        by_layer = {}
        for name, values in sums.items():
            counted = members & ~no_gradient if name in _OF_GRADIENT else members
            total = np.where(counted, values, 0.0).sum(axis=1)
            total = np.where(has_gradient if name in _OF_GRADIENT else has_member, total, np.nan)
            by_layer[name] = np.append(values[:, self.watched.layers], total[:, None], axis=1)
        return by_layer

    def _settings(self, chunk: Chunk, members: Bools) -> tuple[NDArray[np.int64], Floats, Floats]:
        """For each layer the place of its setting (−1: none, or not the same for all members), η and λ."""
        lr = np.array([*(float(s.lr) for s in chunk.settings), np.nan])
        decay = np.array([*(s.weight_decay for s in chunk.settings), np.nan])
        setting = chunk.setting
        joint = _shared_value(setting, members, -1)
        return (
            np.append(setting[:, self.watched.layers], joint[:, None], axis=1).astype(np.int64),
            np.append(
                lr[setting][:, self.watched.layers], _shared_value(lr[setting], members, np.nan)[:, None], axis=1
            ),
            np.append(
                decay[setting][:, self.watched.layers], _shared_value(decay[setting], members, np.nan)[:, None], axis=1
            ),
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
        sizes = np.array(self.watched.sizes)
        single = np.broadcast_to(sizes[self.watched.layers], (len(members), len(self.layers) - 1))
        counts = np.append(single, (members * sizes).sum(axis=1)[:, None], axis=1)
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


def _shared_value(values: NDArray[Any], members: Bools, otherwise: float) -> NDArray[Any]:
    """At each step the value that all members share, else `otherwise`."""
    low = np.where(members, values, np.inf).min(axis=1, initial=np.inf)
    high = np.where(members, values, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(low == high, low, otherwise)
