"""A worker that loads and compiles: it is seen, and has nothing yet."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.transport.protocol import ProtocolError
from tests.transport.coordinator.puppets import Puppet, opened, running, settled
from tests.transport.tiny import Clock, TinyRun

LEASE = 10.0


def tiny_run(path: Path, **given: Any) -> tuple[TinyRun, Clock]:
    clock = Clock()
    return TinyRun(path, blocks=1, lease=LEASE, clock=clock, **given), clock


def state(run: TinyRun, name: str) -> str:
    (found,) = [w for w in run.coordinator.status()["workers"] if w["name"] == name]
    return str(found["state"])


def test_one_that_compiles_for_longer_than_a_lease_is_there(tmp_path: Path) -> None:
    run, clock = tiny_run(tmp_path)
    board = run.coordinator.board

    async def scenario() -> None:
        async with running(run):
            await settled(run)
            assert board.why == "0 of 1 workers are there"
            ann = Puppet(run, "ann")
            await ann.register()
            await settled(run)
            for _ in range(5):
                assert state(run, "ann") == "starting"
                assert board.why == "0 of 1 workers are there, 1 is starting"
                clock.advance(0.6 * LEASE)
                await ann.beat("waiting")
                await settled(run)
            (told,) = run.coordinator.status()["workers"]
            assert told["seen_seconds"] == 0.0
            await ann.ask()
            await opened(run, 0)
            await ann.ask()
            assert state(run, "ann") == "fetching"

    asyncio.run(scenario())
    assert not any("gone" in line for line in run.said)
    run.close()


def test_one_that_dies_as_it_starts_is_gone_after_a_lease(tmp_path: Path) -> None:
    run, clock = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            ann = Puppet(run, "ann")
            await ann.register()
            await ann.beat("waiting")
            await settled(run)
            clock.advance(LEASE)
            await settled(run)
            assert state(run, "ann") == "gone"
            assert run.coordinator.board.why == "0 of 1 workers are there"

    asyncio.run(scenario())
    run.close()


def test_one_that_leaves_as_it_starts_is_gone_at_once(tmp_path: Path) -> None:
    run, _ = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            ann = Puppet(run, "ann")
            await ann.register()
            await ann.beat("waiting")
            await ann.leave()
            await settled(run)
            assert state(run, "ann") == "gone"
            assert run.coordinator.board.why == "0 of 1 workers are there"

    asyncio.run(scenario())
    run.close()


def test_starting_ousts_nobody_and_keeps_no_slot(tmp_path: Path) -> None:
    """It may fail yet; and it fails perhaps again and again."""
    run, clock = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            old, new = Puppet(run, "ann"), Puppet(run, "ann")
            await old.join()
            await opened(run, 0)
            await new.register()
            await new.beat("waiting")
            await old.beat("training")
            assert state(run, "ann") == "training"
            for _ in range(3):  # the old one is killed
                clock.advance(0.4 * LEASE)
                await new.beat("waiting")
                await settled(run)
            assert state(run, "ann") == "starting"
            assert not run.coordinator.board.members.held
            assert any("starts anew for longer than" in line for line in run.said)
            assert not any("is gone" in line for line in run.said)
            await new.ask()
            await opened(run, 0)
            assert (await new.ask()).do == "train"
            with pytest.raises(ProtocolError, match="another process has taken over"):
                await old.beat("training")

    asyncio.run(scenario())
    run.close()


def test_after_a_restart_of_the_coordinator_who_speaks_is_not_one_that_starts(
    tmp_path: Path,
) -> None:
    run, _ = tiny_run(tmp_path, workers=2)

    async def scenario() -> None:
        ann = Puppet(run, "ann")
        async with running(run):
            await ann.join()
            await settled(run)
        run.reopen()
        async with running(run):
            await ann.register()
            await ann.beat("waiting")
            assert state(run, "ann") == "waiting"

    asyncio.run(scenario())
    run.close()
