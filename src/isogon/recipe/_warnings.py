"""Where the theory behind a recipe is known to be weak, each with the number that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isogon.theory import rule_of, steps_to_equilibrium

if TYPE_CHECKING:
    from isogon.recipe._recipe import Recipe

# Plain SGD misses the rule at batch 2048 and keeps it at 1024 (Yun et al., table 4).
_PLAIN_SGD_BATCH = 1024
# The warning about equilibrium assumes a first norm off by this factor, and an angle within 5 % of the law.
_FIRST_NORM_OFF = 3.0


def warnings_of(recipe: Recipe) -> list[str]:
    """The sentences, those that decide most first."""
    motion, steps = recipe.motion, recipe.steps_per_epoch
    sentences = []
    if recipe.weight_decay > 0 and recipe.epochs is not None:
        wait = (
            steps_to_equilibrium(
                _FIRST_NORM_OFF,
                optimizer=recipe.optimizer,
                lr=recipe.lr,
                weight_decay=recipe.effective_weight_decay,
                momentum=recipe.momentum,
            )
            / steps
        )
        if recipe.epochs < wait:
            sentences.append(
                f"epochs · tuning factor is only {recipe.epochs * recipe.tuning_factor:.3g}: from a norm off by "
                f"{_FIRST_NORM_OFF:g} equilibrium takes about {wait:.3g} epochs and the run has {recipe.epochs:g}, so "
                "the angles of equilibrium are not reached."
            )
    if rule_of(recipe.optimizer).coupled and recipe.momentum == 0 and recipe.batch_size > _PLAIN_SGD_BATCH:
        sentences.append(
            f"Plain SGD with batch size {recipe.batch_size}: above {_PLAIN_SGD_BATCH} the rule is known to miss "
            "without momentum (Yun et al., table 4)."
        )
    memory = rule_of(recipe.optimizer).memory(recipe.momentum, recipe.beta2)
    if steps < 1 / (1 - memory):
        sentences.append(
            f"An epoch has {steps:.3g} steps, fewer than the {1 / (1 - memory):.3g} that momentum {memory:g} "
            "remembers: the epoch angle is below what the tuning factor predicts."
        )
    if recipe.intrinsic_lr > motion.bound:
        sentences.append(
            f"lr · weight_decay = {recipe.intrinsic_lr:.3g} exceeds the bound {motion.bound:.3g} of momentum "
            f"{recipe.momentum:g}: the motion is underdamped; at this learning rate the largest weight decay that is "
            f"not is {motion.max_weight_decay:.3g}."
        )
    elif recipe.intrinsic_lr > motion.bound / 2:
        sentences.append(
            f"lr · weight_decay = {recipe.intrinsic_lr:.3g} is near the bound {motion.bound:.3g} of momentum "
            f"{recipe.momentum:g} (weight decay {motion.max_weight_decay:.3g} at this learning rate): the tuning "
            "factor no longer decides everything."
        )
    if recipe.batch_size > recipe.samples:
        sentences.append(f"The batch size {recipe.batch_size} is larger than the data, {recipe.samples} samples.")
    if recipe.convention == "cautious":
        sentences.append(
            "Cautious weight decay is taken at half its value: so it turned weights in simulations with gradient noise "
            "alone (step angle 0.70 of the full decay's law)."
        )
    if motion.approximate:
        sentences.append(
            f"The law for {recipe.optimizer} is approximate: at momentum {recipe.momentum:g} and lag 100 it holds to "
            "2 %, and step angles depend on the weights' shape by up to 20 %."
        )
    return sentences
