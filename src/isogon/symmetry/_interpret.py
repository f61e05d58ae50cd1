"""One pass over an exported program: every node's state from its arguments' states, by the rules."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import tree_leaves

from isogon.symmetry import _graph as graph
from isogon.symmetry import _state as st
from isogon.symmetry._operation import Operation
from isogon.symmetry._parts import with_parts
from isogon.symmetry._reasons import Book
from isogon.symmetry._state import State
from isogon.symmetry._values import LARGEST, numbers_of, with_values
from isogon.symmetry.rules import find_rule

_REGIONS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}  # position of the graph among the arguments
_ASK_ABOUT_USES = graph.names("add clamp clip clamp_min maximum fmax max masked_fill where")


#: what a number that was read out of a tensor is called
NUMBER = "a number read out of a tensor"
_TAKE_NUMBERS = graph.names("add sub rsub mul div full full_like new_full pow clamp where masked_fill item")


@dataclass(frozen=True)
class Output:
    """A floating-point output and the operation that makes it."""

    op: Operation
    state: State


@dataclass
class Walk:
    """What a pass collects; row 0 of every state is all parameters together, row k + 1 is `names[k]` alone."""

    names: tuple[str, ...]
    tensors: Mapping[str, torch.Tensor]  # frozen parameters and buffers by name, for their values
    first_names: Mapping[str, str]  # every name of a tied parameter → its first
    book: Book = field(default_factory=Book)
    joint_breaks: dict[int, None] = field(default_factory=dict)
    absorbed: dict[int, str] = field(default_factory=dict)  # row → where its degree first became 0
    reached: set[str] = field(default_factory=set)  # parameters that some output depends on
    live: set[fx.Node] = field(default_factory=set)
    order: list[str] = field(default_factory=list)  # names of the nodes as they were judged

    operation_type: ClassVar[type[Operation]] = Operation

    @property
    def sources(self) -> int:
        return len(self.names) + 1

    def run(self, program: ExportedProgram, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Output]:
        """Every floating-point output, with its state and the operation that makes it."""
        nodes = list(program.graph.nodes)
        output = nodes[-1]
        self.live = graph.ancestors(output)
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        given = iter(tree_leaves((inputs, dict(kwargs))))
        env: dict[fx.Node, Any] = {}
        for node in nodes:
            if node.op == "placeholder":
                spec = specs[node.name]
                if spec.kind == InputKind.USER_INPUT:
                    env[node] = self._user_input(node, next(given, None))
                else:
                    env[node] = self._read_stored(node, spec, program)
        whole = _Pass(self, program.graph_module, env)
        results = whole.run()
        kinds = [spec.kind for spec in program.graph_signature.output_specs]
        wanted = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        return [
            Output(whole.operation(_find_maker(node)), state)
            for node, state, kind in zip(tree_leaves(output.args[0]), results, kinds, strict=True)
            if kind in wanted and isinstance(state, State) and _is_floating(node.meta["val"])
        ]

    def _blank(self, node: fx.Node, label: str = "") -> State | None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return None
        return st.constant(_shape(value), self.sources, label=label, floating=_is_floating(value))

    def _user_input(self, node: fx.Node, given: Any) -> Any:
        blank = self._blank(node)
        if blank is None:
            return given
        # The answer must not hang on the values of an example, unless it is a mask of zeros and -∞.
        can_see = isinstance(given, torch.Tensor) and blank.floating and not given.is_meta
        is_mask = can_see and bool(torch.isneginf(given).any())
        return _with_facts(blank, given) if is_mask else blank

    def _read_stored(self, node: fx.Node, spec: Any, program: ExportedProgram) -> Any:
        name = self.first_names.get(spec.target, spec.target or "")
        blank = self._blank(node, name)
        if blank is None:
            return None
        if spec.kind == InputKind.PARAMETER and name in self.names:
            if node in self.live:
                self.reached.add(name)
            return self._trainable(blank, name)
        if graph.is_written(node):
            return blank
        tensor = self.tensors.get(name, program.constants.get(spec.target))
        return _with_facts(blank, tensor) if isinstance(tensor, torch.Tensor) else blank

    def _trainable(self, blank: State, name: str) -> State:
        """A parameter: degree 1 under all together and under itself alone."""
        degree = blank.degree.copy()
        degree[[0, self.names.index(name) + 1]] = 1.0
        return blank.with_(degree=degree, free=True)

    def record(self, node: fx.Node, op: Operation, states: list[State], result: Any) -> None:
        """Note where the joint question breaks, and where each source's degree becomes 0."""
        self.order.append(node.name)
        for out in _as_list(result):
            if node in self.live:
                for number in out.reason[0][out.reason[0] >= 0]:
                    self.joint_breaks.setdefault(int(number))
            for x in states:
                for row in np.flatnonzero(out.fixed & ~x.fixed):
                    self.absorbed.setdefault(int(row), op.place)


def _find_maker(node: fx.Node) -> fx.Node:
    """The operation that made the value: getitem only picks one of its results."""
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return node


def _shape(value: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(n) for n in value.shape)


def _is_floating(value: torch.Tensor) -> bool:
    return value.dtype.is_floating_point or value.dtype.is_complex


def _with_facts(state: State, tensor: torch.Tensor) -> State:
    """What a constant's values tell: that it is zero (or a mask of zeros and infinities), not negative, one number."""
    if not tensor.numel() or tensor.is_complex() or tensor.is_meta:
        return state
    values = tensor.detach()
    low, high = float(values.min()), float(values.max())
    any_degree = state.floating and bool(((values == 0) | (values.abs() >= st.INFINITE)).all())
    return state.with_(
        degree=np.full_like(state.degree, np.inf) if any_degree else state.degree,
        nonneg=low >= 0,
        value=low if low == high else None,
        numbers=numbers_of(tensor),
    )


@dataclass
class _Pass:
    """The rules run over one graph: the model's, or that of a no_grad or autocast region inside it."""

    walk: Walk
    module: fx.GraphModule
    env: dict[fx.Node, Any]
    family: dict[fx.Node, set[fx.Node]] = field(default_factory=dict)  # nodes that may share memory
    twins: dict[fx.Node, set[fx.Node]] = field(default_factory=dict)  # nodes that are one tensor
    #: of tensors that were written in pieces, where they were not, and the pieces
    unwritten: dict[fx.Node, tuple[torch.Tensor, list[State]]] = field(default_factory=dict)

    def run(self) -> list[Any]:
        for node in self.module.graph.nodes:
            if node.op == "get_attr":
                self.env[node] = self._attribute(str(node.target))
            elif node.op == "call_function" and node in self.walk.live:  # what has no effect asks for nothing
                self._call(node)
            elif node.op == "output":
                return [self._value(x) for x in tree_leaves(node.args[0])]
        return []

    def _attribute(self, target: str) -> Any:
        attribute = operator.attrgetter(target)(self.module)
        if not isinstance(attribute, torch.Tensor):
            return attribute
        blank = st.constant(tuple(attribute.shape), self.walk.sources, floating=_is_floating(attribute))
        return _with_facts(blank, attribute)

    def _value(self, argument: Any) -> Any:
        return self.env[argument] if isinstance(argument, fx.Node) else argument

    def _call(self, node: fx.Node) -> None:
        viewed = graph.viewed_argument(node)
        if viewed is not None:
            group = self.family.setdefault(viewed, {viewed})
            group.add(node)
            self.family[node] = group
        if node.target is operator.getitem:
            pack, position = self._value(node.args[0]), self._value(node.args[1])
            self.env[node] = pack[position] if isinstance(pack, list) else pack
            return
        args = fx.node.map_arg(node.args, self._value)
        kwargs = {k: v for k, v in fx.node.map_arg(node.kwargs, self._value).items() if k != "out"}
        op = self.operation(node)
        states = [x for x in tree_leaves((args, kwargs)) if isinstance(x, State)]
        if graph.is_region(node):
            self.env[node] = self._region(node, op, args, states)
            return
        if not op.shapes:  # an assertion, or plain numbers
            self.env[node] = None if node.meta.get("val") is None else _number(op, states, node)
            return
        several = isinstance(node.meta.get("val"), list | tuple)

        def judge(op: Operation, args: Any, kwargs: Any) -> Any:
            states = [x for x in tree_leaves((args, kwargs)) if isinstance(x, State)]
            return _judge_call(op, args, kwargs, states, several)

        whole = with_values(node, args, kwargs, judge(op, args, kwargs))
        result = self.env[node] = with_parts(judge, op, node, args, kwargs, whole)
        self.walk.record(node, op, states, result)
        target = graph.written_argument(node)
        if target is not None:
            twins = self.twins.setdefault(target, {target})
            twins.add(node)
            self.twins[node] = twins
            group = self.family.setdefault(target, {target})
            group.add(node)
            self.family[node] = group
            self._write(op, target, result)

    def operation(self, node: fx.Node) -> Operation:
        module, module_type = graph.module_of(node)
        value = node.meta.get("val")
        values = [v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, torch.Tensor)]
        asks = graph.short_name(node) in _ASK_ABOUT_USES
        return self.walk.operation_type(
            name=str(node.target),
            node=node.name,
            module=module,
            module_type=module_type,
            shapes=[_shape(v) for v in values],
            floating=bool(values) and _is_floating(values[0]),
            sources=self.walk.sources,
            book=self.walk.book,
            into_division=asks and graph.goes_into_division(node),
            into_softmax=asks and graph.goes_into_softmax(node),
            run=graph.runner(node),
        )

    def _region(self, node: fx.Node, op: Operation, args: Any, states: list[State]) -> Any:
        """A no_grad or autocast block: its own graph, run on the arguments' states; other regions are unknown."""
        position = _REGIONS.get(str(node.target).split(".")[-1])
        if position is None or not isinstance(args[position], fx.GraphModule):
            out = [replace(op, shapes=[shape]).unknown(*states) for shape in op.shapes]
            return out if isinstance(node.meta.get("val"), list | tuple) else out[0]
        inner, given = args[position], args[position + 1 :]
        inside = [n for n in inner.graph.nodes if n.op == "placeholder"]
        env = dict(zip(inside, given, strict=True))
        self.walk.live.update(inner.graph.nodes if node in self.walk.live else ())
        part = _Pass(self.walk, inner, env)
        results = part.run()
        outside = node.args[position + 1 :]
        for before, inner_node, outer_node in zip(given, inside, outside, strict=True):
            if isinstance(outer_node, fx.Node) and part.env[inner_node] is not before:
                self._write(op, outer_node, part.env[inner_node])
        return results

    def _write(self, op: Operation, target: fx.Node, new: Any) -> None:
        """Give `target` its new value, and what shares memory with it a state that holds for old and new elements."""
        if not isinstance(new, State):
            return
        twins = self.twins.get(target, {target})
        for node in self.family.get(target, {target}) | twins:
            if node in twins:
                self.env[node] = new
                self.unwritten.pop(node, None)
            elif node in self.env:
                old = self.env[node]
                states = [self._overlay(op, x, node, target, new) for x in _as_list(old)]
                self.env[node] = states if isinstance(old, list) else states[0]

    def _overlay(self, op: Operation, old: Any, node: fx.Node, target: fx.Node, new: State) -> Any:
        """What `node` is after `target` became `new`: nothing but new pieces once all its elements are written."""
        if not isinstance(old, State):
            return old
        holds = graph.is_part_of(target, node)
        if not holds:
            self.unwritten.pop(node, None)
        elif math.prod(old.shape) <= LARGEST:
            left, pieces = self.unwritten.setdefault(node, (torch.ones(old.shape, dtype=torch.bool), []))
            graph.view_of(target, node, left).fill_(False)
            pieces.append(new)
            if not left.any():
                return op.overwrite(old, pieces)
        return op.overlay(old, new, holds=holds)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _judge_call(op: Operation, args: Any, kwargs: dict[str, Any], states: list[State], several: bool) -> Any:
    """The rule's answer; unknown where there is no rule, or where it does not fit the operation."""
    rule = find_rule(op.name)
    why = ""
    if op.short not in _TAKE_NUMBERS and any(state.label == NUMBER for state in states):
        rule, why = None, f"{op.place} takes a number that was read out of a tensor"
    if rule is not None:
        try:
            result = rule(op, *args, **kwargs)
        except Exception as error:
            why = f"the rule for {op.name} failed ({type(error).__name__}: {error})".replace("{", "(").replace("}", ")")
        else:
            if several == isinstance(result, list) and [x.shape for x in _as_list(result)] == op.shapes:
                return result
            why = f"the rule for {op.name} gives results of another shape"
    unknown = [replace(op, shapes=[shape]).unknown(*states, why=why) for shape in op.shapes]
    return unknown if several else unknown[0]


def _number(op: Operation, states: list[State], node: fx.Node) -> Any:
    """A Python number: a plain one, or the state of one that was read out of a tensor."""
    if all(x.fixed.all() for x in states):
        return node.meta.get("val")
    number = replace(op, shapes=[()])
    if op.short not in ("item", "_local_scalar_dense"):
        return number.unknown(*states)
    return number.scalar(states[0]).with_(label=NUMBER)
