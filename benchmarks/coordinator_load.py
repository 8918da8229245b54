"""A coordinator under many light workers: requests, errors, latency, memory.

python -m benchmarks.coordinator_load [--workers=64] [--seconds=300] [--width=64]
    [--think=2] [--memory=8,32,64] [--memory-widths=64,128] [--memory-seconds=15]
    [--directory=DIR] [--json=FILE]

A coordinator as a user starts it, with a model of 4 blocks of width ``--width`` and as
many slots as workers. The workers are real but for training: they register, wait for
work, fetch it, sleep about ``--think`` seconds, send an update of float32, and beat.
They live in two processes, besides one that watches the dashboard's events and one
request of ``/healthz`` after another, which shows how late the coordinator's event loop
is.

Times are as the workers see them, so with the delays of their own event loop, which is
listed. ``work``: from when the round was open and the worker had asked, to the answer.
``commit`` waits for the update's way to the disk (three fsyncs), ``PATCH`` and ``GET``
move data: they are no control requests. An error is any try that failed, an exception,
or an update that was refused. ``over`` is how many took longer than the target.

The last table: memory of the coordinator before the first worker came, and at most,
against the number of workers and the size of an update.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _light
from benchmarks._harness import parser, report
from benchmarks._loaded import Found, Load, run

TARGET = 0.1  # seconds
CONTROL = ("POST workers", "work", "POST heartbeat", _light.ANNOUNCE, "POST leave")


def row(kind: str, seconds: Sequence[float]) -> dict[str, Any]:
    """Percentiles of the times of a kind of request, in milliseconds."""
    times = 1e3 * np.asarray(seconds)
    points = {f"p{p}": np.percentile(times, p) for p in (50, 95, 99)} | {
        "max": np.max(times)
    }
    return {
        "request": kind,
        "count": len(times),
        **{f"{name} ms": round(float(value), 1) for name, value in points.items()},
        "over": int(np.sum(times > 1e3 * TARGET)),
    }


def latencies(found: Found) -> list[dict[str, Any]]:
    """Rows by kind; control requests come first, and all of them together."""
    control = {k: found.requests[k] for k in CONTROL if found.requests.get(k)}
    rest = {k: v for k, v in sorted(found.requests.items()) if k not in CONTROL and v}
    together = [seconds for kind in control.values() for seconds in kind]
    return [
        *(row(kind, seconds) for kind, seconds in control.items()),
        row("control requests", together),
        *(row(kind, seconds) for kind, seconds in rest.items()),
        row("(workers' own delay)", found.lag),
    ]


def memory_row(load: Load, found: Found) -> dict[str, Any]:
    """A row of the last table."""
    mib = 2**20
    grown = found.peak - found.before
    return {
        "workers": load.workers,
        "update MiB": round(found.update / mib, 2),
        "rounds": found.rounds,
        "before MiB": round(found.before / mib, 1),
        "after MiB": round(found.after / mib, 1),
        "most MiB": round(found.peak / mib, 1),
        "grown MiB each worker": round(grown / mib / load.workers, 2),
    }


def summary(load: Load, found: Found) -> str:
    """What happened, in a few lines."""
    loads = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    verdicts = ", ".join(f"{n} {v}" for v, n in sorted(found.verdicts.items()))
    return (
        f"{load.workers} workers, {found.seconds:.0f} s: {found.rounds} rounds, "
        f"{sum(map(len, found.requests.values()))} requests, updates of "
        f"{found.update / 1e6:.2f} MB: {verdicts}; {found.moved / 1e6:.0f} MB, "
        f"{found.moved / 1e6 / found.seconds:.1f} MB/s; {len(found.errors)} errors\n"
        f"coordinator: {found.cpu / found.seconds:.2f} of a core, its event loop "
        f"ready to run but without a processor {found.waiting / found.seconds:.0%} of "
        "the time (others' load); "
        f"{found.before / 2**20:.0f} MiB before, {found.after / 2**20:.0f} after, "
        f"{found.peak / 2**20:.0f} at most\n"
        f"load averages of the machine at the end: {loads}; {os.cpu_count()} cores"
    )


def main(argv: list[str]) -> int:
    """Puts the load on, reports; 1 if anything failed."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--workers", type=int, default=64)
    arguments.add_argument("--seconds", type=float, default=300.0)
    arguments.add_argument("--width", type=int, default=64, help="of the model")
    arguments.add_argument("--think", type=float, default=2.0, help="seconds")
    arguments.add_argument("--memory", default="8,32,64", help="workers; empty: none")
    arguments.add_argument("--memory-widths", default="64,128")
    arguments.add_argument("--memory-seconds", type=float, default=15.0)
    arguments.add_argument("--directory", help="where to write; default: a temporary")
    options = arguments.parse_args(argv)
    memory = []
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        load = Load(options.workers, options.seconds, options.width, options.think)
        found = run(Path(scratch) / "load", load)
        for width in filter(None, options.memory_widths.split(",")):
            for workers in filter(None, options.memory.split(",")):
                each = Load(
                    int(workers), options.memory_seconds, int(width), options.think
                )
                directory = Path(scratch) / f"memory{width}x{workers}"
                memory.append(memory_row(each, run(directory, each)))
    rows = latencies(found)
    print(summary(load, found))
    for line in found.errors[:5]:
        print(f"error: {line}")
    (together,) = (r for r in rows if r["request"] == "control requests")
    name = f"p99 of control requests, in targets of {1e3 * TARGET:.0f} ms"
    report(rows, {name: together["p99 ms"] / 1e3 / TARGET}, options.json)
    if memory:
        print()
        report(memory, {}, None)
    if options.json:
        file = Path(options.json)
        facts = {**json.loads(file.read_text()), "memory": memory}
        facts["summary"] = summary(load, found).split("\n")
        file.write_text(json.dumps(facts, indent=2) + "\n")
    return 1 if found.errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
