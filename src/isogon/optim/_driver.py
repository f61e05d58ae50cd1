"""`drive`: a PyTorch optimizer under an isogon schedule, exponential ones included, for runs of any length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from isogon.errors import ArgumentError, IsogonError, check_number
from isogon.optim._groups import group_names, invariant_groups
from isogon.optim._scaling import rule_for_scaling, scale_statistics, scale_weights, separate_rates
from isogon.schedules import AdamwForm, Balanced, Exponential, Schedule, SgdwForm
from isogon.symmetry import ScaleMap
from isogon.theory import Floats


def drive(
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    *,
    model: nn.Module | None = None,
    scale_map: ScaleMap | None = None,
    rebase: bool = True,
) -> Driver:
    """Set learning rate and weight decay of `optimizer` by `schedule` from now on; call `.step()` after each step.

    Under an exponential schedule the scale-invariant weights train without weight decay and the others under the
    ordinary schedule it was made from; `scale_map` (with `model`) separates them; without it all are invariant.
    A `balanced` schedule, too, is for the invariant weights; with a map the others keep the one it was made from.
    A group without weight decay beside others that have one stays without. Groups whose learning rates differ are
    refused, since one schedule sets them all; a group's own `lr_scale` (as timm names it) multiplies the schedule's.
    `rebase` halves the weights whenever they have doubled against the run with weight decay, together with buffers,
    rates and (with a map) running statistics, so that nothing leaves the range of floats.
    """
    return Driver(optimizer, schedule, model=model, scale_map=scale_map, rebase=rebase)


class GroupRates(NamedTuple):
    """What a parameter group trains with at some steps; before each, v += correction · w for its momentum buffers."""

    lr: Floats
    weight_decay: Floats
    correction: Floats


class Driver(LRScheduler):
    """What `drive` returns; usable wherever PyTorch's learning-rate schedulers are.

    A step that the optimizer did not take (skipped by a gradient scaler) does not advance it, and neither does a second
    `.step()` after the same one. Corrections of the momentum buffer are made just before the optimizer steps, so that
    states may be loaded in any order. A step of the optimizer after a schedule has run down to 0 for good is refused.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        *,
        model: nn.Module | None,
        scale_map: ScaleMap | None,
        rebase: bool,
    ) -> None:
        # PyTorch's own constructor would replace optimizer.step to count calls; the optimizer's hooks serve for that.
        self.optimizer = optimizer
        self.schedule = schedule
        self.exponential = schedule if isinstance(schedule, Exponential) else None
        self.rebase = rebase
        self.model = model
        self.base_lrs = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
        self._lr_scales = _find_lr_scales(optimizer, self.base_lrs, schedule)
        self._decayed = _find_decayed(optimizer)
        self.last_epoch = 0
        self._halvings = 0
        self._corrected = False
        self._stepped = False
        self._invariant = [True] * len(optimizer.param_groups)
        self._statistics: dict[str, tuple[float, ...]] = {}
        if self.exponential is not None:
            _check_optimizer(optimizer, self.exponential)
            self._invariant = invariant_groups(optimizer, model, scale_map)
            _check_other_weights(optimizer, self.exponential, self._invariant)
            for number, (invariant, decayed) in enumerate(zip(self._invariant, self._decayed, strict=True)):
                if invariant and not decayed:
                    raise ArgumentError(
                        f"weight_decay of group {number}",
                        "above 0, since the schedule stands for that of its invariant weights",
                        0.0,
                        "make the groups with isogon.optim.split_groups",
                    )
            if scale_map is not None:
                names = zip(group_names(optimizer, model), self._invariant, strict=True)
                self._statistics = scale_map.statistics_degrees(n for ns, invariant in names if invariant for n in ns)
        elif isinstance(schedule, Balanced) and scale_map is not None:
            self._invariant = invariant_groups(optimizer, model, scale_map)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        for group, decayed, scale in zip(optimizer.param_groups, self._decayed, self._lr_scales, strict=True):
            # For what reads the optimizer's recipe later, and for a driver made again in the middle of the run.
            group["initial_lr"] = _peak(self._ordinary) * scale
            group["initial_weight_decay"] = float(self._ordinary.weight_decay(0)) if decayed else 0.0
        self._set_rates()

    @property
    def log_scale(self) -> float:
        """ln of how much larger the weights are now than in the run with weight decay."""
        return float(self._log_scale(np.asarray(self.last_epoch)))

    def step(self, epoch: int | None = None) -> None:
        """Move to the next step's rates; nothing happens unless the optimizer has stepped."""
        if not self._stepped:
            return
        self._stepped = False
        self._corrected = False
        self.last_epoch += 1
        if self.exponential is not None and self.rebase:
            self._rebase()
        self._set_rates()

    def rates(self, steps: ArrayLike) -> list[GroupRates]:
        """What each group trains with at `steps` (momentum aside), as long as the weights are not halved again."""
        at = np.asarray(steps)
        shares = self._correction(at)
        return [
            GroupRates(*self._lr_and_decay(at, index), shares if invariant else np.zeros_like(shares))
            for index, invariant in enumerate(self._invariant)
        ]

    @property
    def halvings(self) -> int:
        """How often the weights were halved: they are 2^(−halvings) times those of the schedule."""
        return self._halvings

    def advance(self, steps: int) -> None:
        """Continue after `steps` that were made at `rates` without the optimizer's `step`, as by a CUDA graph."""
        self.last_epoch += steps
        if self.exponential is not None and self.rebase:
            self._rebase()
        self._set_rates()

    def change(self, schedule: Schedule) -> None:
        """Continue under another ordinary schedule, from the step that has been reached."""
        if self.exponential is not None or isinstance(schedule, Exponential):
            raise ArgumentError(
                "schedule", "ordinary before and after a change", type(schedule).__name__, "make a new driver"
            )
        self.schedule = schedule
        self._set_rates()

    def get_last_lr(self) -> list[float | torch.Tensor]:
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.last_epoch,
            "halvings": self._halvings,
            "corrected": self._corrected,
            "stepped": self._stepped,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_epoch = int(state_dict["step"])
        self._halvings = int(state_dict["halvings"])
        self._corrected = bool(state_dict["corrected"])
        self._stepped = bool(state_dict["stepped"])
        self._set_rates()

    def close(self) -> None:
        """Take the hooks off the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def _invariant_groups(self) -> list[dict[str, Any]]:
        pairs = zip(self.optimizer.param_groups, self._invariant, strict=True)
        return [group for group, invariant in pairs if invariant]

    @property
    def _ordinary(self) -> Schedule:
        """The schedule of weights that are not invariant."""
        if self.exponential is not None:
            return self.exponential.of_others
        return self.schedule.schedule if isinstance(self.schedule, Balanced) else self.schedule

    def _set_rates(self) -> None:
        step, exponential = self.last_epoch, self.exponential
        separate_rates(self.optimizer)
        for index, (group, invariant) in enumerate(zip(self.optimizer.param_groups, self._invariant, strict=True)):
            lr, weight_decay = (float(value) for value in self._lr_and_decay(np.asarray(step), index))
            _set_group(group, lr, weight_decay)
            if exponential is None or not invariant:
                continue
            if lr > torch.finfo(group["params"][0].dtype).max:
                dtype = group["params"][0].dtype
                raise IsogonError(
                    f"The learning rate left the range of {dtype} at step {step}: drive with rebase=True."
                )
            # The user's values are kept for the check when the run is resumed.
            if isinstance(exponential, SgdwForm):
                group["initial_momentum"] = exponential.momentum
                group["momentum"] = float(exponential.momentum_at(step))
            elif isinstance(exponential, AdamwForm):
                group["initial_betas"] = exponential.betas
                group["betas"] = exponential.adam_betas
                eps = group.setdefault("initial_eps", group["eps"])
                group["eps"] = eps * _exp(float(exponential.log_eps(step)) + self._halvings * math.log(2))
        self._last_lr = [float(group["lr"]) for group in self.optimizer.param_groups]

    def _lr_and_decay(self, steps: NDArray[Any], index: int) -> tuple[Floats, Floats]:
        """Of the group with that `index`."""
        if self.exponential is None or not self._invariant[index]:
            schedule = self.schedule if self._invariant[index] else self._ordinary
            return schedule.lr(steps) * self._lr_scales[index], schedule.weight_decay(steps) * self._decayed[index]
        smaller = rule_for_scaling(self.optimizer).rate_power * self._halvings * math.log(2)
        with np.errstate(over="ignore"):
            return np.exp(self.exponential.log_lr(steps) - smaller), np.zeros(np.shape(steps))

    def _correction(self, steps: NDArray[Any]) -> Floats:
        """k_t of the invariant weights as large as they are now."""
        if self.exponential is None or self.exponential.momentum == 0:
            return np.zeros(np.shape(steps))
        return np.asarray(self.exponential.momentum_correction(steps) * np.exp(-2 * self._log_scale(steps)))

    def _log_scale(self, steps: NDArray[Any]) -> Floats:
        if self.exponential is None:
            return np.zeros(np.shape(steps))
        return np.asarray(self.exponential.log_scale(steps) - self._halvings * math.log(2))

    def _rebase(self) -> None:
        """Halve the weights as often as they have doubled; a power of two loses no bit."""
        times = math.floor(self.log_scale / math.log(2) + 1e-12)
        if times < 1:
            return
        scale_weights(self.optimizer, self._invariant_groups(), 0.5**times)
        if self.model is not None:
            scale_statistics(self.model, self._statistics, 0.5**times)
        self._halvings += times

    @torch.no_grad()
    def _before_step(self, *_: Any) -> None:
        """Add the correction of this step to the momentum buffers: v += k_t w, making them where they do not exist."""
        self._refuse_steps_after_the_end()
        if self.exponential is None or self._corrected:
            return
        self._corrected = True
        share = float(self._correction(np.asarray(self.last_epoch)))
        if share == 0:
            return
        for group in self._invariant_groups():
            for parameter in group["params"]:
                state = self.optimizer.state[parameter]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                state["momentum_buffer"].add_(parameter, alpha=share)

    def _refuse_steps_after_the_end(self) -> None:
        step = self.last_epoch
        # A single 0 is no end: a warm-up after a decay may start there.
        if step > 0 and not any(self._last_lr) and not self._ordinary.lr([step, step + 1]).any():
            raise ArgumentError(
                "schedule",
                "as long as the run",
                f"a rate of 0 from step {step} on",
                "give it the steps of the run",
            )

    def _after_step(self, *_: Any) -> None:
        # A fused optimizer is called even when the scaler found infinities, and then does nothing.
        found_inf = getattr(self.optimizer, "found_inf", None)
        if found_inf is None or not bool(found_inf):
            self._stepped = True


def _find_decayed(optimizer: torch.optim.Optimizer) -> list[bool]:
    """Which groups have weight decay, all of them where the optimizer was made without any."""
    decays = [float(group.get("initial_weight_decay", group["weight_decay"])) for group in optimizer.param_groups]
    return [decay > 0 or not any(decays) for decay in decays]


def _find_lr_scales(
    optimizer: torch.optim.Optimizer, rates: Sequence[float | torch.Tensor], schedule: Schedule
) -> list[float]:
    """Each group's part of the schedule's learning rate; apart from these, rates must be alike."""
    scales = [
        check_number("lr_scale", group.get("lr_scale", 1.0), low=0, low_open=True, cure="leave it out for 1")
        for group in optimizer.param_groups
    ]
    # A group of `lr_scale` may have the scaled rate or, before its first step under timm, the unscaled one.
    unscaled = {float(f"{float(rate) / scale:.12g}") for rate, scale in zip(rates, scales, strict=True)}
    if len(unscaled) > 1 and len(set(rates)) > 1:
        cure = "drive one optimizer for each rate, or give groups an lr_scale"
        raise ArgumentError("lr", "the same in all groups, since one schedule sets it", list(rates), cure)
    if set(scales) != {1.0} and isinstance(schedule, Exponential | Balanced):
        raise ArgumentError("lr_scale", "1 under this schedule", scales, "train all weights at one rate")
    return scales


def _peak(schedule: Schedule) -> float:
    """The highest rate of a schedule's start, those of its parts, and the end of its warm-up."""
    return float(np.max(schedule.lr([0, *getattr(schedule, "starts", ()), getattr(schedule, "steps", 0)])))


def _set_group(group: dict[str, Any], lr: float, weight_decay: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr
    group["weight_decay"] = weight_decay


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 709 else math.inf


def _check_optimizer(optimizer: torch.optim.Optimizer, schedule: Exponential) -> None:
    """Refuse what the equivalence does not hold for."""
    if isinstance(schedule, AdamwForm):
        if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
            raise ArgumentError(
                "optimizer", "Adam or AdamW for adamw_form", type(optimizer).__name__, "use texp_plus for SGD"
            )
        for group in optimizer.param_groups:
            if schedule.betas not in (tuple(group["betas"]), group.get("initial_betas")):
                raise ArgumentError("betas", f"the schedule's, {schedule.betas}", group["betas"], "make the two agree")
            if group["amsgrad"]:
                raise ArgumentError("amsgrad", "off", True, "a maximum over steps has no exponential form")
        return
    if type(optimizer) is not torch.optim.SGD:
        raise ArgumentError(
            "optimizer", "torch.optim.SGD for this schedule", type(optimizer).__name__, "use adamw_form for AdamW"
        )
    for group in optimizer.param_groups:
        if group["nesterov"]:
            raise ArgumentError(
                "nesterov",
                "off",
                True,
                "Nesterov's update at constant momentum has no exponential form; use heavy ball",
            )
        if group["dampening"]:
            raise ArgumentError("dampening", "0", group["dampening"], "multiply lr by 1 − dampening instead")
        if schedule.momentum not in (group["momentum"], group.get("initial_momentum")):
            raise ArgumentError(
                "momentum", f"the schedule's, {schedule.momentum:g}", group["momentum"], "make the two agree"
            )


def _check_other_weights(optimizer: torch.optim.Optimizer, schedule: Exponential, invariant: list[bool]) -> None:
    """Refuse a mixed model whose other weights `optimizer` would decay in another way than the schedule's form does."""
    decoupled = isinstance(optimizer, torch.optim.AdamW)
    if not all(invariant) and decoupled != isinstance(schedule, SgdwForm | AdamwForm):
        raise ArgumentError(
            "optimizer",
            "one with decoupled weight decay where some weights are not invariant",
            type(optimizer).__name__,
            "use AdamW with adamw_form, or SGD with texp_plus",
        )
