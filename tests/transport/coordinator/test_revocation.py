"""A revoked worker is gone at once: no lease is waited for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from experiments import tokens as command
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.protocol import ProtocolError
from tests.transport.coordinator.puppets import Puppet, opened, running, zeros
from tests.transport.tiny import TinyRun

SOON = 5.0  # seconds; a look every half second, on a busy machine


def tiny_run(path: Path, **given: Any) -> TinyRun:
    return TinyRun(path, **{"blocks": 1, "rounds": 9, "lease": 1e9, **given})


def revoke(run: TinyRun, name: str) -> None:
    """As the command does, over the same file."""
    arguments = [f"--workdir={run.directory}", f"--revoke={name}"]
    assert command.main(arguments) == 0


async def gone(run: TinyRun, name: str) -> None:
    async with asyncio.timeout(SOON):
        while run.coordinator.board.members.get(name).live:
            await asyncio.sleep(0.01)


def state_of(run: TinyRun, name: str) -> str:
    workers = run.coordinator.status()["workers"]
    (found,) = [w["state"] for w in workers if w["name"] == name]
    return str(found)


def test_the_slot_is_free_at_once_and_the_worker_is_told(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, blocks=1, replicas=2, workers=3)
    for name in ("ada", "bob", "eve"):
        run.token(name)

    async def scenario() -> None:
        async with running(run):
            ada, bob, eve = [await Puppet(run, n).join() for n in ("ada", "bob", "eve")]
            await opened(run, 0)
            assert (await ada.once()).verdict == "accepted"
            work = await bob.ask()
            assert (await eve.ask()).do == "wait"
            spare = asyncio.create_task(eve.ask(wait=60.0))
            waiting = asyncio.create_task(ada.ask(after=0, wait=60.0))
            await asyncio.to_thread(revoke, run, "ada")
            await asyncio.to_thread(revoke, run, "bob")
            await gone(run, "bob")
            taken = await asyncio.wait_for(spare, SOON)
            assert (taken.do, taken.replica) == ("train", work.replica)
            calls = (bob.beat(), bob.ask(), bob.send(work, zeros(run)), waiting)
            for call in calls:
                with pytest.raises(ProtocolError) as told:
                    await asyncio.wait_for(call, SOON)
                assert (told.value.status, told.value.code) == (401, "unauthorized")
            assert state_of(run, "bob") == "gone"
            said = [p["text"] for p in run.coordinator.status()["problems"]]
            assert [text for text in said if "bob is shut out" in text]
            # What was accepted stays.
            await eve.send(taken, zeros(run))
            await opened(run, 1)
            assert run.coordinator.status()["rounds_log"][-1]["heard"] == 2

    asyncio.run(scenario())
    run.close()


def test_a_new_token_is_of_a_new_process(tmp_path: Path) -> None:
    """``--add --replace``: the old process goes, the new one comes."""
    run = tiny_run(tmp_path)
    run.token("ada")

    async def scenario() -> None:
        async with running(run):
            old = await Puppet(run, "ada").join()
            await opened(run, 0)
            run.token("ada")
            await gone(run, "ada")
            with pytest.raises(ProtocolError, match="revoked"):
                await old.ask()
            new = await Puppet(run, "ada").join()
            await asyncio.sleep(1.2)  # and stays
            assert (await new.once()).verdict == "accepted"

    asyncio.run(scenario())
    run.close()


def test_who_needs_no_token_is_left_alone(tmp_path: Path) -> None:
    """Such as the workers of a bucket without signatures."""
    run = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            ada = await Puppet(run, "ada").join()
            run.token("bob")
            await asyncio.sleep(1.2)
            assert (await ada.once()).verdict == "accepted"

    asyncio.run(scenario())
    run.close()


def test_who_is_revoked_while_the_coordinator_is_away_is_not_waited_for(
    tmp_path: Path,
) -> None:
    run = tiny_run(tmp_path, blocks=2, workers=2)
    for name in ("ada", "bob"):
        run.token(name)
    ada = Puppet(run, "ada")

    async def before() -> None:
        async with running(run):
            await ada.join()
            await Puppet(run, "bob").join()
            await opened(run, 0)
            while len(run.ledger.noted("held")["slots"]) < 2:
                await asyncio.sleep(0.002)

    async def after() -> None:
        async with running(run):
            await ada.join()
            await gone(run, "bob")
            await opened(run, 0)
            assert (await ada.once()).verdict == "accepted"
            await opened(run, 1)
            # Nor at the end of the run.
            members = run.coordinator.board.members
            awaited = members.awaited(run.coordinator.board.now(), 0.0, 1.0)
            assert [m.name for m in awaited] == ["ada"]

    asyncio.run(before())
    run.close()
    with Ledger.open(run.ledger.path) as ledger:
        ledger.revoke("bob")
    run.settings = run.settings._replace(workers=1)
    run._open()
    asyncio.run(after())
    run.close()
