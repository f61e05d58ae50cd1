"""The transformers of `isogon.nets` in few kernels.

A branch is added to the residual stream by the kernel of the norm that follows. Queries, keys and values come from one
product, gates and ups of SwiGLU from another; the stream is float32, all else of `dtype`, as autocast has it. It
replaces `Gpt.forward` and `Vit.forward` with their blocks, but for attention itself, products, dropout and embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from isogon.lab.gpu.fused import _transformer_kernels as kernels
from isogon.lab.gpu.fused._product import product
from isogon.nets import Gpt, Vit

#: gives the tensor to compute with in place of some parameters, packed one after another
Pack = Callable[[Sequence[Tensor]], Callable[[], Tensor]]
_RMS, _LAYER = 1, 2
_FUNCTIONS = {"relu2": 0, "gelu": 1}
# Elements that a program takes at a time.
_ELEMENTS = 2048


def can_fuse(model: Any) -> bool:
    """Whether `model` is a transformer of ours whose weights all train, with heads that can be halved."""
    if type(model) not in (Gpt, Vit) or not all(p.requires_grad for p in model.parameters()):
        return False
    if any(has_hooks(module) for module in model.modules()):
        return False
    attention = model.blocks[0].attention
    return bool(attention.q.out_features // attention.heads % 2 == 0)


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody listens to what goes through the module, or changes it."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


class FusedTransformer(nn.Module):
    """`model`, a `Gpt` or `Vit`; `pack` gives what to multiply by in place of a layer's weights."""

    model: Any

    def __init__(self, model: Any, dtype: torch.dtype, pack: Pack) -> None:
        super().__init__()
        self.model = model
        self._dtype = dtype
        self._blocks = [_Block(block, pack) for block in model.blocks]
        self._norms = [_Norm.of(norm) for block in model.blocks for norm in (block.attention_norm, block.mlp_norm)]
        self._norms.append(_Norm.of(model.norm))
        tied = type(model) is Gpt and model.head.weight is model.embedding.weight
        # The gradient of a tied head is added to the embedding's, in float32.
        self._head = model.head if tied else _Product((model.head,), pack)

    def forward(self, x: Tensor) -> Tensor:
        return self._tokens(x) if type(self.model) is Gpt else self._images(x)

    def _tokens(self, tokens: Tensor) -> Tensor:
        model = self.model
        stream = _Embed.apply(tokens, model.embedding.weight)  # type: ignore[no-untyped-call]
        rotation = None
        if model.positions is not None:
            stream = stream + model.positions[: tokens.shape[-1]]
        else:
            rotation = model.cosines, model.sines
        logits: Tensor = self._head(self._run(model.dropout(stream), rotation))
        return logits

    def _images(self, images: Tensor) -> Tensor:
        model = self.model
        stream = model.patches(images).flatten(-2).transpose(-1, -2)
        if model.class_token is not None:
            stream = torch.cat([model.class_token.expand(len(stream), -1, -1), stream], 1)
        out = self._run(model.dropout(stream + model.positions), None)
        logits: Tensor = self._head(out[:, 0] if model.class_token is not None else out.mean(1))
        return logits

    def _run(self, stream: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        stream, branch = stream.contiguous(), None
        norms = iter(self._norms)
        for block in self._blocks:
            stream, out = add_norm(stream, branch, next(norms), self._dtype)
            branch = block.drop(block.attend(out, rotation))
            stream, out = add_norm(stream, branch, next(norms), self._dtype)
            branch = block.drop(block.transform(out))
        _, out = add_norm(stream, branch, next(norms), self._dtype)
        return out


class _Block:
    """A block's two branches."""

    def __init__(self, block: Any, pack: Pack) -> None:
        attention, mlp = block.attention, block.mlp
        self.drop, self._heads, self._causal = block._drop, attention.heads, attention.causal
        self._head_norm = None if attention.head_norm is None else _Norm.of(attention.head_norm)
        self._qkv = _Product((attention.q, attention.k, attention.v), pack)
        self._o = _Product((attention.o,), pack)
        self._up = _Product((mlp.up,) if mlp.gate is None else (mlp.gate, mlp.up), pack)
        self._down = _Product((mlp.down,), pack)
        self._activation = mlp.activation

    def attend(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        packed = self._qkv(x)
        packed = packed.view(*packed.shape[:-1], 3, self._heads, -1)
        if rotation is None and self._head_norm is None:
            parts = packed.unbind(2)
        else:
            parts = split_heads(packed, self._head_norm, rotation)
        q, k, v = (part.transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self._causal)
        return self._o(mixed.transpose(1, 2).flatten(-2))

    def transform(self, x: Tensor) -> Tensor:
        return self._down(activate(self._up(x), self._activation))


class _Product:
    """One product for several linear layers of one input."""

    def __init__(self, layers: Sequence[nn.Linear], pack: Pack) -> None:
        self._weight = pack([layer.weight for layer in layers])
        biases = [layer.bias for layer in layers]
        self._bias = None if any(bias is None for bias in biases) else pack(biases)

    def __call__(self, x: Tensor) -> Tensor:
        return product(x, self._weight(), None if self._bias is None else self._bias())


class _Norm(NamedTuple):
    kind: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    @classmethod
    def of(cls, norm: nn.Module) -> _Norm:
        """Of a `LayerNorm` or `RMSNorm`, whose own eps is that of float32, in which autocast has it compute."""
        if isinstance(norm, nn.LayerNorm):
            return cls(_LAYER, norm.weight, norm.bias, norm.eps)
        assert isinstance(norm, nn.RMSNorm)
        return cls(_RMS, norm.weight, None, torch.finfo(torch.float32).eps if norm.eps is None else norm.eps)


def add_norm(stream: Tensor, branch: Tensor | None, norm: _Norm, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x = stream + branch, and norm(x) in `dtype`."""
    new, out = _AddNorm.apply(stream, branch, norm.weight, norm.bias, norm, dtype)  # type: ignore[no-untyped-call]
    return (stream if branch is None else new), out


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        stream: Tensor,
        branch: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        norm: _Norm,
        dtype: torch.dtype,
    ) -> tuple[Tensor | None, Tensor]:
        width = stream.shape[-1]
        rows = stream.numel() // width
        new = None if branch is None else torch.empty_like(stream)
        out = torch.empty_like(stream, dtype=dtype)
        means, scales = (torch.empty(rows, device=stream.device) for _ in range(2))
        wide = triton.next_power_of_2(width)
        tile = max(1, _ELEMENTS // wide)
        branch = None if branch is None else branch.contiguous()
        kernels.add_norm[(triton.cdiv(rows, tile),)](
            stream, branch, weight, bias, new, out, means, scales, rows, width, norm.eps,
            NORM=norm.kind, ROWS=tile, WIDTH=wide,
        )  # fmt: skip
        ctx.save_for_backward(stream if new is None else new, means, scales, weight)
        ctx.kind, ctx.tile, ctx.wide = norm.kind, tile, wide
        ctx.branch, ctx.has_bias = None if branch is None else branch.dtype, bias is not None
        ctx.set_materialize_grads(False)
        return new, out

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        of_stream, of_out = slopes
        stream, means, scales, weight = ctx.saved_tensors
        width = stream.shape[-1]
        rows = stream.numel() // width
        new = torch.empty_like(stream)
        of_branch = None if ctx.branch is None else torch.empty_like(stream, dtype=ctx.branch)
        of_weight = None if weight is None else torch.zeros_like(weight)
        of_bias = torch.zeros_like(weight) if ctx.has_bias else None
        kernels.add_norm_backward[(triton.cdiv(rows, ctx.tile),)](
            stream, means, scales, weight, of_out.contiguous(), None if of_stream is None else of_stream.contiguous(),
            new, of_branch, of_weight, of_bias, rows, width, NORM=ctx.kind, ROWS=ctx.tile, WIDTH=ctx.wide,
        )  # fmt: skip
        return new, of_branch, of_weight, of_bias, None, None


class _Embed(torch.autograd.Function):
    """`F.embedding` with a gradient that does not wait where tokens repeat."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.shape = table.shape
        return F.embedding(tokens, table)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (tokens,) = ctx.saved_tensors
        table = torch.zeros(ctx.shape, device=tokens.device)
        wide = triton.next_power_of_2(ctx.shape[1])
        tile = max(1, _ELEMENTS // wide)
        kernels.scatter_rows[(triton.cdiv(tokens.numel(), tile),)](
            slopes[0].contiguous(), tokens.contiguous(), table, tokens.numel(), ctx.shape[1], ROWS=tile, WIDTH=wide
        )
        return None, table


def split_heads(
    packed: Tensor, norm: _Norm | None, rotation: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, positions, 3, heads, channels) → queries and keys, normalised and turned by position, and values."""
    return _SplitHeads.apply(packed, norm, *(rotation or (None, None)))  # type: ignore[no-any-return,no-untyped-call]


class _SplitHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, norm: _Norm | None, cosines: Tensor | None, sines: Tensor | None) -> Any:
        batch, length, _, count, channels = packed.shape
        packed = packed.contiguous()
        out = packed.new_empty(3, batch, length, count, channels)
        ctx.save_for_backward(packed, cosines, sines)
        ctx.norm = norm
        _launch_heads(packed, norm, cosines, sines, out, None, None)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        packed, cosines, sines = ctx.saved_tensors
        of_packed = torch.empty_like(packed)
        _launch_heads(packed, ctx.norm, cosines, sines, None, torch.stack(slopes), of_packed)
        return of_packed, None, None, None


def _launch_heads(
    packed: Tensor,
    norm: _Norm | None,
    cosines: Tensor | None,
    sines: Tensor | None,
    out: Tensor | None,
    of_out: Tensor | None,
    of_packed: Tensor | None,
) -> None:
    batch, length, _, count, channels = packed.shape
    half = triton.next_power_of_2(channels // 2)
    rows = 3 * batch * length * count
    tile = max(1, _ELEMENTS // (2 * half))
    kernels.heads[(triton.cdiv(rows, tile),)](
        packed, cosines, sines, out, of_out, of_packed, batch * length, length, count, channels // 2,
        0.0 if norm is None else norm.eps, NORM=0 if norm is None else norm.kind, BACK=of_out is not None,
        ROWS=tile, HALF=half,
    )  # fmt: skip


def activate(x: Tensor, function: str) -> Tensor:
    """relu(x)², gelu(x), or of gates and ups one after the other silu(gate) · up."""
    return _Activate.apply(x, function)  # type: ignore[no-any-return,no-untyped-call]


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: str) -> Tensor:
        ctx.function = function
        x = x.contiguous()
        ctx.save_for_backward(x)
        width = x.shape[-1] // 2 if function == "swiglu" else x.shape[-1]
        out = x.new_empty(*x.shape[:-1], width)
        _launch_activate(x, None, out, function)
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (x,) = ctx.saved_tensors
        of_x = torch.empty_like(x)
        _launch_activate(x, slopes[0].contiguous(), of_x, ctx.function)
        return of_x, None


def _launch_activate(x: Tensor, slopes: Tensor | None, out: Tensor, function: str) -> None:
    how = {"BACK": slopes is not None, "BLOCK": _ELEMENTS}
    if function == "swiglu":
        width = x.shape[-1] // 2
        rows = x.numel() // x.shape[-1]
        kernels.swiglu[(triton.cdiv(rows * width, _ELEMENTS),)](x, slopes, out, rows, width, **how)
    else:
        kernels.activate[(triton.cdiv(x.numel(), _ELEMENTS),)](
            x, slopes, out, x.numel(), FUNCTION=_FUNCTIONS[function], **how
        )
