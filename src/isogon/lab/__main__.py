"""Train the config in a file: `python -m isogon.lab CONFIG.json FOLDER`, or several processes under `torchrun`.

    torchrun --nproc-per-node 8 -m isogon.lab config.json run

The file is what `Config.to_dict` gives, as JSON; a run's folder has one. Each process of `torchrun` trains its part of
every batch on a GPU of its own, or on the CPU where there is none.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed

from isogon.errors import ArgumentError, IsogonError
from isogon.lab.config import Config
from isogon.lab.runs import Run
from isogon.lab.training import train


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] in ("-h", "--help"):
        print(__doc__, file=sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    file, out = arguments
    try:
        config = Config.from_dict(json.loads(Path(file).read_text(encoding="utf-8")))
        run = _train_as_a_rank(config, out) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else train(config, out)
    except json.JSONDecodeError as error:
        print(ArgumentError("config", "a JSON file", file, f"{error}"), file=sys.stderr)
        return 2
    except (IsogonError, OSError) as error:
        print(f"{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"Stopped; the same command goes on from the last checkpoint in {out}.", file=sys.stderr)
        return 130
    if os.environ.get("RANK", "0") == "0":
        print(f"{run.status}, test accuracy {run.accuracy:.4f}")
    return 0


def _train_as_a_rank(config: Config, out: str) -> Run:
    gpu = torch.cuda.is_available()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu"
    if gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if gpu else "gloo")
    try:
        return train(config, out, device=device)
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
