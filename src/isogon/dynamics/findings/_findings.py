"""What a record shows about a run, in named findings with numbers and one sentence of advice each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from isogon.dynamics.findings._evidence import drops, peak, root_mean_square, tail
from isogon.dynamics.findings._run_facts import HAS_NO_LAW, RunFacts
from isogon.dynamics.record import ALL, CHANCES_AGAINST, DECIDED_AFTER, LEAK, NOISE, remaining_steps
from isogon.errors import ArgumentError, check_number, check_whole
from isogon.recipe import Recipe

Severity = Literal["problem", "warning", "note"]

#: factor either way by which an epoch angle's square may miss its target, and a layer's step angle the others'
SAME_ANGLE = 1.5
#: the finding that theory is silent about the whole run
NO_LAW = "no_law"
#: share of the predicted step angle below which a layer counts as frozen
FROZEN = 1e-3
_FLOAT32_MAX = 3.4e38


@dataclass(frozen=True)
class Finding:
    """One thing found: `name` for programs, `advice` for people, `numbers` for both; `layer` None is the whole run."""

    name: str
    severity: Severity
    layer: str | None
    numbers: dict[str, float]
    advice: str

    @property
    def key(self) -> tuple[str, str | None, float | None]:
        """The same for the same thing found again later in the run, when its numbers may have changed."""
        return self.name, self.layer, self.numbers.get("step")


@dataclass(frozen=True)
class _Case:
    """Everything a rule looks at."""

    layers: dict[str, pd.DataFrame]
    about: RunFacts
    recipe: Recipe | None
    target_epoch_angle: float | None
    ghost_batch: int | None
    epochs: pd.DataFrame | None
    under_way: bool


def findings(
    records: pd.DataFrame,
    recipe: Recipe | None,
    *,
    silence: str | None = None,
    about: Mapping[str, Any] | None = None,
    target_epoch_angle: float | None = None,
    ghost_batch: int | None = None,
    epochs: pd.DataFrame | None = None,
    under_way: bool = False,
) -> list[Finding]:
    """What is worth knowing about the run in `records`, trained with `recipe`; that theory is silent, then the gravest.

    Without a `recipe`, where isogon has none for the optimizer, only findings that need none are made. `about` is what
    the monitor knew when the run began (`Monitor.about`, `run.json`, `read_run`): why theory is silent, which layers it
    is not about. `silence` alone, the reason, may be given instead; without either it is looked for in the records.

    `target_epoch_angle` (radians) is the epoch angle wanted of the layer `all` at the peak learning rate; without it
    the weight decay is not judged. `ghost_batch` is that of the network's ghost batch norm, if it has one.
    `epochs` is the run's other table (`Monitor.epochs`, `read_epochs`), without which a run that ended in NaN looks
    like one that was stopped: weights that are not finite have no rows. `under_way` is True for a run that continues:
    the loss of its newest epoch may not be known yet.
    """
    if target_epoch_angle is not None:
        check_number("target_epoch_angle", target_epoch_angle, low=0, low_open=True, cure="give radians per epoch")
    if ghost_batch is not None:
        check_whole("ghost_batch", ghost_batch, cure="the papers use 64")
    layers = {str(name): rows.sort_values("step") for name, rows in records.groupby("layer", sort=False)}
    facts = RunFacts.read({**(about or {}), **({} if silence is None else {"silence": silence})})
    case = _Case(layers, facts, recipe, target_epoch_angle, ghost_batch, epochs, under_way)
    rules = _RULES if recipe is None else (*_RULES, *_RULES_WITH_RECIPE)
    all_findings = [finding for rule in rules for finding in rule(case)]
    order = ("problem", "warning", "note")
    return sorted(all_findings, key=lambda finding: (finding.name != NO_LAW, order.index(finding.severity)))


def _no_law(case: _Case) -> Iterator[Finding]:
    """Nothing was predicted, so that nothing can be out of order: no reader may take that for a healthy run.

    At the run's end, that is: without a map a weight may pass for invariant for its first steps.
    """
    if not case.layers or any(tail(rows).predicted_step_angle.notna().any() for rows in case.layers.values()):
        return
    yield Finding(
        NO_LAW,
        "note",
        None,
        {"layers": len([name for name in case.layers if name != ALL])},
        f"Theory is silent about this run: {case.about.silence or _reason_of_silence(case)}. Norms and angles were "
        "measured, and nothing says whether they are as they should be.",
    )


def _reason_of_silence(case: _Case) -> str:
    rows = pd.concat(case.layers.values())
    decay = rows.weight_decay.dropna()
    if len(decay) and not (decay > 0).any():
        return "without weight decay there is no equilibrium to compare with"
    if case.recipe is None:
        return "no law is known for its optimizer and settings"
    for layer, note in case.about.notes.items():
        if note.startswith(HAS_NO_LAW):
            return f"{layer} {note}"
    leak = root_mean_square(rows.radial)
    if leak > LEAK and (case.about.guessed or not case.about.notes):
        return (
            f"no weight passes for scale-invariant, since the gradients have a share of {leak:.2g} along the weights "
            "(isogon.check(model, inputs) says which weights are, and why not)"
        )
    return "for these settings no law is known"


def _remarks(case: _Case) -> Iterator[Finding]:
    """What was known of single layers when the run began, and where their laws come from if from no map."""
    for layer, note in case.about.notes.items():
        yield Finding("remark", "note", layer, {}, f"{layer} {note}.")
    lawful = [name for name, rows in case.layers.items() if rows.predicted_step_angle.notna().any() and name != ALL]
    if case.about.guessed and lawful:
        yield Finding(
            "guessed_laws",
            "note",
            None,
            {"layers": len(lawful)},
            f"Without inputs= the first {DECIDED_AFTER} measured steps decided which weights have a law: the gradients "
            f"of {len(lawful)} lay nearer to right angles to them than chance brings one weight in "
            f"{CHANCES_AGAINST:,}; isogon.check(model, inputs) proves it.",
        )


def _below_resolution(case: _Case) -> Iterator[Finding]:
    """Weights in half precision that turn, or should, by less than what rounding alone does."""
    small = {}
    for name, resolution in case.about.resolutions.items():
        if name in case.layers:
            last = tail(case.layers[name][case.layers[name].step_angle.notna()])
            angles = (root_mean_square(last.step_angle), root_mean_square(last.predicted_step_angle))
            known = [angle for angle in angles if not math.isnan(angle)]
            if known and min(known) < resolution:
                small[name] = min(known)
    if small:
        layer = min(small, key=lambda name: small[name])
        yield Finding(
            "below_resolution",
            "warning",
            None,
            {"step_angle": small[layer], "resolution": case.about.resolutions[layer], "layers": len(small)},
            f"{layer} turns by {small[layer]:.2g} rad per step, and rounding alone turns weights of its type by "
            f"{case.about.resolutions[layer]:.2g} ({len(small)} of {len(case.about.resolutions)} such weights turn "
            "less): updates are lost in rounding and angles are not resolved; keep the weights in float32 and compute "
            "in half precision (torch.autocast).",
        )


def _without_effect(case: _Case) -> Iterator[Finding]:
    """A tensor to which the law would apply, were its gradient more than rounding noise."""
    layers = {name: rows for name, rows in case.layers.items() if name != ALL}
    energies = {name: root_mean_square(rows.unit_grad_sq**0.5) for name, rows in layers.items()}
    # At the run's end: a bias that starts at 0 has no gradient to judge by at first.
    lawful = {name for name, rows in layers.items() if tail(rows).predicted_step_angle.notna().any()}
    if not lawful:
        return
    usual = float(np.median([energies[name] for name in lawful]))
    for name, energy in energies.items():
        if name not in lawful and name not in case.about.lawless and 0 < energy < NOISE * usual:
            yield Finding(
                "without_effect",
                "note",
                name,
                {"unit_gradient": energy, "usual": usual},
                f"The gradient of {name} is rounding noise, {energy / usual:.1g} of the others': it seems to have no "
                "effect, like a bias before a normalisation, and can be left out of the network.",
            )


def _diverged(case: _Case) -> Iterator[Finding]:
    """An epoch with a loss that is not finite, or whose last step, which is always measured, has no row."""
    if case.epochs is None or case.epochs.empty:
        return
    measured = {step for rows in case.layers.values() for step in rows.step}
    losses = case.epochs[[name for name in ("loss", "train_loss") if name in case.epochs]]
    numbers = losses.apply(pd.to_numeric, errors="coerce") if len(losses.columns) else losses
    bad = ~np.isfinite(numbers.to_numpy(dtype=float)).all(axis=1)
    if case.under_way:
        bad[case.epochs["epoch"].to_numpy().argmax()] = False
    bad |= ~case.epochs["step"].isin(measured).to_numpy()
    if bad.any():
        first = int(case.epochs["epoch"].to_numpy()[bad].min())
        yield Finding(
            "diverged",
            "problem",
            None,
            {"epoch": first, "last_step": max(measured, default=-1)},
            f"From epoch {first} on the loss or the weights are not finite: the run diverged; lower the learning rate, "
            "warm it up, or look for an overflow in the loss.",
        )


def _early_decay(case: _Case) -> Iterator[Finding]:
    """The learning rate fell before equilibrium: the epochs missing, from the step angle just before the drop."""
    recipe = _recipe(case)
    waits: dict[int, dict[str, float]] = {}
    about: dict[int, tuple[float, int]] = {}
    for name, rows in case.layers.items():
        for drop in drops(rows):
            if drop.before.predicted_step_angle.isna().all():
                continue
            about[drop.step] = drop.factor, drop.epoch
            waits.setdefault(drop.step, {})[name] = _missing_epochs(recipe, drop.before)
    for step, with_joint in sorted(waits.items()):
        # `all` is the others together, and counts where it is alone.
        by_layer = {name: epochs for name, epochs in with_joint.items() if name != ALL} or with_joint
        late = {name: epochs for name, epochs in by_layer.items() if epochs > 0}
        if not late:
            continue
        worst = max(late, key=lambda name: late[name])
        factor, epoch = about[step]
        yield Finding(
            "early_decay",
            "warning",
            worst,
            {
                "step": step,
                "epoch": epoch,
                "factor": factor,
                "epochs_missing": late[worst],
                "layers_late": len(late),
                "layers": len(by_layer),
            },
            f"The learning rate fell by {factor:.3g} at step {step} while {worst} was {late[worst]:.2g} epochs short "
            f"of equilibrium ({len(late)} of {len(by_layer)} layers were short): wait that much longer, or rescale the "
            "weights at the drop.",
        )


def _missing_epochs(recipe: Recipe, before: pd.DataFrame) -> float:
    """Epochs that a layer still needed for equilibrium at the end of these rows; 0 where it was there."""
    last = before.iloc[-1]
    settled = last.in_equilibrium
    if pd.isna(settled) or bool(settled):
        return 0.0
    angle, law = root_mean_square(tail(before).step_angle), float(last.predicted_step_angle)
    if not (angle > 0 and law > 0):
        return 0.0
    steps = remaining_steps(
        angle,
        predicted_step_angle=law,
        optimizer=recipe.optimizer,
        lr=float(last.lr),
        weight_decay=float(last.weight_decay),
        momentum=recipe.momentum,
    )
    return steps / recipe.steps_per_epoch


def _weight_decay(case: _Case) -> Iterator[Finding]:
    """λ·(target/measured)², from the measurement, since in real training the epoch angle lies below the noise law."""
    if case.target_epoch_angle is None or ALL not in case.layers:
        return
    rows = peak(case.layers[ALL])
    measured = root_mean_square(tail(rows[rows.epoch_angle.notna()]).epoch_angle)
    decay = float(rows.weight_decay.iloc[-1])
    if not (measured > 0 and decay > 0):
        return
    ratio = (case.target_epoch_angle / measured) ** 2
    if 1 / SAME_ANGLE <= ratio <= SAME_ANGLE:
        return
    small = ratio > 1
    yield Finding(
        "weight_decay_too_small" if small else "weight_decay_too_large",
        "warning",
        ALL,
        {
            "weight_decay": decay,
            "suggested_weight_decay": decay * ratio,
            "epoch_angle": measured,
            "target_epoch_angle": case.target_epoch_angle,
        },
        f"The weights turn by {measured:.3g} rad per epoch and should by {case.target_epoch_angle:.3g}: the weight "
        f"decay {decay:.3g} is too {'small' if small else 'large'}, {decay * ratio:.3g} would hit the target.",
    )


def _unbalanced(case: _Case) -> Iterator[Finding]:
    """A layer that turns faster or slower, against its law, than most others do."""
    speeds = {}
    for name, rows in case.layers.items():
        last = tail(rows[rows.step_angle.notna()])
        law = root_mean_square(last.predicted_step_angle)
        speed = root_mean_square(last.step_angle) / law if law > 0 else math.nan
        if name != ALL and speed > FROZEN:
            speeds[name] = speed
    if len(speeds) < 3:
        return
    usual = float(np.median(list(speeds.values())))
    for name, speed in speeds.items():
        if 1 / SAME_ANGLE <= speed / usual <= SAME_ANGLE:
            continue
        yield Finding(
            "unbalanced_layer",
            "warning",
            name,
            {"speed": speed, "usual_speed": usual},
            f"{name} turns {speed / usual:.2g} times as fast as the other layers do, each against its law: in "
            "equilibrium all turn alike, so look at its learning rate, its weight decay and its first norm.",
        )


def _radial_leak(case: _Case) -> Iterator[Finding]:
    """A weight for which predictions were made, so that it passed for invariant, and whose gradient is not tangent."""
    for name, rows in case.layers.items():
        leak = root_mean_square(rows[rows.predicted_step_angle.notna()].radial)
        if leak > LEAK:
            yield Finding(
                "radial_leak",
                "problem",
                name,
                {"radial": leak, "limit": LEAK},
                f"{name} passes for scale-invariant, but its gradient has a share {leak:.2g} along the weight: the law "
                "does not hold for it; see isogon.check(model, inputs).explain(...).",
            )


def _frozen(case: _Case) -> Iterator[Finding]:
    """A layer that does not turn though its learning rate is not 0; in half precision rounding may be the reason."""
    for name, rows in case.layers.items():
        last = tail(rows[rows.step_angle.notna() & (rows.lr > 0)])
        angle, law = root_mean_square(last.step_angle), root_mean_square(last.predicted_step_angle)
        rounded = name in case.about.resolutions
        if name != ALL and not rounded and len(last) and (angle == 0 or angle < FROZEN * law):
            yield Finding(
                "frozen_layer",
                "problem",
                name,
                {"step_angle": angle, "predicted_step_angle": law},
                f"{name} turns by {angle:.2g} rad per step, which is not at all: it gets no gradient; check that it is "
                "used and that nothing detaches it.",
            )


def _near_bound(case: _Case) -> Iterator[Finding]:
    """ηλ near or above the bound at which the poles stop being real."""
    recipe, worst = _recipe(case), 0.0
    for rows in case.layers.values():
        worst = max(worst, float(np.nan_to_num((rows.lr * rows.weight_decay).max())))
    try:
        motion = dataclasses.replace(recipe, weight_decay=worst / recipe.lr).motion
        bound = motion.bound
    except ArgumentError:  # so large that the weights grow without bound
        bound = dataclasses.replace(recipe, weight_decay=0.0).motion.bound
    if worst > bound / 2:
        over = worst > bound
        yield Finding(
            "near_pole_bound",
            "problem" if over else "warning",
            None,
            {"intrinsic_lr": worst, "bound": bound},
            f"lr · weight_decay = {worst:.3g} is {'above' if over else 'near'} the bound {bound:.3g} of momentum "
            f"{recipe.momentum:g}: the weights swing instead of settling; lower one of the two.",
        )


def _overflow(case: _Case) -> Iterator[Finding]:
    """A norm that grows with a growing learning rate and no weight decay, on its way out of float32."""
    recipe = _recipe(case)
    for name, rows in case.layers.items():
        known = rows[rows.norm.notna() & (rows.norm > 0)]
        if len(known) < 3 or float(known.weight_decay.max()) > 0 or not known.lr.iloc[-1] > 1.1 * known.lr.iloc[0]:
            continue
        later = known.iloc[len(known) // 2 :]
        slope = float(np.polyfit(later.step.to_numpy(float), np.log(later.norm.to_numpy(float)), 1)[0])
        done = float(known.step.iloc[-1]) + 1
        planned = (recipe.epochs or 0) * recipe.steps_per_epoch
        steps_left = (math.log(_FLOAT32_MAX) - math.log(float(known.norm.iloc[-1]))) / slope if slope > 0 else math.inf
        if steps_left < max(planned - done, 10 * done):
            yield Finding(
                "norm_overflow",
                "problem" if steps_left < done else "warning",
                name,
                {"norm": float(known.norm.iloc[-1]), "steps_left": steps_left},
                f"Without weight decay and with a growing learning rate the norm of {name} leaves float32 in about "
                f"{steps_left:.2g} steps: rebase the run (weights, learning rate and buffer rescaled together) from "
                "time to time.",
            )


def _ghost_batch(case: _Case) -> Iterator[Finding]:
    """A batch smaller than the ghost batch, so that the ghost batches are smaller than they should be."""
    ghost, batch = case.ghost_batch, _recipe(case).batch_size
    if ghost is not None and batch < ghost:
        yield Finding(
            "batch_below_ghost_batch",
            "warning",
            None,
            {"batch_size": batch, "ghost_batch": ghost},
            f"The batch size {batch} is below the ghost batch {ghost}: the noise of the normalisation then depends on "
            f"the batch size after all; use batches of {ghost} or more, or a smaller ghost batch.",
        )


def _recipe(case: _Case) -> Recipe:
    assert case.recipe is not None, "a rule that needs one stands in _RULES_WITH_RECIPE"
    return case.recipe


_Rule = Callable[[_Case], Iterator[Finding]]
_RULES: tuple[_Rule, ...] = (
    _no_law,
    _diverged,
    _weight_decay,
    _unbalanced,
    _radial_leak,
    _without_effect,
    _frozen,
    _below_resolution,
    _remarks,
)
_RULES_WITH_RECIPE: tuple[_Rule, ...] = (_early_decay, _near_bound, _overflow, _ghost_batch)
