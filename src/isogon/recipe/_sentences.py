"""The sentences of a transfer: what to change and what to keep, and what else there is to know."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from isogon.errors import check_number
from isogon.recipe._conventions import weight_decay_of
from isogon.recipe._evidence import ONE_EPOCH, SHORT_RUN
from isogon.recipe._names import HALF_LIFE
from isogon.theory import horizon, rule_of

if TYPE_CHECKING:
    from isogon.recipe._recipe import Recipe

#: epochs · F below which weight decay does next to nothing in the whole run
SHORT = 0.1
# The largest change of batch between two columns of Yun et al.'s tables.
_MOST_MEASURED_BATCH = 16
_SPOKEN = {"weight_decay": "weight decay", "lr": "the learning rate", "batch_size": "the batch size", "beta2": "beta2"}


def summarise_changes(old: Recipe, new: Recipe, solved: tuple[str, ...]) -> str:
    """What to change and what to keep, in one sentence."""
    sets, keeps = [], []
    for name in dict.fromkeys((*solved, "weight_decay", "lr")):
        was: float = (known_beta2(old) or 0.0) if name == "beta2" else getattr(old, name)
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


def summarise_short_run(new: Recipe) -> str:
    assert new.epochs is not None
    share = -math.expm1(-new.epochs * new.tuning_factor)
    return (
        f"Keep weight decay at {new.weight_decay:.4g} and look at the learning rate: weight decay takes {share:.2g} of "
        "the weights' length in the whole run, so that half or double of it do the same."
    )


def summarise_width(old: Recipe, new: Recipe, width: float) -> str:
    lr = old.lr / width if math.isclose(new.lr, old.lr) else new.lr
    one, other = disputed_by_width(old, new, width)
    return (
        f"Theory is divided about width: with the learning rate at {lr:.4g} ({show_ratio(lr / old.lr)}), set weight "
        f"decay to {one:.4g} or to {other:.4g}."
    )


def show_ratio(ratio: float) -> str:
    """
    >>> show_ratio(4.0), show_ratio(0.25), show_ratio(0.3162)
    ('×4', '÷4', '÷3.163')
    """
    return f"÷{1 / ratio:.4g}" if 0 < ratio < 1 else f"×{ratio:.4g}"


def disputed_by_width(old: Recipe, new: Recipe, width: float, lr: float | None = None) -> tuple[float, float]:
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


def list_notes(
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
    beta2 = known_beta2(old)
    if decoupled and beta2 is not None and not math.isclose(batch, 1) and known_beta2(new) == beta2:
        notes.append(
            f"beta2 {beta2:g} remembers {show_ratio(batch)} as many samples at the new batch; {beta2**batch:.4g} would "
            f"keep its half-life in samples (beta2={HALF_LIFE})."
        )
    if "width" in model:
        one, other = disputed_by_width(old, new, model["width"])
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


def describe_what_to_try(old: Recipe, new: Recipe) -> str:
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


def known_beta2(recipe: Recipe) -> float | None:
    return rule_of(recipe.optimizer).beta2 if recipe.beta2 is None else recipe.beta2
