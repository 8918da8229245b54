"""A worker's program before it is at work."""

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.fields import ConfigError
from spheroid_jax.runs.exchange import frame, work
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.own_folder import lock_token
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    Leave,
    Pulse,
    Register,
    Registered,
)

TOKEN = "a-token-of-letters-and-digits-0123456789"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    token = tmp_path / "ann.token"
    token.touch(mode=0o600)
    token.write_text(f"{TOKEN}\n")
    return ["--coordinator=http://localhost:1", f"--token-file={token}"]


def test_a_folder_in_which_the_token_is_at_work_ends_it_before_anybody_hears_of_it(
    tmp_path: Path,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(work, "_link", lambda *given: pytest.fail("it spoke"))
    given = [*arguments, f"--workdir={tmp_path}"]
    with lock_token(tmp_path, TOKEN):
        assert frame.program(lambda: work.parse(given), work.work, "") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: another worker process (process ")
    assert "end it first, or give this one a token of its own" in line


def test_a_folder_that_cant_be_written_is_told_in_a_line(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    given = [*arguments, f"--workdir={tmp_path / 'file'}"]
    assert frame.program(lambda: work.parse(given), work.work, "") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "can't be locked" in line
    assert "or name a --workdir on a local disk" in line


def test_without_a_folder_there_is_one_for_all_workers(arguments: list[str]) -> None:
    for more in ([], ["--workdir="]):
        assert work.parse([*arguments, *more]).workdir == Path("runs", "workers")


class Link:
    """A coordinator that lets one in and counts its signs of life."""

    def __init__(self) -> None:
        self.beats: list[Heartbeat] = []
        self.session = ""
        self.left: list[str] = []
        self.enough = threading.Event()
        self.refuses = False

    async def register(self, request: Register) -> Registered:
        self.session = request.session
        return Registered(VERSION, "run", "ann", {}, "0" * 64, "", 10.0, 0.01)

    async def heartbeat(self, request: Heartbeat) -> Pulse:
        if self.refuses:
            raise LinkError("revoked", code="unauthorized", status=401)
        self.beats.append(request)
        if len(self.beats) == 3:
            self.enough.set()
        return Pulse(0, True)

    async def leave(self, request: Leave) -> None:
        self.left.append(request.session)

    async def close(self) -> None:
        pass


class Made:
    """A worker that has nothing to do."""

    async def register(self) -> None:
        pass

    async def run(self) -> str:
        return "finished"


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    made = Link()
    monkeypatch.setattr(work, "_link", lambda *given: made)
    return made


def start(arguments: list[str], folder: Path) -> str:
    options = work.parse([*arguments, f"--workdir={folder}"])

    async def limited() -> str:
        async with asyncio.timeout(20):
            return await work._Process(options, lambda line: None).run()

    return asyncio.run(limited())


def test_while_it_compiles_it_gives_signs_of_life(
    tmp_path: Path, arguments: list[str], link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiling(*given: Any) -> Made:
        assert link.enough.wait(20)
        return Made()

    monkeypatch.setattr(work, "_worker", compiling)
    assert start(arguments, tmp_path) == "finished"
    # In words that a coordinator of any release takes.
    assert {(b.session, b.doing) for b in link.beats} == {(link.session, "waiting")}
    assert not link.left


def test_one_that_cant_start_says_that_it_goes(
    tmp_path: Path, arguments: list[str], link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*given: Any) -> Made:
        raise ConfigError("another text")

    monkeypatch.setattr(work, "_worker", failing)
    with pytest.raises(ConfigError, match="another text"):
        start(arguments, tmp_path)
    assert link.left == [link.session]


def test_one_that_is_revoked_while_it_compiles_ends(
    tmp_path: Path, arguments: list[str], link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.refuses = True
    end = threading.Event()
    monkeypatch.setattr(work, "_worker", lambda *given: end.wait(0.5))
    with pytest.raises(LinkError, match="revoked"):
        start(arguments, tmp_path)


def test_asked_to_stop_while_it_compiles_it_says_what_it_waits_for(
    tmp_path: Path, arguments: list[str], link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def compiling(*given: Any) -> Made:
        os.kill(os.getpid(), signal.SIGINT)
        link.enough.wait(0.2)
        return Made()

    monkeypatch.setattr(work, "_worker", compiling)
    options = work.parse([*arguments, f"--workdir={tmp_path}"])
    assert asyncio.run(work._Process(options, said.append).run()) == "left"
    assert said[-1] == (
        "stops once it has loaded and compiled; a second Ctrl-C stops at once"
    )
    assert link.left == [link.session]
