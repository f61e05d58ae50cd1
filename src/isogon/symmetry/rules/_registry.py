"""The registry: one small function per operation, found by the operation's name.

A rule receives the operation being judged and its arguments as the aten schema names them, with every tensor replaced
by its `State`, and returns the state of the result (a list of states where the operation returns several tensors):

    @register_rule("mylib.squared_relu")
    def squared_relu(op, x):
        return op.power(x, 2)

`op` offers the algebra: `add`, `multiply`, `divide`, `power`, `keep` (positively homogeneous functions such as ReLU),
`require_zero` (functions such as the sigmoid, which are homogeneous only on degree 0), `normalise` and `reduce`. A name
without overload ("aten.add") serves every overload; a full name ("aten.add.Tensor") goes first. In-place forms use the
rule of the plain form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from isogon.errors import ArgumentError

Rule = Callable[..., Any]
AnyRule = TypeVar("AnyRule", bound=Rule)


def aten(names: str) -> list[str]:
    """Operations of PyTorch by their bare names.

    >>> aten("relu abs")
    ['aten.relu', 'aten.abs']
    """
    return [f"aten.{name}" for name in names.split()]


_RULES: dict[str, Rule] = {}


def register_rule(*names: str) -> Callable[[AnyRule], AnyRule]:
    """Make the decorated function the rule for the operations `names`; a later rule replaces an earlier one.

    >>> @register_rule("mylib.cube")
    ... def cube(op, x):
    ...     return op.power(x, 3)
    >>> find_rule("mylib.cube.default") is cube
    True
    """
    for name in names:
        if not isinstance(name, str) or name.count(".") not in (1, 2) or not all(name.split(".")):
            raise ArgumentError(
                "name", "an operation such as aten.relu or aten.add.Tensor", name, "write namespace.operation"
            )
    if not names:
        raise ArgumentError("names", "at least one operation", names, 'write @register_rule("aten.relu")')

    def keep(rule: AnyRule) -> AnyRule:
        for name in names:
            _RULES[name] = rule
        return rule

    return keep


def find_rule(name: str) -> Rule | None:
    """The rule for `namespace.operation.overload`: by the full name, without overload, then without trailing "_"."""
    packet = name.rsplit(".", 1)[0] if name.count(".") == 2 else name
    for candidate in (name, packet, packet.removesuffix("_")):
        if candidate in _RULES:
            return _RULES[candidate]
    return None


def remove_rule(name: str) -> None:
    """Forget a rule that `register_rule` added."""
    _RULES.pop(name, None)
