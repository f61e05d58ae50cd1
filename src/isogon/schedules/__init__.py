"""Schedules: learning rate and weight decay as functions of the step, with no hidden counter."""

from __future__ import annotations

from isogon.schedules._curves import (
    Balanced,
    Floats,
    Schedule,
    balanced,
    constant,
    cosine,
    from_label,
    join,
    linear,
    phases,
    step_decay,
    warmup,
)
from isogon.schedules._exponential import (
    AdamwForm,
    Exponential,
    SgdwForm,
    Texp,
    TexpPlus,
    adamw_form,
    closeness_bound,
    exp_lr,
    ordinary_form,
    sgdw_form,
    texp,
    texp_minus,
    texp_plus,
)
from isogon.schedules._names import from_name, phases_name

__all__ = [
    "AdamwForm",
    "Balanced",
    "Exponential",
    "Floats",
    "Schedule",
    "SgdwForm",
    "Texp",
    "TexpPlus",
    "adamw_form",
    "balanced",
    "closeness_bound",
    "constant",
    "cosine",
    "exp_lr",
    "from_label",
    "from_name",
    "join",
    "linear",
    "ordinary_form",
    "phases",
    "phases_name",
    "sgdw_form",
    "step_decay",
    "texp",
    "texp_minus",
    "texp_plus",
    "warmup",
]
