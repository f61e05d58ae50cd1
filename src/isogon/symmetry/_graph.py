"""Questions about an exported graph that need no degrees: what shares memory, and what a result is used for."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VIEWS = names(
    "view reshape expand expand_as unsqueeze squeeze to _to_copy contiguous clone flatten unflatten transpose "
    "permute t type_as float double detach broadcast_to view_as slice select alias"
)
_SURE_VIEWS = names("select slice view unsqueeze squeeze transpose permute t mT alias")
_BEFORE_SOFTMAX = _VIEWS | names("add sub masked_fill where mul div dropout")
_SOFTMAX = names("softmax _softmax log_softmax _log_softmax scaled_dot_product_attention cross_entropy_loss")
# These return their input itself when there is nothing to do, which their schema does not say.
_MAY_RETURN_INPUT = names(
    "atleast_1d atleast_2d atleast_3d type_as dropout feature_dropout alpha_dropout feature_alpha_dropout"
)
_WEIGHTED = names(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution addmm matmul"
)


def short_name(node: fx.Node) -> str:
    """`add` for aten.add_.Tensor."""
    parts = str(node.target).split(".")
    return parts[1].removesuffix("_") if len(parts) > 1 else parts[0]


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def written_argument(node: fx.Node) -> fx.Node | None:
    """The argument that an in-place operation, or one with out=, writes into."""
    schema = getattr(node.target, "_schema", None)
    for i, argument in enumerate(schema.arguments if schema is not None else ()):
        if _is_write(argument):
            return _as_node(node.args[i] if i < len(node.args) else node.kwargs.get(argument.name))
    return None


def viewed_argument(node: fx.Node) -> fx.Node | None:
    """The argument whose memory the result may share."""
    if node.target is operator.getitem:
        pack, place = node.args
        assert isinstance(pack, fx.Node)
        if short_name(pack) == "meshgrid" and isinstance(pack.args[0], list | tuple) and isinstance(place, int):
            return _as_node(pack.args[0][place])
        # Results beside each other, such as values and indices, are tensors of their own.
        separate = hasattr(pack.target, "_schema") and viewed_argument(pack) is None and written_argument(pack) is None
        return None if separate else pack
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return None
    if short_name(node) == "einsum":  # of one tensor it may be a transpose or a diagonal
        operands = node.args[1]
        return _as_node(operands[0]) if isinstance(operands, list | tuple) and len(operands) == 1 else None
    shares = short_name(node) in _MAY_RETURN_INPUT
    for i, argument in enumerate(schema.arguments[: len(node.args)]):
        if shares or (argument.alias_info is not None and not _is_write(argument)):
            return _as_node(node.args[i])
    return None


def _as_node(argument: Any) -> fx.Node | None:
    return argument if isinstance(argument, fx.Node) else None


def is_part_of(node: fx.Node, whole: fx.Node) -> bool:
    """Whether the tensor is certainly a view of some elements of `whole`."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.numel():
        return False
    while node is not whole:
        if short_name(node) not in _SURE_VIEWS or len(node.all_input_nodes) != 1:
            return False
        node = node.all_input_nodes[0]
    return True


def view_of(node: fx.Node, whole: fx.Node, tensor: torch.Tensor) -> torch.Tensor:
    """The view of `tensor` that `node`, a part of `whole`, is of it."""
    if node is whole:
        return tensor
    source = node.all_input_nodes[0]
    target: Any = node.target
    return target(view_of(source, whole, tensor), *node.args[1:], **node.kwargs)  # type: ignore[no-any-return]


def is_written(node: fx.Node) -> bool:
    """Whether some operation may write into this tensor or a view of it, so that its present values say nothing."""
    seen: set[fx.Node] = set()
    queue = [node]
    while queue:
        current = queue.pop()
        for user in current.users:
            if user.op != "call_function" or user in seen:
                continue
            if written_argument(user) is current or is_region(user):
                return True
            if viewed_argument(user) is current:
                seen.add(user)
                queue.append(user)
    return False


def module_of(node: fx.Node) -> tuple[str, str]:
    """Path and type of the innermost module that ran the node; a module called twice is still one."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    return re.sub(r"@\d+", "", path), kind if isinstance(kind, str) else kind.__name__


def feeders(node: fx.Node) -> tuple[str, ...]:
    """For each operand the module of the nearest linear layer or convolution before it."""
    modules = []
    for operand in node.all_input_nodes:
        while short_name(operand) not in _WEIGHTED and operand.all_input_nodes:
            operand = operand.all_input_nodes[0]
        if operand.op == "call_function":
            modules.append(module_of(operand)[0])
    return tuple(modules)


def is_region(node: fx.Node) -> bool:
    """Whether the node runs a graph of its own (for example a no_grad or autocast block)."""
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def ancestors(node: fx.Node) -> set[fx.Node]:
    """Every node that the value of `node` may depend on, also through memory written in place and through views."""
    views: dict[fx.Node, list[fx.Node]] = {}
    for other in node.graph.nodes:
        viewed = viewed_argument(other)
        if viewed is not None:
            views.setdefault(viewed, []).append(other)
    seen, queue = {node}, [node]
    while queue:
        current = queue.pop()
        writers = [user for user in current.users if written_argument(user) is current or is_region(user)]
        for before in [*current.all_input_nodes, *writers, *views.get(current, ())]:
            if before not in seen:
                seen.add(before)
                queue.append(before)
    return seen


def _all_uses(
    node: fx.Node, passing: frozenset[str], arrives: Callable[[fx.Node, fx.Node], bool], depth: int = 12
) -> bool:
    """Whether every use of `node`, seen through the operations `passing`, is one that `arrives`."""
    users = [user for user in node.users if _reads(user, node)]
    source = written_argument(node) or node
    if source is not node:  # in place: who reads the tensor later sees the result, and so would views of it
        others = [user for user in source.users if user is not node]
        before = [user for user in others if user < node]
        if viewed_argument(source) is not None or any(viewed_argument(u) is source or is_region(u) for u in before):
            return False
        users += [user for user in others if user > node]
    if not users or depth == 0:
        return False
    return all(
        arrives(user, source if source in user.all_input_nodes else node)
        or (user.op == "call_function" and short_name(user) in passing and _all_uses(user, passing, arrives, depth - 1))
        for user in users
    )


def _reads(user: fx.Node, node: fx.Node) -> bool:
    """Whether `user` looks at the values of `node`, not at its type alone."""
    name = short_name(user)
    return not name.startswith("_assert") and not (name == "type_as" and user.args[0] is not node)


def _divides(user: fx.Node, node: fx.Node) -> bool:
    name, args = short_name(user), user.args
    if name in ("sqrt", "rsqrt", "reciprocal"):
        return True
    if name == "pow":
        exponent = args[1] if args[0] is node and len(args) > 1 else None
        return isinstance(exponent, int | float) and (exponent < 0 or exponent == 0.5)
    return name in ("div", "true_divide", "divide") and len(args) > 1 and args[1] is node and args[0] is not node


def goes_into_division(node: fx.Node) -> bool:
    """Whether the result is used only under a root, in a denominator or in a negative power."""
    return _all_uses(node, _VIEWS, _divides)


def goes_into_softmax(node: fx.Node) -> bool:
    """Whether the result is used only as scores, or as the mask of scores."""
    return _all_uses(node, _BEFORE_SOFTMAX, lambda user, _: short_name(user) in _SOFTMAX)


def runner(node: fx.Node) -> Callable[[Any], Any]:
    """The operation as a function of its first argument, for operations whose other arguments are plain values."""
    target: Any = node.target
    return lambda tensor: target(tensor, *node.args[1:], **node.kwargs)
