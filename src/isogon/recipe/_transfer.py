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
#: epochs · F below which weight decay does next to nothing in the whole run
SHORT = 0.1
# The largest change of batch between two columns of Yun et al.'s tables.
_MOST_MEASURED_BATCH = 16

_SPOKEN = {"weight_decay": "weight decay", "lr": "the learning rate", "batch_size": "the batch size", "beta2": "beta2"}
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
        raise ArgumentError("solve", "another one in a short run", solve, _no_rule_for_lr(old, changed))
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
            narrow = _disputed_by_width(old, new, model["width"], lr=new.lr)
            interval = (min(interval[0], *narrow), max(interval[1], *narrow))
    notes += _notes(old, new, regime, solve, model, tokens_per_sample)
    if "width" in model and solve == "weight_decay":
        summary = _width_summary(old, new, model["width"])
    elif hardly_acts and solve == "weight_decay":
        summary = _short_summary(new)
    else:
        summary = _summary(old, new, (solve,))
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
        beta2 = _beta2(old)
        if beta2 is None:
            raise ArgumentError("beta2", f"left out for {old.optimizer}, which has none", half_life, "drop it")
        changed = dataclasses.replace(changed, beta2=beta2 ** (changed.batch_size / old.batch_size))
    return changed, model


def _beta2(recipe: Recipe) -> float | None:
    return rule_of(recipe.optimizer).beta2 if recipe.beta2 is None else recipe.beta2


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
        beta2 = _beta2(old)
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
        summary=_summary(old, new, solved),
        regime=_regime(old, new),
        solved=solved,
        rule="sde",
    )


def _summary(old: Recipe, new: Recipe, solved: tuple[str, ...]) -> str:
    """What to change and what to keep, in one sentence."""
    sets, keeps = [], []
    for name in dict.fromkeys((*solved, "weight_decay", "lr")):
        was: float = (_beta2(old) or 0.0) if name == "beta2" else getattr(old, name)
        value: float = getattr(new, name)
        spoken = _SPOKEN.get(name, "beta1" if not rule_of(old.optimizer).coupled else name)
        if name == "weight_decay" and new.convention != old.convention:
            sets.append(f"{spoken} to {value:.4g} ({new.convention or 'as torch has it'})")
        elif name in solved and not math.isclose(value, was, rel_tol=1e-9):
            ratio = "" if name in ("momentum", "beta2") else f" ({show_ratio(value / was)})"
            sets.append(f"{spoken} to {value:.4g}{ratio}")
        elif math.isclose(value, was, rel_tol=1e-9):
            keeps.append(f"{spoken} at {value:.4g}")
    if not sets:
        return f"Keep {' and '.join(keeps)}: nothing else has to change."
    keeping = f" and keep {' and '.join(keeps)}" if keeps else ""
    return f"Set {', '.join(sets)}{keeping}."


def _short_summary(new: Recipe) -> str:
    assert new.epochs is not None
    share = -math.expm1(-new.epochs * new.tuning_factor)
    return (
        f"Keep weight decay at {new.weight_decay:.4g} and look at the learning rate: weight decay takes {share:.2g} of "
        "the weights' length in the whole run, so that half or double of it do the same."
    )


def show_ratio(ratio: float) -> str:
    """
    >>> show_ratio(4.0), show_ratio(0.25), show_ratio(0.3162)
    ('×4', '÷4', '÷3.163')
    """
    return f"÷{1 / ratio:.4g}" if 0 < ratio < 1 else f"×{ratio:.4g}"


def _notes(
    old: Recipe, new: Recipe, regime: str, solve: str, model: Mapping[str, float], tokens_per_sample: float | None
) -> list[str]:
    """What the change itself calls for, beside the new recipe's own warnings."""
    notes = []
    decoupled = not rule_of(old.optimizer).coupled
    batch = new.batch_size / old.batch_size
    if solve == "lr":
        notes.append(
            "The learning rate carries the change, which the evidence does not support in one epoch: among StepLaw's "
            "language models a kept one was within ×2 of the best in 93 % of changes of the data, one solved by this "
            "rule in 54 %. Solve for weight decay instead."
            if regime == ONE_EPOCH
            else "The learning rate carries the change: Yun et al.'s unmodified network keeps the rule by weight decay "
            "and misses it by learning rate (table 7), so solve for weight decay where you can."
        )
    if regime == SHORT_RUN:
        notes.append(_short_note(old, new))
    if decoupled and old.epochs is None and not math.isclose(new.samples, old.samples):
        notes.append("epochs is not given and taken for several: give epochs=1 if every sample is seen once.")
    if decoupled and batch > 1 and regime != SHORT_RUN:
        notes.append(_batch_note(new, tokens_per_sample, once=regime == ONE_EPOCH))
    elif tokens_per_sample is not None:
        notes.append("tokens_per_sample is left out: it says something of larger batches in one epoch alone.")
    if not decoupled and batch > _MOST_MEASURED_BATCH:
        notes.append(
            f"The batch grows by {batch:.4g}, and the tables behind the interval end at ×{_MOST_MEASURED_BATCH}: "
            "expect less."
        )
    beta2 = _beta2(old)
    if decoupled and beta2 is not None and not math.isclose(batch, 1) and _beta2(new) == beta2:
        notes.append(
            f"beta2 {beta2:g} remembers {show_ratio(batch)} as many samples at the new batch; {beta2**batch:.4g} would "
            f"keep its half-life in samples (beta2={HALF_LIFE})."
        )
    if "width" in model:
        one, other = _disputed_by_width(old, new, model["width"])
        notes.append(
            f"How weight decay goes with width is disputed: with lr ÷ width, λ ∝ width ({one:.3g} here, Wang and "
            f"Aitchison, arXiv 2405.13698) and λ ∝ √width ({other:.3g}, Fan et al., arXiv 2510.15262) are both "
            "proposed. No data here decides, so the recipe leaves width out."
        )
    if "params" in model:
        notes.append(
            "The learning rate is kept though the model's size changes: the best one fell as parameters^-0.6 over "
            "StepLaw's dense models and hardly in its mixtures of experts."
            if regime == ONE_EPOCH
            else "The model's size has no part in the rule for several epochs: params is left out of the answer."
        )
    if regime != ONE_EPOCH and old.epochs is not None and new.epochs is not None and new.epochs != old.epochs:
        notes.append(
            f"The epoch budget changes from {old.epochs:g} to {new.epochs:g}: the best tuning factor depends "
            "on it, so keep the epochs where you can."
        )
    return notes


def _disputed_by_width(old: Recipe, new: Recipe, width: float, lr: float | None = None) -> tuple[float, float]:
    """λ at `lr` by the two rules for `width` times the width: x = ηλ stays, or falls as 1/√width.

    Both are about a learning rate that is divided by the width: the new one where it has changed, else the old one so
    divided.
    """
    if lr is None:
        lr = old.lr / width if math.isclose(new.lr, old.lr) else new.lr
    convention = new.convention
    return (
        weight_decay_of(convention, lr, new.intrinsic_lr),
        weight_decay_of(convention, lr, new.intrinsic_lr / math.sqrt(width)),
    )


def _width_summary(old: Recipe, new: Recipe, width: float) -> str:
    lr = old.lr / width if math.isclose(new.lr, old.lr) else new.lr
    one, other = _disputed_by_width(old, new, width)
    return (
        f"Theory is divided about width: with the learning rate at {lr:.4g} ({show_ratio(lr / old.lr)}), set weight "
        f"decay to {one:.4g} or to {other:.4g}."
    )


def _no_rule_for_lr(old: Recipe, new: Recipe) -> str:
    """What to try instead of a learning rate that no rule knows."""
    fewer = _fewer_steps(old, new)
    if math.isclose(fewer, 1):
        return "no rule knows it there; keep it, since the number of steps stays"
    return (
        f"no rule knows it there; try {old.lr * math.sqrt(fewer):.3g} ({show_ratio(math.sqrt(fewer))}), right if steps "
        f"are mostly noise, and {old.lr * fewer:.3g} ({show_ratio(fewer)}), right if they agree"
    )


def _fewer_steps(old: Recipe, new: Recipe) -> float:
    """Steps of the old run over those of the new one."""
    assert new.epochs is not None
    return (old.epochs or new.epochs) / new.epochs * (old.steps_per_epoch / new.steps_per_epoch)


def _short_note(old: Recipe, new: Recipe) -> str:
    assert new.epochs is not None
    before, after = ((recipe.epochs or new.epochs) * recipe.steps_per_epoch for recipe in (old, new))
    fewer = _fewer_steps(old, new)
    travel = (
        "the number of steps stays, and with it how far the weights travel"
        if math.isclose(fewer, 1)
        else f"{before:.4g} steps become {after:.4g}; to travel as far the learning rate would change by "
        f"{show_ratio(math.sqrt(fewer))} if steps are mostly noise and by {show_ratio(fewer)} if they agree"
    )
    turning = new.epochs * new.tuning_factor
    if turning >= SHORT:
        return (
            f"epochs · F is {turning:.2g}, which is not short: weight decay acts in such a run, and no rule for short "
            "ones says how; leave regime out."
        )
    return (
        f"epochs · F is {turning:.2g}, far from equilibrium: the weights keep the norm they "
        f"start with, and lr against that norm decides how far they turn. No rule here knows it ({travel}). Under LoRA "
        "the second factor starts at 0 and has no direction at first."
    )


def _batch_note(new: Recipe, tokens_per_sample: float | None, *, once: bool) -> str:
    rule = "λ ∝ batch at a kept learning rate holds up to a critical batch and not beyond"
    if not once:
        return f"{rule}: compare losses at equal samples."
    if tokens_per_sample is None:
        return (
            f"{rule}: 2.2·D^0.54 tokens of a run of D tokens for language models. Give tokens_per_sample "
            "(--tokens-per-sample: the length of a sequence, 1 where samples are tokens) to see where yours lies."
        )
    check_number("tokens_per_sample", tokens_per_sample, low=0, low_open=True, cure="give the length of a sequence")
    tokens = new.samples * (new.epochs or 1.0) * tokens_per_sample
    limit, batch = horizon.critical_batch(tokens), new.batch_size * tokens_per_sample
    verdict = "above it: expect a loss that no rule makes up for" if batch > limit else "below it"
    low, high = horizon.FITTED_TOKENS
    beyond = "" if low <= tokens <= high else f", and of runs of {low:.0e} to {high:.0e} tokens, which yours is not"
    return (
        f"{rule}: about {limit:.2g} tokens for a run of {tokens:.3g}, within 0.01 nats of the best batch in StepLaw's "
        f"sweeps (benchmarks/results/rules.md; single sweeps lie at 0.6 to 1.4 of it{beyond}); the new batch of "
        f"{batch:.3g} is {verdict}."
    )
