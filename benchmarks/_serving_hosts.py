"""Stages, links and front ends as processes, for the serving benchmark."""

import asyncio
import contextlib
import dataclasses
import http.client
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import jax
from ml_collections import ConfigDict

from benchmarks import _processes
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.commandline import configured
from spheroid_jax.runs.methods import build_method
from spheroid_jax.runs.settings import training_identity
from spheroid_jax.runs.workdir import open_workdir
from spheroid_jax.serving.wire.auth import Credentials, Identity
from spheroid_jax.serving.wire.connection import Connection
from spheroid_jax.serving.wire.dialling import dial
from spheroid_jax.serving.wire.messages import Arrays, Message, Ping
from spheroid_jax.transport.http.tls import read_token
from spheroid_jax.transport.tokens import mint

BLOCKS = 3
# By kind of the planner: the method whose checkpoint is served.
METHODS = {"blocktrain": "blocktrain", "autoregressive": "end_to_end"}
START_SECONDS = 600.0  # compiling included
_HOST = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model that is served: d, layers of a block, T."""

    width: int
    layers: int
    places: int

    def __str__(self) -> str:
        return f"{self.width}x{self.layers}"

    @property
    def heads(self) -> int:
        """Of 32 channels, as in the configurations."""
        return max(1, self.width // 32)

    def config(self) -> ConfigDict:
        """Its configuration."""
        fields = {
            "model.blocks": BLOCKS,
            "model.layers": self.layers,
            "model.width": self.width,
            "model.heads": self.heads,
            "data.corpus": "embedded",
            "data.seq_len": self.places,
        }
        changes = [f"--config.{name}={value}" for name, value in fields.items()]
        return configured("configs/b3_l4.py:quick", changes)


def make_checkpoint(directory: Path, config: ConfigDict) -> None:
    """A run's directory with random parameters of both kinds, as if it had trained."""
    open_workdir(directory, config, False)
    for name in METHODS.values():
        method = build_method(config, name)
        params = jax.jit(method.init)(jax.random.key(0))
        identity = {"method": name, **training_identity(config)}
        with Checkpoints(
            directory / "checkpoints" / name, keep=1, identity=identity, wait=True
        ) as checkpoints:
            checkpoints.save(1, {"params": params}, {})


class Farm:
    """Processes that end with it; what they say lies in ``directory``."""

    def __init__(self, directory: Path, cache: Path) -> None:
        self.directory, self._cache = directory, cache
        self._running = contextlib.ExitStack()
        self._count = 0
        directory.mkdir(parents=True, exist_ok=True)
        self.token = directory / "token"
        self.token.touch(mode=0o600)
        self.token.write_text(mint()[0] + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()

    def stages(
        self, checkpoint: Path, kind: str, warm: str, slots: int, max_batch: int
    ) -> list[str]:
        """Starts all stages of a model; returns their addresses."""
        addresses, processes = [], []
        for stage in range(BLOCKS):
            address = f"{_HOST}:{_processes.free_port()}"
            command = [
                *("experiments.serve", f"--stage={stage}", f"--listen={address}"),
                f"--checkpoint={checkpoint / 'checkpoints' / METHODS[kind]}",
                *(f"--slots={slots}", f"--max-batch={max_batch}", f"--warm={warm}"),
                f"--token-file={self.token}",
            ]
            if kind == "autoregressive":
                command.append(f"--of={BLOCKS}")
            processes.append(self._start(command, kind))
            addresses.append(address)
        for address, process in zip(addresses, processes, strict=True):
            port = int(address.rpartition(":")[2])
            _processes.wait_for_port(port, process, START_SECONDS)
        return addresses

    def far(self, addresses: Sequence[str], rtt: float) -> list[str]:
        """Puts each of them behind a link of its own, ``rtt`` seconds both ways."""
        found = []
        for address in addresses:
            port = _processes.free_port()
            command = ["experiments.proxy", f"--listen={_HOST}:{port}"]
            command += [f"--to={address}", f"--delay={rtt / 2}"]
            _processes.wait_for_port(port, self._start(command, "proxy"), 30.0)
            found.append(f"{_HOST}:{port}")
        return found

    def frontend(self, addresses: Sequence[str]) -> str:
        """Starts a front end before stages, and waits until all are there."""
        port = _processes.free_port()
        command = ["experiments.serve", "--frontend", f"--listen={_HOST}:{port}"]
        command += [f"--stages={','.join(addresses)}", f"--token-file={self.token}"]
        process = self._start(command, "frontend")
        _processes.wait_for_port(port, process, 60.0)
        ends = time.monotonic() + 60.0
        while not _healthy(port):
            if time.monotonic() > ends or process.poll() is not None:
                raise RuntimeError(f"the front end has no stages: {self.directory}")
            time.sleep(0.05)
        return f"http://{_HOST}:{port}"

    def one_way(self, address: str, count: int = 31) -> float:
        """Seconds to a stage and half of the way back: a link's and the sockets'."""
        token = read_token(self.token)
        return asyncio.run(_one_way(address, Credentials(token), count))

    def _start(self, command: Sequence[str], name: str) -> subprocess.Popen[str]:
        self._count += 1
        log = self.directory / f"{self._count}-{name}.log"
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            # Stages are started again and again with the same programs.
            "JAX_COMPILATION_CACHE_DIR": str(self._cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=self._running.enter_context(log.open("w")),
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self._running.callback(_processes.end, process)
        return process


@contextlib.contextmanager
def farm(directory: Path, cache: Path) -> Iterator[Farm]:
    """A farm; when something fails, the ends of what its processes said are shown."""
    with Farm(directory, cache) as running:
        try:
            yield running
        except BaseException:
            for log in sorted(directory.glob("*.log")):
                lines = log.read_text().splitlines()[-3:]
                print(f"{log.name}:", *lines, sep="\n  ", file=sys.stderr)
            raise


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(_HOST, port, timeout=10)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


async def _one_way(address: str, credentials: Credentials, count: int) -> float:
    answers: asyncio.Queue[Message] = asyncio.Queue()

    async def heard(peer: Connection, message: Message, arrays: Arrays) -> None:
        answers.put_nowait(message)

    identity = Identity("frontend", {})
    connection = await dial(address, credentials, heard, identity=identity)
    seconds = []
    for number in range(count):
        began = time.perf_counter()
        await connection.send(Ping(number))
        await asyncio.wait_for(answers.get(), 10.0)
        seconds.append(time.perf_counter() - began)
    await connection.close()
    return statistics.median(seconds) / 2
