"""The rule that moves a recipe to another batch size, data set, learning rate or model, and what it rests on."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isogon.errors import ArgumentError, UnsolvableError, check_choice, check_number
from isogon.recipe._conventions import weight_decay_of
from isogon.recipe._evidence import ONE_EPOCH, REGIMES, SEVERAL_EPOCHS, SHORT_RUN, interval_octaves
from isogon.recipe._names import HALF_LIFE, field_name, is_relative, new_value
from isogon.recipe._sentences import (
    SHORT,
    describe_what_to_try,
    disputed_by_width,
    known_beta2,
    list_notes,
    summarise_changes,
    summarise_short_run,
    summarise_width,
)
from isogon.theory import horizon, rule_of

if TYPE_CHECKING:
    from isogon.recipe._recipe import Recipe

#: what `transfer` can solve for
SOLVABLE = ("weight_decay", "lr", "batch_size", "momentum")
#: what `transfer` can change
CHANGEABLE = ("batch_size", "samples", "lr", "weight_decay", "momentum", "epochs", "beta2", "convention")
#: of the model, which no recipe holds: given as factors
MODEL_CHANGES = ("params", "width")
RULES_OF_TRANSFER = ("factor", "sde")

_REGIME_TEXT = {
    SEVERAL_EPOCHS: "several epochs: the tuning factor F stays (Yun et al.)",
    ONE_EPOCH: "one epoch: F grows as (samples per parameter)^m, m = 0.5, between 0 and 1",
    SHORT_RUN: "a short run, such as fine-tuning: weight decay hardly acts in it",
}
_SDE_TEXT = "none: the rule sde keeps the stochastic differential equation of the run, and with it F"


@dataclass(frozen=True)
class Transfer:
    """A transferred recipe; `print` it for a sentence on what to change, the interval and the warnings.

    `interval` is (low, high) for a solved weight decay or learning rate, None for the others; `warnings` are sentences;
    `regime` names the rule that was used (`REGIMES`), `evidence` what the interval rests on.

    >>> from isogon import Recipe
    >>> recipe = Recipe(optimizer="AdamW", lr=3e-3, weight_decay=0.1, batch_size=256, samples=1_000_000, epochs=1)
    >>> print(recipe.transfer(batch_size="x4").summary)
    Set weight decay to 0.4 (×4) and keep the learning rate at 0.003.
    """

    recipe: Recipe
    interval: tuple[float, float] | None
    warnings: tuple[str, ...]
    summary: str = ""
    regime: str = SEVERAL_EPOCHS
    solved: tuple[str, ...] = ()
    evidence: tuple[str, ...] = field(default=())
    rule: str = "factor"

    @property
    def regime_text(self) -> str:
        """The regime and its rule, in a line."""
        return _SDE_TEXT if self.rule == "sde" else _REGIME_TEXT[self.regime]

    @property
    def interval_text(self) -> str:
        """Where the best is expected and what that rests on, in a sentence; empty where nothing is known."""
        if self.interval is None:
            return ""
        low, high = self.interval
        grounds = f": {'; '.join(self.evidence)}" if self.evidence else ""
        return f"The best is expected between {low:.2g} and {high:.2g}{grounds}."

    def __str__(self) -> str:
        lines = [self.summary, f"Regime: {self.regime_text}.", self.interval_text]
        return "\n".join([*filter(None, lines), *(f"! {warning}" for warning in self.warnings)])


def transfer(
    old: Recipe,
    *,
    solve: str,
    rule: str,
    within: float | None,
    regime: str | None,
    tokens_per_sample: float | None,
    changes: Mapping[str, Any],
) -> Transfer:
    """What `Recipe.transfer` returns."""
    solve = check_choice("solve", field_name(solve), SOLVABLE)
    rule = check_choice("rule", str(rule).lower(), RULES_OF_TRANSFER)
    if within is not None:
        check_number("within", within, low=1, cure="2 means half to double the solved value")
    if regime is not None:
        regime = check_choice("regime", re.sub("[-_ ]+", " ", str(regime)).lower(), REGIMES)
    changed, model = _apply(old, solve, changes)
    if old.tuning_factor == 0:
        raise UnsolvableError(
            f"lr · weight_decay must be above 0 to transfer, got {old.lr:g} · {old.weight_decay:g}: "
            "without weight decay there is no tuning factor to keep."
        )
    if rule == "sde":
        if within is not None or tokens_per_sample is not None:
            raise ArgumentError("rule", "factor where within or tokens_per_sample is given", rule, "leave them out")
        return _follow_sde(old, changed, solve, {*changes, *model})
    ratios = {"data": changed.samples / old.samples, "batch": changed.batch_size / old.batch_size}
    # As it would be with the weight decay that is there.
    kept = old.in_convention(changed.convention).weight_decay
    unsolved = dataclasses.replace(changed, weight_decay=kept) if solve == "weight_decay" else changed
    regime = regime or _regime(old, unsolved)
    if regime == SHORT_RUN and changed.epochs is None:
        raise ArgumentError("regime", "another one where epochs is not given", regime, "give epochs")
    if regime == SHORT_RUN and solve == "lr":
        raise ArgumentError("solve", "another one in a short run", solve, describe_what_to_try(old, changed))
    factor = old.tuning_factor
    if regime == ONE_EPOCH:
        # All samples of the run count: F of the run, epochs · F, follows them.
        longer = changed.epochs / old.epochs if changed.epochs and old.epochs else 1.0
        ratios["data"] *= longer / model.get("params", 1.0)
        factor *= horizon.factor_ratio(ratios["data"]) / longer
    if regime == SHORT_RUN and solve == "weight_decay":
        value, notes = kept, list[str]()
    else:
        value, notes = _solve(changed, solve, factor)
    solution: dict[str, Any] = {solve: value}
    new = dataclasses.replace(changed, **solution)
    hardly_acts = regime == SHORT_RUN and new.epochs is not None and new.epochs * new.tuning_factor < SHORT
    interval: tuple[float, float] | None = None
    evidence: tuple[str, ...] = ()
    if solve in ("weight_decay", "lr"):
        low, high, evidence = interval_octaves(regime, old.optimizer, old.momentum, solve, ratios)
        interval = (value * 2**low, value * 2**high) if within is None else (value / within, value * within)
        if regime == SHORT_RUN and within is None:
            assert new.epochs is not None
            # Anything up to where it would begin to matter does the same; nobody knows where it does matter.
            interval = (0.0, value * SHORT / (new.epochs * new.tuning_factor)) if hardly_acts else None
            evidence = (f"epochs · F stays below {SHORT:g}",) if hardly_acts else ()
        if "width" in model and interval is not None and solve == "weight_decay":
            narrow = disputed_by_width(old, new, model["width"], lr=new.lr)
            interval = (min(interval[0], *narrow), max(interval[1], *narrow))
    notes += list_notes(old, new, regime, solve, model, tokens_per_sample)
    if "width" in model and solve == "weight_decay":
        summary = summarise_width(old, new, model["width"])
    elif hardly_acts and solve == "weight_decay":
        summary = summarise_short_run(new)
    else:
        summary = summarise_changes(old, new, (solve,))
    return Transfer(
        recipe=new,
        interval=interval,
        warnings=tuple(dict.fromkeys((*notes, *old.notes, *new.warnings))),
        summary=summary,
        regime=regime,
        solved=(solve,),
        evidence=evidence,
    )


def _apply(old: Recipe, solve: str, changes: Mapping[str, Any]) -> tuple[Recipe, dict[str, float]]:
    """The recipe with its changes, and by what factors the model grows."""
    values: dict[str, Any] = {}
    model: dict[str, float] = {}
    for given, value in changes.items():
        name = field_name(given)
        check_choice("changes", name, (*CHANGEABLE, *MODEL_CHANGES), cure="name what the new run has different")
        if name in values or name in model:
            raise ArgumentError("changes", f"one value for {name}", value, "give it once")
        if name in MODEL_CHANGES:
            if not is_relative(value):
                raise ArgumentError(name, "a factor such as x4, since a recipe has no model", value, "write x4")
            model[name] = float(new_value(name, value, 1.0))
        elif name == solve:
            raise ArgumentError(
                "changes", f"without {name}, which is solved for", value, "drop it or solve for another"
            )
        else:
            values[name] = value
    half_life = values.get("beta2") == HALF_LIFE and values.pop("beta2")
    for name, value in values.items():
        if name != "convention":
            values[name] = new_value(name, value, getattr(old, name))
    changed: Recipe = dataclasses.replace(old, **values)
    if half_life:
        beta2 = known_beta2(old)
        if beta2 is None:
            raise ArgumentError("beta2", f"left out for {old.optimizer}, which has none", half_life, "drop it")
        changed = dataclasses.replace(changed, beta2=beta2 ** (changed.batch_size / old.batch_size))
    return changed, model


def _regime(old: Recipe, new: Recipe) -> str:
    """Which rule applies; without epochs, several are assumed. `new` has the weight decay of before."""
    if new.epochs is not None:
        turnings = (old.epochs or new.epochs) * old.tuning_factor, new.epochs * new.tuning_factor
        if max(turnings) < SHORT:
            return SHORT_RUN
    once = all(recipe.epochs is not None and recipe.epochs <= 1 for recipe in (old, new))
    return ONE_EPOCH if once else SEVERAL_EPOCHS


def _solve(recipe: Recipe, solve: str, factor: float) -> tuple[float, list[str]]:
    """The value of `solve` with which `recipe` has the tuning factor `factor`, and notes about it."""
    if solve in ("weight_decay", "lr"):
        if solve == "lr" and recipe.convention == "independent":
            raise _solve_error(solve, "independent weight decay is not multiplied by it", "solve for weight_decay")
        unit_value: dict[str, Any] = {solve: 1.0}
        unit = dataclasses.replace(recipe, **unit_value).tuning_factor
        if unit == 0:
            raise _solve_error(solve, "weight_decay is 0 in the new recipe", "give it a weight decay")
        value = factor / unit
        if not (math.isfinite(value) and value > 0):
            raise _solve_error(solve, f"it would have to be {value:g}", "make a smaller change")
        return value, []
    if solve == "batch_size":
        exact = recipe.tuning_factor * recipe.batch_size / factor
        if not exact <= 1e15:
            raise _solve_error(solve, f"it would have to be {exact:g}", "make a smaller change")
        rounded = max(1, round(exact))
        if math.isclose(rounded, exact, rel_tol=1e-9):
            return rounded, []
        share = exact / rounded
        return rounded, [
            f"The batch size is rounded from {exact:.6g} to {rounded}: the tuning factor is {share:.4g} of what it was."
        ]
    if not rule_of(recipe.optimizer).coupled:
        raise _solve_error(solve, f"{recipe.optimizer}'s tuning factor has no momentum in it", "solve for another")
    value = 1 - recipe.steps_per_epoch * recipe.intrinsic_lr / factor
    if not 0 <= value < 1:
        raise _solve_error(
            solve,
            f"it would have to be {value:.4g}, outside 0 ≤ momentum < 1",
            "solve for another or change less",
        )
    return value, []


def _solve_error(solve: str, reason: str, cure: str) -> UnsolvableError:
    return UnsolvableError(f"{solve} cannot be solved for, since {reason}: {cure}.")


def _follow_sde(old: Recipe, changed: Recipe, solve: str, names: set[str]) -> Transfer:
    """Batch × κ along the same stochastic differential equation (Malladi et al., arXiv 2205.10287).

    SGD: lr · κ. AdamW: lr · √κ, λ · √κ, so that a step takes κ times the share; 1 − β · κ, ε/√κ.
    """
    extra = {field_name(name) for name in names} - {"batch_size"}
    if extra or solve != "weight_decay":
        raise ArgumentError(
            "rule", "factor where more than the batch size changes", "sde", "change batch_size alone, without solve"
        )
    kappa, power = changed.batch_size / old.batch_size, rule_of(old.optimizer).sde_power
    if power is None:
        raise ArgumentError("rule", f"factor for {old.optimizer}", "sde", "no such equation is known for its updates")
    lr = old.lr * kappa**power
    adaptive = not rule_of(old.optimizer).coupled
    if not adaptive:
        new = dataclasses.replace(changed, lr=lr)
        solved: tuple[str, ...] = ("lr",)
    else:
        beta2 = known_beta2(old)
        assert beta2 is not None
        betas: dict[str, Any] = {"momentum": 1 - kappa * (1 - old.momentum), "beta2": 1 - kappa * (1 - beta2)}
        for name, value in betas.items():
            if value < 0:
                raise _solve_error(name, f"it would have to be {value:.4g}, below 0", "make a smaller change")
        decay = weight_decay_of(old.convention, lr, kappa * old.intrinsic_lr)
        new = dataclasses.replace(changed, lr=lr, weight_decay=decay, **betas)
        solved = ("lr", "weight_decay", "momentum", "beta2")
    promise = (
        "The rule sde promises that the run follows the same equation per sample as long as steps are small and mostly "
        "noise; it keeps F too, and moves the learning rate, which a kept F does not need."
    )
    epsilon = [f"The optimizer's eps is to be divided by {math.sqrt(kappa):.3g} as well."] if adaptive else []
    return Transfer(
        recipe=new,
        interval=None,
        warnings=(promise, *epsilon, *old.notes, *new.warnings),
        summary=summarise_changes(old, new, solved),
        regime=_regime(old, new),
        solved=solved,
        rule="sde",
    )
