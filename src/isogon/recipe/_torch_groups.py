"""The one reader of torch's optimizers and parameter groups; by names, so that torch need not be imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isogon.errors import ArgumentError, check_whole
from isogon.theory import RULES, check_optimizer


@dataclass(frozen=True)
class GroupSettings:
    """One parameter group's settings; `optimizer` is a name of `theory.RULES`, or None where no law is known.

    `lr` is as the group has it: a number, or a tensor on some device. `convention` is None where weight decay means
    what it does in torch.
    """

    optimizer: str | None
    lr: Any
    weight_decay: float
    momentum: float
    beta2: float | None
    dampening: float
    maximize: bool
    convention: str | None = None


#: flags with which optimizers outside torch say what their weight decay means
_CONVENTION_FLAGS = {
    "cautious_weight_decay": "cautious",
    "cautious_wd": "cautious",
    "cautious_decay": "cautious",
    "fixed_decay": "independent",
}
#: the same, where it is an attribute of the optimizer: lion-pytorch divides weight decay by the first learning rate
_CONVENTION_ATTRIBUTES = {"decoupled_wd": "independent"}


def main_part(optimizer: Any) -> Any:
    """The optimizer that a recipe is about: the first of the `parts` of one made of others, as `MuonWithAdamW` is."""
    return getattr(optimizer, "parts", (optimizer,))[0]


def _class_names(optimizer: Any) -> list[str]:
    """The names of its class and of those above, lower case, without what only says how states are kept."""
    names = [base.__name__.lower() for base in type(optimizer).__mro__]
    return [re.sub("^(paged|fused|singledevice)|(8bit|4bit|32bit|fp8|withauxadam)$", "", name) for name in names]


def kind_of_optimizer(optimizer: Any) -> str:
    """isogon's name for an optimizer object, by the names of its classes; a group's flags may refine it (Nesterov)."""
    for name in _class_names(optimizer):
        if name == "adam" and optimizer.param_groups[0].get("decoupled_weight_decay"):
            return "adamw"
        if name == "adam":
            return check_optimizer("adam")
        for rule in RULES.values():
            if name in rule.classes:
                return rule.name
    known = ", ".join(sorted({name for rule in RULES.values() for name in rule.classes}))
    raise ArgumentError("optimizer", f"one of {known}", type(optimizer).__name__, "write the Recipe by hand")


def read_group(kind: str | None, group: Mapping[str, Any]) -> GroupSettings:
    """The settings of a group of an optimizer of this `kind`, as `kind_of_optimizer` names it.

    >>> read_group("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": True}).optimizer
    'nesterov'
    """
    betas = group.get("betas", (group.get("momentum", 0.0), None))
    if kind is not None:
        same = [rule for rule in RULES.values() if rule.classes == RULES[kind].classes]
        kind = next((rule.name for rule in same if _has_flags(group, rule.flags)), kind)
    has_beta2 = kind is not None and RULES[kind].beta2 is not None and len(betas) > 1 and betas[1] is not None
    return GroupSettings(
        optimizer=kind,
        lr=group.get("lr", float("nan")),
        weight_decay=float(group.get("weight_decay", 0.0)),
        momentum=float(betas[0]),
        beta2=float(betas[1]) if has_beta2 else None,
        dampening=float(group.get("dampening", 0.0)),
        maximize=bool(group.get("maximize", False)),
        convention=next((name for flag, name in _CONVENTION_FLAGS.items() if group.get(flag)), None),
    )


def convention_of(optimizer: Any) -> str | None:
    """What an attribute of the optimizer says of its weight decay; None where none does."""
    return next((name for flag, name in _CONVENTION_ATTRIBUTES.items() if getattr(optimizer, flag, False)), None)


def _has_flags(group: Mapping[str, Any], flags: Mapping[str, Any]) -> bool:
    return all(bool(group.get(name, False)) == value for name, value in flags.items())


def _starting_rates(settings: dict[str, Any]) -> dict[str, Any]:
    """A group's settings with the rates that a scheduler started from, or will rise to."""
    start = {
        **settings,
        "lr": settings.get("max_lr", settings.get("initial_lr", settings.get("lr"))),
        "weight_decay": settings.get("initial_weight_decay", settings.get("weight_decay", 0.0)),
    }
    if "max_lr" in settings and "base_momentum" in settings:  # OneCycleLR: the momentum that goes with the peak
        start |= {"momentum": settings["base_momentum"]}
        start |= {"betas": (settings["base_momentum"], *settings["betas"][1:])} if "betas" in settings else {}
    return start


def describe_excluded(groups: list[dict[str, Any]]) -> list[str]:
    """A sentence where some groups have weight decay and some have none."""
    counts = {True: 0, False: 0}
    for group in groups:
        has_decay = float(group.get("initial_weight_decay", group.get("weight_decay", 0.0))) > 0
        counts[has_decay] += sum(p.numel() for p in group.get("params", ()) if hasattr(p, "numel"))
    if not all(counts.values()):
        return []
    return [
        f"{counts[False]:,} of {sum(counts.values()):,} weights are in groups without weight decay: the recipe is "
        "about the others, and these have no equilibrium."
    ]


def starting_group(groups: list[dict[str, Any]], group: int | None) -> dict[str, Any]:
    """The group that a recipe is about, with the rates it started from: `group`, or what all decayed ones agree on."""
    groups = [_starting_rates(settings) for settings in groups]
    if group is not None:
        last = len(groups) - 1
        return groups[check_whole("group", group, low=0, high=last, cure=f"count the groups from 0 to {last}")]
    # Of Muon with an AdamW inside, as its author publishes it, the recipe is about Muon's groups.
    groups = [settings for settings in groups if settings.get("use_muon", True)] or groups
    decayed = [settings for settings in groups if float(settings.get("weight_decay", 0.0)) > 0] or groups
    keys = ("lr", "weight_decay", "momentum", "betas", "nesterov", "dampening", *_CONVENTION_FLAGS)
    for key in keys:
        values = [settings.get(key) for settings in decayed]
        if any(value != values[0] for value in values):
            raise ArgumentError(
                "optimizer",
                f"alike in {key} across the groups with weight decay",
                values,
                "name one with group=",
            )
    return decayed[0]
