"""How far a tuning factor that was best once is from the best one later: exponents and what they rest on.

With D samples per epoch, P parameters and everything else kept, the best tuning factor moves as

    F' = F · ((D'/P')/(D/P))^m                                                           (26)

Several epochs: m = 0, the rule of Yun et al. One epoch: m is not settled. It is 0.5 where weight decay was tuned (Power
Lines, arXiv 2505.13738), 1 by default where it was never varied, near 0 in a tiny model; so m = 0.5, between 0 and 1.
"""

from __future__ import annotations

from isogon.errors import check_number

#: m of (26) in one epoch, and the least and largest that anybody found
ONE_EPOCH, LEAST, LARGEST = 0.5, 0.0, 1.0
#: tokens of the least and the longest run that `critical_batch` is fitted to
FITTED_TOKENS = (4e9, 1e11)


def factor_ratio(data: float, params: float = 1.0, exponent: float = ONE_EPOCH) -> float:
    """F'/F when the data grow by `data` and the model's parameters by `params`, in one epoch.

    >>> factor_ratio(4.0), factor_ratio(10.0, params=10.0), factor_ratio(4.0, exponent=0)
    (2.0, 1.0, 1.0)
    """
    check_number("data", data, low=0, low_open=True, cure="give new samples over old ones")
    check_number("params", params, low=0, low_open=True, cure="give new parameters over old ones")
    return float((data / params) ** exponent)


def critical_batch(tokens: float) -> float:
    """Tokens per batch up to which nearly nothing is lost, in one epoch of `tokens` of a language model under AdamW.

    The largest batch whose best loss over learning rates lies within 0.01 nats of the best batch's: 2.2 D^0.54, fitted
    to 17 sweeps of StepLaw (0.2 to 1.1 G parameters, 4 to 100 G tokens, λ = 0.1 throughout; `benchmarks/rules.py`).

    >>> round(critical_batch(10e9), -5)
    500000.0
    """
    check_number("tokens", tokens, low=0, low_open=True, cure="count the training tokens")
    batch: float = 2.16 * tokens**0.537
    return batch
