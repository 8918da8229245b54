"""A coordinator whose run is over stays until its workers have heard that."""

import asyncio
import uuid
from pathlib import Path

import pytest

from spheroid_jax.runs.exchange import coordinate
from spheroid_jax.transport.coordinator.members import Members
from spheroid_jax.transport.protocol import VERSION, Register, WorkRequest
from tests.transport.tiny import TinyRun

LEASE, WITHIN = 10.0, 60.0


def names(members: Members, now: float, since: float = 0.0) -> list[str]:
    return [member.name for member in members.awaited(now, since, WITHIN)]


def test_who_is_awaited() -> None:
    members = Members(2, 1, LEASE)
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    members.register("ann", Register(VERSION, first), 0.0)
    members.register("bob", Register(VERSION, second), 40.0)
    assert names(members, 50.0) == ["ann", "bob"]  # not yet at work, or silent
    assert names(members, 71.0) == ["bob"]  # ann was silent for too long
    members.recount({"eve": {"accepted": 3}})  # known from before a restart
    assert names(members, 71.0, since=70.0) == ["ann", "bob", "eve"]
    assert names(members, 141.0, since=70.0) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_it_is_waited_for_who_is_away_just_now(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that hasn't found the restarted coordinator yet hears the end, too."""
    monkeypatch.setattr(coordinate, "_FAREWELL", 0.3)
    monkeypatch.setattr(coordinate, "_LINGER", 0.0)
    run = TinyRun(tmp_path, rounds=1, workers=2, lease=0.5)
    asyncio.run(run.together(["ann", "bob"]))
    coordinator = run.reopen()

    async def end() -> float:
        assert await coordinator.run() == "finished"
        began = asyncio.get_running_loop().time()
        asked = asyncio.Event()  # never
        farewell = asyncio.create_task(coordinate._say_goodbye(coordinator, asked))
        for name in ("ann", "bob") if is_there else ("ann",):
            await asyncio.sleep(0.01)
            assert not farewell.done()
            session = uuid.uuid4().hex
            await coordinator.register(name, Register(VERSION, session))
            work = await coordinator.work(name, WorkRequest(session))
            assert work.do == "stop"
        await asyncio.wait_for(farewell, 10)
        return asyncio.get_running_loop().time() - began

    seconds = asyncio.run(end())
    assert (seconds < 0.3) == is_there
    run.close()


def test_asked_to_stop_it_waits_for_nobody_any_more(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, rounds=1, workers=2)
    asyncio.run(run.together(["ann", "bob"]))
    coordinator = run.reopen()

    async def end() -> None:
        assert await coordinator.run() == "finished"
        asked = asyncio.Event()
        farewell = asyncio.create_task(coordinate._say_goodbye(coordinator, asked))
        await asyncio.sleep(0.05)
        assert not farewell.done()
        asked.set()
        coordinator.stop()
        await asyncio.wait_for(farewell, 5)

    asyncio.run(end())
    run.close()
