"""A coordinator under many light workers: requests, errors, latency, memory.

python -m benchmarks.coordinator_load [--workers=64] [--width=64] [--seconds=300]
    [--think=2] [--directory=DIR] [--json=FILE]

    --workers=8,32,64 --width=64,256 --seconds=60       a table of memory

A coordinator as a user starts it, with a model of 4 blocks of width ``--width`` and as
many slots as workers; one for each pair where lists are given. The workers are real but
for training: they register, wait for work, fetch it, sleep about ``--think`` seconds,
send an update of float32, and beat. They live in two processes, besides one that
watches the dashboard's events and one request of ``/healthz`` after another, which
shows how late the coordinator's event loop is.

The first table is of the last run. Times are as the workers see them, so with the
delays of their own event loop, which is listed. ``work``: from when the round was open
and the worker had asked, to the answer. ``commit`` waits for the update's way to the
disk (three fsyncs), ``PATCH`` and ``GET`` move data: they are no control requests. An
error is any try that failed, an exception, or an update that was refused. ``over`` is
how many took longer than the target.

The second table has a row a run. Memory is the coordinator's, before the first worker
came and at most: all that is resident, and its ``own``, which no file on disk backs.
"""

import itertools
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
from benchmarks._memory import MIB

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
    return [
        *(row(kind, seconds) for kind, seconds in control.items()),
        row("control requests", _control(found)),
        *(row(kind, seconds) for kind, seconds in rest.items()),
        row("(workers' own delay)", found.lag),
    ]


def _control(found: Found) -> list[float]:
    """Seconds of all control requests."""
    return [seconds for kind in CONTROL for seconds in found.requests.get(kind, ())]


def run_row(load: Load, found: Found) -> dict[str, Any]:
    """A run in a row."""
    control = row("", _control(found))
    grown = found.peak.own - found.before.own
    return {
        "width": load.width,
        "workers": load.workers,
        "update MiB": round(found.update / MIB, 2),
        "rounds": found.rounds,
        "MB/s": round(found.moved / 1e6 / found.seconds, 1),
        "cores": round(found.cpu / found.seconds, 2),
        "control p99 ms": control["p99 ms"],
        "over": control["over"],
        "errors": len(found.errors),
        "before MiB": round(found.before.resident / MIB),
        "most MiB": round(found.peak.resident / MIB),
        "own before MiB": round(found.before.own / MIB),
        "own most MiB": round(found.peak.own / MIB),
        "grown MiB each worker": round(grown / MIB / load.workers, 2),
    }


def summary(load: Load, found: Found) -> str:
    """What happened, in a few lines."""
    loads = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    verdicts = ", ".join(f"{n} {v}" for v, n in sorted(found.verdicts.items()))
    return (
        f"{load.workers} workers, width {load.width}, {found.seconds:.0f} s: "
        f"{found.rounds} rounds, "
        f"{sum(map(len, found.requests.values()))} requests, updates of "
        f"{found.update / 1e6:.2f} MB: {verdicts}; {found.moved / 1e6:.0f} MB, "
        f"{found.moved / 1e6 / found.seconds:.1f} MB/s; {len(found.errors)} errors\n"
        f"coordinator: {found.cpu / found.seconds:.2f} of a core, its event loop "
        f"ready to run but without a processor {found.waiting / found.seconds:.0%} of "
        "the time (others' load); "
        f"{found.before.text()} before, {found.after.text()} after, "
        f"{found.peak.text()} at most\n"
        f"load averages of the machine at the end: {loads}; {os.cpu_count()} cores"
    )


def numbers(text: str) -> list[int]:
    """Whole numbers, as in 8,32,64."""
    return [int(word) for word in text.split(",")]


def main(argv: list[str]) -> int:
    """Puts the loads on, reports; 1 if anything failed."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--workers", type=numbers, default="64", help="8,32,64")
    arguments.add_argument("--width", type=numbers, default="64", help="of the model")
    arguments.add_argument("--seconds", type=float, default=300.0, help="of each run")
    arguments.add_argument("--think", type=float, default=2.0, help="seconds")
    arguments.add_argument("--directory", help="where to write; default: a temporary")
    options = arguments.parse_args(argv)
    said: list[str] = []
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        for width, workers in itertools.product(options.width, options.workers):
            load = Load(workers, options.seconds, width, options.think)
            found = run(Path(scratch) / f"{width}x{workers}", load)
            runs.append(run_row(load, found))
            said += summary(load, found).split("\n")
            print(summary(load, found), flush=True)
            for line in found.errors[:5]:
                print(f"error: {line}", flush=True)
    rows = latencies(found)
    p99 = runs[-1]["control p99 ms"] / 1e3 / TARGET
    name = f"p99 of control requests, in targets of {1e3 * TARGET:.0f} ms"
    report(rows, {name: p99}, options.json)
    print()
    report(runs, {}, None)
    if options.json:
        file = Path(options.json)
        facts = {**json.loads(file.read_text()), "runs": runs, "summary": said}
        file.write_text(json.dumps(facts, indent=2) + "\n")
    return 1 if any(each["errors"] for each in runs) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
