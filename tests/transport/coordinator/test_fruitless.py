"""Rounds aren't used up by workers of whom no update can be had."""

import asyncio
from pathlib import Path
from typing import Any

from spheroid_jax.transport.coordinator.board import TRIES
from tests.transport.coordinator.puppets import (
    Puppet,
    ones,
    opened,
    running,
    settled,
    zeros,
)
from tests.transport.tiny import LOCKSTEP, Clock, TinyRun, same

ROUNDS = 20


def tiny_run(path: Path, **given: Any) -> tuple[TinyRun, Clock]:
    clock = Clock()
    kept = {"blocks": 1, "rounds": ROUNDS, "lease": 1e9, **given}
    return TinyRun(path, clock=clock, **kept), clock


async def fails(run: TinyRun, clock: Clock, puppet: Puppet, round_: int) -> None:
    """The worker sends what isn't a number, and has nothing better."""
    work = await puppet.ask()
    assert (work.do, work.round) == ("train", round_)
    verdict = await puppet.send(work, ones(run, float("nan")))
    assert verdict.verdict == "rejected"
    await puppet.ask(after=round_)
    clock.advance(run.heartbeat)
    await settled(run)


async def ruin(run: TinyRun, clock: Clock, puppet: Puppet) -> None:
    """Fails until the run waits."""
    for round_ in range(TRIES):
        await opened(run, round_)
        await fails(run, clock, puppet, round_)


def test_a_lone_worker_that_always_fails_uses_up_two_rounds_and_no_more(
    tmp_path: Path,
) -> None:
    run, clock = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            board = run.coordinator.board
            before = run.state()
            ada = await Puppet(run, "ada").join()
            await ruin(run, clock, ada)
            for _ in range(50):
                clock.advance(1000.0)
                await ada.beat("waiting")
                work = await ada.ask(after=board.round)
                assert work.do == "wait"
                await asyncio.sleep(0)
            assert (board.round, board.state) == (TRIES - 1, "waiting")
            assert same(before, run.state())
            # Who, why, and what to do: on every screen.
            for text in (board.why, work.why, run.coordinator.status()["why"]):
                for part in ("ada", "NaN", "revoke", "started"):
                    assert part in text, text
            # The same worker, started anew: of the same round, and in time.
            new = await Puppet(run, "ada").join()
            await opened(run, TRIES - 1)
            assert board.opened == clock()
            assert (await new.once()).verdict == "accepted"
            await opened(run, TRIES)

    asyncio.run(scenario())
    run.close()


def test_who_is_started_anew_and_fails_again_costs_no_round(tmp_path: Path) -> None:
    """Nor does a restart of the coordinator; another worker saves the run."""
    run, clock = tiny_run(tmp_path)

    async def ruined() -> None:
        async with running(run):
            await ruin(run, clock, await Puppet(run, "ada").join())
            for _ in range(5):
                new = await Puppet(run, "ada").join()
                await opened(run, TRIES - 1)
                await fails(run, clock, new, TRIES - 1)
                board = run.coordinator.board
                assert (board.round, board.state) == (TRIES - 1, "waiting")

    async def saved() -> None:
        async with running(run):
            board = run.coordinator.board
            ada = await Puppet(run, "ada").join()
            await opened(run, TRIES - 1)
            await fails(run, clock, ada, TRIES - 1)
            assert (board.round, board.state) == (TRIES - 1, "waiting")
            bob = await Puppet(run, "bob").join()
            work = await bob.ask(wait=10.0)
            assert work.do == "train"
            await bob.send(work, zeros(run))
            await opened(run, TRIES)
            # The run is well again, and ada has failed once in a row.
            await bob.leave()
            for round_ in range(TRIES, 2 * TRIES - 1):
                await opened(run, round_)
                await fails(run, clock, ada, round_)
            assert (board.round, board.state) == (2 * TRIES - 2, "waiting")

    asyncio.run(ruined())
    run.reopen()
    asyncio.run(saved())
    run.close()


def test_a_worker_without_a_loss_sends_nothing_and_is_waited_for_no_more(
    tmp_path: Path,
) -> None:
    """All of several: what one has doesn't need the others'."""
    run, clock = tiny_run(tmp_path, blocks=2, workers=2)

    async def scenario() -> None:
        async with running(run):
            ada, bob = [await Puppet(run, name).join() for name in ("ada", "bob")]
            board = run.coordinator.board
            for round_ in range(5):  # bob never has anything, ada does
                await opened(run, round_)
                work = await ada.ask()
                await bob.ask()
                await bob.ask(after=round_)
                await ada.send(work, zeros(run))
            await opened(run, 5)
            for round_ in range(5, 5 + TRIES):
                await opened(run, round_)
                for puppet in (ada, bob):
                    await puppet.ask()
                    await puppet.ask(after=round_)
                clock.advance(run.heartbeat)
                await settled(run)
            assert (board.round, board.state) == (4 + TRIES, "waiting")
            assert "ada, bob" in board.why
            assert "loss" in board.why
            # Without them it is but a run without workers.
            await ada.leave()
            await bob.leave()
            await settled(run)
            assert board.why == "no worker is there"

    asyncio.run(scenario())
    run.close()


def test_slow_workers_with_a_deadline_are_told_of_and_not_given_up(
    tmp_path: Path,
) -> None:
    """As in the virtual network, rounds close at their deadline, whatever came."""
    policy = LOCKSTEP._replace(deadline=10.0)
    run, clock = tiny_run(tmp_path, policy=policy)

    async def scenario() -> None:
        async with running(run):
            ada = await Puppet(run, "ada").join()
            for round_ in range(2 * TRIES):
                await opened(run, round_)
                work = await ada.ask()
                clock.advance(10.0)
                await opened(run, round_ + 1)
                assert (await ada.send(work, zeros(run))).verdict == "late"
            said = [p["text"] for p in run.coordinator.status()["problems"]]
            assert len([text for text in said if "network.deadline" in text]) == 1

    asyncio.run(scenario())
    run.close()


def test_what_was_accepted_before_a_restart_is_no_failure(tmp_path: Path) -> None:
    run, clock = tiny_run(tmp_path, blocks=2, workers=2)
    ada = Puppet(run, "ada")

    async def before() -> None:
        async with running(run):
            await ada.join()
            await Puppet(run, "bob").join()
            await opened(run, 0)
            await ada.once()

    async def after() -> None:
        async with running(run):
            await ada.register()
            assert (await ada.ask(after=0)).do == "wait"
            assert run.coordinator.board.members.get("ada").failed == 0

    asyncio.run(before())
    run.reopen()
    asyncio.run(after())
    del clock
    run.close()
