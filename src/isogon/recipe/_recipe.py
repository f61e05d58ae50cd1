"""A training recipe, its tuning factor, and the rule that moves it to another batch, data set or learning rate."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from isogon.errors import ArgumentError, UnsolvableError, check_choice, check_number, check_whole
from isogon.files import read_toml, write_whole
from isogon.recipe._torch_groups import kind_of_optimizer, read_group, starting_group
from isogon.theory import Motion, check_beta2, check_optimizer, law, rule_of, steps_to_equilibrium, tuning_rate

#: what `transfer` can solve for
SOLVABLE = ("weight_decay", "lr", "batch_size", "momentum")
#: what `transfer` can change
CHANGEABLE = ("batch_size", "samples", "lr", "weight_decay", "momentum", "epochs")

# Plain SGD misses the rule at batch 2048 and keeps it at 1024 (Yun et al., table 4).
_PLAIN_SGD_BATCH = 1024
# The warning about equilibrium assumes a first norm off by this factor, and an angle within 5 % of the law.
_FIRST_NORM_OFF = 3.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The hyper-parameters that decide how fast scale-invariant weights turn.

    `momentum` is μ, or β₁ for `adamw` and `lion`; `beta2` is for those two; `lr` is the peak of the schedule.

    >>> recipe = Recipe(lr=0.1, weight_decay=0.0016, batch_size=512, samples=80_000, epochs=200)
    >>> round(recipe.tuning_factor, 6)
    0.25
    >>> recipe.transfer(samples=1_280_000, solve="weight_decay").recipe.weight_decay
    0.0001
    """

    optimizer: str = "sgd"
    lr: float
    weight_decay: float
    momentum: float = 0.9
    beta2: float | None = None
    batch_size: int
    samples: int
    epochs: float | None = None

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer)
        check_beta2(self.optimizer, self.beta2)
        checked: dict[str, Any] = {
            "lr": check_number("lr", self.lr, low=0, low_open=True, cure="give the peak learning rate"),
            "weight_decay": check_number("weight_decay", self.weight_decay, low=0, cure="give 0 for no weight decay"),
            "momentum": check_number(
                "momentum",
                self.momentum,
                low=0,
                high=1,
                high_open=True,
                cure="give 0 for none, 0.9 for the usual",
            ),
            "batch_size": check_whole("batch_size", self.batch_size, cure="count the samples of one step"),
            "samples": check_whole("samples", self.samples, cure="count the training samples"),
        }
        if self.epochs is not None:
            epochs = check_number(
                "epochs", self.epochs, low=0, high=1e9, low_open=True, cure="count the passes over the data"
            )
            checked["epochs"] = int(epochs) if epochs.is_integer() else epochs
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def steps_per_epoch(self) -> float:
        """k = N/B, not rounded."""
        return self.samples / self.batch_size

    @property
    def intrinsic_lr(self) -> float:
        """x = ηλ (Li, Lyu and Arora)."""
        return self.lr * self.weight_decay

    @property
    def tuning_factor(self) -> float:
        """F = Nηλ/(B(1−μ)) (Yun et al., equation 27); Nηλ/B where weight decay is decoupled."""
        return self.steps_per_epoch * tuning_rate(self.optimizer, self.lr, self.weight_decay, self.momentum)

    @cached_property
    def motion(self) -> Motion:
        """How the direction of the weights moves once in equilibrium."""
        return law(
            self.optimizer,
            lr=self.lr,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            beta2=self.beta2,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where the theory behind this recipe is known to be weak, each with its number."""
        return tuple(_warnings(self))

    def transfer(self, *, solve: str, within: float = 2.0, **changes: float) -> Transfer:
        """The recipe after `changes`, with `solve` set so that the tuning factor stays.

        `solve` is `weight_decay`, `lr`, `batch_size` or `momentum`; `changes` are any others of `batch_size`,
        `samples`, `lr`, `weight_decay`, `momentum`, `epochs`. `within` is the factor either way in which the optimum
        is expected: 2 by the papers' own tables, where the best cell lies within 2 of the rule in 148 of 152 columns.
        """
        check_choice("solve", solve, SOLVABLE)
        check_number("within", within, low=1, cure="2 means half to double the solved value")
        for name in changes:
            check_choice("changes", name, CHANGEABLE, cure="name what the new run has different")
        if solve in changes:
            raise ArgumentError(
                "changes",
                f"without {solve}, which is solved for",
                changes[solve],
                "drop it or solve for another",
            )
        if self.tuning_factor == 0:
            raise UnsolvableError(
                f"lr · weight_decay must be above 0 to transfer, got {self.lr:g} · {self.weight_decay:g}: "
                "without weight decay there is no tuning factor to keep."
            )
        changed = dataclasses.replace(self, **changes)  # type: ignore[arg-type]
        value, notes = _solve(changed, solve, self.tuning_factor)
        recipe = dataclasses.replace(changed, **{solve: value})  # type: ignore[arg-type]
        interval = (value / within, value * within) if solve in ("weight_decay", "lr") else None
        if self.epochs is not None and recipe.epochs is not None and recipe.epochs != self.epochs:
            notes.append(
                f"The epoch budget changes from {self.epochs:g} to {recipe.epochs:g}: the best tuning factor depends "
                "on it, so keep the epochs where you can."
            )
        return Transfer(recipe=recipe, interval=interval, warnings=(*notes, *recipe.warnings))

    @classmethod
    def from_optimizer(
        cls,
        optimizer: Any,
        *,
        batch_size: int,
        samples: int,
        epochs: float | None = None,
        group: int | None = None,
    ) -> Self:
        """The recipe of a `torch.optim` optimizer (SGD, AdamW, Muon), or of one named Lion.

        Groups without weight decay, such as biases, are left out; where the others differ, `group` names the one that
        is meant. A learning rate that a scheduler drives is taken at its base, `initial_lr`; under OneCycleLR at its
        peak, with the momentum that goes with it.
        """
        kind = kind_of_optimizer(optimizer)
        settings = read_group(kind, starting_group(optimizer.param_groups, group))
        if settings.dampening:
            raise ArgumentError(
                "dampening", "0", settings.dampening, "multiply lr by 1 − dampening and set dampening to 0"
            )
        return cls(
            optimizer=str(settings.optimizer),
            lr=float(settings.lr),
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
            beta2=settings.beta2,
            batch_size=batch_size,
            samples=samples,
            epochs=epochs,
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, without those that are None."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recipe as TOML; the file appears whole or not at all."""
        lines = [
            f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value!r}"
            for key, value in self.to_dict().items()
        ]
        write_whole(path, "\n".join(lines) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a recipe from TOML."""
        fields = read_toml(path, "recipe")
        known = [field.name for field in dataclasses.fields(cls)]
        for key in fields:
            check_choice(f"key in {path}", key, known, cure="remove or rename the key")
        missing = [key for key in ("lr", "weight_decay", "batch_size", "samples") if key not in fields]
        if missing:
            raise ArgumentError("recipe", "complete", str(path), f"add {', '.join(missing)}")
        return cls(**fields)


@dataclass(frozen=True)
class Transfer:
    """A transferred recipe.

    `interval` is (low, high) for a solved weight decay or learning rate, None for the others; `warnings` are sentences.
    """

    recipe: Recipe
    interval: tuple[float, float] | None
    warnings: tuple[str, ...]


def _solve(recipe: Recipe, solve: str, factor: float) -> tuple[float, list[str]]:
    """The value of `solve` with which `recipe` has the tuning factor `factor`, and notes about it."""
    if solve in ("weight_decay", "lr"):
        other = recipe.lr if solve == "weight_decay" else recipe.weight_decay
        unit = recipe.steps_per_epoch * tuning_rate(recipe.optimizer, other, 1.0, recipe.momentum)
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


def _warnings(recipe: Recipe) -> list[str]:
    motion, steps = recipe.motion, recipe.steps_per_epoch
    sentences = []
    if recipe.weight_decay > 0 and recipe.epochs is not None:
        wait = (
            steps_to_equilibrium(
                _FIRST_NORM_OFF,
                optimizer=recipe.optimizer,
                lr=recipe.lr,
                weight_decay=recipe.weight_decay,
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
    if motion.approximate:
        sentences.append(
            f"The law for {recipe.optimizer} is approximate: at momentum {recipe.momentum:g} and lag 100 it holds to "
            "2 %, and step angles depend on the weights' shape by up to 20 %."
        )
    return sentences
