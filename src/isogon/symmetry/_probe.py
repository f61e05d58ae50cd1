"""The numerical oracle: scale the weights and look.

Everything happens on a copy of the model in double precision, with its trainable parameters moved off special values (a
bias that starts at zero hides that it matters) and with the ε of normalisations gone. Two measures are taken:

- the radial derivative, d/dc f(c·w) at c = 1, which is ⟨w, ∇f⟩ and vanishes where f has degree 0 in w (Euler). Two
  backward passes of ⟨r, f⟩ with random r judge every parameter at once;
- the change of f when w is multiplied by a few factors, for all parameters together and for those in doubt.
"""

from __future__ import annotations

import copy
import inspect
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from isogon.symmetry._reasons import LARGEST_EPS
from isogon.symmetry._scale_map import JOINT

FACTORS = (0.5, 2.0, 7.0)
# In place of ε: nothing beside the variance of what a network computes, and much beside that of what is zero but for
# rounding in double precision (1e-34), which a norm would else blow up.
TINY = 1e-20
INVARIANT, NOT_INVARIANT, INCONCLUSIVE = "invariant", "not invariant", "inconclusive"

# Position of ε in the compiled functions, which have no signature to ask.
_EPS_POSITION: dict[Any, int] = {
    torch.batch_norm: 7,
    torch.instance_norm: 7,
    torch.layer_norm: 4,
    torch.group_norm: 4,
    torch.rms_norm: 3,
    torch.cosine_similarity: 3,
    F.cosine_similarity: 3,
}
_EPS_NAMED = (F.batch_norm, F.instance_norm, F.layer_norm, F.group_norm, F.rms_norm, F.normalize)
_ADDS = (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)
_CLAMPS = (torch.clamp, Tensor.clamp, Tensor.clamp_, torch.clamp_min, Tensor.clamp_min, Tensor.clamp_min_)

_RANDOM_MASKS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout, Tensor.bernoulli_, Tensor.bernoulli)


class DisagreementWarning(UserWarning):
    """The numerical oracle contradicts a static answer: a bug in a rule, worth reporting."""


@dataclass(frozen=True)
class Measurement:
    """What the oracle saw of one parameter, or of all together."""

    radial: float
    deviation: float  # NaN where rescaling was not needed
    verdict: str


class _WithoutEps(TorchFunctionMode):
    """Replaces the ε of normalisations by `TINY`, and small constants that are added or clamped at too where `small`.

    Random masks drop half of what they see: with the few drops of a small rate a run could miss that they matter.
    """

    def __init__(self, small: bool, largest_eps: float = LARGEST_EPS, tiny: float = TINY) -> None:
        super().__init__()
        self.small, self.largest_eps, self.tiny = small, largest_eps, tiny
        self.rounded = False  # some result was not in double precision

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = list(args), dict(kwargs or {})
        if func in _EPS_POSITION:
            position = _EPS_POSITION[func]
            if position < len(args):
                args[position] = self.tiny
            elif "eps" in kwargs or func in (torch.rms_norm, torch.cosine_similarity, F.cosine_similarity):
                kwargs["eps"] = self.tiny
        elif func in _EPS_NAMED:
            bound = inspect.signature(func).bind(*args, **kwargs)
            bound.arguments["eps"] = self.tiny
            args, kwargs = list(bound.args), bound.kwargs
        elif self.small and func in _ADDS and len(args) == 2:
            args = [self.tiny if self._is_small(term) else term for term in args]
        elif self.small and func in _CLAMPS:
            if len(args) > 1 and self._is_small(args[1]):
                args[1] = self.tiny
            if self._is_small(kwargs.get("min")):
                kwargs["min"] = self.tiny
        elif func in _RANDOM_MASKS:
            if len(args) > 1 and isinstance(args[1], float) and 0 < args[1] < 1:
                args[1] = 0.5
            if 0 < kwargs.get("p", 0) < 1:
                kwargs["p"] = 0.5
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and out.is_floating_point() and out.dtype != torch.float64:
            self.rounded = True
        return out

    def _is_small(self, value: Any) -> bool:
        if isinstance(value, Tensor):
            if value.ndim or not value.is_floating_point() or value.requires_grad:
                return False
            value = float(value)
        return isinstance(value, float) and 0 < value <= self.largest_eps


@contextmanager
def _double_by_default() -> Iterator[None]:
    """New tensors in double precision: a model that makes its own constants would mix the two otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _same_numbers(seed: int) -> Iterator[None]:
    """The same random numbers of Python and numpy each time: some models draw masks from them (SpecAugment)."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


def _with_plain_experts(model: nn.Module) -> nn.Module:
    """Experts of transformers by batched products: its grouped ones do not compute in double precision."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "_experts_implementation", None) is not None:
            config._experts_implementation = "batched_mm"  # type: ignore[union-attr]
    return model


class Oracle:
    """A double-precision copy of a model that can be evaluated at any scale of its trainable parameters."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        small: bool = True,
        largest_eps: float = LARGEST_EPS,
        tiny: float = TINY,
        noise: float = 0.1,
        seed: int = 0,
        wide: bool = False,
    ) -> None:
        self.model = _with_plain_experts(copy.deepcopy(model).double())
        self.inputs, self.kwargs = tree_map(_double, (tuple(inputs), dict(kwargs)))
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad and p.numel()}
        self.small, self.largest_eps, self.tiny = small, largest_eps, tiny
        self.seed = seed
        self.rounded = False
        self._perturb(noise, seed, wide)
        self.buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def _perturb(self, strength: float, seed: int, wide: bool) -> None:
        """Move every trainable parameter by `strength` times its root mean square (or 1 where that is 0).

        Where `wide`, by as much at least as keeps a layer's outputs at the size of its inputs: of weights that start at
        1e-10 rounding would hide the rest.
        """
        generator = torch.Generator().manual_seed(seed)

        def noise(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device)

        with torch.no_grad():
            for parameter in self.parameters.values():
                size = float(parameter.square().mean().sqrt()) or 1.0
                if wide:
                    size = max(size, (parameter.shape[0] / parameter.numel()) ** 0.5 if parameter.ndim > 1 else 1.0)
                parameter.add_(noise(parameter), alpha=strength * size)
            for module in self.model.modules():
                mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
                if isinstance(mean, Tensor) and isinstance(variance, Tensor) and not module.training:
                    # Statistics are what training left: the zeros and ones of a fresh model are no constants.
                    mean.add_(noise(mean), alpha=0.1)
                    variance.mul_(torch.exp(0.1 * noise(variance)))

    def outputs(self) -> list[Tensor]:
        """Every floating-point output, with the same random numbers and the same buffers at each call."""
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self.buffers[name])
        devices = {p.device.index or 0 for p in self.model.parameters() if p.device.type == "cuda"}
        with (
            torch.random.fork_rng(devices=sorted(devices)),
            _same_numbers(self.seed),
            _double_by_default(),
            _WithoutEps(self.small, self.largest_eps, self.tiny) as mode,
        ):
            torch.manual_seed(self.seed)
            result = self.model(*self.inputs, **self.kwargs)
        self.rounded |= mode.rounded
        leaves = tree_leaves(dict(result) if isinstance(result, Mapping) else result)
        return [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]

    @cached_property
    def base(self) -> list[Tensor]:
        """The outputs at the scale the weights have."""
        with torch.no_grad():
            return [x.double() for x in self.outputs()]

    def radial(self) -> dict[str, float]:
        """|⟨w, ∇⟨r, f⟩⟩| / ‖f‖ for every parameter, the larger of two random r; the joint one from their sum."""
        largest = dict.fromkeys([JOINT, *self.parameters], 0.0)
        for tensors in self.products(2):
            products = {name: float(product.sum()) for name, product in tensors.items()}
            for name, product in {JOINT: math.fsum(products.values()), **products}.items():
                largest[name] = max(largest[name], abs(product), key=lambda x: (math.isnan(x), x))
        return largest

    def products(self, count: int, seed: int = 1) -> Iterator[dict[str, Tensor]]:
        """w ⊙ ∇⟨r, f⟩ / ‖f‖ for every parameter that has a gradient, for `count` random r."""
        with torch.enable_grad():
            outputs = self.outputs()
            generator = torch.Generator().manual_seed(seed)
            for _ in range(count):
                total: Any = 0.0
                for f in outputs:
                    r = (torch.randint(0, 2, f.shape, generator=generator) * 2 - 1).to(f.device, torch.float64)
                    size = float(_finite(f.detach()).norm()) or 1.0
                    total = total + (_finite(f).double() * r).sum() / size
                if not isinstance(total, Tensor) or not total.requires_grad:
                    return
                gradients = torch.autograd.grad(
                    total, list(self.parameters.values()), retain_graph=True, allow_unused=True
                )
                yield {
                    name: p.detach() * g
                    for (name, p), g in zip(self.parameters.items(), gradients, strict=True)
                    if g is not None
                }

    def deviation(self, *scales: Mapping[str, float | Tensor]) -> float:
        """The largest ‖f(c·w) − f(w)‖ / ‖f(w)‖ over outputs and `scales`, each with a factor c per parameter.

        A factor may be a tensor, one c for each slice of the parameter. Once the answer is clear the other scales are
        not tried.
        """
        before = {name: self.parameters[name].detach().clone() for factors in scales for name in factors}
        largest = 0.0
        with torch.no_grad():
            for factors in scales:
                for name, factor in factors.items():
                    self.parameters[name].mul_(factor)
                changed = [x.double() for x in self.outputs()]
                for name, old in before.items():
                    self.parameters[name].copy_(old)
                for f, g in zip(self.base, changed, strict=True):
                    gap = torch.where(f == g, torch.zeros_like(f), g - f).norm()
                    size = float(_finite(f).norm())
                    largest = max(largest, float(gap) / (size or 1.0), key=lambda x: (math.isnan(x), x))
                if judge(largest, self.rounded) == NOT_INVARIANT:
                    break
        return largest

    def is_blind(self) -> bool:
        """Whether nothing can be seen: every output is zero, or rounding errors decide what it is.

        The latter happens where something constant is normalised: a change of 1e-9 in the weights changes everything.
        """
        with torch.no_grad():
            if all(not bool(f.any()) for f in self.base):
                return True
            generator = torch.Generator().manual_seed(2)
            before = {name: p.detach().clone() for name, p in self.parameters.items()}
            for p in self.parameters.values():
                p.mul_(1 + 1e-9 * torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device))
            moved = self.outputs()
            for name, p in self.parameters.items():
                p.copy_(before[name])
            return (
                any(float((g - f).norm()) > 1e-5 * float(f.norm()) for f, g in zip(self.base, moved, strict=True))
                and not self.rounded
            )


def _double(x: Any) -> Any:
    return x.detach().double() if isinstance(x, Tensor) and x.is_floating_point() else x


def _finite(x: Tensor) -> Tensor:
    return torch.where(torch.isfinite(x), x, torch.zeros_like(x))


def judge(value: float, rounded: bool) -> str:
    """Zero, clearly not zero, or in between: the gap is wide in double precision, wider where float32 comes in."""
    low, high = (1e-5, 1e-3) if rounded else (1e-8, 1e-6)
    if math.isnan(value):
        return INCONCLUSIVE
    return INVARIANT if value < low else NOT_INVARIANT if value > high else INCONCLUSIVE


def measure(
    model: nn.Module,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    expected: Mapping[str, str] | None = None,
    small: bool = True,
    largest_eps: float = LARGEST_EPS,
    noise: float = 0.1,
    seed: int = 0,
    wide: bool = False,
    only: Collection[str] | None = None,
) -> dict[str, Measurement]:
    """Measure `joint` and every trainable parameter of `model` (`only` some of them); the model is not touched.

    Where `expected` names the answer for a parameter and the radial derivative confirms it, rescaling is skipped;
    without `expected` everything is rescaled. `small` takes small constants (up to `largest_eps`) that are added or
    clamped at as zero, like the ε of the normalisations. `noise` is how far the copy's parameters are moved before,
    relative to their size (where `wide`, to a size that lets each layer matter), and `seed` that of all random numbers.
    """
    oracle = Oracle(
        model, inputs, kwargs or {}, small=small, largest_eps=largest_eps, noise=noise, seed=seed, wide=wide
    )
    blind = oracle.is_blind()
    radial = {name: value for name, value in oracle.radial().items() if only is None or name in only}
    judged = {name: judge(value, oracle.rounded) for name, value in radial.items()}
    sure = {name for name, verdict in judged.items() if expected is not None and verdict == expected.get(name)}
    if judged.get(JOINT) == INVARIANT:
        sure.discard(JOINT)
    # Gradients do not see what is detached. Where each is invariant alone, so are all under factors of their own.
    flat = [name for name, verdict in judged.items() if verdict == INVARIANT and name != JOINT]
    together = _deviation_apart(oracle, flat)
    if judge(together, oracle.rounded) != INVARIANT:
        together = math.nan
        still = [name for name in flat if name in sure]
        if len(still) == len(flat) or judge(_deviation_apart(oracle, still), oracle.rounded) != INVARIANT:
            sure -= set(still)
    measurements: dict[str, Measurement] = {}
    for name, verdict in judged.items():
        deviation = math.nan
        if name not in sure and name in flat and not math.isnan(together):
            deviation = together
        elif name not in sure:
            names = list(oracle.parameters) if name == JOINT else [name]
            deviation = oracle.deviation(*(dict.fromkeys(names, factor) for factor in FACTORS))
            verdict = judge(deviation, oracle.rounded)
        measurements[name] = Measurement(radial[name], deviation, INCONCLUSIVE if blind else verdict)
    return measurements


def _deviation_apart(oracle: Oracle, names: Sequence[str]) -> float:
    """How much changes where each of these parameters is scaled by a factor of its own."""
    if not names:
        return 0.0
    return oracle.deviation(
        *({name: FACTORS[(i + k) % len(FACTORS)] for i, name in enumerate(names)} for k in range(2))
    )
