"""A training recipe, its tuning factor, and the rule that moves it to another batch, data set or learning rate."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from isogon.errors import ArgumentError, check_choice, check_number, check_whole
from isogon.files import read_toml, write_whole
from isogon.recipe._conventions import check_convention, intrinsic_lr, weight_decay_of
from isogon.recipe._names import field_name
from isogon.recipe._reading import NEEDED, read_settings
from isogon.recipe._torch_groups import (
    convention_of,
    describe_excluded,
    kind_of_optimizer,
    main_part,
    read_group,
    starting_group,
)
from isogon.recipe._transfer import Transfer, transfer
from isogon.recipe._warnings import warnings_of
from isogon.theory import Motion, check_beta2, check_optimizer, law, tuning_rate


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The hyper-parameters that decide how fast scale-invariant weights turn.

    `optimizer` is sgd, nesterov, adamw, lion or muon, in any case; `momentum` is μ, or β₁ for `adamw` and `lion`;
    `beta2` is for those two; `lr` is the peak of the schedule. Samples may be images, sequences or tokens, as long as
    batches are counted in the same. `convention` says what weight decay means where it is not what torch does:
    `independent` (not multiplied by lr) or `cautious`.

    >>> recipe = Recipe(lr=0.1, weight_decay=0.0016, batch_size=512, samples=80_000, epochs=200)
    >>> round(recipe.tuning_factor, 6)
    0.25
    >>> recipe.transfer(samples=1_280_000).recipe.weight_decay
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
    convention: str | None = None
    #: what was noticed where the recipe was read from; no part of its value
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, str):
            object.__setattr__(self, "optimizer", self.optimizer.lower())
        check_optimizer(self.optimizer)
        check_beta2(self.optimizer, self.beta2)
        checked: dict[str, Any] = {
            "convention": check_convention(self.optimizer, self.convention),
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
        """x = ηλ (Li, Lyu and Arora), or what takes its place in another convention."""
        return intrinsic_lr(self.convention, self.lr, self.weight_decay)

    @property
    def effective_weight_decay(self) -> float:
        """The λ that does the same in torch's own convention, x/η."""
        return self.weight_decay if self.convention is None else self.intrinsic_lr / self.lr

    def in_convention(self, convention: str | None) -> Self:
        """The same recipe with its weight decay written in another convention; None is torch's own.

        >>> recipe = Recipe(optimizer="adamw", lr=0.5, weight_decay=0.25, batch_size=8, samples=80)
        >>> recipe.in_convention("independent").weight_decay
        0.125
        """
        name = check_convention(self.optimizer, convention)
        decay = weight_decay_of(name, self.lr, self.intrinsic_lr)
        return dataclasses.replace(self, convention=name, weight_decay=decay)

    @property
    def tuning_factor(self) -> float:
        """F = Nηλ/(B(1−μ)) (Yun et al., equation 27); Nηλ/B where weight decay is decoupled."""
        return self.steps_per_epoch * tuning_rate(self.optimizer, self.lr, self.effective_weight_decay, self.momentum)

    @cached_property
    def motion(self) -> Motion:
        """How the direction of the weights moves once in equilibrium."""
        return law(
            self.optimizer,
            lr=self.lr,
            weight_decay=self.effective_weight_decay,
            momentum=self.momentum,
            beta2=self.beta2,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where the theory behind this recipe is known to be weak, each with its number."""
        return tuple(warnings_of(self))

    def transfer(
        self,
        *,
        solve: str = "weight_decay",
        rule: str = "factor",
        within: float | None = None,
        regime: str | None = None,
        tokens_per_sample: float | None = None,
        **changes: float | str,
    ) -> Transfer:
        """The recipe after `changes`, with `solve` set by the rule of its regime; `print` it for what to change.

        `changes` are any of `batch_size`, `samples`, `lr`, `weight_decay`, `momentum`, `epochs`, `beta2`, `convention`,
        by these names or short ones (`batch`, `wd`, `beta1`), as numbers or factors such as "x4"; `params="x10"` and
        `width="x2"` say how the model grows, `beta2="half-life"` keeps the samples it remembers. `solve` is
        `weight_decay`, `lr`, `batch_size` or `momentum`.

        `regime` is "several epochs" (the tuning factor stays), "one epoch" (it grows with the samples per parameter) or
        "short run" (weight decay hardly acts); None decides by `epochs`. `rule="sde"` follows a changed batch size
        along the same stochastic differential equation instead. `within` replaces the interval's measured width by a
        factor either way. `tokens_per_sample` tells how far a batch is from the critical one of a language model.

        >>> recipe = Recipe(lr=0.1, weight_decay=5e-4, batch_size=128, samples=50_000, epochs=200)
        >>> print(recipe.transfer(batch="x4"))
        Set weight decay to 0.002 (×4) and keep the learning rate at 0.1.
        Regime: several epochs: the tuning factor F stays (Yun et al.).
        The best is expected between 0.001 and 0.004: Yun et al.'s printed tables 3, 10 and 11
        (benchmarks/results/rules.md).
        """
        return transfer(
            self,
            solve=solve,
            rule=rule,
            within=within,
            regime=regime,
            tokens_per_sample=tokens_per_sample,
            changes=changes,
        )

    @classmethod
    def from_optimizer(
        cls,
        optimizer: Any,
        *,
        batch_size: int,
        samples: int,
        epochs: float | None = None,
        group: int | None = None,
        convention: str | None = None,
    ) -> Self:
        """The recipe of a `torch.optim` optimizer (SGD, AdamW, Muon), or of another one with such a name.

        Of Muon with an AdamW beside it, as `optim.MuonWithAdamW`, it is about Muon's matrices.

        Groups without weight decay, such as biases, are left out, which `notes` and a transfer's warnings say; where
        the others differ, `group` names the one that is meant. A learning rate that a scheduler drives is taken at its
        base, `initial_lr`; under OneCycleLR at its peak, with the momentum that goes with it. `convention` says what
        weight decay means where the optimizer's own flags (`cautious_wd`, `fixed_decay`) do not.
        """
        optimizer = main_part(optimizer)
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
            convention=convention or settings.convention or convention_of(optimizer),
            notes=tuple(describe_excluded(optimizer.param_groups) if group is None else ()),
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, devices: int | None = None, **known: Any) -> Self:
        """A recipe from settings that somebody else's program saved, where their names are unambiguous.

        Hugging Face's `TrainingArguments` as JSON, timm's `args.yaml`, Lightning's `hparams.yaml`, a nanoGPT
        configuration (`.py`, whose lines are read and never run), a text of flags (`--name value`), or isogon's own
        TOML. `known` are fields of the recipe that the file lacks or has wrong; what is still missing is named.
        `devices` is how many processes share a step, where the file counts the batch of one.
        """
        known = {field_name(name): value for name, value in known.items()}
        for name in known:
            check_choice("known", name, _FIELDS, cure="name a field of the recipe")
        if os.fspath(path).endswith(".toml"):
            return cls(**cls._own_fields(path, known))
        fields, notes = read_settings(path, devices, known)
        return cls(**fields, notes=tuple(notes))

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, without those that are None and without notes."""
        values = {name: getattr(self, name) for name in _FIELDS}
        return {name: value for name, value in values.items() if value is not None}

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
        return cls(**cls._own_fields(path, {}))

    @staticmethod
    def _own_fields(path: str | os.PathLike[str], known: dict[str, Any]) -> dict[str, Any]:
        """The fields in isogon's own TOML, with `known` over them."""
        fields = read_toml(path, "recipe")
        for key in fields:
            check_choice(f"key in {path}", key, _FIELDS, cure="remove or rename the key")
        fields |= known
        missing = [key for key in NEEDED if key not in fields]
        if missing:
            raise ArgumentError("recipe", "complete", str(path), f"add {', '.join(missing)}")
        return fields


_FIELDS = tuple(entry.name for entry in dataclasses.fields(Recipe) if entry.name != "notes")
