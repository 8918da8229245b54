"""A stage as a program: its mistakes in one line, its life and its end as a process."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from experiments.serve import main
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.commandline import configured
from spheroid_jax.runs.methods import build_method
from spheroid_jax.runs.settings import training_identity
from spheroid_jax.runs.workdir import open_workdir
from spheroid_jax.serving.wire.auth import Credentials, Identity
from spheroid_jax.serving.wire.connection import Connection
from spheroid_jax.serving.wire.dialling import dial
from spheroid_jax.serving.wire.messages import (
    Arrays,
    Failure,
    Message,
    Ping,
    Pong,
    Result,
    Sweep,
)
from spheroid_jax.transport.http.tls import read_token
from spheroid_jax.transport.tokens import mint

ROOT = Path(__file__).parents[2]
WIDTH, PLACES = 16, 16
FIELDS = {
    "model.blocks": 2,
    "model.layers": 1,
    "model.width": WIDTH,
    "model.heads": 2,
    "data.corpus": "embedded",
    "data.seq_len": PLACES,
}
LAST = 1  # the last stage, whose results come to the front end


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's directory with a checkpoint."""
    folder = tmp_path_factory.mktemp("served") / "run"
    changes = [f"--config.{name}={value}" for name, value in FIELDS.items()]
    config = configured("configs/b3_l4.py:quick", changes)
    open_workdir(folder, config, False)
    params = jax.jit(build_method(config, "blocktrain").init)(jax.random.key(0))
    identity = {"method": "blocktrain", **training_identity(config)}
    where = folder / "checkpoints" / "blocktrain"
    with Checkpoints(where, keep=1, identity=identity, wait=True) as checkpoints:
        checkpoints.save(1, {"params": params}, {})
    return folder


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("token") / "token"
    path.touch(0o600)
    path.write_text(mint()[0])
    return path


def _mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(list(arguments))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return status, lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to serve: --local"),
        (["--stage=0"], "--checkpoint is missing"),
        (["--stage=x"], "--stage"),
        (["--listen=nowhere"], "HOST:PORT"),
        (["--listen=127.0.0.1:99999"], "HOST:PORT"),
        (["--slots=0"], "slots is 0"),
        (["--max-batch=-1"], "max_batch is -1"),
        (["--idle=nan"], "idle is nan"),
        (["--warm=1,x"], "--warm=1,x"),
        (["--warm=4:guessed"], "drafted"),
        (["--key=k.pem"], "--certificate and --key"),
        (["--certificate=no.pem", "--key=no.pem"], "no.pem"),
        (["--ca=no.pem"], "no.pem"),
        (["--nonsense"], "--nonsense"),
        (["--listen=0.0.0.0:0"], "--insecure"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: list[str], said: str, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [] if arguments[:1] in ([], ["--stage=0"]) else ["--stage=0"]
    whole += ["--checkpoint=nowhere", f"--token-file={token}"] if whole else []
    status, line = _mistake(capsys, *whole, *arguments)
    assert status == 2
    assert said in line


def test_tokens_are_needed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--stage=0", f"--checkpoint={run}"]
    assert "--token-file" in _mistake(capsys, *asked)[1]
    line = _mistake(capsys, *asked, f"--token-file={tmp_path}/none")[1]
    assert "can't be read" in line
    line = _mistake(capsys, *asked, f"--workdir={tmp_path}")[1]
    assert "experiments.tokens" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--checkpoint=/nonexistent"], "/nonexistent"),
        (["--stage=7"], "7"),
        (["--round=9"], "round 9"),
        (["--of=3"], "2 blocks"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str],
    said: str,
    run: Path,
    token: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = ["--stage=0", f"--checkpoint={run}", f"--token-file={token}"]
    status, line = _mistake(capsys, *whole, "--warm=none", *arguments)
    assert status == 1
    assert said in line


@pytest.mark.parametrize("how", ["stage", "local", "frontend"])
def test_a_taken_port_is_one_line_before_anything_is_loaded(
    how: str, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {
        "stage": ["--stage=0", "--checkpoint=nowhere", f"--token-file={token}"],
        "local": ["--local", "--checkpoint=nowhere"],
        "frontend": ["--frontend", "--stages=127.0.0.1:1", f"--token-file={token}"],
    }
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, line = _mistake(capsys, *own[how], f"--listen={address}")
    assert status == 1
    assert line == (
        f"error: {address} is taken by another process: end it, or choose another "
        "--listen"
    )


class _Process:
    """A stage as a process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "stage.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "experiments.serve", *arguments],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"},
            )

    def said(self, pattern: str, seconds: float = 120.0) -> re.Match[str]:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if found := re.search(pattern, self.log.read_text()):
                return found
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def stage(run: Path, token: Path, tmp_path: Path) -> Iterator[_Process]:
    process = _Process(
        tmp_path,
        *(f"--stage={LAST}", f"--checkpoint={run}", f"--token-file={token}"),
        *("--listen=127.0.0.1:0", "--slots=2", "--warm=1", "--max-batch=1"),
    )
    try:
        yield process
    finally:
        process.end()


class _Front:
    """A front end's connection, which keeps what it hears."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[Message, Arrays]] = asyncio.Queue()
        self.identity = Identity("frontend")
        self.wire: Any = None

    async def hear(self, wire: Connection, message: Message, arrays: Arrays) -> None:
        self.heard.put_nowait((message, arrays))

    async def next(self) -> tuple[Any, Arrays]:
        async with asyncio.timeout(60):
            return await self.heard.get()

    async def ask(self, request: int, **changes: Any) -> tuple[Any, Arrays]:
        """Sends a sweep of one byte, as the stage before would."""
        fields = {
            "request": request.to_bytes(16, "big"),
            "number": 0,
            "attempt": 0,
            "frontend": self.identity.id,
            "deadline": 60.0,
            "start": 0,
            "index": 0,
            "known": 1,
            "count": 1,
            "fresh": True,
        }
        state = np.zeros((1, WIDTH), np.float32)
        draft = np.zeros((1, 256), np.float32)
        arrays = {"bytes": np.array([65], np.uint8), "state": state, "draft": draft}
        await self.wire.send(Sweep(**{**fields, **changes}), arrays)
        return await self.next()


@contextlib.asynccontextmanager
async def _connected(port: int, token: Path) -> AsyncIterator[_Front]:
    front = _Front()
    credentials = Credentials.shared(read_token(token))
    front.wire = await dial(
        f"127.0.0.1:{port}", credentials, front.hear, identity=front.identity
    )
    yield front
    await front.wire.close()


def test_a_stage_serves_and_ends_when_it_is_told_to(
    stage: _Process, token: Path
) -> None:
    port = int(stage.said(r"listens on \S+:(\d+)")[1])

    async def test() -> None:
        async with _connected(port, token) as front:
            assert front.wire.facts["index"] == LAST
            assert front.wire.facts["count"] == 2
            assert front.wire.facts["places"] == PLACES
            await front.wire.send(Ping(3))
            pong, _ = await front.next()
            assert isinstance(pong, Pong)
            assert (pong.number, pong.slots_free, pong.draining) == (3, 2, False)
            result, arrays = await front.ask(1)
            assert isinstance(result, Result), result
            assert arrays["bytes"].shape == (1,)
            refused, _ = await front.ask(2, known=1, start=16, fresh=False)
            assert isinstance(refused, Failure)
            stage.process.send_signal(signal.SIGTERM)
            gone = await asyncio.wait_for(front.wire.wait_closed(), 20)
            assert "ends" in str(gone)

    asyncio.run(test())
    assert stage.process.wait(20) == 0
    log = stage.log.read_text()
    assert "round 1" in log
    assert "has stopped" in log
    assert "Traceback" not in log


def test_a_stage_that_still_loads_can_be_stopped(stage: _Process) -> None:
    stage.said(r"stage 1 of 2", seconds=120)
    stage.process.send_signal(signal.SIGTERM)
    assert stage.process.wait(20) in (0, -signal.SIGTERM)
    assert "Traceback" not in stage.log.read_text()
