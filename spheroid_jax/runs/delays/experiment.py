"""Delayed runs of a decoder as a family of grids."""

from functools import partial
from typing import Any

from ml_collections import ConfigDict

from spheroid_jax.reports.delays.names import method_label
from spheroid_jax.reports.delays.report import write_report
from spheroid_jax.runs.delays.program import build_model, build_run
from spheroid_jax.runs.delays.schedules import in_parts, largest_delay, schedule
from spheroid_jax.runs.grid.experiment import run_grid
from spheroid_jax.runs.grid.family import Family
from spheroid_jax.runs.methods import count_params

_USED_BY_KIND = {
    "delay.tau": ("fixed", "uniform"),
    "delay.per_worker": ("per_worker",),
    "delay.trace": ("trace",),
}
_ARGUMENTS = (
    *("delay.kind", "delay.start", *_USED_BY_KIND),
    *(f"sync.{name}" for name in ("schedule", "periods", "offsets", "drop")),
    *("sync.quorum", "sync.grace"),
)


def _shapes(config: ConfigDict, field: str) -> bool:
    if field in _USED_BY_KIND:
        return config.delay.kind in _USED_BY_KIND[field]
    return in_parts(config) or not field.startswith("sync.")


def _opening(config: ConfigDict) -> list[str]:
    t, d, m = config.train, config.data, config.model
    count = count_params(build_model(config).init)
    return [
        f"a decoder of {m.layers} layers of width {m.width}, {count:,} parameters; "
        f"{t.replicas} workers, {t.rounds} rounds x {t.local_steps} steps of "
        f"{d.batch} windows of {d.seq_len} bytes"
    ]


def _nothing(config: ConfigDict, metrics: Any = None) -> dict[str, Any]:
    del config, metrics
    return {}


FAMILY = Family(
    init=lambda config: build_model(config).init,
    program=build_run,
    schedule=schedule,
    blocks=lambda _: 1,
    room=largest_delay,
    shapes=_shapes,
    arguments=frozenset(_ARGUMENTS),
    opening=_opening,
    result=_nothing,
    facts=_nothing,
    axis=("delay.tau", "delay.kind"),
    label=method_label,
    write_report=write_report,
)

run_delayed = partial(run_grid, FAMILY)
