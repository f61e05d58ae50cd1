"""What the monitor costs: the same training loop with and without it.

    python benchmarks/monitor_overhead.py resnet18 [--width 64] [--batch 128] [--every 1 10] [--repeats 15] [--amp]
    python benchmarks/monitor_overhead.py gpt [--depth 12] [--width 768] [--batch 8] [--every 50] [--block 50] [--amp]

ResNet-18 is trained by SGD; gpt is GPT-2's form, 124 M weights by default, trained by AdamW. Copies of the network
train side by side on the same random batch, in turns of `--block` steps: one bare, and one for each of `--every` with a
monitor that measures so often. Fetching the numbers and making the rows, once at the end as an epoch would, is timed
too and added to each step. Printed is the median over turns of the ratio to the bare loop, with its quartiles; and,
where the noise of whole steps is larger than the cost, what the optimizer's own step takes longer with the hooks (on a
GPU: to launch), as a share of the bare step.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import torch
from machine import processor
from torch import nn

from isogon.dynamics import Monitor
from isogon.nets import gpt, resnet18

#: by model: width, batch, and how often the monitors measure
DEFAULTS = {"resnet18": (64, 128, (1, 10)), "gpt": (768, 8, (50,))}


class Loop:
    """A network in training, with a monitor unless `every` is None."""

    def __init__(self, options: argparse.Namespace, every: int | None) -> None:
        torch.manual_seed(0)
        self.options, self.device, self.steps = options, torch.device(options.device), 0
        self.model, self.inputs, self.targets = self._make_text() if options.model == "gpt" else self._make_images()
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer: torch.optim.Optimizer
        if options.model == "gpt":
            fused = self.device.type == "cuda"
            self.optimizer = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)
        self.optimizer_times: list[float] = []
        self.monitor = None
        if every is not None:
            self.monitor = Monitor(
                self.model,
                self.optimizer,
                batch_size=options.batch,
                samples=10**9,
                inputs=self.inputs[:4],
                every_steps=every,
            )

    def _make_images(self) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        options = self.options
        model: nn.Module = resnet18(width=options.width, scale_invariant="affine").to(self.device)
        inputs = torch.randn(options.batch, 3, options.size, options.size, device=self.device)
        if options.amp:
            model, inputs = (thing.to(memory_format=torch.channels_last) for thing in (model, inputs))
        return model, inputs, torch.randint(0, 10, (options.batch,), device=self.device)

    def _make_text(self) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        options = self.options
        model = gpt(
            options.vocabulary, options.context, depth=options.depth, width=options.width, heads=options.width // 64,
            norm="layer", affine=True, qk_norm=False, activation="gelu", positions="learned", bias=True,
        ).to(self.device)  # fmt: skip
        tokens = torch.randint(0, options.vocabulary, (options.batch, options.context + 1), device=self.device)
        return model, tokens[:, :-1], tokens[:, 1:]

    def turn(self) -> float:
        """Train `--block` steps; the seconds of one."""
        wait(self.device)
        start = clock(self.device)
        for _ in range(self.options.block):
            self.optimizer.zero_grad()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.amp):
                outputs = self.model(self.inputs)
                loss = nn.functional.cross_entropy(outputs.flatten(0, -2), self.targets.flatten())
            loss.backward()
            before = clock(self.device)
            self.optimizer.step()
            self.optimizer_times.append(clock(self.device) - before)
        wait(self.device)
        self.steps += self.options.block
        return (clock(self.device) - start) / self.options.block

    def hook_time(self, bare: Loop) -> float:
        """What the optimizer's step takes longer than in the `bare` loop, per step.

        Medians over the measured steps, and over those that are not, which pass the hooks too.
        """
        every = self.monitor.every_steps if self.monitor is not None else 1
        measured, others = self.optimizer_times[::every], list(self.optimizer_times)
        del others[::every]
        measured = measured[1:] or measured  # the first one allocates
        usual = statistics.median(bare.optimizer_times[1:])
        unmeasured = statistics.median(others) - usual if others else 0.0
        return (statistics.median(measured) - usual + (every - 1) * unmeasured) / every

    def fetch(self) -> float:
        """Make the rows of all that was measured; the seconds for each step trained since the last time."""
        start = clock(self.device)
        if self.monitor is not None:
            self.monitor.flush()
        elapsed, self.steps = (clock(self.device) - start) / self.steps, 0
        return elapsed


def clock(device: torch.device) -> float:
    """On the CPU the process's own time, which other programs on the machine do not lengthen."""
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=tuple(DEFAULTS))
    parser.add_argument("--width", type=int)
    parser.add_argument("--batch", type=int, help="images or sequences")
    parser.add_argument("--every", type=int, nargs="+", help="steps between two that are measured; one loop for each")
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--depth", type=int, default=12, help="blocks of the GPT")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a sequence")
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--block", type=int, default=10, help="steps of one turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--amp", action="store_true", help="bfloat16 autocast, channels last")
    options = parser.parse_args()
    width, batch, every_steps = DEFAULTS[options.model]
    options.width, options.batch = options.width or width, options.batch or batch
    options.every = tuple(options.every or every_steps)
    torch.set_num_threads(options.threads)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    threads = f", {options.threads} thread(s)" if options.device == "cpu" else ""
    print(f"{processor(options.device)}{threads}, {versions}")
    mode = "bfloat16 autocast" if options.amp else "float32"
    if options.model == "gpt":
        print(f"GPT {options.depth} × {options.width}, batch {options.batch} × {options.context} tokens, AdamW, {mode}")
    else:
        print(f"ResNet-18 of width {options.width}, batch {options.batch}, {options.size}×{options.size}, SGD, {mode}")
    print(f"{options.repeats} turns of {options.block} steps; ratios to the bare loop: median (quartiles)")

    loops = {every: Loop(options, every) for every in (None, *options.every)}
    times: dict[int | None, list[float]] = {every: [] for every in loops}
    for repeat in range(options.repeats + 1):
        order = list(loops)
        for every in order[repeat % len(order) :] + order[: repeat % len(order)]:
            elapsed = loops[every].turn()
            if repeat:
                times[every].append(elapsed)
            else:  # the first turn warms up
                loops[every].fetch()
    rows = {every: loops[every].fetch() for every in options.every}
    bare = statistics.median(times[None])
    print(f"bare loop: {1e3 * bare:.2f} ms per step")
    for every in options.every:
        ratios = [(a + rows[every]) / b for a, b in zip(times[every], times[None], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        hooks = loops[every].hook_time(loops[None]) + rows[every]
        print(
            f"monitor, every {every:2} step(s): {middle:.4f} ({low:.4f} to {high:.4f}); hooks and rows take "
            f"{1e3 * hooks:.3f} ms per step, {100 * hooks / bare:.2f} %"
        )


if __name__ == "__main__":
    main()
