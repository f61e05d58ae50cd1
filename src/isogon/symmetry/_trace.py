"""A model as a graph: what `check` and `symmetries` share before they ask their questions."""

from __future__ import annotations

import copy
import inspect
import io
import logging
import os
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from isogon.errors import ArgumentError, IsogonError, first_line


class ExportError(IsogonError):
    """A model that torch.export cannot turn into a graph."""


@dataclass(frozen=True, eq=False)
class Traced:
    """The exported graph of a model, the arguments it was exported with, and the model's tensors by name."""

    model: nn.Module
    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    program: torch.export.ExportedProgram
    #: what was done to make the model traceable, as sentences
    notes: tuple[str, ...] = ()
    #: parameter → its other names, where it is tied
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: every name of a parameter → its first
    first_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad and p.numel()}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers by every name they have."""
        return {**dict(self.model.named_buffers(remove_duplicate=False)), **dict(self.model.named_parameters())}


def trace(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Traced:
    """Export `model` as it is called with these arguments; the model itself is not changed."""
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", "a torch.nn.Module", model, "give the module itself")
    model = unwrap(model)
    if not isinstance(kwargs, Mapping):
        raise ArgumentError("kwargs", "a mapping of names to arguments", kwargs, "for example {'labels': labels}")
    inputs, named, notes = usual_call(model, inputs, kwargs)
    program = _export(model, inputs, named)
    _refuse_sizes_from_values(model, program)
    names: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(tensor), []).append(name)
    return Traced(
        model,
        inputs,
        named,
        program,
        notes=notes,
        aliases={group[0]: tuple(group[1:]) for group in names.values() if len(group) > 1},
        first_names={name: group[0] for group in names.values() for name in group},
    )


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch.compile, DataParallel and DistributedDataParallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def usual_call(
    model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]:
    """The call as training makes it: a tokenizer's batch as keywords, and no cache of keys and values."""
    kwargs = dict(kwargs)
    parameters = inspect.signature(model.forward).parameters
    batch = inputs[0] if len(inputs) == 1 else None
    if isinstance(batch, Mapping) and batch and set(batch) <= set(parameters):
        inputs, kwargs = (), {**batch, **kwargs}
    notes = []
    if "use_cache" in parameters and kwargs.get("use_cache") is None and _caches(model):
        kwargs["use_cache"] = False
        notes.append("the model is called with use_cache=False, as in training.")
    if any(module.training and _drops_layers(module) for module in model.modules()):
        notes.append("no layer is left out at random (layerdrop).")
    return inputs, kwargs, tuple(notes)


def _caches(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "use_cache", False))


def _drops_layers(module: nn.Module) -> bool:
    return hasattr(module, "layerdrop") or hasattr(getattr(module, "config", None), "layerdrop")


class _Never:
    """A rate of layers to leave out that no random number lies below."""

    __array_ufunc__ = None  # numpy's numbers leave comparing to us

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return False

    __ge__ = __gt__


def _structural_copy(model: nn.Module) -> nn.Module:
    """A copy of the modules that shares every tensor, so that tracing leaves nothing in the model's attributes."""
    memo: dict[int, Any] = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    try:
        twin = copy.deepcopy(model, memo)
    except Exception:
        # Some modules cannot be copied (they hold locks or streams); export is careful with them as well.
        return model
    for module in twin.modules():  # the parts of a larger model return caches too
        if _caches(module):
            module.config.use_cache = False  # type: ignore[union-attr]
        if module.training and _drops_layers(module):
            owner: Any = module if hasattr(module, "layerdrop") else module.config
            vars(owner)["layerdrop"] = _Never()  # configurations check what is set in the usual way
    return twin


@contextmanager
def _untouched_rng() -> Iterator[None]:
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings, no half-made graph on stderr, no log of torch: an error's message is what a reader can use."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _export(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    try:
        with _untouched_rng(), _quiet():
            return torch.export.export(_structural_copy(model), inputs, kwargs, strict=False)
    except Exception as error:
        line = _user_line(error)
        raise ExportError(
            f"torch.export cannot export {type(model).__name__} with these inputs"
            f"{f', at {line}' if line else ''} ({type(error).__name__}: {first_line(error)[:300]}): check that the "
            "inputs fit the model and that its control flow does not depend on values."
        ) from error


def _user_line(error: BaseException) -> str:
    """The last line outside of torch and of isogon that led to the error."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    if not frames:
        return ""
    code = f" ({frames[-1].line})" if frames[-1].line else ""
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}{code}"


def _is_ours(file: str) -> bool:
    folders = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
    return file.startswith(folders) or file.startswith("<") or "contextlib" in file


def _refuse_sizes_from_values(model: nn.Module, program: torch.export.ExportedProgram) -> None:
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and any(not isinstance(size, int) for size in value.shape):
            where = next((line.strip() for line in reversed((node.stack_trace or "").splitlines()) if line.strip()), "")
            raise ExportError(
                f"{type(model).__name__} makes a tensor whose size depends on values ({node.name}"
                f"{f': {where}' if where else ''}): sizes have to follow from those of the inputs; multiply by a mask "
                "instead of picking with it."
            )
