"""A coordinator as a process, and many light workers around it."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import _processes
from benchmarks._memory import UNKNOWN, Memory, Watch, memory_of
from benchmarks._probe import Probe
from spheroid_jax.checkpoints.leaves import named
from spheroid_jax.commandline import configured
from spheroid_jax.runs.exchange import setup
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.tokens import LEDGER, mint
from spheroid_jax.transport.updates import Encoding, write_update

BLOCKS = 4
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
    waiting: float  # seconds that the coordinator's event loop waited for a processor
    before: Memory
    after: Memory
    peak: Memory
    update: int  # bytes


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
    shapes = jax.eval_shape(lambda: engine.partition.take(init(jax.random.key(0))))
    noise = np.random.default_rng(0)
    delta = {
        name: np.float32(1e-4) * noise.standard_normal(leaf.shape[1:], np.float32)
        for name, leaf in named(shapes).items()
    }
    path = directory / "light.update"
    written = write_update(path, delta, Encoding("float32"), {})
    return {"update": str(path), "bytes": written.bytes, "blake3": written.blake3}


def make_tokens(workdir: Path, count: int) -> dict[str, str]:
    """A token for each worker."""
    tokens = {}
    (workdir / "exchange").mkdir(parents=True)
    with Ledger.open(workdir / LEDGER) as ledger:
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
        before, cpu = memory_of(pid), _processes.cpu_seconds(pid)
        waiting = _processes.waiting_seconds(pid)
        _processes.reset_peak(pid)
        probe, watch = Probe(port), Watch(pid)
        probe.start()
        watch.start()
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
        # The kernel misses no peak of all that is resident, but for a few pages.
        after, peak = memory_of(pid), watch.end()
        most = max(peak.resident, _processes.resident(pid, "VmHWM"))
        peak = peak._replace(resident=most)
        cpu = _processes.cpu_seconds(pid) - cpu
        waiting = _processes.waiting_seconds(pid) - waiting
        is_alive = process.poll() is None
    found = gather(seen, rounds)
    found.requests["GET healthz"] = probe.seconds
    errors = found.errors + probe.errors
    errors += [] if is_alive else [f"the coordinator ended: {rounds.lines[-3:]}"]
    errors += [line for line in rounds.lines if "Traceback" in line]
    return dataclasses.replace(
        found,
        errors=errors,
        seconds=seconds,
        cpu=cpu,
        waiting=waiting,
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


def gather(seen: list[dict[str, Any]], rounds: Rounds) -> Found:
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
        seconds=0.0,
        cpu=0.0,
        waiting=0.0,
        before=UNKNOWN,
        after=UNKNOWN,
        peak=UNKNOWN,
        update=0,
    )
