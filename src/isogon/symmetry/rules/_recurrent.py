"""Rules for recurrent networks: gates are sigmoids and tanhs of sums, so that every term needs degree 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isogon.symmetry import _state as st
from isogon.symmetry._operation import Operation
from isogon.symmetry._state import State
from isogon.symmetry.rules._registry import register_rule


def _cells(op: Operation, input: State, hidden: Sequence[State], params: Sequence[State], layout: _Layout) -> State:
    """One degree for everything that comes out: 0 if each cell's terms have it."""
    per_cell = 4 if layout.has_biases else 2
    if len(params) != layout.num_layers * (2 if layout.bidirectional else 1) * per_cell:
        return op.unknown(input, *hidden, *params, why=f"{op.place} projects its state")
    x, out = op.scalar(input), op.constant(())
    for state in hidden:
        out = op.multiply(out, op.require_zero(op.scalar(state), f"the state of {op.place}"))
    cells = [params[start : start + per_cell] for start in range(0, len(params), per_cell)]
    directions = 2 if layout.bidirectional else 1
    for layer in range(layout.num_layers):
        for weight, *others in cells[layer * directions : (layer + 1) * directions]:
            term = op.multiply(x, op.scalar(weight))
            out = op.multiply(out, op.require_zero(term, f"a gate of {op.place}"))
            for other in others:
                out = op.multiply(out, op.require_zero(op.scalar(other), f"a gate of {op.place}"))
        x = out
    return out


class _Layout:
    """The arguments behind the weights."""

    def __init__(self, has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, *_: Any):
        self.has_biases, self.num_layers, self.bidirectional = has_biases, num_layers, bidirectional


def _results(op: Operation, out: State) -> list[State]:
    """One degree for everything; where it is not homogeneous, no two elements need to have a factor in common."""
    results = []
    for shape in op.shapes:
        whole, every = op.lift(out, shape), st.nontrivial(shape)
        results.append(whole.with_(varies=every, ray=np.where(whole.broken, every, 0)))
    return results


@register_rule("aten.lstm.input")
def lstm(op: Operation, input: State, hx: Sequence[State], params: Sequence[State], *rest: Any) -> list[State]:
    return _results(op, _cells(op, input, hx, params, _Layout(*rest)))


@register_rule("aten.gru.input", "aten.rnn_tanh.input")
def gated_unit(op: Operation, input: State, hx: State, params: Sequence[State], *rest: Any) -> list[State]:
    return _results(op, _cells(op, input, [hx], params, _Layout(*rest)))
