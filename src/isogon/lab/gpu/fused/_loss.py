"""Mean cross-entropy, its gradient, and the epoch's sums (loss, right answers, labels), in one kernel.

It replaces `torch.nn.functional.cross_entropy` in float32 and what `Training.note` counts.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

#: classes that fit a row of the kernel's tile
MOST_CLASSES = 1024
# Elements that a program takes at a time; one program alone needs nobody to add its sums to those of others.
_ELEMENTS = 8192
_MOST_PROGRAMS = 64


@triton.jit
def _cross_entropy(logits, labels, gradient, loss, sums, samples, classes, ROWS: tl.constexpr, CLASSES: tl.constexpr):
    column = tl.arange(0, CLASSES)
    total = tl.zeros((), tl.float32)
    right = tl.zeros((), tl.float32)
    counted = tl.zeros((), tl.float32)
    for start in range(tl.program_id(0) * ROWS, samples, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        here = row < samples
        mask = here[:, None] & (column < classes)[None, :]
        places = row[:, None] * classes + column[None, :]
        value = tl.load(logits + places, mask=mask, other=-float("inf")).to(tl.float32)
        label = tl.load(labels + row, mask=here, other=0)
        top = tl.where(here, tl.max(value, 1), 0.0)
        power = tl.exp(value - top[:, None])
        power = tl.where(mask, power, 0.0)
        norm = tl.where(here, tl.sum(power, 1), 1.0)
        hit = column[None, :] == label[:, None]
        chosen = tl.sum(tl.where(hit & mask, value, 0.0), 1)
        total += tl.sum(tl.where(here, tl.log(norm) + top - chosen, 0.0))
        counted += tl.sum(tl.where(here, 1.0, 0.0))
        # The first of equal ones, as torch's argmax on a CPU.
        best = tl.min(tl.where((value == top[:, None]) & mask, column[None, :], CLASSES), 1)
        right += tl.sum(tl.where(here & (best == label), 1.0, 0.0))
        slope = (power / norm[:, None] - tl.where(hit, 1.0, 0.0)) / samples
        tl.store(gradient + places, slope.to(gradient.dtype.element_ty), mask=mask)
    if tl.num_programs(0) == 1:
        tl.store(loss, total / samples)
        tl.store(sums, tl.load(sums) + total.to(tl.float64))
        tl.store(sums + 1, tl.load(sums + 1) + right.to(tl.float64))
        tl.store(sums + 2, tl.load(sums + 2) + counted.to(tl.float64))
    else:
        tl.atomic_add(loss, total / samples)
        tl.atomic_add(sums, total.to(tl.float64))
        tl.atomic_add(sums + 1, right.to(tl.float64))
        tl.atomic_add(sums + 2, counted.to(tl.float64))


def cross_entropy_with_sums(logits: torch.Tensor, labels: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """The mean loss; `sums` (float64, in the order of `EpochTotal`) grow by those of these samples."""
    return _CrossEntropyWithSums.apply(logits, labels, sums)  # type: ignore[no-any-return,no-untyped-call]


class _CrossEntropyWithSums(torch.autograd.Function):
    """The gradient is made on the way, for a loss that is differentiated as it is, not multiplied by anything."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        logits = logits.contiguous()
        gradient = torch.empty_like(logits)
        samples, classes = logits.shape
        wide = triton.next_power_of_2(classes)
        rows = min(_ELEMENTS // wide, triton.next_power_of_2(samples))
        programs = min(_MOST_PROGRAMS, triton.cdiv(samples, rows))
        loss = (torch.empty if programs == 1 else torch.zeros)((), device=logits.device)
        _cross_entropy[(programs,)](
            logits, labels, gradient, loss, sums, samples, classes, ROWS=rows, CLASSES=wide, num_warps=8
        )
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.saved_tensors[0], None, None
