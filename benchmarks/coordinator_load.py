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

import contextlib
import dataclasses
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import _light, _processes
from benchmarks._harness import parser, report
from spheroid_jax.checkpoints.leaves import named
from spheroid_jax.commandline import configured
from spheroid_jax.runs.exchange import setup
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.tokens import mint
from spheroid_jax.transport.updates import Encoding, write_update

TARGET = 0.1  # seconds
BLOCKS = 4
CONTROL = ("POST workers", "work", "POST heartbeat", _light.ANNOUNCE, "POST leave")
PROBE = 0.02  # seconds between two looks at /healthz
ROOT = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Load:
    """What is asked of a coordinator."""

    workers: int
    seconds: float
    width: int
    think: float
    processes: int = 2

    @property
    def overrides(self) -> list[str]:
        """The options of the command line."""
        settings = {
            "model.blocks": BLOCKS,
            "model.layers": 1,
            "model.width": self.width,
            "data.corpus": "embedded",
            "data.seq_len": 16,
            "data.batch": 1,
            "train.local_steps": 1,
            "train.replicas": -(-self.workers // BLOCKS),
            "train.rounds": 10_000,
            "network.deadline": 60.0,
            "exchange.workers": self.workers,
            "exchange.encoding": "float32",
            "exchange.heartbeat": 2.0,
            "eval.windows": 32,
            "eval.every": 10,
        }
        return [f"--config.{name}={value}" for name, value in settings.items()]


@dataclasses.dataclass
class Found:
    """What came of it."""

    requests: dict[str, list[float]]
    lag: list[float]  # of the workers' event loops
    errors: list[str]
    verdicts: dict[str, int]
    rounds: int
    seconds: float
    moved: int
    cpu: float
    before: float
    after: float
    peak: float
    update: int


class Probe(threading.Thread):
    """Asks for ``/healthz`` again and again, and watches the dashboard's events."""

    def __init__(self, port: int) -> None:
        """Not started yet."""
        super().__init__(daemon=True)
        self._port, self._ended = port, threading.Event()
        self.seconds: list[float] = []
        self.errors: list[str] = []

    def run(self) -> None:
        """Until it is told to end."""
        threading.Thread(target=self._watch, daemon=True).start()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while not self._ended.wait(PROBE):
            began = time.monotonic()
            try:
                connection.request("GET", "/healthz")
                answer = connection.getresponse()
                answer.read()
            except OSError as error:
                self.errors.append(f"/healthz: {error!r}")
                return
            self.seconds.append(time.monotonic() - began)
            if answer.status != 200:
                self.errors.append(f"/healthz: {answer.status}")

    def end(self) -> None:
        """Asks no more."""
        self._ended.set()
        self.join()

    def _watch(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/events")
            answer = connection.getresponse()
            while not self._ended.is_set() and answer.readline():
                pass


class Rounds(threading.Thread):
    """Reads what a coordinator prints: when which round opened."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Not started yet."""
        super().__init__(daemon=True)
        self._process = process
        self.opened: dict[int, float] = {}
        self.lines: list[str] = []

    def run(self) -> None:
        """Until the process ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            now = time.monotonic()
            self.lines.append(line.rstrip())
            if line.startswith("round ") and "/" in line.split()[1]:
                self.opened[int(line.split()[1].split("/")[0])] = now


@contextlib.contextmanager
def coordinator(directory: Path, load: Load) -> Iterator[tuple[Any, int, Rounds]]:
    """A coordinator, until it is drained; its process, its port and its rounds."""
    port = _processes.free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "experiments.coordinator"),
            *("--config=configs/wan.py:quick", f"--workdir={directory}"),
            *(f"--listen=127.0.0.1:{port}", *load.overrides),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    rounds = Rounds(process)
    rounds.start()
    try:
        _processes.wait_for_port(port, process, 300.0)
        yield process, port, rounds
    except RuntimeError as error:
        said = " | ".join(rounds.lines[-5:])
        raise RuntimeError(f"{error}; it said: {said}") from error
    finally:
        _processes.end(process)
        rounds.join(10.0)


def make_update(directory: Path, load: Load) -> dict[str, Any]:
    """Writes an update that fits every block, and says what it is."""
    config = configured("configs/wan.py:quick", load.overrides)
    engine, init = setup.engine_of(config)[0], setup.init_of(config)
    shapes = jax.eval_shape(lambda key: engine.partition.take(init(key)), KEY())
    noise = np.random.default_rng(0)
    delta = {
        name: np.float32(1e-4) * noise.standard_normal(leaf.shape[1:], np.float32)
        for name, leaf in named(shapes).items()
    }
    path = directory / "light.update"
    written = write_update(path, delta, Encoding("float32"), {})
    return {"update": str(path), "bytes": written.bytes, "sha256": written.sha256}


def KEY() -> jax.Array:
    """Any key; only shapes are asked for."""
    return jax.random.key(0)


def make_tokens(workdir: Path, count: int) -> dict[str, str]:
    """A token for each worker."""
    tokens = {}
    (workdir / "exchange").mkdir(parents=True)
    with Ledger.open(workdir / "exchange" / "ledger.db") as ledger:
        for number in range(count):
            tokens[f"light{number:03}"], digest = mint()
            ledger.add_token(f"light{number:03}", digest)
    return tokens


def run(directory: Path, load: Load) -> Found:
    """Puts a load on a coordinator in a new directory."""
    directory.mkdir(parents=True)
    workdir = directory / "run"
    tokens, update = make_tokens(workdir, load.workers), make_update(directory, load)
    with coordinator(workdir, load) as (process, port, rounds):
        pid = process.pid
        before, cpu = _processes.resident(pid), _processes.cpu_seconds(pid)
        _processes.reset_peak(pid)
        probe = Probe(port)
        probe.start()
        settings = {
            "url": f"http://127.0.0.1:{port}",
            "seconds": load.seconds,
            "think": load.think,
            **update,
        }
        began = time.monotonic()
        seen = _run_workers(directory, load, settings, tokens)
        seconds = time.monotonic() - began
        probe.end()
        after = _processes.resident(pid)
        peak = _processes.resident(pid, "VmHWM")
        cpu = _processes.cpu_seconds(pid) - cpu
        is_alive = process.poll() is None
    found = _gather(seen, rounds)
    found.requests["GET healthz"] = probe.seconds
    errors = found.errors + probe.errors
    errors += [] if is_alive else [f"the coordinator ended: {rounds.lines[-3:]}"]
    errors += [line for line in rounds.lines if "Traceback" in line]
    return dataclasses.replace(
        found,
        errors=errors,
        seconds=seconds,
        cpu=cpu,
        before=before,
        after=after,
        peak=peak,
        update=update["bytes"],
    )


def _run_workers(
    directory: Path, load: Load, settings: dict[str, Any], tokens: dict[str, str]
) -> list[dict[str, Any]]:
    names = list(tokens)
    running = []
    for number in range(load.processes):
        own = {name: tokens[name] for name in names[number :: load.processes]}
        file = directory / f"light{number}.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps({**settings, "tokens": own}))
        command = [sys.executable, "-m", "benchmarks._light", str(file)]
        running.append(
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        )
    try:
        return [json.loads(process.communicate()[0]) for process in running]
    finally:
        for process in running:
            _processes.end(process)


def _gather(seen: list[dict[str, Any]], rounds: Rounds) -> Found:
    requests: dict[str, list[float]] = {}
    verdicts: dict[str, int] = {}
    for one in seen:
        for kind, seconds in one["requests"].items():
            # Most of the time that a request for work takes, there is nothing to do.
            if kind != "POST work":
                requests.setdefault(kind, []).extend(seconds)
        for verdict, count in one["verdicts"].items():
            verdicts[verdict] = verdicts.get(verdict, 0) + count
    requests["work"] = [
        answered - max(asked, rounds.opened[number])
        for one in seen
        for number, asked, answered in one["work"]
        if number in rounds.opened
    ]
    errors = [line for one in seen for line in one["errors"]]
    for verdict in ("rejected", "duplicate"):
        errors += [f"an update was {verdict}"] * verdicts.get(verdict, 0)
    return Found(
        requests=requests,
        lag=[late for one in seen for late in one["lag"]],
        errors=errors,
        verdicts=verdicts,
        rounds=max(rounds.opened, default=0),
        moved=sum(one["up"] + one["down"] for one in seen),
        **dict.fromkeys(("seconds", "cpu", "before", "after", "peak"), 0.0),
        update=0,
    )


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
        f"coordinator: {found.cpu / found.seconds:.2f} of a core, "
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
