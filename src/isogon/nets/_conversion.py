"""`convert`: a copy of any model, made scale-invariant the way the papers do it, with every change in plain words.

Yun et al. (section 3.1) keep the affine parameters, put a normalisation without them before the classifier and freeze
the classifier; Li and Arora (appendix E) freeze γ = 1 and β = 0 as well, drop the biases that would break homogeneity,
and add a normalisation where a shortcut would add unequal degrees. The checker finds where to do which: its breaks are
repaired one after another until none is left, or until one is met that has no such cure.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from isogon.errors import ArgumentError, check_choice, check_whole
from isogon.nets.layers import NORMS, GhostBatchNorm1d, GhostBatchNorm2d, NormKind, make_norm
from isogon.symmetry import Break, ScaleMap, check, unwrap, usual_call

ConversionStyle = Literal["affine", "plain"]

_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)
BEFORE, AFTER = "norm_before", "norm_after"
#: how the sentence about a place without a cure begins
LEFT = "Left as it is"


@dataclass(frozen=True)
class Conversion:
    """A converted model.

    `model` is a copy with all state-dict keys of the original, `changes` are sentences, `scale_map` is the copy's own,
    `notes` say what else there is to do.
    """

    model: nn.Module
    changes: tuple[str, ...]
    scale_map: ScaleMap
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"- {sentence}" for sentence in self.changes] or ["- nothing had to change"]
        lines += self.notes
        # Where it stopped, the place stands above; the first break of the graph may be one that others come after.
        reason = "" if any(change.startswith(LEFT) for change in self.changes) else f" {self.scale_map.explain()}"
        lines.append(f"jointly: {self.scale_map.verdict}.{reason}")
        if not self.scale_map.is_invariant:
            lines.append(
                f"alone: {len(self.scale_map.invariant)} of {len(self.scale_map.alone)} weights are invariant; "
                "isogon.symmetries finds the groups that are invariant together."
            )
        return "\n".join(lines)


def convert(
    model: nn.Module,
    *inputs: Any,
    style: ConversionStyle = "affine",
    ghost_batch: int | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Conversion:
    """A scale-invariant copy of `model`, verified, with the list of changes.

    `inputs` and `kwargs` are an example of what the model is called with (keep it small: every answer is measured, in
    double precision); `style` is `affine` (Yun et al.: γ and β stay
    trainable) or `plain` (Li and Arora: γ = 1 and β = 0, frozen); `ghost_batch` turns every batch norm into a ghost
    batch norm of that size. At the first place without a cure (a gate, an activation that needs degree 0) it stops and
    names it; then the other biases stay too, since dropping them would help nobody, and `scale_map.invariant` lists the
    weights that are invariant alone.
    A model wrapped by torch.compile or DataParallel comes back without the wrapper.
    The copy is in training mode, in which scale invariance is a question of batch statistics.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", "a torch.nn.Module", model, "give the module itself")
    check_choice("style", style, ("affine", "plain"))
    if ghost_batch is not None:
        check_whole("ghost_batch", ghost_batch, cure="the papers use 64")
    model = unwrap(model)
    inputs, named, _ = usual_call(model, inputs, kwargs or {})
    example = _Example(inputs, named)
    example.check(model)  # says in a sentence where the inputs do not fit
    work = _Workshop(copy.deepcopy(model), example, style, ghost_batch)
    work.prepare()
    hopeless = work.repair_all()
    if hopeless:
        work = _Workshop(copy.deepcopy(model), example, style, ghost_batch)
        work.prepare()
        work.normalise_classifier()
    scale_map = check(work.model, *inputs, kwargs=named, verify=True)
    left = [
        f"{LEFT}: {problem.reason}{f' (in {problem.module})' if problem.module else ''}."
        for problem in (() if scale_map.is_invariant else hopeless)
    ]
    notes = (*(work.notes if left else ()), *_new_keys(model, work.model))
    return Conversion(work.model, (*work.changes, *left), scale_map, notes)


@dataclass(frozen=True)
class _Example:
    inputs: tuple[Any, ...]
    kwargs: dict[str, Any]

    def check(self, model: nn.Module) -> ScaleMap:
        return check(model, *self.inputs, kwargs=self.kwargs)

    def dims(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        """Dimensions of what goes into and comes out of each weighted layer, in the order of the run."""
        dims: dict[str, tuple[int, int]] = {}
        scratch = copy.deepcopy(model)  # a run in training mode moves running statistics
        for name, module in scratch.named_modules():
            if isinstance(module, _WEIGHTED):

                def note(_module: nn.Module, inputs: Any, result: Any, name: str = name) -> None:
                    dims[name] = (inputs[0].ndim, result.ndim)

                module.register_forward_hook(note)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            scratch(*self.inputs, **self.kwargs)
        return dims


@dataclass
class _Workshop:
    """The copy under repair and sentences about what was done to it."""

    model: nn.Module
    example: _Example
    style: str
    ghost_batch: int | None
    changes: list[str] = field(default_factory=list)
    #: what to do where the conversion stops
    notes: list[str] = field(default_factory=list)
    kind: NormKind = "batch"
    dims: dict[str, tuple[int, int]] = field(default_factory=dict)  # of each weighted layer's input and output
    classifier: str = ""
    hooks: dict[tuple[str, str], RemovableHandle] = field(default_factory=dict)

    def prepare(self) -> None:
        """What the style asks for whatever the check finds: ghost batches, frozen affine, frozen classifier."""
        if not self.model.training:
            self.model.train()
            self.changes.append("Put the model in training mode.")
        self.kind = _norm_kind(self.model, self.ghost_batch)
        if self.ghost_batch is not None:
            self._use_ghost_batches(self.ghost_batch)
        if self.style == "plain":
            self._freeze_affine()
        self.dims = self.example.dims(self.model)
        if not self.dims:
            raise ArgumentError(
                "model",
                "a module with linear or convolution layers",
                type(self.model).__name__,
                "nothing else can be converted",
            )
        self.classifier = list(self.dims)[-1]
        self._freeze_classifier()
        self._drop_idle_biases()

    def repair_all(self) -> list[Break]:
        """Repair break after break until nothing is left to do, or one has no cure: that and others like it."""
        while True:
            scale_map = self.example.check(self.model)
            if scale_map.is_invariant or not scale_map.breaks:
                return []
            first = scale_map.breaks[0]
            # Each repair uses something up (a bias, a place for a norm), so that this ends.
            if not self._repair(first, scale_map):
                return [first, *(b for b in scale_map.breaks[1:] if b.kind not in ("bias", "add", "output"))]

    def _repair(self, problem: Break, before: ScaleMap) -> bool:
        if problem.module == self.classifier or problem.kind == "output":
            return self.normalise_classifier()
        if problem.kind == "bias":
            return self._drop_bias(problem)
        if problem.kind == "add":
            return self._balance(problem, before)
        return self._unbound_activation(problem)

    def normalise_classifier(self) -> bool:
        """A norm without affine before the classifier, unless it is there already."""
        if hasattr(self._module(self.classifier), BEFORE):
            return False
        self._add_norm(self.classifier, BEFORE, affine=False)
        return True

    def _use_ghost_batches(self, ghost_batch: int) -> None:
        swapped = 0
        for name, module in list(self.model.named_modules()):
            ghost = {nn.BatchNorm1d: GhostBatchNorm1d, nn.BatchNorm2d: GhostBatchNorm2d}.get(type(module))
            if ghost is None:
                continue
            twin = ghost(
                module.num_features, ghost_batch, module.eps, module.momentum, module.affine, module.track_running_stats
            )
            # The very tensors move over, so that tied or frozen parameters stay so.
            twin._parameters, twin._buffers = module._parameters, module._buffers
            twin.train(module.training)
            self._replace(name, twin)
            swapped += 1
        if swapped:
            self.changes.append(f"Replaced {swapped} batch norms by ghost batch norms of {ghost_batch} samples.")

    def _freeze_affine(self) -> None:
        frozen = 0
        for module in self.model.modules():
            if isinstance(module, NORMS):
                for name, value in (("weight", 1.0), ("bias", 0.0)):
                    parameter = getattr(module, name, None)
                    if parameter is not None and parameter.requires_grad:
                        _freeze(parameter, value)
                        frozen += name == "weight"
        if frozen:
            self.changes.append(f"Froze γ = 1 and β = 0 of {frozen} normalisation layers.")

    def _freeze_classifier(self) -> None:
        module = self._module(self.classifier)
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(False)
            frozen = {id(parameter) for parameter in module.parameters(recurse=False)}
            tied = [
                name
                for name, parameter in self.model.named_parameters(remove_duplicate=False)
                if id(parameter) in frozen and name.rpartition(".")[0] != self.classifier
            ]
            also = f", and with it {_list_names(tied)}, to which it is tied" if tied else ""
            named = (
                f"{self.classifier}, the classifier," if self.classifier else "the classifier, which is all there is,"
            )
            self.changes.append(f"Froze {named} at its present values{also}.")
            if tied:
                self.notes.append(
                    f"{self.classifier} is tied to {_list_names(tied)}, so that nothing along the stream scales "
                    "together: untie them (tie_word_embeddings=False in a transformers configuration), and "
                    "isogon.symmetries finds the group to watch."
                )

    def _drop_idle_biases(self) -> None:
        """A bias that is invariant alone has no effect: f(c·b) = f(b) for every c > 0, hence also for c → 0."""
        scale_map = self.example.check(self.model)
        idle = [
            name
            for name, module in self.model.named_modules()
            if isinstance(module, _WEIGHTED) and f"{name}.bias" in scale_map.invariant
        ]
        for name in idle:
            _freeze(self.model.get_parameter(f"{name}.bias"), 0.0)
        if idle:
            self.changes.append(
                f"Dropped the biases of {_list_names(idle)} (set to 0, frozen): normalisation removes them."
            )

    def _drop_bias(self, problem: Break) -> bool:
        dropped = []
        for name in problem.parameters:
            parameter = dict(self.model.named_parameters()).get(name)
            if parameter is not None and parameter.requires_grad and name.split(".")[-1].endswith("bias"):
                _freeze(parameter, 0.0)
                dropped.append(name)
        if dropped:
            self.changes.append(f"Dropped {_list_names(dropped)} (set to 0, frozen): {problem.reason}.")
        return bool(dropped)

    def _unbound_activation(self, problem: Break) -> bool:
        """Where one ReLU6 has input of another degree than 0 its fellows have too, so that all go at once."""
        if not isinstance(self._module(problem.module), nn.ReLU6):
            return False
        bounded = [name for name, module in self.model.named_modules() if isinstance(module, nn.ReLU6)]
        for name in bounded:
            self._replace(name, nn.ReLU())
        self.changes.append(f"Replaced ReLU6 by ReLU in {_list_names(bounded)}: a bound needs degree 0.")
        return True

    def _balance(self, problem: Break, before: ScaleMap) -> bool:
        """A norm before or after the last weighted layer of a branch, whichever brings the branches to one degree.

        The branch that begins furthest up comes first: a repair there spares one in every later block.
        """
        order = list(self.dims)
        for name in sorted((name for name in problem.feeders if name in order), key=order.index):
            for place in (BEFORE, AFTER):
                if hasattr(self._module(name), place):
                    continue
                for affine in (True, False) if self.style == "affine" else (False,):
                    self._add_norm(name, place, affine=affine)
                    after = self.example.check(self.model)
                    if after.is_invariant or _count(after, problem) < _count(before, problem):
                        return True
                    self._remove_norm(name, place)
        return False

    def _add_norm(self, name: str, place: str, *, affine: bool) -> None:
        """Normalise what goes into (or comes out of) the layer `name`, inside the layer, so that its keys stay."""
        module = self._module(name)
        assert isinstance(module, _WEIGHTED)
        weight = module.weight
        channels = _channels(module, place)
        ndim = self.dims[name][0 if place == BEFORE else 1]
        kind, dim = self.kind, 1 if isinstance(module, nn.Linear) else 2
        if dim == 1 and ndim != 2:
            kind = "layer"  # tokens: batch norm would take their positions for channels
        norm = make_norm(kind, channels, affine=affine, ghost_batch=self.ghost_batch or 64, dim=dim)
        module.add_module(place, norm.to(device=weight.device, dtype=weight.dtype).train(self.model.training))
        hook = (
            module.register_forward_pre_hook(_normalise_input)
            if place == BEFORE
            else module.register_forward_hook(_normalise_output)
        )
        self.hooks[name, place] = hook
        with_affine = "with" if affine else "without"
        self.changes.append(f"Added {type(norm).__name__} {with_affine} affine {place.removeprefix('norm_')} {name}.")

    def _remove_norm(self, name: str, place: str) -> None:
        self.hooks.pop((name, place)).remove()
        delattr(self._module(name), place)
        self.changes.pop()

    def _module(self, name: str) -> nn.Module:
        return self.model.get_submodule(name)

    def _replace(self, name: str, module: nn.Module) -> None:
        parent, _, child = name.rpartition(".")
        setattr(self._module(parent), child, module)


def _normalise_input(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (module.get_submodule(BEFORE)(inputs[0]), *inputs[1:])


def _normalise_output(module: nn.Module, _inputs: tuple[Any, ...], result: Any) -> Any:
    return module.get_submodule(AFTER)(result)


def _norm_kind(model: nn.Module, ghost_batch: int | None) -> NormKind:
    """The kind of norm the model already has, for the ones that are added."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return (
                "ghost"
                if ghost_batch is not None or isinstance(module, GhostBatchNorm1d | GhostBatchNorm2d)
                else "batch"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm):
            return "instance"
        if isinstance(module, nn.GroupNorm):
            return "group" if module.num_groups > 1 else "layer"
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            return "layer"
    return "batch"


def _channels(module: nn.Module, place: str) -> int:
    names = ("in_features", "in_channels") if place == BEFORE else ("out_features", "out_channels")
    return int(next(getattr(module, name) for name in names if hasattr(module, name)))


def _new_keys(before: nn.Module, after: nn.Module) -> tuple[str, ...]:
    """What to do with checkpoints of the model before, where the added norms have statistics of their own."""
    new = [name for name in after.state_dict() if name not in before.state_dict()]
    if not new:
        return ()
    return (
        f"A checkpoint of the model before lacks {_list_names(new, most=2)}: load it before converting, or with "
        "strict=False.",
    )


def _freeze(parameter: nn.Parameter, value: float) -> None:
    with torch.no_grad():
        parameter.fill_(value)
    parameter.requires_grad_(False)


def _key(problem: Break) -> tuple[str, str, str]:
    """What names a break from one check to the next, which numbers the nodes of the graph again."""
    return problem.kind, problem.module, problem.op


def _count(scale_map: ScaleMap, problem: Break) -> int:
    return sum(_key(other) == _key(problem) for other in scale_map.breaks)


def _list_names(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
