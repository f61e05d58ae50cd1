"""`check`: export a model, carry degrees through its graph once, and put the answers into words.

A degree that is a number is proven (for ε → 0 where `assumptions` says so). "Not homogeneous" says that the operations
as they stand do not make it so for weights in general; it does not see every cancellation between different
operations: the mean of a centred tensor, an exponential undone by a logarithm, a bias whose elements happen to be equal
within a group, a ReLU behind which only one side of a PReLU is left. `check(..., verify=True)` finds these.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from isogon.errors import ArgumentError, check_number
from isogon.symmetry import _state as st
from isogon.symmetry._degree import ANY, NOT_HOMOGENEOUS, TOLERANCE, UNKNOWN, Degree
from isogon.symmetry._graph import feeders
from isogon.symmetry._interpret import Output, Walk
from isogon.symmetry._probe import INCONCLUSIVE, INVARIANT, NOT_INVARIANT, DisagreementWarning, Measurement, measure
from isogon.symmetry._reasons import LARGEST_EPS
from isogon.symmetry._scale_map import JOINT, Break, Disagreement, ScaleMap
from isogon.symmetry._trace import Traced, trace


def check(
    model: nn.Module,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    verify: bool = False,
    largest_eps: float = LARGEST_EPS,
) -> ScaleMap:
    """Which parameters of `model` are scale-invariant, judged in the mode (train or eval) it is in.

    `inputs` and `kwargs` are an example of what the model is called with. `verify` measures every answer numerically as
    well and warns where the two disagree. Constants up to `largest_eps` that are added before a root or a division
    count as 0, which `assumptions` lists. The model is not changed.
    """
    traced = trace(model, inputs, kwargs or {})
    walk = Walk(names=tuple(traced.trainable), tensors=traced.tensors, first_names=traced.first_names)
    walk.book.largest_eps = check_number("largest_eps", largest_eps, low=0, cure="give 1e-3, for example")
    outputs = walk.run(traced.program, traced.inputs, traced.kwargs)
    if not outputs:
        raise ArgumentError(
            "model", "a module that returns a floating-point tensor", traced.name, "return logits or a loss"
        )
    answers = _Answers(walk, outputs)
    rows = {JOINT: 0, **{name: row + 1 for row, name in enumerate(walk.names)}}
    degrees = {name: answers.degree(row) for name, row in rows.items()}
    scale_map = ScaleMap(
        model=traced.name,
        joint=degrees.pop(JOINT),
        alone=degrees,
        explanations={name: answers.explain(name, row) for name, row in rows.items()},
        shapes={name: tuple(parameter.shape) for name, parameter in traced.trainable.items()},
        aliases=traced.aliases,
        assumptions=(*traced.notes, *answers.assumptions()),
        breaks=answers.breaks(),
        statistics=answers.statistics(rows),
    )
    return _verify(scale_map, traced, largest_eps) if verify else scale_map


class _Answers:
    """The states of the outputs turned into degrees and sentences."""

    def __init__(self, walk: Walk, outputs: list[Output]) -> None:
        self.walk, self.book = walk, walk.book
        self.outputs = [
            Output(out.op, out.op.settle(out.state, "and nothing removes it before the output")) for out in outputs
        ]

    def _reasons(self, row: int) -> list[int]:
        numbers = np.concatenate([out.state.reason[row] for out in self.outputs])
        return sorted({int(n) for n in numbers if n >= 0})

    def _numbers(self, row: int) -> list[float]:
        values = np.concatenate([out.state.degree[row] for out in self.outputs])
        return sorted({round(float(v), 9) + 0.0 for v in values if np.isfinite(v)})

    def _running(self, row: int) -> list[int]:
        """Reasons about running statistics that were applied to something that scales."""
        return [n for n in self.book.running if not self.book.get(n).operands[0].fixed[row]]

    def degree(self, row: int) -> Degree:
        """One degree for all outputs: what certainly differs decides first, then what is unknown."""
        reasons, numbers = self._reasons(row), self._numbers(row)
        certain = [n for n in reasons if n < st.UNKNOWN_BASE]
        if certain:
            return Degree(NOT_HOMOGENEOUS, reason=self.book.get(certain[0]).sentence(row))
        if numbers and numbers[-1] - numbers[0] > TOLERANCE:
            return Degree(NOT_HOMOGENEOUS, reason=f"parts of the output have the degrees {_listed(numbers)}")
        if reasons:
            return Degree(UNKNOWN, reason=self.book.get(reasons[0]).sentence(row))
        return Degree.of(numbers[0]) if numbers else Degree.of(float("inf"))

    def explain(self, name: str, row: int) -> str:
        """Why a source is or is not invariant, with the normalisations that eval mode turns off."""
        sentence, running = self._why(name, row), self._running(row)
        if running and not self.degree(row).is_invariant and "running statistics" not in sentence:
            reason = self.book.get(running[0])
            sentence += f" Besides, {reason.sentence(row)}: {reason.cure}."
        return sentence

    def _why(self, name: str, row: int) -> str:
        degree = self.degree(row)
        who = "all trainable parameters together" if name == JOINT else name
        if degree.kind in (NOT_HOMOGENEOUS, UNKNOWN):
            numbers = self._reasons(row)
            pick = [n for n in numbers if n < st.UNKNOWN_BASE] or numbers
            if not pick or degree.reason.startswith("parts of the output"):
                return f"{_capital(degree.reason)} in {who}. {OUTPUT_CURE}"
            reason = self.book.get(pick[0])
            cure = f" Cure: {reason.cure}." if reason.cure else ""
            word = "is not homogeneous in" if degree.kind == NOT_HOMOGENEOUS else "has an unknown degree in"
            return f"The output {word} {who}: {degree.reason}{_at(reason.module)}.{cure}"
        if degree.kind == ANY:
            return "The output is zero at every scale."
        if not degree.is_invariant:
            return f"The output has degree {degree} in {who}: nothing after it divides the scale out. {OUTPUT_CURE}"
        if name == JOINT:
            return "The output has degree 0 in all trainable parameters together."
        if name not in self.walk.reached:
            return f"{name} does not reach the output, so that it has no effect."
        place = self.walk.absorbed.get(row)
        where = f"its scale ends at {place}" if place else "the output has degree 0 in it"
        return f"{name} is invariant by itself: {where}."

    def breaks(self) -> tuple[Break, ...]:
        """Where the joint question breaks, in the order of the graph."""
        breaks: dict[tuple[str, str], Break] = {}
        nodes = {node.name: node for node in self.walk.live}
        at_outputs = [int(n) for out in self.outputs for n in out.state.reason[0][out.state.reason[0] >= 0]]
        for number in [*self.walk.joint_breaks, *at_outputs, *self._running(0)]:
            r = self.book.get(number)
            if (r.node, r.kind) not in breaks:
                named = tuple(operand.label for operand in r.operands if operand.label)
                before = feeders(nodes[r.node]) if r.node in nodes else ()
                breaks[r.node, r.kind] = Break(r.kind, r.node, r.op, r.module, r.sentence(0), r.cure, named, before)
        for out in self.outputs:
            values = out.state.degree[0]
            varying = sorted({float(v) for v in values[np.isfinite(values)] if abs(v) > TOLERANCE})
            if varying:
                words = f"the output of {out.op.place} has degree {_listed(varying)}"
                breaks[out.op.node, "output"] = Break(
                    "output", out.op.node, out.op.name, out.op.module, words, OUTPUT_CURE
                )
        order = {name: i for i, name in enumerate(self.walk.order)}
        return tuple(sorted(breaks.values(), key=lambda b: order.get(b.node, len(order))))

    def statistics(self, rows: Mapping[str, int]) -> dict[str, dict[str, tuple[float, ...]]]:
        """For each module with running statistics and each source the degree of its input, channel by channel."""
        degrees = {}
        for module, state in self.book.averaged.items():
            on_channels = state.dim == 1 or state.runs == 1
            degree = st.per_channel(state, state.shape[1])[0] if on_channels else state.degree * np.nan
            degrees[module] = {
                name: tuple(degree[row].tolist()) for name, row in rows.items() if (degree[row] != 0).any()
            }
        return degrees

    def assumptions(self) -> tuple[str, ...]:
        groups: dict[tuple[str, float], list[str]] = {}
        for module, op, eps in self.book.eps:
            places = groups.setdefault((op, eps), [])
            if (module or "the model") not in places:
                places.append(module or "the model")
        lines = []
        for (op, eps), places in groups.items():
            more = f" and {len(places) - 3} more" if len(places) > 3 else ""
            lines.append(f"the small constant {eps:g} of {op} counts as 0 (in {', '.join(places[:3])}{more}).")
        return (*lines, *self.book.notes)


OUTPUT_CURE = "Normalise without trainable affine after it and freeze what follows, for example the classifier."


def _listed(numbers: list[float]) -> str:
    return ", ".join(str(Degree.of(n)) for n in numbers)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _at(module: str) -> str:
    return f" (in {module})" if module else ""


def _without_effect(measured: Measurement) -> bool:
    """Whether the parameter changed nothing at all, to the last bit, as behind a dead ReLU."""
    return measured.radial == 0 and measured.deviation == 0


_OTHER_LOOKS: tuple[dict[str, Any], ...] = (
    {"small": False},
    {"noise": 1.0, "seed": 1},
    {"noise": 3.0, "seed": 2, "wide": True},
)


def _verify(scale_map: ScaleMap, traced: Traced, largest_eps: float) -> ScaleMap:
    """The map with what the oracle measured, and a warning for every contradiction."""
    static = {JOINT: scale_map.verdict, **{name: degree.verdict for name, degree in scale_map.alone.items()}}
    ask = partial(measure, traced.model, *traced.inputs, kwargs=traced.kwargs, expected=static, largest_eps=largest_eps)
    corner = any("±1" in sentence for sentence in scale_map.assumptions)
    try:
        measured = ask()
        doubtful = [n for n, m in measured.items() if static[n] == NOT_INVARIANT and m.verdict == INVARIANT]
        doubtful = [] if corner else doubtful
        # Perhaps a small constant matters that is no ε, or the weights sit where every ReLU is linear: look again.
        for again in _OTHER_LOOKS if doubtful else ():
            other = ask(**again, only=doubtful)
            measured.update({name: other[name] for name in doubtful if other[name].verdict != INVARIANT})
        # Or so small are the weights that what stands in for ε matters.
        doubtful = [n for n, m in measured.items() if static[n] == INVARIANT and m.verdict == NOT_INVARIANT]
        other = ask(noise=1.0, seed=1, wide=True, only=doubtful) if doubtful else {}
        measured.update({name: replace(m, verdict=INCONCLUSIVE) for name, m in other.items() if m.verdict == INVARIANT})
    except Exception as error:
        return replace(scale_map, verification=f"could not be verified numerically ({type(error).__name__}: {error})")
    opposite = {INVARIANT: NOT_INVARIANT, NOT_INVARIANT: INVARIANT}
    disagreements = tuple(
        Disagreement(name, static[name], m.verdict, m.radial, m.deviation)
        for name, m in measured.items()
        if m.verdict == opposite.get(static[name]) and not (m.verdict == INVARIANT and (corner or _without_effect(m)))
    )
    if disagreements:
        warnings.warn(
            f"isogon's rules and its measurement disagree on {scale_map.model}; please report it: "
            + "; ".join(map(str, disagreements)),
            DisagreementWarning,
            stacklevel=3,
        )
    return replace(
        scale_map,
        disagreements=disagreements,
        measured={name: m.verdict for name, m in measured.items()},
        verification="verified numerically in double precision",
    )
