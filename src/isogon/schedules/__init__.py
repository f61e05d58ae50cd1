"""Schedules: learning rate and weight decay as functions of the step, with no hidden counter."""

from isogon.schedules.curves import (
    Schedule,
    constant,
    cosine,
    join,
    linear,
    phases,
    step_decay,
    warmup,
)

__all__ = ["Schedule", "constant", "cosine", "join", "linear", "phases", "step_decay", "warmup"]
