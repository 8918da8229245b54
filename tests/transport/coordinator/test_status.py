"""What is told of a run: refusals, late updates, all evaluations, rounds from 1."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.transport.closing import Policy, fate
from spheroid_jax.transport.protocol import ProtocolError
from tests.transport.coordinator.puppets import (
    Puppet,
    ones,
    opened,
    running,
    settled,
    zeros,
)
from tests.transport.tiny import Clock, TinyRun


def worker(run: TinyRun, name: str) -> dict[str, Any]:
    (found,) = [w for w in run.coordinator.status()["workers"] if w["name"] == name]
    return dict(found)


def test_a_refusal_is_told_of_until_an_update_is_accepted(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, blocks=2, workers=2, clock=Clock())

    async def scenario() -> None:
        async with running(run):
            ann, bob = [await Puppet(run, name).join() for name in ("ann", "bob")]
            await opened(run, 0)
            work = await bob.ask()
            assert worker(run, "bob")["reason"] == ""
            await bob.send(work, ones(run, float("nan")))
            assert "NaN" in worker(run, "bob")["reason"]
            assert worker(run, "ann")["reason"] == ""
            await bob.ask(after=0)
            await ann.once()
            await opened(run, 1)
            await bob.once()
            assert worker(run, "bob")["reason"] == ""

    asyncio.run(scenario())
    # The first round, for people.
    assert any("rejected the update of bob in round 1: " in line for line in run.said)
    run.close()


def test_late_updates_are_told_from_timely_ones(tmp_path: Path) -> None:
    clock = Clock()
    policy = Policy(deadline=10.0, late="gate", quorum=0, grace=0.0, max_age=3)
    run = TinyRun(tmp_path, workers=2, policy=policy, clock=clock, lease=1e9)

    async def scenario() -> None:
        async with running(run):
            ann, bob = [await Puppet(run, name).join() for name in ("ann", "bob")]
            await opened(run, 0)
            late = await bob.ask()
            await ann.once()
            clock.advance(10.0)
            await opened(run, 1)
            assert (await bob.send(late, zeros(run))).age == 1
            await ann.once()
            await bob.send(await bob.ask(), zeros(run), attempt=1)
            await opened(run, 2)

    asyncio.run(scenario())
    log = run.coordinator.status()["rounds_log"]
    assert [(r["heard"], r["timely"]) for r in log] == [(1, 1), (3, 2)]
    run.close()


def test_all_evaluations_are_there_from_the_first(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    points = [{"round": n, "ce_chain": 1.0} for n in range(1, 1001)]
    run.coordinator.board.history.ce = points
    assert run.coordinator.status()["ce"] == points
    run.close()


def test_a_round_that_nobody_has_an_update_for_counts_from_one(tmp_path: Path) -> None:
    clock = Clock()
    run = TinyRun(tmp_path, blocks=1, clock=clock)

    async def scenario() -> None:
        async with running(run):
            ann = await Puppet(run, "ann").join()
            await opened(run, 0)
            await ann.ask()
            await ann.ask(after=0)
            await settled(run)
            clock.advance(run.heartbeat)
            await opened(run, 1)

    asyncio.run(scenario())
    assert "round 1: nobody has an update" in run.said
    run.close()


@pytest.mark.parametrize(
    ("update", "now", "words"),
    [
        (0, 1, "round 1 is closed"),
        (5, 4, "round 6 isn't open yet: round 5 is"),
    ],
)
def test_verdicts_count_rounds_from_one(update: int, now: int, words: str) -> None:
    policy = Policy(math.inf, "drop", 0, 0.0, 4)
    assert fate(policy, update, now, closing=False).why == words


def test_a_refused_ticket_counts_rounds_from_one(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, blocks=1, clock=Clock())

    async def scenario() -> None:
        async with running(run):
            ann = await Puppet(run, "ann").join()
            await opened(run, 0)
            with pytest.raises(ProtocolError, match=r"replica 0 in round 1: ask"):
                await ann.send(await ann.ask(), zeros(run), ticket="x")

    asyncio.run(scenario())
    run.close()
