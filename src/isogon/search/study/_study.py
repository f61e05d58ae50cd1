"""`Study`: the question of a search, read from a TOML file and checked key by key."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Literal, Self, get_type_hints

from isogon.errors import ArgumentError, IsogonError, MissingExtraError, printable
from isogon.files import read_toml
from isogon.lab import TRAINED, Config, Engine, RaySettings, is_text
from isogon.recipe import Recipe
from isogon.search.fit import default_grid

try:
    from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator, model_validator
    from pydantic_core import PydanticCustomError
except ImportError as error:  # pragma: no cover - exercised in a subprocess
    raise MissingExtraError("pydantic", extra="search", purpose="to read study files") from error

UNKNOWN = "?"
#: what a study can ask for
UNKNOWNS = ("weight_decay", "lr")
Sampler = Literal["grid", "tpe", "gp", "random"]
Pruner = Literal["none", "median", "hyperband"]
Direction = Literal["minimize", "maximize"]
# Metrics whose direction is known; for others the study must give it.
_MINIMIZED = ("loss", "error", "perplexity", "ppl", "nll", "cross_entropy", "mse", "rmse", "mae", "wer", "cer", "bpb")
_MAXIMIZED = ("accuracy", "acc", "f1", "auc", "bleu")
# What such a name may begin with.
_SPLITS = ("train_", "val_", "valid_", "validation_", "eval_", "test_")
# Metrics that are a share, and so lie between 0 and 1.
_SHARES = ("accuracy", "error")


class MetricError(IsogonError):
    """A value that cannot be the study's metric."""


class _Table(BaseModel):
    """A table of the file; unknown keys are refused, since they are usually mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RecipeTable(_Table):
    """The full run, as the fields of `isogon.Recipe`; the unknown is "?"."""

    optimizer: str = "sgd"
    lr: float | Literal["?"]
    weight_decay: float | Literal["?"]
    momentum: float = 0.9
    beta2: float | None = None
    batch_size: int = Field(ge=1, le=10**15)
    samples: int = Field(ge=1, le=10**15)
    epochs: int = Field(ge=1, le=10**9)

    @field_validator("optimizer")
    @classmethod
    def _check_trained(cls, name: str) -> str:
        if name not in TRAINED:
            raise PydanticCustomError("choice", "one of " + ", ".join(TRAINED))
        return name

    @model_validator(mode="after")
    def _check_unknown(self) -> Self:
        unknown = [name for name in UNKNOWNS if getattr(self, name) == UNKNOWN]
        if len(unknown) != 1:
            raise ValueError('needs exactly one of lr and weight_decay written as "?"')
        return self

    @property
    def unknown(self) -> str:
        return next(name for name in UNKNOWNS if getattr(self, name) == UNKNOWN)

    def recipe(self, *, tuning_factor: float, samples: int | None = None) -> Recipe:
        """The recipe at `samples` images (all of them unless given) whose tuning factor is this."""
        fields = {**self.model_dump(), "samples": samples or self.samples, self.unknown: 1.0}
        # The tuning factor is proportional to either.
        return Recipe(**{**fields, self.unknown: tuning_factor / Recipe(**fields).tuning_factor})


# Fields of `lab.Config` that the search sets itself, or that a trial has no use for.
_NOT_OF_A_TASK = {"recipe", "seed", "snapshot_every", "turns", "save_predictions", "save_weights"}
# Where a task differs from a config: there may be an objective instead of data, and trials are measured less often.
_OTHER_DEFAULTS: dict[str, Any] = {"data": (str | None, None), "monitor_every": (int, 50)}
# Keys of 0.1; later ones count in a study's fingerprint only where they change something.
_KEYS_OF_0_1 = {
    "objective",
    "net",
    "net_options",
    "data",
    "data_root",
    "augmentation",
    "schedule",
    "precision",
    "last_batch",
    "monitor_every",
}


def _lab_fields() -> dict[str, Any]:
    """The fields of `lab.Config` as a study may set them, each with its type and default."""
    types = get_type_hints(Config)
    task_fields: dict[str, Any] = {}
    for field in dataclasses.fields(Config):
        if field.name not in _NOT_OF_A_TASK:
            factory = field.default_factory
            default = Field(default_factory=factory) if factory is not dataclasses.MISSING else field.default
            task_fields[field.name] = types[field.name], default
    return task_fields | _OTHER_DEFAULTS


if TYPE_CHECKING:

    class _LabTask(_Table):
        data: str | None
        schedule: str

else:
    _LabTask = create_model("_LabTask", __base__=_Table, **_lab_fields())


class TaskTable(_LabTask):
    """What to train: an isogon lab task (the fields of `lab.Config`), or the user's own `objective`.

    The search looks for the best `metric`: the accuracy, of text the loss, unless another is named. A loss is minimized
    and an accuracy maximized; other names need `direction`.
    """

    objective: str | None = None
    metric: str = Field(default="accuracy", min_length=1, max_length=40)
    direction: Direction = "maximize"

    @model_validator(mode="before")
    @classmethod
    def _set_direction(cls, content: Any) -> Any:
        if isinstance(content, dict) and "metric" not in content and isinstance(data := content.get("data"), str):
            content = {**content, "metric": "loss"} if is_text(data) else content
        if isinstance(content, dict) and "direction" not in content and isinstance(content.get("metric"), str):
            usual = _usual_direction(content["metric"])
            if usual is None:
                raise ValueError(
                    f'has metric = "{printable(content["metric"])}": add direction = "minimize" or "maximize"'
                )
            return {**content, "direction": usual}
        return content

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        if (self.objective is None) == (self.data is None):
            raise ValueError("needs either data (a lab task) or objective (file.py:function)")
        if not self.metric.isprintable():
            raise ValueError("has a metric with letters that cannot be printed")
        if self.objective is None and self.metric not in ("accuracy", "loss"):
            raise ValueError(f'has metric = "{self.metric}", and a lab task has accuracy and loss')
        usual = _usual_direction(self.metric)
        if usual is not None and self.direction != usual:
            raise ValueError(f'has metric = "{self.metric}", which is to be {usual}d')
        return self

    def score(self, value: float) -> float:
        """The metric's `value` as a number of which more is better, or a score as the metric's value: one is the other
        with its sign changed where the metric is minimized."""
        return -value if self.direction == "minimize" else value

    def check_value(self, value: float) -> float:
        """`value` where it can be the metric's; NaN, for a run that diverged, can."""
        if self.metric in _SHARES and not (value != value or 0 <= value <= 1):
            cure = 'divide per cent by 100; for a loss write metric = "loss" into [task], for other names direction too'
            raise MetricError(f"{self.metric} must be from 0 to 1, got {value:g}: {cure}.")
        return value


class SearchTable(_Table):
    """How to look for the tuning factor."""

    fractions: tuple[float, ...] = (1 / 16, 1 / 8)
    centre: float = Field(default=10 / 128, gt=0)
    size: int = Field(default=7, ge=3, le=25)
    grid: tuple[float, ...] | None = None
    seeds: int = Field(default=3, ge=1)
    sampler: Sampler = "grid"
    trials: int | None = Field(default=None, ge=3, le=100)
    pruner: Pruner = "none"
    verify: bool = False

    @field_validator("fractions", mode="before")
    @classmethod
    def _read_fractions(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError('must be a list like ["1/16", "1/8"]')
        return tuple(_fraction(part) for part in value)

    @field_validator("fractions")
    @classmethod
    def _check_fractions(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or any(not 0 < part <= 1 for part in value) or list(value) != sorted(set(value)):
            raise ValueError('must be rising numbers above 0 and at most 1, like ["1/16", "1/8"]')
        return value

    @field_validator("grid")
    @classmethod
    def _check_grid(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is not None and (len(value) < 3 or min(value) <= 0 or list(value) != sorted(set(value))):
            raise ValueError("must be three or more rising tuning factors above 0")
        return value

    @model_validator(mode="after")
    def _check_trials(self) -> Self:
        if self.trials is not None and self.sampler == "grid":
            raise ValueError("has trials without a sampler: write size or grid for more, or choose a sampler")
        return self

    @property
    def first_grid(self) -> tuple[float, ...]:
        return self.grid if self.grid is not None else tuple(default_grid(self.centre, self.size))

    @property
    def first_count(self) -> int:
        """Tuning factors tried at the smallest fraction, before any are added at an edge."""
        return self.trials or len(self.first_grid)


class RayTable(_Table):
    """The cluster of the engine `ray`, and what a trial needs of it."""

    address: str | None = None
    cpus: float = Field(default=1, gt=0)
    gpus: float | None = Field(default=None, ge=0)
    retries: int = Field(default=3, ge=0)

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        try:
            _ = self.settings
        except ArgumentError as error:
            raise ValueError(f"is not right: {str(error).removesuffix('.')}") from None
        return self

    @property
    def settings(self) -> RaySettings:
        return RaySettings(**self.model_dump())


class RunTable(_Table):
    """Where to run it."""

    engine: Engine = "local"
    workers: int | None = Field(default=None, ge=1)
    device: str | None = None
    storage: str = "sqlite"
    name: str | None = Field(default=None, min_length=1, max_length=200)
    ray: RayTable = RayTable()

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("must be a name of letters that can be printed")
        return value


class Study(_Table):
    """The four tables of a study file: `recipe`, `task`, `search`, `run`.

    `Study.read` refuses a file with one sentence that names the key and the cure.
    """

    recipe: RecipeTable
    task: TaskTable
    search: SearchTable = SearchTable()
    run: RunTable = RunTable()

    @classmethod
    def read(cls, file: str | os.PathLike[str]) -> Study:
        return cls.from_tables(read_toml(file, "study"))

    @classmethod
    def made(cls, content: dict[str, Any]) -> Study:
        """The name of `from_tables` in version 0.1, for one version more."""
        return cls.from_tables(content)

    @classmethod
    def from_tables(cls, content: dict[str, Any]) -> Study:
        """A study from the tables as dictionaries."""
        try:
            study = cls.model_validate(content)
        except ValidationError as error:
            raise _sentence(error) from None
        except RecursionError:
            raise IsogonError("The study is nested too deep: see isogon search --init for its four tables.") from None
        study.check()
        return study

    def check(self) -> None:
        """See that every run the study may want can be made, before the first one starts."""
        smallest, grid = self.samples_at(self.search.fractions[0]), self.search.first_grid
        try:
            if self.task.objective is None and "phases:" in self.task.schedule:
                # It sets both rates itself, so that all trials would be one and the same.
                raise ArgumentError(
                    "schedule", "one that leaves the rates to the recipe", self.task.schedule, "use step"
                )
            for factor in (min(grid), max(grid)):
                if self.task.objective is None:
                    self.config(tuning_factor=factor, samples=smallest, seed=0)
                else:
                    self.recipe.recipe(tuning_factor=factor, samples=smallest)
        except ArgumentError as error:
            raise IsogonError(f"study: {error}") from None

    def samples_at(self, fraction: float) -> int:
        return max(1, round(self.recipe.samples * fraction))

    def config(self, *, tuning_factor: float, samples: int, seed: int) -> Config:
        """The lab's config of one trial."""
        task = self.task.model_dump(exclude={"objective", "metric", "direction"})
        recipe = self.recipe.recipe(tuning_factor=tuning_factor, samples=samples)
        return Config(recipe=recipe, seed=seed, save_weights=False, **task)

    @property
    def key(self) -> str:
        """A fingerprint of what decides the answer; engine, workers and storage do not."""
        content = self.model_dump(mode="json", exclude={"run": True})
        # Keys that came later do not count where they change nothing: isogon 0.1 maximized whatever it was given.
        if self.task.direction == "maximize" and (self.task.objective is not None or self.task.metric == "accuracy"):
            del content["task"]["metric"], content["task"]["direction"]
        task = content["task"]
        for name, field in TaskTable.model_fields.items():
            if name in task and name not in _KEYS_OF_0_1 | {"metric", "direction"} and task[name] == field.default:
                del task[name]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _usual_direction(metric: str) -> Direction | None:
    """
    >>> _usual_direction("val_loss"), _usual_direction("accuracy"), _usual_direction("neg_log_loss")
    ('minimize', 'maximize', None)
    """
    plain = metric.lower()
    for split in _SPLITS:
        plain = plain.removeprefix(split)
    return "minimize" if plain in _MINIMIZED else "maximize" if plain in _MAXIMIZED else None


def _fraction(value: Any) -> float:
    """
    >>> _fraction("1/16"), _fraction(0.25)
    (0.0625, 0.25)
    """
    try:
        if isinstance(value, bool):
            raise ValueError
        above, bar, below = value.partition("/") if isinstance(value, str) else (value, "", "")
        return float(above) / float(below) if bar else float(above)
    except (ValueError, ZeroDivisionError, TypeError, OverflowError):
        shown = value if isinstance(value, str) and len(value) < 40 else type(value).__name__
        raise ValueError(f'must be numbers or texts like "1/16", and {shown!r} is neither') from None


def _sentence(error: ValidationError) -> IsogonError:
    """The first complaint as one sentence with the key that it is about; an unknown key comes first."""
    complaints = error.errors()
    # A misspelt key is also a missing one, and the misspelling is what the user must fix.
    first = next((complaint for complaint in complaints if complaint["type"] == "extra_forbidden"), complaints[0])
    key = ".".join(str(part) for part in first["loc"] if isinstance(part, str) and not part.startswith("literal["))
    kind = first["type"]
    if kind == "extra_forbidden":
        # Without its value, which may be a secret whatever the key.
        return IsogonError(f"study key {printable(key)} is none that isogon knows: {_nearest(first['loc'])}")
    if kind == "missing":
        return IsogonError(f"study key {key} is missing: add it to the file.")
    rule = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if kind == "value_error":
        return IsogonError(f"study table {key or 'top'} {rule}.")
    return ArgumentError(f"study key {key}", rule, first["input"], "correct it in the file")


def _nearest(place: tuple[int | str, ...]) -> str:
    """A guess at the key that was meant at this place."""
    table: Any = Study
    for part in place[:-1]:
        table = getattr(table.model_fields.get(str(part)), "annotation", None)
        if not (isinstance(table, type) and issubclass(table, _Table)):
            return "remove it."
    known = list(table.model_fields)
    close = difflib.get_close_matches(str(place[-1]), known, n=1)
    return f"did you mean {close[0]}?" if close else f"remove it, or use one of {', '.join(known)}."
