"""The mathematics of the four papers in floats and numpy; nothing here needs torch."""

from __future__ import annotations

from isogon.theory import diffusion, equilibrium, horizon, maps, motion, optimizers
from isogon.theory.diffusion import inverse_square_rate
from isogon.theory.equilibrium import (
    approach_rate,
    equilibrium_norm,
    norm_power,
    rescale_factor,
    steps_still_to_wait,
    steps_to_equilibrium,
)
from isogon.theory.maps import cone_escape_steps, logistic_cone, sgd_norm_map, sgdm_norm_map
from isogon.theory.motion import Motion, law, tuning_rate
from isogon.theory.optimizers import (
    COUPLED,
    OPTIMIZERS,
    RULES,
    Floats,
    UpdateRule,
    check_beta2,
    check_optimizer,
    rule_of,
)

__all__ = [
    "COUPLED",
    "OPTIMIZERS",
    "RULES",
    "Floats",
    "Motion",
    "UpdateRule",
    "approach_rate",
    "check_beta2",
    "check_optimizer",
    "cone_escape_steps",
    "diffusion",
    "equilibrium",
    "equilibrium_norm",
    "horizon",
    "inverse_square_rate",
    "law",
    "logistic_cone",
    "maps",
    "motion",
    "norm_power",
    "optimizers",
    "rescale_factor",
    "rule_of",
    "sgd_norm_map",
    "sgdm_norm_map",
    "steps_still_to_wait",
    "steps_to_equilibrium",
    "tuning_rate",
]
