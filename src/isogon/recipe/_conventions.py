"""What people mean by weight decay λ: four conventions, translated through x = the share lost per step.

| convention    | one step of decay                   | x      | who                                             |
|---------------|-------------------------------------|--------|-------------------------------------------------|
| `coupled`     | g + λw into the momentum buffer     | ηλ     | torch's SGD                                     |
| `decoupled`   | w ← (1 − ηλ) w                      | ηλ     | torch's AdamW and Muon, Lion                    |
| `independent` | w ← (1 − λ η_t/η_max) w             | λ      | Loshchilov and Hutter's AdamW as first written  |
| `cautious`    | as decoupled, only where update and weight agree in sign | ηλ/2 | cautious weight decay       |

Cautious decay is approximate: simulated with noise alone, step angles are 0.69 to 0.70 of the law's at ηλ, which is the
law at ηλ/2 (0.71).
"""

from __future__ import annotations

from isogon.errors import ArgumentError, check_choice
from isogon.theory import rule_of

CONVENTIONS = ("coupled", "decoupled", "independent", "cautious")


def native_convention(optimizer: str) -> str:
    """What torch does under this name."""
    return "coupled" if rule_of(optimizer).coupled else "decoupled"


def check_convention(optimizer: str, convention: str | None) -> str | None:
    """`convention`, None where it is what torch does under this name; the reason where it has no law."""
    if convention is None:
        return None
    convention = check_choice("convention", str(convention).lower(), CONVENTIONS)
    native = native_convention(optimizer)
    if convention == native:
        return None
    reason = None
    if native == "coupled":
        reason = (
            f"torch's {optimizer} passes the decay through its momentum buffer, and no other form of it is known here"
        )
    elif convention == "coupled":
        reason = f"{optimizer} would divide an L2 term by the gradient's own size, so that no universal angle exists"
    if reason is not None:
        rule = native if native == "coupled" else "decoupled, independent or cautious"
        raise ArgumentError("convention", f"{rule} for {optimizer}", convention, reason)
    return convention


def intrinsic_lr(convention: str | None, lr: float, weight_decay: float) -> float:
    """x, the share of a weight that one step's decay takes at the peak of the schedule.

    >>> intrinsic_lr(None, 0.5, 0.25), intrinsic_lr("independent", 0.5, 0.25), intrinsic_lr("cautious", 0.5, 0.25)
    (0.125, 0.25, 0.0625)
    """
    if convention == "independent":
        return weight_decay
    return lr * weight_decay * (0.5 if convention == "cautious" else 1.0)


def weight_decay_of(convention: str | None, lr: float, intrinsic: float) -> float:
    """The λ that takes the share `intrinsic` per step: the inverse of `intrinsic_lr`.

    >>> weight_decay_of("cautious", 0.5, 0.0625)
    0.25
    """
    if convention == "independent":
        return intrinsic
    return intrinsic / lr * (2.0 if convention == "cautious" else 1.0)
