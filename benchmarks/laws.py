"""How well the laws hold for what people train: single weights and the residual stream of a small GPT and a ViT.

    python benchmarks/laws.py [--steps 6000] [--seeds 2] [--text FILE] [--only gpt-adamw] [--json FILE]

Each network is trained from its start at a constant rate, long enough that the norms can settle, 1/(ηλ) steps several
times over; then the measured step angle, epoch angle (of 50 steps) and norm are divided by what theory predicts, root
mean square over the last half. Queries and keys are normalised, so that their matrices are invariant by themselves;
`group:residual` is embedding, positions and all projections into the stream. The GPT reads FILE, or, without one, the
sources of Python's own library, byte by byte; the ViT sees fashion-mini, shifted at random.
"""

from __future__ import annotations

import argparse
import json
import platform
import sysconfig
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from machine import processor
from torch import Tensor, nn

from isogon.dynamics import Monitor
from isogon.lab import load
from isogon.optim import Lion

WIDTH, HEADS, LAYERS, CONTEXT, BATCH, EPOCH = 64, 4, 2, 48, 16, 50
COLUMNS = {"step angle": "step_angle", "epoch angle": "epoch_angle", "norm": "norm"}


def rms(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


class Block(nn.Module):
    """Attention with normalised queries and keys, then an MLP with relu²; no biases, norms without affine."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.fc, self.proj = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = rms(x)
        q, k, v = (layer(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(rms(q), rms(k), v, is_causal=self.causal)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.proj(F.relu(self.fc(rms(x))).square())


class Network(nn.Module):
    """A GPT on bytes, or a ViT on images of 28 × 28 in patches of 7 × 7."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        gpt = kind == "gpt"
        self.embed = nn.Embedding(256, WIDTH) if gpt else nn.Linear(49, WIDTH, bias=False)
        self.positions = nn.Parameter(torch.empty(CONTEXT if gpt else 16, WIDTH))
        for weight in (self.embed.weight, self.positions):
            nn.init.normal_(weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(causal=gpt) for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 256 if gpt else 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "vit":
            x = F.unfold(x, 7, stride=7).transpose(1, 2)
        x = rms(self.blocks(self.embed(x) + self.positions))
        out: Tensor = self.head(x if self.kind == "gpt" else x.mean(1))
        return out


Batches = Callable[[torch.Generator], tuple[Tensor, Tensor]]


def text_batches(file: Path | None) -> Batches:
    """Windows of a text, each byte's target the next one."""
    if file is None:
        sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        raw = b"".join(source.read_bytes() for source in sources)[:2_000_000]
    else:
        raw = file.read_bytes()
    text = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(0, len(text) - CONTEXT, (BATCH,), generator=generator)
        windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])
        return windows[:, :-1], windows[:, 1:]

    return draw


def image_batches() -> Batches:
    """Images shifted by up to two pixels."""
    data = load("fashion-mini")
    images, labels = data.train_x.float() / 128 - 1, data.train_y

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, len(images), (BATCH,), generator=generator)
        across, down = torch.randint(0, 5, (2,), generator=generator).tolist()
        shifted = F.pad(images[chosen], (2, 2, 2, 2))[..., down : down + 28, across : across + 28]
        return shifted, labels[chosen]

    return draw


def optimizers(name: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    """ηλ about 1e-3 in each, so that 1/(ηλ) is about 1,000 steps."""
    if name == "adamw":
        return [torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.3)]
    if name == "lion":
        return [Lion(model.parameters(), lr=5e-4, betas=(0.9, 0.99), weight_decay=2.0)]
    hidden = [p for n, p in model.named_parameters() if n.startswith("blocks") and p.dim() == 2]
    others = [p for n, p in model.named_parameters() if not n.startswith("blocks")]
    return [
        torch.optim.Muon(hidden, lr=0.01, weight_decay=0.1, momentum=0.95),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.99), weight_decay=0.3),
    ]


def train(kind: str, optimizer: str, seed: int, steps: int, draw: Batches) -> dict[str, Any]:
    """Measured over predicted, of single weights and of the residual stream, in the last half of the run."""
    torch.manual_seed(seed)
    model, generator = Network(kind), torch.Generator().manual_seed(seed + 1)
    stepped = optimizers(optimizer, model)
    inputs = draw(torch.Generator().manual_seed(0))[0][:2]
    losses = []
    with Monitor(model, stepped, batch_size=BATCH, samples=BATCH * EPOCH, inputs=inputs, every_steps=5) as monitor:
        for _ in range(steps):
            x, y = draw(generator)
            for each in stepped:
                each.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
            loss.backward()
            for each in stepped:
                each.step()
            losses.append(loss.item())
    last = monitor.records[monitor.records.step >= steps // 2]
    row: dict[str, Any] = {
        "network": kind, "optimizer": optimizer, "seed": seed, "loss": float(np.mean(losses[-steps // 10 :])),
        "remarks": monitor.notes,
    }  # fmt: skip
    singles = [name for name in last.layer.unique() if name.endswith((".q.weight", ".k.weight"))]
    for what, names in {"q, k": singles, "group:residual": ["group:residual"]}.items():
        ratios = {}
        for title, column in COLUMNS.items():
            per_layer = []
            for name in names:
                rows = last[(last.layer == name) & last[column].notna()]
                predicted = rows[f"predicted_{column}"]
                per_layer.append(float(np.sqrt((rows[column] ** 2).mean() / (predicted**2).mean())))
            ratios[title] = per_layer
        ratios["leak"] = [float(np.sqrt((last[last.layer == name].radial ** 2).mean())) for name in names]
        row[what] = ratios
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--text", type=Path, help="what the GPT reads")
    parser.add_argument("--only", default="", help="for example gpt-adamw")
    parser.add_argument("--json", type=Path, help="write every run's numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{processor()}, Python {platform.python_version()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}")
    columns = ["network", "optimizer", "weights", *COLUMNS, "leak", "loss"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    batches = {"gpt": text_batches(options.text), "vit": image_batches()}
    every = []
    for kind, draw in batches.items():
        for optimizer in ("adamw", "lion", "muon"):
            if options.only not in f"{kind}-{optimizer}":
                continue
            runs = [train(kind, optimizer, seed, options.steps, draw) for seed in range(options.seeds)]
            every += runs
            for what in ("q, k", "group:residual"):
                cells = []
                for title in COLUMNS:
                    values = np.array([value for run in runs for value in run[what][title]])
                    cells.append("–" if np.isnan(values).all() else f"{values.mean():.2f} ± {values.std():.2f}")
                leak = np.mean([run[what]["leak"] for run in runs])
                loss = np.mean([run["loss"] for run in runs])
                print(f"| {kind} | {optimizer} | {what} | {' | '.join(cells)} | {leak:.1g} | {loss:.2f} |", flush=True)
            for remark in {f"{layer} {text}" for run in runs for layer, text in run["remarks"].items()}:
                print(f"| | | | {remark} | | | | |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(every, indent=1))


if __name__ == "__main__":
    main()
