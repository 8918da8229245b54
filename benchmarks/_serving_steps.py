"""What a stage's step takes here, and the host that the planner should reckon with."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._serving_hosts import BLOCKS, METHODS
from spheroid_jax.models.interface import VOCABULARY
from spheroid_jax.serving.host.engine import Engine, Work
from spheroid_jax.serving.loading import load_model
from spheroid_jax.serving.planner import Host, ModelSize

# Seconds between two steps: a stage waits for the network as long, and then finds its
# caches cold and its processor taken by others, or asleep.
PAUSE = 0.04


class Point(NamedTuple):
    """A step of one row, measured."""

    flops: float
    read: float  # bytes
    seconds: float


def engines(checkpoint: Path, kind: str) -> list[Engine]:
    """The stages of a run's model, in this process."""
    count = BLOCKS if kind == "autoregressive" else None
    path = checkpoint / "checkpoints" / METHODS[kind]
    stages, parts, _ = load_model(path, count=count)
    return [
        Engine(stage, params, slots=8, max_batch=1)
        for stage, params in zip(stages, parts, strict=True)
    ]


def step_points(
    engine: Engine, size: ModelSize, positions: Sequence[int], repeats: int
) -> list[Point]:
    """Median times of steps of one row, of so many positions."""
    return [
        Point(
            size.step_flops(1, 1, size.bucket(count)),
            size.step_bytes(1, 1),
            _median(partial(_step, engine, count), repeats, PAUSE),
        )
        for count in positions
    ]


def calibrated(
    checkpoint: Path,
    kind: str,
    size: ModelSize,
    positions: Sequence[int],
    repeats: int,
) -> tuple[Host, ...]:
    """A host for every stage, from the times of its steps alone."""
    bandwidth = copy_bandwidth()
    found = []
    for n, engine in enumerate(engines(checkpoint, kind)):
        points = step_points(engine, size, positions, repeats)
        host = fit_host(f"{kind} {n}", points, bandwidth)
        if kind == "blocktrain" and n == 0:
            most = max(positions)
            step = partial(_step, engine, most, "written")
            launch = fit_launch(host, size, most, _median(step, repeats, PAUSE))
            host = dataclasses.replace(host, launch=launch)
        found.append(host)
    return tuple(found)


def fit_launch(host: Host, size: ModelSize, positions: int, seconds: float) -> float:
    """What a drafted byte costs beside computing and reading.

    Args:
      host: of the first stage, fitted to steps without drafts.
      size: of the model.
      positions: of a step that drafts all but the first of them.
      seconds: of that step.
    """
    padded = size.bucket(positions)
    plain = host.seconds(size.step_flops(1, 1, padded), size.step_bytes(1, 1))
    single = host.seconds(size.step_flops(1, 1, 1), size.step_bytes(1, 1))
    each = (seconds - plain) / max(1, positions - 1)
    return max(0.0, each - (single - host.overhead))


def fit_host(
    name: str, points: Sequence[Point], bandwidth: float, memory: float = 64.0
) -> Host:
    """The host whose roofline goes through the shortest and the longest step.

    Args:
      name: of the host.
      points: two at least, of different FLOPs.
      bandwidth: of its memory, GB/s.
      memory: GiB.
    """
    small, big = min(points), max(points)
    reading = small.read / (1e9 * bandwidth)
    overhead = max(0.0, small.seconds - reading)
    rate = big.flops / max(1e-9, big.seconds - overhead)
    for _ in range(8):  # the short step is bound by the slower of the two
        overhead = max(0.0, small.seconds - max(reading, small.flops / rate))
        rate = big.flops / max(1e-9, big.seconds - overhead)
    return Host(name, memory, bandwidth, rate / 1e12, overhead)


def copy_bandwidth(mib: int = 64, repeats: int = 5) -> float:
    """GB/s that a copy of memory reads and writes."""
    source = np.ones(mib << 17)
    target = np.empty_like(source)
    seconds = _median(lambda: np.copyto(target, source), repeats)
    return 2 * source.nbytes / seconds / 1e9


def _step(engine: Engine, count: int, fill: str = "") -> None:
    """A step as a sweep of one row asks for it: one byte is known, or all are."""
    stage = engine.stage
    blocks = stage.kind == "blocktrain"
    fill = fill or ("expected" if blocks and count > 1 else "given")
    known = count if fill == "given" else 1
    state = guess = draft = None
    if not stage.first:
        state = np.zeros((count, stage.width), np.float32)
        guess = state if fill == "expected" else None
        if blocks and fill != "written":
            draft = np.zeros((count - known + 1, VOCABULARY), np.float32)
    work = Work(
        slot=0,
        start=0,
        index=0,
        known=known,
        count=count,
        bytes=np.zeros(count, np.uint8),
        state=state,
        guess=guess,
        draft=draft,
    )
    engine.compute([work], fill, "last")


def _median(call: Callable[[], Any], repeats: int, pause: float = 0.0) -> float:
    call()
    call()
    seconds = []
    for _ in range(repeats):
        time.sleep(pause)
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
