"""The engine `lanes`: configs of one network train at once, side by side in one process (see `lab.lanes`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from isogon.lab.engines._local import LocalEngine
from isogon.lab.engines._placement import gpus
from isogon.lab.engines._workers import default_workers
from isogon.lab.gpu import AT_ONCE
from isogon.lab.run import Config


class LanesEngine(LocalEngine):
    """Like `local`, but with several configs per job."""

    together = True

    def units(self, configs: Sequence[Config], *, workers: int | None, device: str, shared: bool) -> list[list[Config]]:
        """Configs of one network together; on a CPU in parts small enough that every worker has one.

        Where others may claim some of them (`shared`), no part is larger than what trains at once.
        """
        alike: dict[tuple[Any, ...], list[Config]] = {}
        for config in configs:
            network = config.net, json.dumps(dict(config.net_options), sort_keys=True), config.data, config.precision
            alike.setdefault(network, []).append(config)
        units = []
        for group in alike.values():
            if device.startswith("cuda"):
                # The longest first, so that at the end no lane is left to train alone for long.
                group.sort(key=lambda config: -config.steps * config.recipe.batch_size)
                # A part for each GPU.
                part = AT_ONCE["cuda"] if shared else -(-len(group) // max(1, len(gpus(device))))
            else:
                part = min(AT_ONCE["cpu"], -(-len(group) // (workers or default_workers(device))))
            units += [group[start : start + part] for start in range(0, len(group), part)]
        return units
