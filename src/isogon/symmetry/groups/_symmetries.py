"""`symmetries`: every way of scaling the weights that changes nothing, as the null space of what the graph asks."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from torch import fx, nn
from torch.export.graph_signature import InputKind

from isogon.errors import ArgumentError, check_number
from isogon.symmetry._interpret import Walk
from isogon.symmetry._operation import Operation
from isogon.symmetry._reasons import LARGEST_EPS
from isogon.symmetry._state import NO_REASON, Form, State
from isogon.symmetry._trace import Traced, trace
from isogon.symmetry.groups._forms import Constraints, FormOperation
from isogon.symmetry.groups._null_space import Vector, groups_of_ones, null_space, rational
from isogon.symmetry.groups._powers_text import factor_text, find_repeats, powers_text, repeated_groups
from isogon.symmetry.groups._scalings import Part, verify_scalings
from isogon.symmetry.groups._slices import Slices, find_slices


def symmetries(
    model: nn.Module,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    verify: bool = False,
    largest_eps: float = LARGEST_EPS,
) -> Symmetries:
    """Every set of powers a for which scaling each weight w_p by c^(a_p) leaves the output of `model` as it is.

    `inputs` and `kwargs` are an example of what the model is called with, in the mode (train or eval) it is in.
    `verify` measures every answer in double precision. Constants up to `largest_eps` that are added before a root or a
    division count as 0, which `assumptions` lists. The model is not changed.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False), nn.LayerNorm(3))
    >>> answer = symmetries(net, torch.randn(5, 4))
    >>> [dict(vector) for vector in answer.basis]
    [{'0.weight': Fraction(1, 1)}, {'2.weight': Fraction(1, 1)}]
    >>> answer.allows({"0.weight": 1, "2.weight": -1}), answer.allows({"3.weight": 1})
    (True, False)
    """
    traced = trace(model, inputs, kwargs or {})
    walk = _FormWalk.of(traced)
    walk.book.largest_eps = check_number("largest_eps", largest_eps, low=0, cure="give 1e-3, for example")
    outputs = walk.run(traced.program, traced.inputs, traced.kwargs)
    if not outputs:
        raise ArgumentError(
            "model", "a module that returns a floating-point tensor", traced.name, "return logits or a loss"
        )
    for output in outputs:
        output.op.require_zero(output.state, f"the output of {output.op.place}")
    answer = _answer(traced, walk)
    if not verify:
        return answer
    return replace(answer, verification=verify_scalings(traced, answer.basis, answer.parts, largest_eps))


@dataclass
class _FormWalk(Walk):
    """A pass whose rows are the unknown powers: one per parameter, or one per slice of it."""

    slices: Mapping[str, Slices] = field(default_factory=dict)
    rows: dict[str, range] = field(default_factory=dict)

    operation_type: ClassVar[type[Operation]] = FormOperation

    @classmethod
    def of(cls, traced: Traced) -> _FormWalk:
        trainable = traced.trainable
        by_placeholder = {spec.arg.name: spec for spec in traced.program.graph_signature.input_specs}
        parameters: dict[fx.Node, str] = {}
        for node in traced.program.graph.nodes:
            spec = by_placeholder.get(node.name) if node.op == "placeholder" else None
            if spec is not None and spec.kind == InputKind.PARAMETER:
                name = traced.first_names.get(spec.target, spec.target or "")
                if name in trainable:
                    parameters[node] = name
        slices = find_slices(traced.program, parameters)
        # In the order of their first use, so that weights that belong together are neighbours.
        place = {node: number for number, node in enumerate(traced.program.graph.nodes)}
        first_use = {
            name: min((place[user] for user in node.users), default=len(place)) for node, name in parameters.items()
        }
        names = tuple(sorted(trainable, key=lambda name: first_use.get(name, len(place))))
        rows, count = {}, 0
        for name in names:
            size = slices[name].count if name in slices else 1
            rows[name] = range(count, count + size)
            count += size
        return cls(
            names=names,
            tensors=traced.tensors,
            first_names=traced.first_names,
            book=Constraints(),
            slices=slices,
            rows=rows,
        )

    @property
    def sources(self) -> int:
        return max(1, sum(map(len, self.rows.values())))

    @property
    def asked(self) -> Constraints:
        assert isinstance(self.book, Constraints)
        return self.book

    def _trainable(self, blank: State, name: str) -> State:
        rows = self.rows[name]
        if name not in self.slices:
            degree = np.zeros((self.sources, 1))
            degree[rows.start] = 1.0
            return blank.with_(degree=degree, free=True)
        slices = self.slices[name]
        runs = slices.runs()
        degree = np.zeros((self.sources, len(runs)))
        for column, (number, _) in enumerate(runs):
            degree[rows[number], column] = 1.0
        reason = np.full(degree.shape, NO_REASON, np.int64)
        return blank.with_(
            degree=degree, reason=reason, dim=slices.dim, sizes=tuple(size for _, size in runs), free=True
        )

    def record(self, node: fx.Node, op: Operation, states: list[State], result: Any) -> None:
        """Nothing breaks here."""


def _answer(traced: Traced, walk: _FormWalk) -> Symmetries:
    count = sum(map(len, walk.rows.values()))
    equations = [(equation, why) for form, why in walk.asked.forms.items() for equation in _equations(form)]
    basis = null_space([equation for equation, _ in equations], count)
    names, places = _merge_slices(walk, basis)
    merged = [_renumber(vector, places) for vector in basis]
    asked = {}
    for equation, why in equations:
        merged_equation: Vector = {}
        for row, value in equation.items():
            merged_equation[places[row]] = merged_equation.get(places[row], Fraction(0)) + value
        asked[tuple(sorted((row, value) for row, value in merged_equation.items() if value))] = why
    asked.pop((), None)
    parts = _parts(walk, names, places)
    untouched = {place for place, name in enumerate(names) if _base(name) not in walk.reached}
    groups = groups_of_ones([dict(form) for form in asked], len(names), merged)
    return Symmetries(
        model=traced.name,
        names=tuple(names),
        basis=tuple({names[place]: power for place, power in vector.items()} for vector in merged),
        groups=tuple(frozenset(names[place] for place in group) for group in groups),
        without_effect=tuple(names[place] for place in sorted(untouched)),
        aliases=traced.aliases,
        assumptions=tuple(dict.fromkeys((*traced.notes, *_list_assumptions(walk.asked)))),
        incomplete=tuple(walk.asked.opaque),
        parts=parts,
        asked=asked,
    )


def _equations(form: Form) -> list[Vector]:
    """What a form asks for; where its powers are no simple fractions, that each of its unknowns is 0."""
    powers = {row: rational(value) for row, value in form}
    if None in powers.values():
        return [{row: Fraction(1)} for row in powers]
    return [{row: power for row, power in powers.items() if power is not None}]


def _list_assumptions(book: Constraints) -> list[str]:
    values: dict[float, int] = {}
    for _, _, eps in book.eps:
        values[eps] = values.get(eps, 0) + 1
    return [f"the small constant {eps:g} counts as 0 (in {n} operations)." for eps, n in values.items()] + book.notes


def _base(name: str) -> str:
    return name.partition("[")[0]


def _merge_slices(walk: _FormWalk, basis: Sequence[Vector]) -> tuple[list[str], list[int]]:
    """Names of the unknowns with slices of equal powers made one, and the place of each row among them."""
    columns: list[list[tuple[int, Fraction]]] = [[] for _ in range(sum(map(len, walk.rows.values())))]
    for number, vector in enumerate(basis):
        for row, power in vector.items():
            columns[row].append((number, power))
    names: list[str] = []
    places: list[int] = []
    for name in walk.names:
        rows = walk.rows[name]
        alike: dict[tuple[tuple[int, Fraction], ...], list[int]] = {}
        for row in rows:
            alike.setdefault(tuple(columns[row]), []).append(row)
        if len(alike) == 1:
            places += [len(names)] * len(rows)
            names.append(name)
            continue
        labels = walk.slices[name].names(name)
        place_of = {row: len(names) + k for k, group in enumerate(alike.values()) for row in group}
        places += [place_of[row] for row in rows]
        names += [f"{name}[{','.join(labels[row - rows.start] for row in group)}]" for group in alike.values()]
    return names, places


def _parts(walk: _FormWalk, names: Sequence[str], places: Sequence[int]) -> dict[str, Part]:
    parts = {}
    for parameter in walk.names:
        rows = walk.rows[parameter]
        if names[places[rows.start]] == parameter:
            parts[parameter] = Part(parameter)
            continue
        slices = walk.slices[parameter]
        for place in dict.fromkeys(places[row] for row in rows):
            mine = [slices_row for slices_row in range(len(rows)) if places[rows[slices_row]] == place]
            channels = tuple(channel for channel, number in enumerate(slices.of_channel) if number in mine)
            parts[names[place]] = Part(parameter, slices.dim, channels)
    return parts


def _renumber(vector: Vector, places: Sequence[int]) -> Vector:
    return {places[row]: power for row, power in vector.items()}


@dataclass(frozen=True)
class Symmetries:
    """The scalings that change nothing: w_p → c^(a_p) w_p for every a in the span of `basis`.

    `basis` has whole powers, vectors of few weights first. `groups` are disjoint sets of weights that, scaled together
    by one factor, change nothing, each without a part that does. Where a weight could stand in for another (the
    value projection for the output projection), the later one is in the group. `incomplete` names operations that no
    rule knows: symmetries that pass through them are missing; every one that is listed holds.
    """

    model: str
    names: tuple[str, ...]
    basis: tuple[Mapping[str, Fraction], ...]
    groups: tuple[frozenset[str], ...]
    without_effect: tuple[str, ...] = ()
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    assumptions: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    verification: str = "not verified numerically"
    #: what each name stands for
    parts: Mapping[str, Part] = field(default_factory=dict, repr=False)
    #: what the graph asks of the powers: (place in `names`, coefficient) → where
    asked: Mapping[tuple[tuple[int, Fraction], ...], str] = field(default_factory=dict, repr=False)

    @property
    def alone(self) -> tuple[str, ...]:
        """The weights that are scale-invariant by themselves."""
        return tuple(next(iter(vector)) for vector in self.basis if len(vector) == 1)

    @property
    def is_invariant(self) -> bool:
        """Whether scaling all trainable weights together changes nothing."""
        return self.allows(dict.fromkeys(self.names, 1))

    @property
    def holds(self) -> bool:
        """False where measuring contradicted the answer: a bug in a rule."""
        return not self.verification.startswith("DISAGREEMENT")

    def allows(self, powers: Mapping[str, float | Fraction]) -> bool:
        """Whether scaling each weight by c to its power changes nothing; weights that are not named stay.

        A weight with slices takes one power for all of them, or `name[q]` for one.
        """
        return self._find_violated(self._read(powers)) is None

    def explain(self, powers: Mapping[str, float | Fraction] | str) -> str:
        """Why these powers (or a weight scaled alone) change the output, or that they do not."""
        given = {powers: 1} if isinstance(powers, str) else powers
        vector = self._read(given)
        violated = self._find_violated(vector)
        who = powers_text({name: _exact(name, power) for name, power in given.items()})
        if violated is None:
            return f"{who}: the output stays as it is."
        form, total = violated
        parts = " + ".join(f"{factor_text(value)}{self.names[place]}" for place, value in form)
        return f"{who}: {self.asked[form]}, which asks for {parts} = 0; here it is {total}.".replace("+ -", "− ")

    def _find_violated(self, vector: Vector) -> tuple[tuple[tuple[int, Fraction], ...], Fraction] | None:
        for form in self.asked:
            total = sum((value * vector.get(place, Fraction(0)) for place, value in form), Fraction(0))
            if total:
                return form, total
        return None

    def _read(self, powers: Mapping[str, float | Fraction]) -> Vector:
        if not isinstance(powers, Mapping):
            raise ArgumentError("powers", "a mapping of weights to powers", powers, "for example {'head.weight': 1}")
        vector: Vector = {}
        for given, power in powers.items():
            first = next((name for name, others in self.aliases.items() if given in others), given)
            places = self._places.get(first)
            if places is None:
                close = difflib.get_close_matches(str(given), list(self._places), n=3)
                cure = f"did you mean {' or '.join(close)}" if close else "see the names in .names"
                raise ArgumentError("powers", "trainable weights of the model, or slices of them", given, cure)
            for place in places:
                vector[place] = _exact(given, power)
        return vector

    @cached_property
    def _places(self) -> dict[str, tuple[int, ...]]:
        places: dict[str, tuple[int, ...]] = {}
        for place, name in enumerate(self.names):
            places[name] = (place,)
            if _base(name) != name:
                places[_base(name)] = (*places.get(_base(name), ()), place)
        return places

    def __str__(self) -> str:
        lines = [f"{self.model}: {len(self.basis)} independent scalings of {len(self.names)} weights change nothing."]
        rows = find_repeats(self.basis)
        lines += [f"  {f'{count} ×' if count > 1 else '':>6}  {text}" for text, count in rows]
        if self.groups:
            lines.append("Scaled together by one factor, these change nothing:")
            lines += [
                f"  {f'{count} ×' if count > 1 else '':>6}  {text}" for text, count in repeated_groups(self.groups)
            ]
        if self.without_effect:
            lines.append(f"without effect: {', '.join(self.without_effect)}")
        lines += [f"assuming: {sentence}" for sentence in self.assumptions]
        lines += [f"incomplete: {sentence}." for sentence in self.incomplete]
        lines.append(self.verification)
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The whole answer in plain types, for JSON."""
        return {
            "model": self.model,
            "weights": list(self.names),
            "basis": [{name: str(power) for name, power in vector.items()} for vector in self.basis],
            "groups": [sorted(group) for group in self.groups],
            "alone": list(self.alone),
            "is_invariant": self.is_invariant,
            "without_effect": list(self.without_effect),
            "assumptions": list(self.assumptions),
            "incomplete": list(self.incomplete),
            "verification": self.verification,
        }


def _exact(name: str, power: float | Fraction) -> Fraction:
    """The power that a user gave: a third as a float is a third."""
    if isinstance(power, Fraction):
        return power
    number = check_number(f"powers[{name!r}]", power, cure="give a number, such as 1 or -2")
    return rational(number) or Fraction(number)
