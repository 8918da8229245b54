"""One command's coordinator and workers: started together, watched to the end."""

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from spheroid_jax.reports.files import write_atomic
from spheroid_jax.runs.exchange.fleet import POLL, Fleet
from spheroid_jax.runs.exchange.processes import start
from spheroid_jax.runs.exchange.setup import exchange_folder
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.shaping import Shape
from spheroid_jax.transport.tokens import LEDGER, mint

COORDINATOR = "coordinator"
_NOTE = "fleet"  # in the ledger
# By hosts.kind; "best" are namespaces, or addresses where there can be none.
_HOSTS = {"loopback": "same", "proxy": "loopback", "namespaces": "best"}
_CONFIG = '''"""This run's configuration, for ``experiments.coordinator``."""

from pathlib import Path

from ml_collections import ConfigDict

from spheroid_jax.runs.exchange.setup import stored_config


def get_config() -> ConfigDict:
    """As the run was started with."""
    return stored_config(Path(__file__).with_name("config.json"))
'''
_READY = re.compile(r"^waiting: [1-9][0-9]* of ", re.M)


class Watched(NamedTuple):
    """How it went.

    Attributes:
      network: what the processes were connected by.
      seconds: from the first start to the last end, over all sessions that ended well.
    """

    network: str
    seconds: float


def workers_of(config: ConfigDict) -> list[str]:
    """The workers' names: one a slot."""
    count = config.model.blocks * config.train.replicas
    digits = len(str(count))
    return [f"worker-{number:0{digits}d}" for number in range(1, count + 1)]


def run_processes(
    config: ConfigDict, workdir: Path, say: Callable[[str], None]
) -> Watched:
    """Starts a coordinator and a worker for every slot, and waits for their end.

    Args:
      config: of kind ``exchange``; also in ``workdir/config.json``.
      workdir: the coordinator's, too; one that was stopped goes on.
      say: prints a line, among them the coordinator's.

    Raises:
      FleetError: a process failed; the others are ended.
    """
    with Ledger.open(ledger_of(workdir)) as ledger:
        before = ledger.noted(_NOTE, {"network": config.hosts.kind, "seconds": 0.0})
        if ledger.noted("round", 0) >= config.train.rounds:
            return Watched(**before)
        watched = _run(config, workdir, say)
        seconds = before["seconds"] + watched.seconds
        ledger.note(_NOTE, {"network": watched.network, "seconds": seconds})
    return Watched(watched.network, seconds)


def ledger_of(workdir: Path) -> Path:
    """The coordinator's ledger."""
    return workdir / LEDGER


def _run(config: ConfigDict, workdir: Path, say: Callable[[str], None]) -> Watched:
    names = workers_of(config)
    write_atomic(workdir / "config.py", _CONFIG)
    _give_tokens(workdir, names)
    shape = shape_of(config)
    linked = config.hosts.kind != "loopback"
    began = time.perf_counter()
    with start(
        commands(workdir, names, shaped=linked),
        workdir / "logs",
        dict.fromkeys(names, shape) if linked else None,
        hosts=_HOSTS[config.hosts.kind],
        later=names,
        environment=environment(len(names) + 1),
    ) as fleet:
        said = _Followed(fleet.logs[COORDINATOR], say)
        said.more()
        for name in names:
            fleet.launch(name)
            if name == names[0] and len(names) > 1:
                _wait_for_compiled(fleet, said)
        while None in fleet.statuses().values():
            said.more()
            fleet.check()
            time.sleep(POLL)
        fleet.check()
        said.more()
        return Watched(fleet.network, time.perf_counter() - began)


def commands(
    workdir: Path, names: Sequence[str], *, shaped: bool
) -> dict[str, list[str]]:
    """By name, what to run; the coordinator first."""
    python = [sys.executable, "-m"]
    found = {
        COORDINATOR: [
            *python,
            "experiments.coordinator",
            f"--config={workdir / 'config.py'}",
            f"--workdir={workdir}",
            "--listen={listen}",
            "--report=never",  # whoever starts all this writes one, of more
            # The hosts are make-believe, and nobody else is on their network.
            *(["--insecure"] if shaped else []),
        ]
    }
    for name in names:
        found[name] = [
            *python,
            "experiments.worker",
            "--coordinator=http://{coordinator}",
            f"--token-file={_token_file(workdir, name)}",
            f"--workdir={workers_folder(workdir)}",
        ]
    return found


def shape_of(config: ConfigDict) -> Shape:
    """The link of a worker."""
    h = config.hosts
    rate = h.rate_bits / 8 if h.rate_bits else float("inf")
    return Shape(h.delay_seconds, rate, h.loss)


def workers_folder(workdir: Path) -> Path:
    """Where the workers keep what they would miss after a restart."""
    return workdir / "workers"


def environment(processes: int) -> dict[str, str]:
    """What lets several JAX processes share a machine, where nothing else is set.

    Threads for each as there are cores for it, every program compiled once by all of
    them, and no process that takes most of a GPU's memory for itself.
    """
    threads = str(max(1, _cores() // processes))
    wanted = {
        "NPROC": threads,  # of XLA's thread pools
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    return {name: value for name, value in wanted.items() if name not in os.environ}


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _token_file(workdir: Path, name: str) -> Path:
    return exchange_folder(workdir) / "tokens" / f"{name}.token"


def _give_tokens(workdir: Path, names: Sequence[str]) -> None:
    with Ledger.open(ledger_of(workdir)) as ledger:
        for name in names:
            token, sha256 = mint()
            ledger.add_token(name, sha256, replace=True)
            path = _token_file(workdir, name)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w") as file:
                file.write(f"{token}\n")


def _wait_for_compiled(fleet: Fleet, said: "_Followed") -> None:
    """Until the first worker is ready: the others take from the cache what it has.

    A run that goes on has compiled before.
    """
    name = next(n for n in fleet.statuses() if n != COORDINATOR)
    while not (_READY.search(said.text) or "goes on after round" in said.text):
        said.more()
        fleet.check()
        if None not in (fleet.statuses()[name], fleet.statuses()[COORDINATOR]):
            return
        time.sleep(POLL)


class _Followed:
    """A process's output, as it grows.

    Attributes:
      text: all of it so far.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say, self._told = path, say, 0
        self.text = ""

    def more(self) -> None:
        """Says the lines that are new."""
        with self._path.open(encoding="utf-8", errors="replace") as file:
            self.text = file.read()
        end = self.text.rfind("\n") + 1
        for line in self.text[self._told : end].splitlines():
            self._say(f"  {line}")
        self._told = max(self._told, end)
