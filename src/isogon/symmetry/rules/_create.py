"""Rules for tensors made from nothing, for random ones and for dropout."""

from __future__ import annotations

from typing import Any

from isogon.symmetry import _state as st
from isogon.symmetry._operation import Operation
from isogon.symmetry._state import State
from isogon.symmetry.rules._registry import aten, register_rule


@register_rule(
    *aten(
        "arange linspace eye scalar_tensor rand randn randint randperm rand_like randn_like randint_like "
        "normal_ uniform_ exponential_ random_ tril_indices triu_indices hann_window sym_size sym_numel"
    )
)
def fresh(op: Operation, *given: Any, **named: Any) -> Any:
    """Numbers that no parameter reaches; the random state is taken to be the same at every scale."""
    states = [x for x in (*given, *named.values()) if isinstance(x, State) and not x.fixed.all()]
    if states and not op.short.endswith("_like") and not op.short.startswith("sym_"):
        return op.unknown(*states, why=f"{op.place} is made from numbers that change")
    return op.constant(floating=op.floating)


@register_rule("aten.one_hot", "aten.searchsorted", "aten.bucketize", "aten.histc", "aten.bincount")
def from_values(op: Operation, *tensors: Any, **_: Any) -> State:
    out = op.constant(floating=op.floating)
    for x in tensors:
        if isinstance(x, State):
            out = op.condition(out, x)
    return out


@register_rule("aten.bernoulli", "aten.multinomial", "aten.poisson")
def sample(op: Operation, self: State, *args: Any, **named: Any) -> State:
    """Samples whose probabilities are given by `self`, or by the argument of the in-place form."""
    if op.name.split(".")[1].endswith("_"):
        given = named.get("p", args[0] if args else 0.5)
        return op.constant() if not isinstance(given, State) else op.lift(op.require_zero(given), op.shape)
    if isinstance(args[0] if args else None, float):
        return op.constant()
    fixed = op.require_zero(self)
    if op.short == "multinomial":
        return from_values(op, fixed)
    # Equal probabilities, and yet every element is sampled.
    return fixed.with_(nonneg=True, varies=st.nontrivial(fixed.shape))


@register_rule(*aten("zeros zeros_like new_zeros zero empty empty_like new_empty empty_strided empty_permuted"))
def zeros(op: Operation, *_: Any, **__: Any) -> State:
    """Zeros; memory not yet written counts as zeros, since a sound model writes before it reads."""
    return op.zeros().with_(floating=op.floating)


@register_rule("aten.ones", "aten.ones_like", "aten.new_ones")
def ones(op: Operation, *_: Any, **__: Any) -> State:
    return op.constant(varies=0, value=1.0, nonneg=True, floating=op.floating)


@register_rule("aten.full", "aten.full_like", "aten.new_full")
def full(op: Operation, first: Any, *args: Any, **named: Any) -> State:
    filling = op.state(named.get("fill_value", args[-1] if args else 0.0))
    return op.lift(filling, op.shape).with_(floating=op.floating)


@register_rule(
    "aten.dropout", "aten.feature_dropout", "aten.alpha_dropout", "aten.feature_alpha_dropout", "aten.native_dropout"
)
def dropout(op: Operation, input: State, p: float, train: bool = True) -> Any:
    """Multiplication by a random mask; alpha dropout puts a constant in place of what it drops."""
    if not train or p == 0:
        return input
    if "alpha" in op.short:
        return op.require_zero(input)
    if p == 1:
        return op.zeros()
    mask = 3 if op.short == "feature_dropout" else st.nontrivial(input.shape)
    x = input.plain()
    x = x.extend_shifts(mask).with_(varies=x.varies | mask & st.nontrivial(x.shape))
    return x if op.short != "native_dropout" else [x, op.constant(input.shape)]
