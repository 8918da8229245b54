"""Killed or out of space at any durable step: nothing is lost, nothing counts twice."""

import asyncio
import contextlib
import errno
import functools
import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from spheroid_jax import manifests
from spheroid_jax.checkpoints import CheckpointError, Checkpoints
from spheroid_jax.checkpoints.writer import Writer
from spheroid_jax.reports.log import MetricsLog, read_metrics
from spheroid_jax.transport.coordinator import core
from spheroid_jax.transport.coordinator.intake import Intake
from spheroid_jax.transport.ledger import Ledger, LedgerError
from spheroid_jax.transport.protocol import ProtocolError, upload_name
from tests.transport.coordinator.puppets import Puppet, opened, running
from tests.transport.tiny import LOCKSTEP, Clock, TinyRun, same

ROUNDS, NAMES = 3, ("a", "b")
RECIPE = "sgd learning_rate=1.0"


def tiny_run(path: Path) -> TinyRun:
    return TinyRun(path, rounds=ROUNDS, workers=2, recipe=RECIPE)


def delta_of(run: TinyRun, round_: int, block: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([round_, block])
    return {
        name: rng.normal(0, 0.03, shape).astype(np.float32)
        for name, shape in run.model.expected.items()
    }


async def play(
    run: TinyRun,
    acknowledged: set[str] | None = None,
    arm: Callable[[int], None] = lambda round_: None,
    patience: float = 0.0,
) -> None:
    """The run to its end; every update is sent, and then sent again."""
    async with running(run) as task:
        puppets = [await Puppet(run, name).join() for name in NAMES]
        for round_ in range(run.model.round, ROUNDS):
            board = run.coordinator.board
            while board.round < round_ or board.state != "open":
                await run.coordinator.changed(board.version, 5.0)
                if board.state == "finished":
                    break
            if board.round > round_:  # all of it was accepted before the kill
                assert len(run.ledger.accepted(round_)) in (0, 2)
                continue
            arm(round_)
            sent = []
            for puppet in puppets:
                block = NAMES.index(puppet.name)
                slot = run.coordinator.board.members.held[puppet.name]
                ticket = run.coordinator.intake.ticket(puppet.name, round_, slot)
                assert slot == (block, 0)
                upload, path = _file(run, puppet, round_, block, ticket)
                sent.append((puppet, upload))
                verdict = await _patiently(run, puppet, upload, path, patience)
                assert verdict.verdict == "accepted", verdict
                assert (verdict.age, verdict.applies_in) == (0, round_)
                if acknowledged is not None:
                    acknowledged.add(upload_name(puppet.name, upload))
            await opened(run, round_ + 1, "open" if round_ < ROUNDS - 1 else "finished")
            for puppet, upload in sent:  # an answer was lost
                again = await run.coordinator.begin(puppet.name, upload)
                assert again is not None
                assert again.verdict == "accepted"
        await task


async def _patiently(
    run: TinyRun, puppet: Puppet, upload: Any, path: Path, patience: float
) -> Any:
    while True:
        try:
            return await puppet.deliver(upload, path)
        except ProtocolError as error:
            # The file must be there for the next try.
            if error.code != "disk_full" or not (patience and path.exists()):
                raise
            await asyncio.sleep(patience)


def _file(
    run: TinyRun, puppet: Puppet, round_: int, block: int, ticket: str
) -> tuple[Any, Path]:
    class Given(NamedTuple):
        round: int
        block: int
        replica: int
        ticket: str

    work: Any = Given(round_, block, 0, ticket)
    return puppet.upload(work, delta_of(run, round_, block))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    run = tiny_run(tmp_path_factory.mktemp("undisturbed"))
    first = run.state()
    asyncio.run(play(run))
    found = run.state()
    for block in range(2):  # the sum of all that was sent, each once
        total = sum(
            delta_of(run, r, block)["block.kernel"].astype(float) for r in range(ROUNDS)
        )
        name = "['params']['blocks']['kernel']"
        np.testing.assert_allclose(
            found[name][block], first[name][block] - total, 1e-5, 1e-6
        )
    run.close()
    return found


class Snap(NamedTuple):
    label: str
    directory: Path
    round: int
    acknowledged: frozenset[str]


class Snapshots:
    """The disk as a kill at one of many steps would leave it."""

    def __init__(self, run: TinyRun, where: Path) -> None:
        self.run, self.where = run, where
        self.armed = False
        self.acknowledged: set[str] = set()
        self.taken: list[Snap] = []
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def arm(self, round_: int) -> None:
        self.armed = round_ == 1

    def take(self, label: str) -> None:
        if not self.armed:
            return
        # Who else is about to change the disk waits: a kill would not let a later step
        # be there without one before it.
        with self._lock:
            round_ = self.run.coordinator.board.round
            known = frozenset(self.acknowledged)
            target = self.where / str(len(self.taken))
            while True:
                with contextlib.suppress(FileNotFoundError, shutil.Error):
                    digest = _digest(self.run.directory)
                    if digest not in self._seen:
                        shutil.copytree(self.run.directory, target)
                        self._seen.add(digest)
                        self.taken.append(Snap(label, target, round_, known))
                    return
                shutil.rmtree(target, ignore_errors=True)  # another thread is at it

    def around(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.take(f"before {name}")
            result = original(*args, **kwargs)
            self.take(f"after {name}")
            return result

        monkeypatch.setattr(owner, name, wrapped)


def _digest(directory: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file() and "tensorboard" not in path.parts:
            found.update(str(path).encode())
            if not path.name.endswith("-shm"):
                found.update(path.read_bytes())
    return found.hexdigest()


@pytest.fixture(scope="module")
def snaps(tmp_path_factory: pytest.TempPathFactory) -> list[Snap]:
    run = tiny_run(tmp_path_factory.mktemp("snapped"))
    snapshots = Snapshots(run, tmp_path_factory.mktemp("copies"))
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (os, "replace"),
            (manifests, "sync"),
            (Ledger, "accept"),
            (Ledger, "note"),
            (Ledger, "record_round"),
            (Ledger, "record_losses"),
            (Ledger, "forget"),
            (Checkpoints, "save"),
            (Writer, "_complete"),
            (Intake, "_store"),
            (MetricsLog, "write"),
        ):
            snapshots.around(patch, owner, name)
        asyncio.run(play(run, snapshots.acknowledged, snapshots.arm))
    run.close()
    return snapshots.taken


def test_there_are_enough_moments(snaps: list[Snap]) -> None:
    labels = {snap.label for snap in snaps}
    assert len(snaps) > 15, labels
    assert {snap.round for snap in snaps} == {1, 2}
    assert {len(snap.acknowledged) for snap in snaps} >= {2, 3, 4}


def check_resumed(snap: Snap, wanted: dict[str, np.ndarray]) -> None:
    run = tiny_run(snap.directory)
    assert run.model.round >= snap.round, snap.label  # never back
    for name in snap.acknowledged:
        assert run.ledger.find(name) is not None, (snap.label, name)
    kept = {run.coordinator.intake.path(u.name) for u in run.ledger.accepted()}
    assert set(run.updates.iterdir()) == kept, snap.label
    asyncio.run(play(run))
    assert same(run.state(), wanted), snap.label
    assert same(run.on_disk(), wanted), snap.label
    assert len(run.ledger.remembered()) == 2 * ROUNDS
    # And nothing is missing in what is told of the rounds.
    rounds = list(range(1, ROUNDS + 1))
    status = run.coordinator.status()
    told = status["rounds_log"]
    assert [(r["round"], r["heard"]) for r in told] == [(n, 2) for n in rounds]
    assert [point["round"] for point in status["ce"]] == rounds, snap.label
    written = read_metrics(snap.directory / "metrics.jsonl")
    assert [(r["round"], "ce_chain" in r) for r in written] == [
        (n, True) for n in rounds
    ], snap.label
    assert run.coordinator.board.members.last_trained == [ROUNDS - 1] * 2
    run.close()


def test_a_kill_at_any_moment(
    snaps: list[Snap], undisturbed: dict[str, np.ndarray]
) -> None:
    """A quarter of the moments; all of them in the slow suite."""
    for snap in snaps[::4]:
        check_resumed(snap, undisturbed)


@pytest.mark.slow
def test_a_kill_at_every_moment(
    snaps: list[Snap], undisturbed: dict[str, np.ndarray], tmp_path: Path
) -> None:
    for number, snap in enumerate(snaps):
        if number % 4:
            check_resumed(snap, undisturbed)


def full(kind: type[Exception]) -> Exception:
    if kind is OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if kind is LedgerError:
        return LedgerError("the disk is full", disk_full=True)
    return CheckpointError("round 1 not saved: the disk is full")


@pytest.mark.parametrize(
    ("owner", "name", "kind", "told"),
    [
        (os, "replace", OSError, False),
        (manifests, "sync", OSError, False),
        (Ledger, "accept", LedgerError, False),
        (Checkpoints, "save", CheckpointError, True),
        (Checkpoints, "wait", CheckpointError, True),
        (Ledger, "record_round", LedgerError, True),
        (Ledger, "note", LedgerError, True),
        (Ledger, "record_losses", LedgerError, True),
        (Ledger, "forget", LedgerError, True),
        (Path, "unlink", OSError, True),
        (MetricsLog, "write", OSError, True),
    ],
)
def test_a_full_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, np.ndarray],
    owner: Any,
    name: str,
    kind: type[Exception],
    told: bool,
) -> None:
    """It is told, the run goes on when there is space, and nothing is lost."""
    run = tiny_run(tmp_path)
    original = getattr(owner, name)
    failed = 0
    armed = False

    def arm(round_: int) -> None:
        nonlocal armed
        armed = round_ == 1

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal failed
        paths = [a for a in args if isinstance(a, Path)]
        ours = all("updates" in str(p) or p.suffix == ".update" for p in paths[-1:])
        if armed and failed < 3 and ours:
            failed += 1
            raise full(kind)
        return original(*args, **kwargs)

    monkeypatch.setattr(core, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(owner, name, failing)
    asyncio.run(play(run, arm=arm, patience=0.01))
    monkeypatch.undo()
    assert failed
    problems = [p["text"] for p in run.coordinator.status()["problems"]]
    assert problems, "an operator must learn of a full disk"
    assert not told or any("full" in p or "space" in p for p in problems), problems
    assert same(run.state(), undisturbed)
    run.coordinator = run.reopen()
    assert same(run.state(), undisturbed)
    assert len(run.ledger.remembered()) == 2 * ROUNDS
    run.close()


def test_an_accepted_update_whose_file_is_gone_stops_a_restart(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            a, _ = [await Puppet(run, name).join() for name in NAMES]
            await opened(run, 0)
            await a.once()

    asyncio.run(scenario())
    (path,) = run.updates.iterdir()
    path.unlink()
    with pytest.raises(LedgerError, match=f"{path.name} is gone"):
        run.reopen()
    run.close()


def test_leftovers_of_a_kill_are_deleted(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    (run.updates / "0-0-a-0.update").write_bytes(b"half")
    run.reopen()
    assert not list(run.updates.iterdir())
    run.close()


def test_workers_at_work_are_waited_for_after_a_restart(tmp_path: Path) -> None:
    """The first to send doesn't close the round, whoever has spoken before."""
    run = tiny_run(tmp_path)
    works: dict[str, Any] = {}
    puppets: list[Puppet] = []

    async def before() -> None:
        async with running(run):
            puppets.extend([await Puppet(run, name).join() for name in NAMES])
            await opened(run, 0)
            for puppet in puppets:
                works[puppet.name] = await puppet.ask()
            while len(run.ledger.noted("held")["slots"]) < 2:
                await asyncio.sleep(0.002)

    async def after() -> None:
        async with running(run):
            a, b = puppets
            with pytest.raises(ProtocolError) as told:
                await a.beat("training", 0)
            assert (told.value.status, told.value.code) == (409, "unknown")
            await a.register()
            verdict = await a.send(works["a"], delta_of(run, 0, works["a"].block))
            assert verdict.verdict == "accepted"
            assert (await a.ask(after=0)).do == "wait"
            for _ in range(20):
                await asyncio.sleep(0.002)
            assert run.coordinator.board.round == 0
            await b.register()
            verdict = await b.send(works["b"], delta_of(run, 0, works["b"].block))
            assert verdict.verdict == "accepted"
            await opened(run, 1)

    asyncio.run(before())
    run.reopen()
    asyncio.run(after())
    run.close()


def test_nobody_comes_back_after_a_restart(tmp_path: Path) -> None:
    """Their leases run out, and no round is burnt on the way."""
    clock = Clock()
    policy = LOCKSTEP._replace(deadline=1.0)
    run = TinyRun(tmp_path, rounds=3, workers=2, clock=clock, policy=policy, lease=5.0)

    async def before() -> None:
        async with running(run):
            for name in NAMES:
                await Puppet(run, name).join()
            while len(run.ledger.noted("held")["slots"]) < 2:
                await asyncio.sleep(0.002)

    async def after() -> None:
        async with running(run):
            for _ in range(20):
                clock.advance(0.9)
                await asyncio.sleep(0.002)
            board = run.coordinator.board
            assert (board.round, board.state) == (0, "waiting")
            assert not board.members.live()

    asyncio.run(before())
    run.reopen()
    asyncio.run(after())
    run.close()


def test_a_late_update_survives_a_kill_of_the_round_that_closed_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accepted for the next round while one is aggregated, which then is undone."""
    clock = Clock()
    policy = LOCKSTEP._replace(deadline=10.0, late="gate")

    def made() -> TinyRun:
        return TinyRun(
            tmp_path, rounds=2, workers=2, clock=clock, policy=policy, lease=1e9,
            recipe=RECIPE,
        )  # fmt: skip

    run = made()
    before = run.state()

    async def first() -> None:
        async with running(run):
            puppets = [await Puppet(run, name).join() for name in NAMES]
            await opened(run, 0)
            works = [await puppet.ask() for puppet in puppets]
            await puppets[0].send(works[0], delta_of(run, 0, works[0].block))

            async def never(function: Any) -> Any:
                await asyncio.Event().wait()

            monkeypatch.setattr(run.coordinator, "_in_thread", never)
            clock.advance(10.0)
            await opened(run, 0, "closing")
            verdict = await puppets[1].send(works[1], delta_of(run, 0, works[1].block))
            assert (verdict.age, verdict.applies_in) == (1, 1)

    async def second() -> None:
        async with running(run) as task:
            # Both are heard of: the round closes, with one of them.
            await opened(run, 1)
            assert run.coordinator.status()["rounds_log"][-1]["heard"] == 1
            clock.advance(10.0)
            for name in NAMES:
                await Puppet(run, name).join()
            await opened(run, 1)
            clock.advance(10.0)
            await task

    asyncio.run(first())
    monkeypatch.undo()
    run.reopen()
    assert run.model.round == 0
    asyncio.run(second())
    assert run.coordinator.status()["staleness"] == [1, 1]
    name = "['params']['blocks']['kernel']"
    for block in range(2):
        moved = before[name][block] - run.state()[name][block]
        wanted = delta_of(run, 0, block)["block.kernel"]
        np.testing.assert_allclose(moved, wanted, 1e-4, 1e-6)
    run.close()
