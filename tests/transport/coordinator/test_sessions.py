"""Two processes with one token: the newer one works, the older one ends, for good."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.transport.coordinator.sessions import Sessions
from spheroid_jax.transport.protocol import ProtocolError
from tests.transport.coordinator.puppets import Puppet, opened, running, zeros
from tests.transport.tiny import TinyRun


async def refused(call: Awaitable[Any]) -> tuple[int, str]:
    with pytest.raises(ProtocolError) as told:
        await call
    assert "\n" not in str(told.value)
    return told.value.status, told.value.code


SUPERSEDED = (409, "superseded")


def tiny_run(path: Path, **given: Any) -> TinyRun:
    return TinyRun(path, **{"blocks": 1, "rounds": 9, "lease": 1e9, **given})


def test_who_only_registers_ousts_nobody(tmp_path: Path) -> None:
    """It may find the worker's folder taken, and end."""
    run = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            first = await Puppet(run, "ada").join()
            second = Puppet(run, "ada")
            await second.register()
            await second.leave()
            await opened(run, 0)
            assert (await first.once()).verdict == "accepted"
            await opened(run, 1)
            assert (await first.beat("training", 1)).wanted

    asyncio.run(scenario())
    run.close()


def test_the_newer_takes_over_and_the_older_never_comes_back(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            first = await Puppet(run, "ada").join()
            await opened(run, 0)
            work = await first.ask()
            waiting = asyncio.create_task(first.ask(after=0, wait=60.0))
            await asyncio.sleep(0.01)
            second = Puppet(run, "ada")
            await second.register()
            await asyncio.sleep(0.01)
            await second.ask()
            # A question that was held open is answered too, and soon.
            assert await asyncio.wait_for(refused(waiting), 5) == SUPERSEDED
            calls = (first.register(), first.ask(), first.beat(), first.leave())
            for call in (*calls, first.send(work, zeros(run))):
                assert await refused(call) == SUPERSEDED
            # Whatever the first has tried, the second works on.
            assert (await second.once()).verdict == "accepted"
            told = [p["text"] for p in run.coordinator.status()["problems"]]
            assert len([text for text in told if "older process of ada" in text]) == 1

    asyncio.run(scenario())
    run.close()


@pytest.mark.parametrize("first_asks", [True, False])
def test_of_two_at_once_the_later_to_register_stays(
    tmp_path: Path, first_asks: bool
) -> None:
    run = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            one, two = Puppet(run, "ada"), Puppet(run, "ada")
            await one.register()
            await two.register()
            await one.register()  # sent twice, for a lost answer
            if first_asks:
                await one.ask()
            await two.ask()
            assert await refused(one.ask()) == SUPERSEDED
            await opened(run, 0)
            assert (await two.once()).verdict == "accepted"

    asyncio.run(scenario())
    run.close()


def test_a_restart_of_the_coordinator_brings_no_older_process_back(
    tmp_path: Path,
) -> None:
    run = tiny_run(tmp_path)
    first, second = Puppet(run, "ada"), Puppet(run, "ada")

    async def before() -> None:
        async with running(run):
            await first.join()
            await second.join()
            await opened(run, 0)
            while run.ledger.noted("sessions", {}).get("ada", {}).get("speaker") != (
                second.session
            ):
                await asyncio.sleep(0.002)

    async def after() -> None:
        async with running(run):
            assert await refused(first.register()) == SUPERSEDED
            assert await refused(first.ask()) == SUPERSEDED
            assert await refused(second.ask()) == (409, "unknown")
            await second.join()
            await opened(run, 0)
            assert (await second.once()).verdict == "accepted"

    asyncio.run(before())
    run.reopen()
    asyncio.run(after())
    run.close()


def test_processes_that_come_and_go_are_not_remembered_for_ever(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, rounds=1)

    async def scenario() -> None:
        async with running(run):
            for _ in range(100):
                last = await Puppet(run, "ada").join()
            sessions = run.coordinator.board.members.sessions()["ada"]
            assert len(sessions["known"]) < 20
            assert sessions["speaker"] == last.session
            assert (await last.once()).verdict == "accepted"

    asyncio.run(scenario())
    run.close()


def test_processes_that_only_register_are_not_remembered_for_ever() -> None:
    """One that starts again and again beside the one that works."""
    sessions = Sessions()
    sessions.register("ada", "works", None)
    sessions.speak("ada", "works")
    for number in range(1000):
        sessions.register("ada", f"comes-{number}", None)
    assert len(sessions.known) == len(sessions.here) == 16
    assert not sessions.speak("ada", "works")
    with pytest.raises(ProtocolError) as told:
        sessions.speak("ada", "comes-3")
    assert told.value.code == "unknown"
    assert sessions.speak("ada", "comes-999")
    with pytest.raises(ProtocolError) as told:
        sessions.speak("ada", "works")
    assert told.value.code == "superseded"
