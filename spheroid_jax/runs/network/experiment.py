"""Block training over a virtual network as a family of grids."""

from functools import partial
from typing import Any

import numpy as np
from jax import Array
from ml_collections import ConfigDict

from spheroid_jax.reports.network.names import method_label
from spheroid_jax.reports.network.report import write_report
from spheroid_jax.runs.grid.execute import plain
from spheroid_jax.runs.grid.experiment import run_grid
from spheroid_jax.runs.grid.family import Family
from spheroid_jax.runs.methods import block_denoiser, count_params
from spheroid_jax.runs.network.arrivals import (
    is_drawn,
    network_of,
    oldest,
    part_bytes,
)
from spheroid_jax.runs.network.program import build_run

_ARGUMENTS = frozenset(
    f"network.{name}"
    for name in ("preset", "profiles", "deadline", "late", "max_age", "quorum", "grace")
)


def _init(config: ConfigDict) -> Any:
    model, blocks = block_denoiser(config), config.model.blocks

    def init(key: Array) -> Any:
        return model.init(key, blocks)

    return init


def _opening(config: ConfigDict) -> list[str]:
    t, d, m, n = config.train, config.data, config.model, config.network
    workers = n.profiles or n.trace or f"preset {n.preset}"
    ends = f"closed after {n.deadline:g} s" if n.deadline else "open until all arrived"
    return [
        f"{m.blocks} blocks x {m.layers} layers of width {m.width}, "
        f"{count_params(_init(config)):,} parameters; {t.replicas} workers per block, "
        f"{t.rounds} rounds x {t.local_steps} steps of {d.batch} windows of "
        f"{d.seq_len} bytes",
        f"network: {workers}, rounds {ends}, late updates: {n.late}; "
        f"{part_bytes(config):,} bytes to a worker and back (unless a cell says other)",
    ]


def _result(config: ConfigDict, metrics: dict[str, np.ndarray]) -> dict[str, Any]:
    """What became of the network, by seed; sums over rounds."""
    workers = config.model.blocks * config.train.replicas
    rounds, every = config.train.rounds, config.eval.every
    timely = metrics["timely"].sum(axis=(1, 2)) / (rounds * workers)
    received = metrics["received"].sum(axis=1)
    at_work = metrics["seconds"] * metrics["online"]
    size = part_bytes(config)
    return {
        "participation": plain(timely),
        "received": plain(received / (rounds * workers)),
        "timely_blocks": plain((metrics["timely"] > 0).mean(axis=(1, 2))),
        "by_age": metrics["by_age"].sum(axis=(0, 1)).tolist(),
        "bytes_down": [int(n) * size for n in metrics["sent"].sum(axis=1)],
        "bytes_up": [int(n) * size for n in received],
        "round_seconds": plain(metrics["seconds"].mean(axis=1)),
        "busy": plain(_share(metrics["busy_seconds"], at_work)),
        "useful": plain(_share(metrics["useful_seconds"], at_work)),
        "time": [plain(point) for point in metrics["time"][:, every - 1 :: every].T],
    }


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    total = whole.astype(np.float64).sum(axis=1)
    return part.astype(np.float64).sum(axis=1) / np.maximum(total, 1e-9)


def _facts(config: ConfigDict) -> dict[str, Any]:
    return {
        "blocks": config.model.blocks,
        "part_bytes": part_bytes(config),
    }


FAMILY = Family(
    init=_init,
    program=build_run,
    schedule=network_of,
    blocks=lambda config: config.model.blocks,
    room=oldest,
    shapes=is_drawn,
    arguments=_ARGUMENTS,
    opening=_opening,
    result=_result,
    facts=_facts,
    axis=("network.preset", "network.late"),
    label=method_label,
    write_report=write_report,
)

run_network = partial(run_grid, FAMILY)
