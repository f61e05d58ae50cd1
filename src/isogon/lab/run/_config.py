"""`Config`: everything that decides how a training run ends, in one frozen object that is also a file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

from isogon.errors import ArgumentError, check_choice, check_number, check_whole
from isogon.lab.data import is_text
from isogon.lab.run._augment import find_augmentation
from isogon.lab.run._optimizers import TRAINED
from isogon.nets import Scheme
from isogon.recipe import Recipe
from isogon.schedules import Balanced, Exponential, from_name

Precision = Literal["float32", "bfloat16", "float64"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float64")
#: Yun's protocol: 300 epochs whatever the data size
EPOCHS = 300
#: Yun's network: γ and β trained, the classifier frozen, ghost batches of 64
NET_OPTIONS = {"scale_invariant": "affine", "norm": "ghost", "ghost_batch": 64}
# Whole numbers from 0 on, each with the cure for one that is not.
_WHOLE = {
    "seed": "give a number from 0 upwards",
    "init_seed": "leave it out to use seed",
    "subset_seed": "give a number from 0 upwards",
    "monitor_every": "give 0 for no monitor",
    "test_every": "1 tests after every epoch",
    "snapshot_every": "give 0 for no snapshots",
    "micro_batch": "leave it out to take a batch at once",
}
_OPTIONAL = ("init_seed", "micro_batch")
# Fields that are newer than stored runs, with values that change nothing: those runs keep their keys.
_LATER: dict[str, Any] = {
    "snapshot_every": 0, "turns": {}, "decay_on": "all", "clip": None, "layer_decay": 1.0, "average": 0.0,
}  # fmt: skip
#: networks that have none of the options of the papers' networks
TRANSFORMERS = ("gpt", "vit")


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run. The defaults are the protocol of Yun et al. (section 3.1).

    Args:
        recipe: optimizer, learning rate, weight decay, momentum, batch size B, samples N and epochs (300 where it has
            none). N training images are used: a class-balanced subset where the data set has more.
        net: a function of `isogon.nets`, `package.module:function` or `file.py:function`, called with the number of
            classes, the number of channels and `net_options`; for text with the vocabulary and the context. `gpt` and
            `vit` have no options unless some are given.
        data: a name that `lab.load` knows; `data_root` is the folder it is looked for in.
        augmentation: `none`, `flip`, `crop`, `crop-flip` or `resized-crop:SIZE`; `none` for text.
        schedule: of learning rate and weight decay, see `schedules.from_name`; `step` divides by 10 at 50 % and 75 %.
        seed: of the order of batches and of augmentation; `init_seed` of the first weights (`seed` where None);
            `subset_seed` of the choice of the subset.
        initialisation: `default` is the network's own; or a scheme of `nets.initialise`.
        precision: `bfloat16` is autocast with channels last, the weights stay float32.
        decay_on: `all` weights have weight decay, or `matrices`: those with two or more dimensions but embeddings and
            positions, so that norms and biases have none, as people usually train transformers.
        clip: the gradient's norm, over all weights together, is cut to this.
        layer_decay: the learning rate is multiplied by this once more for each block from the head down to the input.
        average: decay per step of a moving average of the weights, which is tested in their place; 0 for none.
        replacement: sample each batch from all samples instead of walking through a permutation.
        last_batch: `drop` a last batch that is not full, or `keep` it.
        micro_batch: gradients are added up over parts of so many samples, each with its own batch statistics, so that a
            full batch (B = N) fits in memory.
        monitor_every: the monitor measures one step in so many, and the angle of every epoch; 0 for no monitor.
        test_every: the test set is looked at after one epoch in so many, and after the last; 0 for that alone. Where
            epochs are short, tests would take longer than training.
        snapshot_every: the run's folder keeps the weights after one epoch in so many; 0 for none.
        turns: weights by name, each with numbers of steps k; the epochs' table has the root mean square of the weight's
            angle over k steps, see `lab.column_of`.
        save_predictions: keep the predicted classes of the test set at the end, for ensembles.
        save_weights: keep the weights at the end.
    """

    recipe: Recipe
    net: str = "resnet18"
    net_options: Mapping[str, Any] = field(default_factory=lambda: dict(NET_OPTIONS))
    data: str = "cifar10"
    data_root: str | None = None
    augmentation: str = "crop-flip"
    schedule: str = "step"
    seed: int = 0
    init_seed: int | None = None
    subset_seed: int = 0
    initialisation: str = "default"
    precision: Precision = "float32"
    decay_on: Literal["all", "matrices"] = "all"
    clip: float | None = None
    layer_decay: float = 1.0
    average: float = 0.0
    replacement: bool = False
    last_batch: Literal["drop", "keep"] = "drop"
    micro_batch: int | None = None
    monitor_every: int = 10
    test_every: int = 1
    snapshot_every: int = 0
    turns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    save_predictions: bool = False
    save_weights: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.recipe, Recipe):
            raise ArgumentError("recipe", "an isogon.Recipe", self.recipe, "make one with Recipe(lr=…, …)")
        check_choice("recipe.optimizer", self.recipe.optimizer, TRAINED, cure="the lab trains with these")
        if self.recipe.convention is not None:
            cure = "translate it by recipe.in_convention(None)"
            raise ArgumentError("recipe.convention", "torch's own", self.recipe.convention, cure)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("last_batch", self.last_batch, ("drop", "keep"))
        check_choice("decay_on", self.decay_on, ("all", "matrices"))
        if self.clip is not None:
            cure = "leave it out for no clipping, 1 is usual"
            object.__setattr__(self, "clip", check_number("clip", self.clip, low=0, low_open=True, cure=cure))
        ranges: dict[str, dict[str, Any]] = {
            "layer_decay": {"low_open": True, "cure": "1 gives all layers one rate, 0.75 is usual for fine-tuning"},
            "average": {"high_open": True, "cure": "0 for none, 0.999 is usual"},
        }
        for name, limits in ranges.items():
            object.__setattr__(self, name, check_number(name, getattr(self, name), low=0, high=1, **limits))
        check_choice("initialisation", self.initialisation, ("default", *get_args(Scheme)))
        check_whole("recipe.epochs", self.epochs, cure="give whole epochs")
        for name in ("lr", "weight_decay"):
            check_number(f"recipe.{name}", getattr(self.recipe, name), high=3e38, cure="float32 holds no larger one")
        if self.data_root is not None and (not isinstance(self.data_root, str) or "\0" in self.data_root):
            raise ArgumentError("data_root", "a folder's path", self.data_root, "leave it out for ISOGON_DATA")
        for name in ("net", "data", "augmentation", "schedule"):
            if not isinstance(getattr(self, name), str):
                raise ArgumentError(name, "a name", getattr(self, name), "write it as a string")
        for name in ("replacement", "save_predictions", "save_weights"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(name, "True or False", getattr(self, name), "choose one")
        # As int: 1.0 or NumPy's 1 would have another key, or none.
        for name, cure in _WHOLE.items():
            if getattr(self, name) is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, check_whole(name, getattr(self, name), low=0, cure=cure))
        if self.micro_batch is not None and not 1 <= self.micro_batch <= self.recipe.batch_size:
            rule = f"from 1 to the batch size {self.recipe.batch_size}"
            raise ArgumentError("micro_batch", rule, self.micro_batch, "leave it out to take a batch at once")
        if self.steps_per_epoch < 1:
            raise ArgumentError(
                "recipe.batch_size",
                f"at most the {self.recipe.samples} samples when the last batch is dropped",
                self.recipe.batch_size,
                "write last_batch='keep', or a smaller batch",
            )
        # Made and dropped, so that a bad one is refused here and not in a worker an hour later.
        schedule = from_name(self.schedule, self.recipe, epochs=self.epochs, steps_per_epoch=self.steps_per_epoch)
        if isinstance(schedule, Exponential | Balanced) and (self.decay_on, self.layer_decay) != ("all", 1.0):
            rule = "an ordinary one where decay_on or layer_decay is set"
            raise ArgumentError("schedule", rule, self.schedule, "it sets the rates of each group itself")
        if isinstance(schedule, Exponential) and (self.clip is not None or self.average):
            rule = "an ordinary one where clip or average is set"
            raise ArgumentError("schedule", rule, self.schedule, "it lets weights grow, and neither follows them")
        find_augmentation(self.augmentation)
        self._leave_defaults_of_images()
        for name in ("net_options", "turns"):
            object.__setattr__(self, name, MappingProxyType(_plain(name, getattr(self, name))))
        for weight, spans in self.turns.items():
            name, cure = f"turns[{weight!r}]", "for example [1, 4]"
            if not isinstance(spans, list):
                raise ArgumentError(name, "a list of numbers of steps", spans, cure)
            for steps in spans:
                check_whole(name, steps, cure=cure)

    def _leave_defaults_of_images(self) -> None:
        """Text has no crops, and transformers have no options of convolutional networks unless some are given."""
        if is_text(self.data):
            if self.augmentation not in ("none", "crop-flip"):
                raise ArgumentError("augmentation", "none for text", self.augmentation, "leave it out")
            object.__setattr__(self, "augmentation", "none")
        if self.net in TRANSFORMERS and dict(self.net_options) == NET_OPTIONS:
            object.__setattr__(self, "net_options", {})

    def __reduce__(self) -> Any:
        """Through its dictionary: a mapping proxy cannot be pickled."""
        return Config.from_dict, (self.to_dict(),)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def epochs(self) -> int:
        return EPOCHS if self.recipe.epochs is None else self.recipe.epochs  # type: ignore[return-value]

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch: N/B, rounded down where the last batch is dropped and up where it is kept."""
        full, rest = divmod(self.recipe.samples, self.recipe.batch_size)
        return full + (rest > 0 and self.last_batch == "keep")

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def images_per_epoch(self) -> int:
        """Training images seen in an epoch."""
        return min(self.steps_per_epoch * self.recipe.batch_size, self.recipe.samples)

    @property
    def images(self) -> int:
        """Training images seen in all, the measure of a run's cost."""
        return self.epochs * self.images_per_epoch

    @property
    def key(self) -> str:
        """A fingerprint of all that decides the result; where the data lies does not."""
        content = {name: value for name, value in self.to_dict().items() if name != "data_root"}
        content = {name: value for name, value in content.items() if name not in _LATER or value != _LATER[name]}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def name(self) -> str:
        """A folder's name that identifies a run at a glance, and for certain by its end."""
        r = self.recipe
        net, data = _folder_safe(self.net.split(":")[-1]), _folder_safe(self.data.split(":")[0])
        rates = f"lr{r.lr:.4g}-wd{r.weight_decay:.4g}"
        return f"{net}-{data}-n{r.samples}-b{r.batch_size}-{rates}-s{self.seed}-{self.key[:8]}"

    def to_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        mappings = {"net_options": dict(self.net_options), "turns": dict(self.turns)}
        return {**content, "recipe": self.recipe.to_dict(), **mappings}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        if not isinstance(content, Mapping):
            raise ArgumentError("config", "a mapping of the fields of lab.Config", content, "see Config.to_dict")
        unknown = sorted(set(content) - {entry.name for entry in fields(cls)})
        if unknown:
            raise ArgumentError("config", "made of the fields of lab.Config", unknown[0], "remove it")
        if not isinstance(content.get("recipe"), Mapping):
            raise ArgumentError("config", "a mapping with a recipe", sorted(content), "add the recipe")
        try:
            recipe = Recipe(**content["recipe"])
        except TypeError as error:
            raise ArgumentError("config's recipe", "the fields of a Recipe", content["recipe"], f"{error}") from None
        return cls(**{**content, "recipe": recipe})


def _folder_safe(name: str) -> str:
    """A part of a folder's name made of letters, digits, dots, dashes and underscores, whatever `name` holds.

    >>> _folder_safe("resnet18"), _folder_safe("../../etc/x"), _folder_safe("..")
    ('resnet18', 'etc-x', '_')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60].strip(".-") or "_"


def _plain(name: str, options: Any) -> dict[str, Any]:
    """A copy that no caller can change, the same as when it is read from a file."""
    try:
        plain = json.loads(json.dumps(dict(options)))
    except (TypeError, ValueError):
        cure = "give numbers, strings, lists and mappings"
        raise ArgumentError(name, "a mapping that fits in a JSON file", options, cure) from None
    return plain  # type: ignore[no-any-return]
