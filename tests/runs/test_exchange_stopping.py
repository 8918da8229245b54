"""Asked to stop: what a coordinator and a worker say, and how soon they end."""

import asyncio
import os
import signal
import ssl
from pathlib import Path

import pytest

from spheroid_jax import leaving
from spheroid_jax.runs.exchange import telling, work
from spheroid_jax.runs.exchange.options import CoordinatorOptions
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.tls import Token
from tests.transport.coordinator.puppets import Puppet, opened, running, zeros
from tests.transport.tiny import Clock, TinyRun

OWN = " --ca=PEM (if the certificate is your own)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends_it(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    said: list[str] = []
    asked: list[str] = []
    monkeypatch.setattr(os, "_exit", ended.append)

    def stop() -> str:
        asked.append("stop")
        return "stops once all is well"

    async def scenario() -> None:
        leaving.on_signals(stop, said.append, "the same command goes on")
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.01)
        assert said == ["stops once all is well; a second Ctrl-C stops at once"]
        assert (asked, ended) == (["stop"], [])
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.01)
        assert ended == [130]

    asyncio.run(scenario())
    assert capsys.readouterr().err == "stopped at once; the same command goes on\n"


@pytest.mark.parametrize("context", [None, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)])
def test_the_command_to_join_names_the_certificate_where_there_is_one(
    context: ssl.SSLContext | None, tmp_path: Path
) -> None:
    run = TinyRun(tmp_path, workers=1, clock=Clock())
    options = CoordinatorOptions(None, "127.0.0.1", 0, tmp_path, context, None)
    (line,) = [
        line
        for line in telling.welcome(options, 8470, run.coordinator.board).split("\n")
        if "experiments.worker" in line
    ]
    run.close()
    scheme, end = ("http", "") if context is None else ("https", OWN)
    assert line.strip() == (
        f"python -m experiments.worker --coordinator={scheme}://localhost:8470 "
        f"--token-file=NAME.token{end}"
    )


def test_a_worker_that_stops_is_less_patient_and_says_so() -> None:
    async def scenario() -> None:
        link = HttpLink("http://localhost:1", Token("a-token-of-letters-0123456789"))
        async with link:
            assert work._hurried(link, 600.0).endswith("away, for some 30 s at most")
            assert work._hurried(link, 5.0).endswith("for some 5 s at most")

    asyncio.run(scenario())


def test_a_coordinator_says_what_it_waits_for(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, workers=2, clock=Clock(), drain=30.0)
    board = run.coordinator.board

    async def scenario() -> None:
        async with running(run):
            a, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            assert telling.stopping(board) == "stops"
            for puppet, words in (
                (a, "the upload on the way is in"),
                (b, "the 2 uploads on the way are in"),
            ):
                upload, _ = puppet.upload(await puppet.ask(), zeros(run))
                await run.coordinator.begin(puppet.name, upload)
                found = telling.stopping(board)
                assert found == f"stops once {words}, in 30 s at most"
            board.enter("closing")
            assert telling.stopping(board) == "stops once round 1 is saved"

    asyncio.run(scenario())
    run.close()
