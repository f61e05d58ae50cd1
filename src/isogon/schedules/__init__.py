"""Schedules: learning rate and weight decay as functions of the step, with no hidden counter."""

from isogon.schedules.curves import (
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
from isogon.schedules.exponential import (
    Exponential,
    adamw_form,
    closeness_bound,
    exp_lr,
    ordinary_form,
    sgdw_form,
    texp,
    texp_minus,
    texp_plus,
)

__all__ = [
    "Exponential",
    "Schedule",
    "adamw_form",
    "balanced",
    "closeness_bound",
    "constant",
    "cosine",
    "exp_lr",
    "from_label",
    "join",
    "linear",
    "ordinary_form",
    "phases",
    "sgdw_form",
    "step_decay",
    "texp",
    "texp_minus",
    "texp_plus",
    "warmup",
]
