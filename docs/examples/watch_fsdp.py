"""A small GPT sharded over two processes: torchrun --nproc-per-node 2 docs/examples/watch_fsdp.py [FOLDER].

Every process makes a monitor and measures its part of the weights; the first one writes. On a cluster with GPUs the
backend is nccl and each process takes its own device; everything else stays as it is. Then `isogon report FOLDER`.
"""

import sys

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from isogon import check, symmetries
from isogon.dynamics import Monitor, RunFolder

WORDS, WIDTH, LENGTH, BATCH, SAMPLES, EPOCHS = 50, 32, 16, 32, 1280, 6


class Block(nn.Module):
    """Attention with normalised queries and keys, then an MLP with relu²."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.fc, self.proj = nn.Linear(WIDTH, 64, bias=False), nn.Linear(64, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = rms(x)
        mixed = F.scaled_dot_product_attention(rms(self.q(y)), rms(self.k(y)), self.v(y), is_causal=True)
        x = x + self.o(mixed)
        return x + self.proj(F.relu(self.fc(rms(x))).square())


class Language(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.Sequential(Block(), Block())
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(rms(self.blocks(self.embed(text))))
        return out


def rms(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],))


def sentences() -> torch.Tensor:
    """Each word depends on the one before."""
    generator = torch.Generator().manual_seed(0)
    likely = (5 * torch.randn(WORDS, WORDS, generator=generator)).softmax(-1)
    text = torch.randint(0, WORDS, (SAMPLES, 1), generator=generator)
    while text.shape[1] <= LENGTH:
        text = torch.cat([text, torch.multinomial(likely[text[:, -1]], 1, generator=generator)], 1)
    return text


def main(folder: str) -> None:
    distributed.init_process_group("gloo")
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    model, text = Language(), sentences()
    # A model cannot be followed once it is sharded: ask before.
    answers = {"scale_map": check(model, text[:2, :-1]), "symmetries": symmetries(model, text[:2, :-1])}
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=1.0)
    # Batch and samples are counted over all processes.
    monitor = Monitor(
        model, optimizer, batch_size=BATCH, samples=SAMPLES, every_steps=5, sinks=[RunFolder(folder)], **answers
    )
    for epoch in range(EPOCHS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(BATCH):
            mine = text[chosen[rank::processes]]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(mine[:, :-1]).flatten(0, 1), mine[:, 1:].flatten())
            loss.backward()
            optimizer.step()
        monitor.end_epoch(loss=loss.item())  # on every process, like the optimizer's step
    monitor.close()
    if rank == 0:
        stream = monitor.records.query("layer == 'group:residual'").groupby("epoch").last()
        print(stream[["norm", "epoch_angle", "predicted_epoch_angle"]].round(4).to_string())
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "run")
