"""A twin of a network that computes the same with fewer kernels, on the network's own parameters.

The twin's batch norms are `fused_norm`, with the ReLU that follows and the sum of a residual block in them; our
transformers are `FusedTransformer`. With 16-bit arithmetic convolutions and linear layers take 16-bit copies of their
weights, which `refresh` updates, in place of casting them each time. Modules that the twin does not know run as they
are, so any network has one.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import conv2d, linear, pad

from isogon.lab.gpu.fused._norm import Norm, forked_norm, fused_norm
from isogon.lab.gpu.fused._product import product
from isogon.lab.gpu.fused._transformer import FusedTransformer, can_fuse, has_hooks
from isogon.nets import GhostBatchNorm1d, GhostBatchNorm2d, Residual


class _Copy(NamedTuple):
    """The copy of a parameter: a `part` of a leaf, its `rows` or all of it."""

    part: torch.Tensor
    leaf: torch.Tensor
    rows: slice | None


# By type: the kernels know these and none that is made from them.
_FUSED = (nn.BatchNorm1d, nn.BatchNorm2d, GhostBatchNorm1d, GhostBatchNorm2d)
#: bytes of which a tensor's address must be a multiple for the update's kernel
_ALIGNMENT = 16
#: with tensor cores a convolution over 3 channels takes longer than one over 8, of which 5 are zeros
WIDE = 8


class Twin:
    """The twin of `model`, whose products take `dtype` and whose batch norms launch `programs` programs.

    `leaves` are the tensors to differentiate by: the parameters themselves, or copies of them, which may hold several
    one after another. `gradients` makes of their gradients those of the `parameters`; `refresh` brings copies up to
    date.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, programs: int) -> None:
        shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
        self._dtype, self._programs = dtype, programs
        self._norms: list[FusedNorm] = []
        #: of a parameter: the part of a leaf that is its copy, that leaf, and the rows of it
        self._copies: dict[torch.Tensor, _Copy] = {}
        #: channels that images may have, those beyond the network's own being zeros
        self.image_channels: int | None = None
        self.network: nn.Module
        if can_fuse(model):
            self.network = FusedTransformer(model, dtype, self._pack)
        else:
            self.network = copy.deepcopy(model, shared)
            uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
            self._shared = {of for of, count in uses.items() if count > 1}
            self._change(self.network, dtype)
            _fork(self.network)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        sources = [self._copies[p].leaf if p in self._copies else p for p in self.parameters]
        self.leaves = list({id(leaf): leaf for leaf in sources}.values())
        places = {id(leaf): place for place, leaf in enumerate(self.leaves)}
        self._places = [places[id(leaf)] for leaf in sources]
        self.refresh()

    @property
    def copies(self) -> list[torch.Tensor | None]:
        """The copy of each parameter that has one."""
        return [self._copies[p].part if p in self._copies else None for p in self.parameters]

    def gradients(self, of_leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Of each parameter, laid out as it is and where the update can read it."""
        found = []
        for parameter, place in zip(self.parameters, self._places, strict=True):
            gradient, known = of_leaves[place], self._copies.get(parameter)
            if known is not None and known.rows is not None:
                gradient = gradient[known.rows]
            alike = gradient.stride() == parameter.stride() and gradient.data_ptr() % _ALIGNMENT == 0
            found.append(gradient if alike else torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient))
        return found

    def _pack(self, parameters: Sequence[torch.Tensor]) -> Callable[[], torch.Tensor]:
        """What gives one copy of them all; without a 16-bit one, of the parameters themselves at the moment."""
        parameters = list(parameters)
        if self._dtype == parameters[0].dtype:
            return lambda: parameters[0] if len(parameters) == 1 else torch.cat(parameters)
        starts = accumulate((parameter.numel() for parameter in parameters[:-1]), initial=0)
        if any(start * self._dtype.itemsize % _ALIGNMENT for start in starts):
            copies = [self._copy(parameter) for parameter in parameters]
            return lambda: torch.cat(copies)
        with torch.no_grad():
            leaf = torch.cat(parameters).to(self._dtype)
        ends = list(accumulate((len(parameter) for parameter in parameters), initial=0))
        for parameter, (start, end) in zip(parameters, pairwise(ends), strict=True):
            self._copies[parameter] = _Copy(leaf[start:end], leaf, slice(start, end))
        leaf.requires_grad_()
        return lambda: leaf

    def _copy(self, parameter: torch.Tensor) -> torch.Tensor:
        leaf = torch.empty_like(parameter, dtype=self._dtype)
        self._copies[parameter] = _Copy(leaf.detach(), leaf, None)
        return leaf.requires_grad_()

    @torch.no_grad()
    def refresh(self) -> None:
        """The copies as the parameters are now."""
        if self._copies:
            torch._foreach_copy_([known.part for known in self._copies.values()], list(self._copies))

    @torch.no_grad()
    def count_batches(self, samples: int) -> None:
        """`num_batches_tracked` of the norms that the twin computes, for a batch of `samples`."""
        for groups in {norm.groups(samples) for norm in self._norms}:
            counters = [norm.counter for norm in self._norms if norm.groups(samples) == groups]
            counts = [counter for counter in counters if counter is not None]
            if groups is not None and counts:
                torch._foreach_add_(counts, groups)

    def _change(self, parent: nn.Module, dtype: torch.dtype) -> None:
        for name, child in list(parent.named_children()):
            if isinstance(child, FusedNorm) or (has_hooks(child) and not any(child.children())):
                continue
            if type(child) is Residual:
                last = child.main[-1] if isinstance(child.main, nn.Sequential) else None
                norm = last[-1] if isinstance(last, nn.Sequential) else None
                if isinstance(last, nn.Sequential) and norm is not None and type(norm) in _FUSED:
                    fused = self._fuse(norm, relu=True)
                    last[-1] = nn.Identity()
                    setattr(parent, name, _FusedResidual(child.main, child.shortcut, fused))
                    child = getattr(parent, name)
            elif type(child) in _FUSED:
                setattr(parent, name, self._fuse(child, relu=_relu_after(parent, name)))
                continue
            elif type(child) is nn.Conv2d and dtype != child.weight.dtype and child.bias is None:
                weight = child.weight
                if self._is_own(child):
                    if not self._copies and not self._norms and weight.shape[1] < WIDE:
                        self.image_channels = WIDE  # the first layer of all
                    setattr(parent, name, _Convolution(child, self._copy(weight)))
                continue
            elif type(child) is nn.Linear and dtype != child.weight.dtype and self._is_own(child):
                bias = None if child.bias is None else self._copy(child.bias)
                setattr(parent, name, _Linear(self._copy(child.weight), bias))
                continue
            self._change(child, dtype)

    def _is_own(self, layer: nn.Module) -> bool:
        """Whether all its parameters are trained, and are those of no other layer, nor of a second use of this one."""
        return all(p.requires_grad and id(p) not in self._shared for p in layer.parameters())

    def _fuse(self, norm: nn.Module, *, relu: bool) -> FusedNorm:
        self._norms.append(FusedNorm(norm, relu=relu, programs=self._programs))
        return self._norms[-1]


def _fork(network: nn.Module) -> None:
    """Let each norm whose output goes to a residual block, and there to both branches, give it twice."""
    chain = list(_in_sequence(network))
    for module, following in pairwise(chain):
        norm = module.norm if isinstance(module, _FusedResidual) else module
        if isinstance(norm, FusedNorm) and isinstance(following, _FusedResidual):
            norm.fork = following.thin_shortcut()


def _in_sequence(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that the input goes through one after another."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from _in_sequence(child)
    elif type(module) is not nn.Identity:
        yield module


def _relu_after(parent: nn.Module, name: str) -> bool:
    """Whether a ReLU follows at once; it becomes nothing, since the norm before it does it."""
    if type(parent) is not nn.Sequential:
        return False
    names = list(parent._modules)  # a module that is used twice is here twice
    following = names[names.index(name) + 1 :][:1]
    if not following or type(getattr(parent, following[0])) is not nn.ReLU:
        return False
    setattr(parent, following[0], nn.Identity())
    return True


class FusedNorm(nn.Module):
    """A batch norm or ghost batch norm, with a ReLU after it if `relu`."""

    def __init__(self, norm: nn.Module, *, relu: bool, programs: int) -> None:
        super().__init__()
        assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
        self.norm, self._relu, self._programs = norm, relu, programs
        #: 0 for one user of the output, else the stride of the second one, which gets those pixels alone
        self.fork = 0

    @property
    def counter(self) -> torch.Tensor | None:
        return self.norm.num_batches_tracked

    def groups(self, samples: int) -> int | None:
        """Ghost batches of a batch of `samples`; None where the kernels cannot do it."""
        ghost = getattr(self.norm, "ghost_batch", samples)
        possible = self.norm.training and self.norm.momentum is not None and (samples <= ghost or samples % ghost == 0)
        return max(1, samples // ghost) if possible else None

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        norm, groups = self.norm, self.groups(len(x))
        # The kernels count elements in 32 bits.
        if groups is None or x.dim() not in (2, 4) or x.numel() >= 2**31:
            y: torch.Tensor = norm(x)
            y = y if residual is None else y + residual
            y = torch.relu(y) if self._relu else y
            return (y, y[:, :, :: self.fork, :: self.fork]) if self.fork else y
        parts = Norm(norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.momentum or 0.0, norm.eps)
        how: dict[str, Any] = {"residual": residual, "relu": self._relu, "programs": self._programs}
        if self.fork:
            return forked_norm(x, parts, groups, stride=self.fork, **how)
        return fused_norm(x, parts, groups, **how)


class _FusedResidual(nn.Module):
    """`nets.Residual` with the main branch's last norm, the sum and the ReLU in one."""

    def __init__(self, main: nn.Module, shortcut: nn.Module, norm: FusedNorm) -> None:
        super().__init__()
        self.main, self.shortcut, self.norm = main, shortcut, norm

    def thin_shortcut(self) -> int:
        """The stride at which the shortcut looks at its input; from now on it is given those pixels alone."""
        first = next(_in_sequence(self.shortcut), None)
        return first.without_stride() if isinstance(first, _Convolution) else 1

    def forward(self, x: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> Any:
        to_main, to_shortcut = x if isinstance(x, tuple) else (x, x)
        return self.norm(self.main(to_main), self.shortcut(to_shortcut))


class _Convolution(nn.Module):
    """A convolution by a copy of its weights; images of few channels may come with zeros for the channels that lack."""

    def __init__(self, convolution: nn.Conv2d, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = weight
        self._settings = {name: getattr(convolution, name) for name in ("stride", "padding", "dilation", "groups")}

    @property
    def _of_single_pixels(self) -> bool:
        settings = self._settings["padding"], self._settings["groups"]
        return self.weight.shape[2:] == (1, 1) and settings == ((0, 0), 1)

    def without_stride(self) -> int:
        """Remove the stride and return it, for the caller to apply; 1 where that is not possible."""
        stride = self._settings["stride"]
        if not self._of_single_pixels or stride[0] != stride[1]:
            return 1
        self._settings["stride"] = (1, 1)
        return int(stride[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._of_single_pixels and self._settings["stride"] == (1, 1):
            # A product of matrices, and faster as one.
            pixels = x.permute(0, 2, 3, 1)
            return linear(pixels, self.weight.flatten(1)).permute(0, 3, 1, 2)
        lacking = x.shape[1] - self.weight.shape[1] * self._settings["groups"]
        weight = pad(self.weight, (0, 0, 0, 0, 0, lacking)) if lacking else self.weight
        return conv2d(x.to(weight.dtype), weight, **self._settings)


class _Linear(nn.Module):
    """A linear layer by copies of its weights."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return product(x.to(self.weight.dtype), self.weight, self.bias)
