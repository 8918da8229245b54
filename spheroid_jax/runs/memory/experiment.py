"""The whole run: a row for each width, by arithmetic and by compiling."""

import time
from functools import partial
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from spheroid_jax.memory import GIB, active_state, size
from spheroid_jax.reports.memory.report import write_report
from spheroid_jax.reports.tables import duration, gib, si
from spheroid_jax.runs.memory.step import (
    Compiled,
    compile_local_phase,
    method_at,
    part_shapes,
)
from spheroid_jax.runs.opening import environment
from spheroid_jax.runs.whole import Say, Whole, run_whole

# Who holds what: a worker its block and the interface, the reference everything.
METHODS = {"worker": "blocktrain", "full": "end_to_end"}


def _opening(config: ConfigDict, prepared: None) -> str:
    del prepared
    return (
        f"blocks x layers = {config.model.blocks} x {config.model.layers}, "
        f"{config.data.batch} windows of {config.data.seq_len} bytes, "
        f"{len(config.model.widths)} widths, compiled up to {config.compile.up_to}; "
        "nothing is allocated"
    )


def _work(config: ConfigDict, prepared: None, say: Say) -> dict[str, Any]:
    """Every width, worked out and, where it is asked for, compiled."""
    del prepared
    return {
        "rows": [_row(config, width, say) for width in sorted(config.model.widths)],
        "full_params_of_width": full_params_of_width(config),
        "environment": environment() | {"backend": jax.default_backend()},
    }


def full_params_of_width(config: ConfigDict) -> list[float]:
    """``[a, b, c]`` with ``a d² + b d + c`` parameters in the full stack at width d.

    Every leaf has as many numbers as a product of at most two widths, so that three
    widths give the polynomial exactly.
    """
    widths = [config.model.head_width * n for n in (1, 2, 3)]
    counts = [size(part_shapes(method_at(config, d, METHODS["full"]))) for d in widths]
    return [float(x) for x in np.round(np.polyfit(widths, counts, 2), 6)]


def _row(config: ConfigDict, width: int, say: Say) -> dict[str, Any]:
    """Both halves of a width: the worker's and the full stack's."""
    began = time.perf_counter()
    row: dict[str, Any] = {"width": width, "heads": width // config.model.head_width}
    for who, name in METHODS.items():
        method = method_at(config, width, name)
        part = part_shapes(method)
        if width > config.compile.up_to:
            compiled = Compiled(None, f"above compile.up_to={config.compile.up_to}")
        else:
            compiled = compile_local_phase(method, config)
        row[who] = {
            "layers": method.layers_per_worker,
            "params": size(part),
            "adamw_gib": active_state(who, size(part)).adamw_gib,
            "compiled": _bytes(compiled),
            "why": compiled.why,
        }
        if name == "blocktrain":
            row["interface"] = {"params": size(part["interface"])}
    say(f"  d = {width}: {_told(row)} ({duration(time.perf_counter() - began)})")
    return row


def _bytes(compiled: Compiled) -> dict[str, int] | None:
    memory = compiled.memory
    return None if memory is None else {**memory._asdict(), "total": memory.total}


def _told(row: dict[str, Any]) -> str:
    worker, full = row["worker"], row["full"]
    text = (
        f"worker {si(worker['params'])} parameters, AdamW {gib(worker['adamw_gib'])} "
        f"of {gib(full['adamw_gib'])} GiB"
    )
    if not (worker["compiled"] and full["compiled"]):
        return f"{text}; by arithmetic only"
    steps = [gib(x["compiled"]["total"] / GIB) for x in (worker, full)]
    return f"{text}; a compiled step {steps[0]} of {steps[1]} GiB"


run_memory = partial(
    run_whole, Whole(lambda config: None, _opening, _work, write_report)
)
