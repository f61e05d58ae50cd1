"""Recipes out of settings that other programs save: which of their names mean what, and what is missing.

A file becomes a flat mapping of names to values; the first dialect whose `signs` are all among the names turns it into
fields of a recipe. A new dialect is one function and one entry of `_DIALECTS`.
"""

from __future__ import annotations

import ast
import math
import operator
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from isogon.errors import ArgumentError, MissingExtraError, check_whole, first_line
from isogon.files import read_json, read_text
from isogon.recipe._names import ALIASES
from isogon.theory import RULES

NEEDED = ("lr", "weight_decay", "batch_size", "samples")
#: what is missing where the batch size is
_BATCH = {"devices", "batch_size"}
_CAUTIOUS_ANY = ("cautious_weight_decay", "cautious_wd", "cautious_decay")


@dataclass
class Reading:
    """What a dialect makes of a file: fields of a recipe, sentences about them, and what else it asks for."""

    fields: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: what is missing besides fields, such as devices
    missing: list[str] = field(default_factory=list)


Values = Mapping[str, Any]
Dialect = Callable[[Values, int | None, Values], Reading]


def read_settings(
    path: str | os.PathLike[str], devices: int | None, known: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The fields of a recipe from the file at `path`, `known` over them, and notes; what is missing is named."""
    file = Path(path)
    if devices is not None:
        devices = check_whole("devices", devices, cure="count the processes that share a step")
    names = {_plain(name): value for name, value in _read_values(file).items()}
    dialect = next((entry for entry in _DIALECTS if all(set(sign) & set(names) for sign in entry[0])), None)
    assert dialect is not None  # the last one has no signs
    reading = dialect[1](names, devices, known)
    fields = {**{name: value for name, value in reading.fields.items() if value is not None}, **known}
    missing = [name for name in NEEDED if name not in fields]
    if "samples" in missing and "batch_size" in fields and "_steps" in fields and fields.get("epochs"):
        fields["samples"] = round(fields["_steps"] * fields["batch_size"] / fields["epochs"])
        missing.remove("samples")
    steps = fields.pop("_steps", None)
    missing = [
        *reading.missing,
        *(name for name in missing if name != "batch_size" or not _BATCH & set(reading.missing)),
    ]
    if missing:
        raise ArgumentError(
            "recipe", f"complete, and {file.name} lacks {', '.join(missing)}", str(path), _cure(missing)
        )
    if steps is not None and "epochs" not in fields:
        fields["epochs"] = steps * fields["batch_size"] / fields["samples"]
    return fields, reading.notes


def _cure(missing: list[str]) -> str:
    return "give " + ", ".join(f"{name}=… (--{name.replace('_', '-')})" for name in missing)


def _plain(name: str) -> str:
    return str(name).strip().lstrip("-").lower().replace("-", "_")


def _read_values(file: Path) -> dict[str, Any]:
    """The names and values in a file, by its ending."""
    suffix = file.suffix.lower()
    if suffix == ".json":
        return _flatten(read_json(file, "recipe"))
    if suffix in (".yaml", ".yml"):
        return _flatten(_read_yaml(file))
    if suffix == ".py":
        return _read_assignments(file)
    if suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        cure = "save its settings as text, for example json of training_args.to_dict()"
        raise ArgumentError("recipe", "settings as text, not a pickle, which could run code", str(file), cure)
    return _read_flags(read_text(file, "recipe"))


def _flatten(content: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables by their innermost names; the outermost of equal names counts."""
    flat: dict[str, Any] = {}
    tables: list[Mapping[str, Any]] = [content]
    while tables and len(flat) < 10_000:
        for name, value in (table := tables.pop(0)).items():
            if isinstance(value, Mapping):
                tables.append(value)
                label = value.get("name", value.get("type"))
                if isinstance(label, str) and not isinstance(table.get(f"{name}_name"), str):
                    flat.setdefault(str(name), label)
            else:
                flat.setdefault(str(name), value)
    return flat


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("PyYAML", extra="yaml", purpose="to read YAML") from None
    text = read_text(file, "recipe")
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ArgumentError("recipe", "a YAML file of plain values", str(file), first_line(error)) from None
    if not isinstance(content, dict):
        raise ArgumentError("recipe", "a YAML file of names and values", str(file), "give the settings themselves")
    return content


_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def _read_assignments(file: Path) -> dict[str, Any]:
    """Top-level `name = constant` of a Python file, products and sums of constants worked out; nothing is run."""
    text = read_text(file, "recipe")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArgumentError("recipe", "a Python file", str(file), first_line(error)) from None
    values: dict[str, Any] = {}
    for line in tree.body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and line.value is not None:
            value = _constant(line.value, values)
            if value is not None:
                values[target.id] = value
    return values


def _constant(node: ast.expr, values: Values) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return values.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _constant(node.operand, values)
        return -inner if isinstance(inner, int | float) else None
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _constant(node.left, values), _constant(node.right, values)
        if all(isinstance(side, int | float) and abs(side) < 1e18 for side in (left, right)):
            try:
                return _ARITHMETIC[type(node.op)](left, right)
            except ZeroDivisionError:
                return None
    return None


def _read_flags(text: str) -> dict[str, Any]:
    """`--name value`, `--name=value` and `name=value` of a command line or a shell script."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        words = text.split()
    values: dict[str, Any] = {}
    for word, after in pairwise([*words, ""]):
        assigned = re.fullmatch(r"(?:--)?([A-Za-z]\w*(?:[-.]\w+)*)=(.*)", word, re.DOTALL)
        if assigned:
            values[assigned[1]] = _literal(assigned[2])
        elif re.fullmatch(r"--[A-Za-z][\w-]*", word) and not after.startswith("--"):
            values[word] = _literal(after)
    return values


def _literal(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _number(values: Values, name: str) -> float | None:
    """The number of this name, None where there is none."""
    value = values.get(name)
    if isinstance(value, str):
        value = _literal(value)
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _one_of(values: Values, *names: str) -> float | None:
    """The number under any of these names; refused where two of them differ."""
    numbers = {name: number for name in names if (number := _number(values, name)) is not None}
    if len(set(numbers.values())) > 1:
        shown = " and ".join(f"{name} {number:g}" for name, number in numbers.items())
        raise ArgumentError("recipe", "unambiguous", shown, f"say which by {ALIASES.get(names[0], names[0])}=")
    return next(iter(numbers.values()), None)


def _optimizer(name: Any) -> str | None:
    """isogon's name for what a program calls its optimizer; its own word where isogon has none, to be refused."""
    if not isinstance(name, str):
        return None
    plain = re.sub("^(paged|fused)_?", "", name.lower().replace("optimizernames.", "").rsplit(".", 1)[-1])
    # The longest beginning counts: programs append how states are kept, as in adamw_torch_fused.
    return max((rule for rule in RULES if plain.startswith(rule)), key=len, default=plain)


def _betas(values: Values) -> tuple[Any, Any]:
    for name in ("betas", "opt_betas"):
        pair = values.get(name)
        if isinstance(pair, list | tuple) and len(pair) == 2:
            return pair[0], pair[1]
    return (_one_of(values, "adam_beta1", "beta1", "beta_1"), _one_of(values, "adam_beta2", "beta2", "beta_2"))


def _of_rule(reading: Reading, momentum: float | None, betas: tuple[Any, Any]) -> None:
    """Momentum and β₂ as the rule has them: betas where it has a β₂, momentum for the others."""
    rule = RULES.get(str(reading.fields.get("optimizer")))
    adaptive = rule is not None and rule.beta2 is not None
    reading.fields["momentum"] = betas[0] if adaptive else momentum
    if adaptive:
        reading.fields["beta2"] = betas[1]


def _convention(values: Values) -> str | None:
    return "cautious" if any(values.get(name) for name in _CAUTIOUS_ANY) else None


def _transformers(values: Values, devices: int | None, known: Values) -> Reading:
    """Hugging Face's TrainingArguments."""
    reading = Reading({"lr": _number(values, "learning_rate"), "weight_decay": _number(values, "weight_decay")})
    reading.fields["optimizer"] = _optimizer(values.get("optim", "adamw_torch"))
    _of_rule(reading, _number(values, "momentum"), _betas(values))
    each, parts = _number(values, "per_device_train_batch_size"), _number(values, "gradient_accumulation_steps") or 1
    if devices is None and "batch_size" not in known:
        reading.missing.append("devices")
    elif each is not None:
        reading.fields["batch_size"] = each * parts * (devices or 1)
    steps = _number(values, "max_steps") or -1
    if steps > 0:
        reading.fields["_steps"] = steps
    else:
        reading.fields["epochs"] = _number(values, "num_train_epochs")
    reading.notes.append(
        "The Trainer leaves biases and norms without weight decay: the recipe is about the other weights."
    )
    return reading


def _timm(values: Values, devices: int | None, known: Values) -> Reading:
    """timm's args.yaml, in which `sgd` has Nesterov momentum and `momentum` is the one without."""
    name = str(values.get("opt", "sgd")).lower()
    rule = {"sgd": "nesterov", "momentum": "sgd", "nesterov": "nesterov"}.get(name, _optimizer(name))
    reading = Reading({"optimizer": rule, "weight_decay": _number(values, "weight_decay")})
    _of_rule(reading, _number(values, "momentum"), _betas(values))
    each, parts = _number(values, "batch_size"), _number(values, "grad_accum_steps") or 1
    devices = devices or (int(_number(values, "world_size") or 0) or None)
    batch = None if each is None or devices is None else each * parts * devices
    if batch is None and "batch_size" not in known:
        reading.missing.append("devices")
    reading.fields |= {"batch_size": batch, "epochs": _number(values, "epochs"), "lr": _number(values, "lr")}
    base = _number(values, "lr_base")
    whole = known.get("batch_size", batch)
    if reading.fields["lr"] is None and base is not None and whole is not None:
        ratio = whole / (_number(values, "lr_base_size") or 256)
        scale = values.get("lr_base_scale") or ("sqrt" if re.search("ada|lamb", name) else "linear")
        reading.fields["lr"] = base * (math.sqrt(ratio) if scale == "sqrt" else ratio)
    reading.notes.append("timm leaves biases and norms without weight decay: the recipe is about the other weights.")
    return reading


def _nanochat(values: Values, devices: int | None, known: Values) -> Reading:
    """nanochat's flags: Muon on the matrices, batches and samples in tokens, every token seen once."""
    batch, steps = _number(values, "total_batch_size"), _number(values, "num_iterations")
    reading = Reading({"optimizer": "muon", "lr": _number(values, "matrix_lr"), "batch_size": batch, "epochs": 1})
    reading.fields["weight_decay"] = _number(values, "weight_decay")
    # Its defaults, where the flags do not say otherwise.
    reading.fields |= {"convention": _convention(values) or "cautious", "momentum": _number(values, "momentum") or 0.95}
    if batch is not None and steps is not None and steps > 0:
        reading.fields["samples"] = batch * steps
    reading.notes.append(
        "Of nanochat's optimizers the recipe is about Muon on the matrices; samples are tokens. Weight decay is taken "
        "for cautious and momentum for 0.95, its defaults; rates that its script rescales by batch and horizon are "
        "taken as they are written."
    )
    return reading


def _nanogpt(values: Values, devices: int | None, known: Values) -> Reading:
    """A nanoGPT configuration; its gradient accumulation counts all devices."""
    batch, parts = _number(values, "batch_size"), _number(values, "gradient_accumulation_steps")
    reading = Reading(
        {"optimizer": "adamw", "lr": _number(values, "learning_rate"), "_steps": _number(values, "max_iters")}
    )
    reading.fields["weight_decay"] = _number(values, "weight_decay")
    _of_rule(reading, None, _betas(values))
    if batch is not None and parts is not None:
        reading.fields["batch_size"] = batch * parts
    elif "batch_size" not in known:
        reading.missing.append("batch_size")
        reading.notes.append("gradient_accumulation_steps is not in the file.")
    return reading


def _plain_names(values: Values, devices: int | None, known: Values) -> Reading:
    """Lightning's hparams.yaml and whatever uses the usual words."""
    reading = Reading(
        {
            "lr": _one_of(values, "lr", "learning_rate", "max_lr", "peak_lr"),
            "weight_decay": _one_of(values, "weight_decay", "wd"),
            "samples": _one_of(values, "samples", "num_samples", "train_size", "dataset_size"),
            "epochs": _one_of(values, "epochs", "max_epochs", "num_epochs"),
            "_steps": _one_of(values, "max_steps", "total_steps", "num_steps") if "max_epochs" not in values else None,
            "optimizer": _optimizer(values.get("optimizer", values.get("optim", values.get("opt")))),
            "convention": values.get("convention") or _convention(values),
        }
    )
    if reading.fields["_steps"] is not None and reading.fields["_steps"] <= 0:
        reading.fields["_steps"] = None
    if reading.fields["optimizer"] is None and "optimizer" not in known:
        reading.missing.append("optimizer")
    nesterov = values.get("nesterov") is True or str(values.get("nesterov")).lower() == "true"
    if reading.fields["optimizer"] == "sgd" and nesterov:
        reading.fields["optimizer"] = "nesterov"
    _of_rule(reading, _number(values, "momentum"), _betas(values))
    whole = _one_of(values, "global_batch_size", "total_batch_size", "effective_batch_size")
    each = _one_of(values, "batch_size", "train_batch_size", "batch")
    parts = _one_of(values, "accumulate_grad_batches", "gradient_accumulation_steps") or 1
    if whole is not None:
        reading.fields["batch_size"] = whole
    elif each is not None:
        reading.fields["batch_size"] = each * parts * (devices or 1)
        if devices is None:
            reading.notes.append(
                f"batch_size {each * parts:g} is taken for all devices together; devices=… multiplies it."
            )
    return reading


#: (names of which one each must be there, the dialect), tried in this order
_DIALECTS: tuple[tuple[tuple[tuple[str, ...], ...], Dialect], ...] = (
    ((("per_device_train_batch_size",),), _transformers),
    ((("opt",), ("lr_base", "sched", "opt_betas", "grad_accum_steps")), _timm),
    ((("matrix_lr",), ("total_batch_size",)), _nanochat),
    ((("learning_rate",), ("max_iters",)), _nanogpt),
    ((), _plain_names),
)
