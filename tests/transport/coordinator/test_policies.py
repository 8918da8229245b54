"""When rounds close, who works on what, and who comes back; by a clock of ours."""

import asyncio
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spheroid_jax.transport.closing import Policy
from spheroid_jax.transport.protocol import ProtocolError
from tests.transport.coordinator.puppets import (
    Puppet,
    ones,
    opened,
    running,
    settled,
    zeros,
)
from tests.transport.tiny import LOCKSTEP, Clock, TinyRun, same

DEADLINE = LOCKSTEP._replace(deadline=10.0)


def tiny_run(path: Path, **given: Any) -> tuple[TinyRun, Clock]:
    clock = Clock()
    return TinyRun(path, clock=clock, **{"lease": 1e9, **given}), clock


def test_deadline_and_drop(tmp_path: Path) -> None:
    run, clock = tiny_run(tmp_path, workers=2, policy=DEADLINE)

    async def scenario() -> None:
        async with running(run):
            a, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            work = await b.ask()
            assert work.deadline == 10.0
            late = b.train(work)
            clock.advance(4.0)
            assert (await b.ask()).deadline == 6.0
            assert (await a.once()).verdict == "accepted"
            clock.advance(5.9)
            await settled(run)
            assert run.coordinator.board.round == 0
            clock.advance(0.1)
            await opened(run, 1)
            before = run.state()
            assert not (await b.beat("sending", 0)).wanted
            verdict = await b.send(work, late)
            assert (verdict.verdict, verdict.age) == ("late", 1)
            assert "closed" in verdict.why
            assert same(before, run.state())
            status = run.coordinator.status()
            counted = {w["name"]: (w["accepted"], w["late"]) for w in status["workers"]}
            assert counted == {"a": (1, 0), "b": (0, 1)}
            # Told again, counted once.
            assert (await b.send(work, late)).verdict == "late"
            assert run.coordinator.status()["workers"][1]["late"] == 1

    asyncio.run(scenario())
    run.close()


def test_quorum_and_grace(tmp_path: Path) -> None:
    policy = Policy(deadline=math.inf, late="drop", quorum=1, grace=3.0, max_age=4)
    run, clock = tiny_run(tmp_path, replicas=2, workers=4, policy=policy)

    async def scenario() -> None:
        async with running(run):
            puppets = [await Puppet(run, name).join() for name in "abcd"]
            await opened(run, 0)
            works = [await puppet.ask() for puppet in puppets]
            assert sorted((w.block, w.replica) for w in works) == [
                *((0, 0), (0, 1), (1, 0), (1, 1)),
            ]
            first = next(n for n, w in enumerate(works) if w.block == 0)
            second = next(n for n, w in enumerate(works) if w.block == 1)
            clock.advance(100.0)
            await puppets[first].send(works[first], zeros(run))
            clock.advance(100.0)
            await settled(run)
            assert run.coordinator.board.round == 0  # block 1 has nothing yet
            await puppets[second].send(works[second], zeros(run))
            clock.advance(2.9)
            await settled(run)
            assert run.coordinator.board.round == 0
            clock.advance(0.1)
            await opened(run, 1)
            assert run.coordinator.status()["rounds_log"][-1]["heard"] == 2

    asyncio.run(scenario())
    run.close()


def test_gate_takes_late_updates_until_they_are_stale(tmp_path: Path) -> None:
    policy = DEADLINE._replace(late="gate", max_age=2)
    run, clock = tiny_run(tmp_path, workers=2, policy=policy, rounds=9)

    async def scenario() -> None:
        async with running(run):
            a, b, c = [Puppet(run, name) for name in "abc"]
            await a.join()
            await b.join()
            await opened(run, 0)
            old = await b.ask()
            older = await a.ask()
            for round_ in range(2):
                clock.advance(10.0)
                await opened(run, round_ + 1)
            assert (await b.beat("training", 0)).wanted  # age 2 still counts
            verdict = await b.send(old, zeros(run))
            assert verdict.verdict == "accepted"
            assert (verdict.age, verdict.applies_in) == (2, 2)
            clock.advance(10.0)
            await opened(run, 3)
            assert not (await a.beat("training", 0)).wanted
            verdict = await a.send(older, zeros(run))
            assert (verdict.verdict, verdict.age) == ("stale", 3)
            assert run.coordinator.status()["staleness"] == [0, 0, 1]
            await c.join()  # a spare

    asyncio.run(scenario())
    run.close()


def test_the_last_round_has_none_after_it(tmp_path: Path) -> None:
    """With ``gate`` too, nothing is accepted that would never be applied."""
    policy = DEADLINE._replace(late="gate")
    run, clock = tiny_run(tmp_path, workers=2, policy=policy, rounds=1)

    async def scenario() -> None:
        async with running(run) as task:
            _, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            work = await b.ask()
            clock.advance(10.0)
            await task
            assert not (await b.beat("training", 0)).wanted
            assert (await b.send(work, zeros(run))).verdict == "late"
            assert (await b.ask()).do == "stop"
            assert not run.coordinator.board.members.get("b").live
            assert not run.ledger.accepted()

    asyncio.run(scenario())
    run.close()


@pytest.mark.parametrize("late", ["drop", "gate"])
def test_an_update_that_comes_while_its_round_is_aggregated(
    tmp_path: Path, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock = tiny_run(
        tmp_path, workers=2, policy=DEADLINE._replace(late=late), rounds=3
    )

    async def scenario() -> None:
        async with running(run):
            a, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            works = await a.ask(), await b.ask()
            await a.send(works[0], zeros(run))
            gate = asyncio.Event()
            original = run.coordinator._in_thread

            async def held(function: Any) -> Any:
                await gate.wait()
                return await original(function)

            monkeypatch.setattr(run.coordinator, "_in_thread", held)
            clock.advance(10.0)
            await opened(run, 0, "closing")
            assert (await b.beat("sending", 0)).wanted == (late == "gate")
            verdict = await b.send(works[1], ones(run, 0.01))
            if late == "drop":
                assert verdict.verdict == "late"
            else:
                assert (verdict.age, verdict.applies_in) == (1, 1)
            gate.set()
            await opened(run, 1)
            assert run.coordinator.status()["rounds_log"][-1]["heard"] == 1
            if late == "gate":
                await a.once()
                clock.advance(10.0)
                await opened(run, 2)
                assert run.coordinator.status()["rounds_log"][-1]["heard"] == 2

    asyncio.run(scenario())
    run.close()


def test_an_update_that_comes_while_the_next_round_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the checkpoint of a round is saved, late ones count in the next."""
    run, clock = tiny_run(
        tmp_path, workers=2, policy=DEADLINE._replace(late="gate"), rounds=3
    )

    async def scenario() -> None:
        async with running(run):
            a, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            works = await a.ask(), await b.ask()
            await a.send(works[0], zeros(run))
            gate = asyncio.Event()
            original = run.coordinator._write_down

            async def held(*given: Any) -> None:
                await gate.wait()
                await original(*given)

            monkeypatch.setattr(run.coordinator, "_write_down", held)
            clock.advance(10.0)
            while run.coordinator.board.round == 0:
                await asyncio.sleep(0.002)
            verdict = await b.send(works[1], zeros(run))
            assert (verdict.age, verdict.applies_in) == (1, 1)
            gate.set()
            await opened(run, 1)

    asyncio.run(scenario())
    run.close()


def test_a_lease_runs_out_and_a_spare_takes_the_slot(tmp_path: Path) -> None:
    """In the same round; and no work for who is gone."""
    run, clock = tiny_run(tmp_path, workers=3, lease=5.0)

    async def scenario() -> None:
        async with running(run):
            a, b, c = [await Puppet(run, name).join() for name in "abc"]
            await opened(run, 0)
            work = await b.ask()
            assert work.do == "train"
            spare = await c.ask()
            assert (spare.do, "spare" in spare.why) == ("wait", True)
            await a.once()
            clock.advance(4.0)
            for puppet in (a, c):
                await puppet.beat("waiting")
            # A question that hangs at a dead worker's connection is no sign of life.
            hanging = asyncio.create_task(b.ask(after=0, wait=60.0))
            await settled(run)
            clock.advance(3.0)
            for puppet in (a, c):
                await puppet.beat("waiting")
            clock.advance(2.1)
            await settled(run)
            assert any("b is gone" in p["text"] for p in _problems(run))
            taken = await c.ask()
            assert (taken.do, taken.block) == ("train", work.block)
            assert not hanging.done()
            hanging.cancel()
            await c.send(taken, zeros(run))
            await opened(run, 1)
            assert "b" not in run.coordinator.board.members.held

    asyncio.run(scenario())
    run.close()


def _problems(run: TinyRun) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.coordinator.status()["problems"]
    return found


def test_a_slot_is_filled_though_another_one_has_nobody_any_more(
    tmp_path: Path,
) -> None:
    """The spare gets the one that isn't done, not the one that is."""
    run, clock = tiny_run(tmp_path, blocks=1, replicas=2, workers=3, lease=5.0)

    async def scenario() -> None:
        async with running(run):
            a, b, c = [await Puppet(run, name).join() for name in "abc"]
            await opened(run, 0)
            assert (await a.ask()).replica == 0
            await a.once()
            await a.leave()
            await c.beat("waiting")
            clock.advance(4.0)
            await c.beat("waiting")
            clock.advance(1.5)
            await settled(run)
            work = await c.ask()
            assert (work.do, work.replica) == ("train", 1)
            del b

    asyncio.run(scenario())
    run.close()


def test_few_workers_go_round_over_the_blocks(tmp_path: Path) -> None:
    run, _ = tiny_run(tmp_path, blocks=3, replicas=2, workers=1, rounds=6)
    trained: list[list[int]] = []

    async def scenario() -> None:
        async with running(run):
            puppets = [await Puppet(run, name).join() for name in "ab"]
            for round_ in range(6):
                await opened(run, round_)
                works = [await puppet.ask() for puppet in puppets]
                trained.append(sorted(work.block for work in works))
                for puppet, work in zip(puppets, works, strict=True):
                    await puppet.send(work, zeros(run))

    asyncio.run(scenario())
    assert all(len(set(blocks)) == 2 for blocks in trained)
    counts = np.bincount(np.ravel(trained), minlength=3)
    assert counts.tolist() == [4, 4, 4]
    # No block waits for longer than one round.
    for one, two in itertools.pairwise(trained):
        assert set(one) | set(two) == {0, 1, 2}
    run.close()


def test_a_restarted_worker_is_back_and_its_old_process_is_told(
    tmp_path: Path,
) -> None:
    run, _ = tiny_run(tmp_path, workers=2, rounds=9)

    async def scenario() -> None:
        async with running(run):
            a, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            await b.ask()
            new = await Puppet(run, "b").join()
            for action in (b.beat(), b.ask(), b.leave()):
                with pytest.raises(ProtocolError) as told:
                    await action
                assert (told.value.status, told.value.code) == (409, "superseded")
            await a.once()
            assert (await new.once()).verdict == "accepted"
            await opened(run, 1)
            assert (await new.once()).verdict == "accepted"

    asyncio.run(scenario())
    run.close()


def test_a_restarted_worker_keeps_its_slot_while_it_starts(tmp_path: Path) -> None:
    """For as long as its lease: what it trained before is still to come."""
    run, clock = tiny_run(tmp_path, workers=2, rounds=9, lease=5.0)

    async def scenario() -> None:
        async with running(run):
            a, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            work = await b.ask()
            await a.once()
            new = Puppet(run, "b")
            await new.register()
            await settled(run)
            assert run.coordinator.board.round == 0
            verdict = await new.send(work, zeros(run))
            assert verdict.verdict == "accepted"
            await opened(run, 1)
            # One that takes longer to start isn't waited for.
            newer = Puppet(run, "b")
            await newer.register()
            await a.once()
            clock.advance(4.9)
            await a.beat("waiting")
            await settled(run)
            assert run.coordinator.board.round == 1
            clock.advance(0.2)
            await opened(run, 2)
            assert (await newer.ask()).do == "train"

    asyncio.run(scenario())
    run.close()


def test_rounds_wait_while_nobody_is_there(tmp_path: Path) -> None:
    """Deadlines don't run, no round is burnt, and who comes back finds it open."""
    run, clock = tiny_run(tmp_path, workers=2, policy=DEADLINE, lease=5.0)

    async def scenario() -> None:
        async with running(run):
            clock.advance(1000.0)
            await settled(run)
            a = await Puppet(run, "a").join()
            clock.advance(4.0)
            await settled(run)
            board = run.coordinator.board
            assert (board.state, board.why) == ("waiting", "1 of 2 workers are there")
            assert (await a.ask()).do == "wait"
            await Puppet(run, "b").join()
            await opened(run, 0)
            clock.advance(5.5)  # both are gone
            await opened(run, 0, "waiting")
            clock.advance(1000.0)
            await settled(run)
            assert (board.round, board.state) == (0, "waiting")
            for name in "ab":
                await Puppet(run, name).join()
            await opened(run, 0)
            assert board.opened == clock()

    asyncio.run(scenario())
    run.close()


def test_a_rejected_update_does_not_hold_the_round_up(tmp_path: Path) -> None:
    run, _ = tiny_run(tmp_path, workers=2)

    async def scenario() -> None:
        async with running(run):
            a, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            work = await b.ask()
            verdict = await b.send(work, ones(run, float("nan")))
            assert verdict.verdict == "rejected"
            await a.once()
            await settled(run)
            assert run.coordinator.board.round == 0  # b may try again
            assert (await b.ask(after=0)).do == "wait"  # it doesn't
            await opened(run, 1)
            assert (await b.once()).verdict == "accepted"

    asyncio.run(scenario())
    run.close()


def test_a_round_that_everyone_gave_up_ends(tmp_path: Path) -> None:
    run, clock = tiny_run(tmp_path, workers=2)

    async def scenario() -> None:
        async with running(run):
            puppets = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            before = run.state()
            for puppet in puppets:
                await puppet.ask()
                await puppet.ask(after=0)
            await asyncio.sleep(0.05)
            assert run.coordinator.board.round == 0  # not at once
            clock.advance(run.heartbeat)
            await opened(run, 1)
            assert same(before, run.state())
            assert "nobody has an update" in _problems(run)[-1]["text"]

    asyncio.run(scenario())
    run.close()


def test_who_gave_up_makes_room_for_a_spare(tmp_path: Path) -> None:
    run, _ = tiny_run(tmp_path, workers=3)

    async def scenario() -> None:
        async with running(run):
            _, b, c = [await Puppet(run, name).join() for name in "abc"]
            await opened(run, 0)
            work = await b.ask()
            await b.ask(after=0)
            taken = await c.ask()
            assert (taken.do, taken.block) == ("train", work.block)

    asyncio.run(scenario())
    run.close()


def test_a_long_phase_with_signs_of_life_is_no_absence(tmp_path: Path) -> None:
    run, clock = tiny_run(tmp_path, workers=1, blocks=1, lease=5.0)

    async def scenario() -> None:
        async with running(run):
            a = await Puppet(run, "a").join()
            await opened(run, 0)
            work = await a.ask()
            for _ in range(100):
                clock.advance(4.0)
                assert (await a.beat("training", 0)).wanted
                await asyncio.sleep(0)
            assert not _problems(run)
            assert (await a.send(work, zeros(run))).verdict == "accepted"

    asyncio.run(scenario())
    run.close()


def test_a_late_joiner_takes_part_in_the_next_round(tmp_path: Path) -> None:
    run, _ = tiny_run(tmp_path, workers=1, blocks=2)

    async def scenario() -> None:
        async with running(run):
            a = await Puppet(run, "a").join()
            await opened(run, 0)
            await a.ask()
            b = await Puppet(run, "b").join()  # there is a free slot at once
            assert (await b.ask()).do == "train"
            await a.once()
            await b.once()
            await opened(run, 1)
            assert {(await p.ask()).block for p in (a, b)} == {0, 1}

    asyncio.run(scenario())
    run.close()


def test_asked_to_stop_it_lets_uploads_end(tmp_path: Path) -> None:
    run, clock = tiny_run(tmp_path, workers=2, drain=30.0)

    async def scenario() -> None:
        async with running(run) as task:
            a, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            works = await a.ask(), await b.ask()
            given = a.upload(works[0], zeros(run))
            assert await run.coordinator.begin("a", given[0]) is None
            run.coordinator.stop()
            await opened(run, 0, "draining")
            assert (await b.ask()).do == "wait"
            verdict = await run.coordinator.commit("a", *given)
            assert verdict.verdict == "accepted"
            assert await task == "drained"
            # Nobody else is waited for, and none for ever.
        clock.advance(0.0)

    asyncio.run(scenario())
    assert [u.worker for u in run.ledger.accepted(0)] == ["a"]
    assert run.model.round == 0
    run.close()


def test_a_stalled_upload_does_not_hold_the_end_up(tmp_path: Path) -> None:
    run, clock = tiny_run(tmp_path, workers=1, blocks=1, drain=30.0)

    async def scenario() -> None:
        async with running(run) as task:
            a = await Puppet(run, "a").join()
            await opened(run, 0)
            given = a.upload(await a.ask(), zeros(run))
            assert await run.coordinator.begin("a", given[0]) is None
            run.coordinator.stop()
            await opened(run, 0, "draining")
            clock.advance(29.0)
            await settled(run)
            assert not task.done()
            clock.advance(1.0)
            assert await task == "drained"

    asyncio.run(scenario())
    run.close()
