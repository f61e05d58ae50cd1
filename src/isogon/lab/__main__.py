"""Train the config in a file: `python -m isogon.lab CONFIG.json FOLDER`, or several processes under `torchrun`.

    torchrun --nproc-per-node 8 -m isogon.lab config.json run

The file is the JSON of `Config.to_dict`; a run's folder has one. Each process of `torchrun` trains its part of
every batch on a GPU of its own, or on the CPU where there is none. With --debug a refusal shows its traceback.
"""

from __future__ import annotations

import os
import sys

import torch
from torch import distributed

from isogon.files import read_json
from isogon.guard import leave_at_second_interrupt, run_guarded
from isogon.lab.run import Config, Run, train


def main(arguments: list[str]) -> int:
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if len(arguments) != 2 or arguments[0] in ("-h", "--help"):
        print(__doc__, file=sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    file, out = arguments

    def work() -> int:
        config = Config.from_dict(read_json(file, "config"))
        run = _train_as_a_rank(config, out) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else train(config, out)
        if os.environ.get("RANK", "0") == "0":
            print(f"{run.status}, test accuracy {run.accuracy:.4f}")
        return 0

    stopped = f"Stopped; the same command resumes from the last checkpoint in {out}."
    return run_guarded(work, debug=debug, stopped=stopped)


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
    leave_at_second_interrupt()
    sys.exit(main(sys.argv[1:]))
