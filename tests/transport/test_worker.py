"""A worker that is killed, cut off, told to stop, or diverges."""

import asyncio
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spheroid_jax.transport import slots as module
from spheroid_jax.transport.closing import Policy
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.outbox import Outbox
from spheroid_jax.transport.protocol import (
    Heartbeat,
    Pulse,
    Upload,
    Verdict,
    Work,
    WorkRequest,
)
from spheroid_jax.transport.trainer import Trainer
from spheroid_jax.transport.updates import Encoding, Feedback, UpdateReader
from tests.transport.coordinator.puppets import Puppet, opened, running
from tests.transport.tiny import DirectLink, TinyRun, same

ROUNDS = 3
INT8 = Encoding("int8", 0)


class KilledError(Exception):
    """The process is gone; what it held in memory is lost."""


class Fragile(DirectLink):
    """Kills its worker, once, before or after a call in a round."""

    def __init__(self, run: TinyRun, name: str, when: str, round_: int = 1) -> None:
        super().__init__(run, name)
        self.when, self.round = when, round_

    def _maybe(self, when: str, round_: int) -> None:
        if (when, round_) == (self.when, self.round):
            self.when = ""
            raise KilledError(when)

    async def work(self, request: WorkRequest) -> Work:
        work = await super().work(request)
        if work.do == "train":
            self._maybe("given", work.round)
        return work

    async def submit(self, upload: Upload, path: Path, progress: Any = None) -> Verdict:
        self._maybe("before sending", upload.round)
        verdict = await super().submit(upload, path)
        self._maybe("after sending", upload.round)
        return verdict


async def with_restarts(run: TinyRun, links: dict[str, DirectLink]) -> None:
    """A run whose workers are started again when they are killed."""

    async def keep_up(name: str) -> None:
        while True:
            worker = run.worker(name, link=links.get(name))
            try:
                await worker.register()
                assert await worker.run() == "finished"
                return
            except KilledError:
                pass

    async with running(run) as task:
        await asyncio.gather(*(keep_up(name) for name in ("a", "b")))
        await task


def tiny_run(path: Path, encoding: Encoding = INT8) -> TinyRun:
    return TinyRun(path, rounds=ROUNDS, workers=2, encoding=encoding, recipe="nesterov")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    run = tiny_run(tmp_path_factory.mktemp("undisturbed"))
    asyncio.run(with_restarts(run, {}))
    run.close()
    return run.state()


@pytest.mark.parametrize("when", ["given", "before sending", "after sending"])
def test_a_kill_changes_nothing(
    tmp_path: Path, undisturbed: dict[str, np.ndarray], when: str
) -> None:
    """With error feedback, momentum and the outer optimizer's, bit for bit."""
    run = tiny_run(tmp_path)
    link = Fragile(run, "b", when)
    asyncio.run(with_restarts(run, {"b": link}))
    assert not link.when
    assert same(run.state(), undisturbed)
    assert len(run.ledger.remembered()) == 2 * ROUNDS
    run.close()


@pytest.mark.parametrize(
    ("owner", "name", "late"),
    [
        (Trainer, "save", False),
        (Trainer, "save", True),
        (module, "write_update", True),
        (Feedback, "save", True),
        (Outbox, "put", False),
        (Outbox, "put", True),
        (Feedback, "load", True),
        (Outbox, "clear", False),
        (Outbox, "clear", True),
    ],
)
def test_a_kill_between_the_steps_of_a_round(
    tmp_path: Path,
    undisturbed: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    late: bool,
) -> None:
    run = tiny_run(tmp_path)
    original = getattr(owner, name)
    killed = 0

    def fragile(*args: Any, **kwargs: Any) -> Any:
        nonlocal killed
        die = run.coordinator.board.round == 1 and not killed
        killed += die
        result = None if die and not late else original(*args, **kwargs)
        if die:
            raise KilledError(name)
        return result

    monkeypatch.setattr(owner, name, fragile)
    asyncio.run(with_restarts(run, {}))
    monkeypatch.undo()
    assert killed == 1
    assert same(run.state(), undisturbed)
    run.close()


def test_the_coordinator_is_restarted(
    tmp_path: Path, undisturbed: dict[str, np.ndarray]
) -> None:
    """Workers register anew by themselves, and no round is trained twice."""
    run = tiny_run(tmp_path)
    up = [True]

    class Patient(DirectLink):
        async def _say(self, method: str, *arguments: Any) -> Any:
            while not up:
                await asyncio.sleep(0.005)
            return await super()._say(method, *arguments)

    async def scenario() -> None:
        links = {name: Patient(run, name) for name in "ab"}
        workers = [run.worker(name, link=links[name]) for name in "ab"]
        async with asyncio.timeout(40):
            async with running(run):
                for worker in workers:
                    await worker.register()
                tasks = [asyncio.create_task(worker.run()) for worker in workers]
                await opened(run, 1)
            up.clear()
            await asyncio.sleep(0.1)
            run.reopen()
            up.append(True)
            async with running(run) as task:
                assert await asyncio.gather(*tasks) == ["finished"] * 2
                await task

    asyncio.run(scenario())
    assert same(run.state(), undisturbed)
    run.close()


def test_a_round_that_is_trained_again_by_the_same_process(
    tmp_path: Path, undisturbed: dict[str, np.ndarray]
) -> None:
    """From where it was, and as another attempt."""
    run = tiny_run(tmp_path)
    attempts = []

    class Conflicting(DirectLink):
        async def submit(self, upload: Upload, *given: Any) -> Verdict:
            attempts.append((upload.round, upload.attempt))
            if [r for r, _ in attempts] == [0, 1]:
                raise LinkError("another content", code="conflict", status=409)
            return await super().submit(upload, *given)

    asyncio.run(with_restarts(run, {"b": Conflicting(run, "b")}))
    assert [r for r, _ in attempts] == [0, 1, 1, 2]
    assert len(set(attempts)) == 4
    assert same(run.state(), undisturbed)
    run.close()


async def by_hand(run: TinyRun) -> dict[str, dict[str, np.ndarray]]:
    """The same run, error feedback done here; what each worker owes at its end."""
    owed: dict[str, dict[str, np.ndarray]] = {"a": {}, "b": {}}
    async with running(run) as task:
        puppets = [await Puppet(run, name).join() for name in owed]
        for round_ in range(ROUNDS):
            await opened(run, round_)
            for puppet in puppets:
                work = await puppet.ask()
                debts = owed[puppet.name]
                sent = {
                    name: (leaf + debts[name] if debts else leaf)
                    for name, leaf in puppet.train(work).items()
                }
                upload, path = puppet.upload(work, sent, INT8)
                with UpdateReader(path) as reader:
                    for name, leaf in sent.items():
                        decoded = reader.read(name, 0, leaf.size).reshape(leaf.shape)
                        debts[name] = leaf - decoded
                assert (await puppet.deliver(upload, path)).verdict == "accepted"
        await task
    return owed


def test_error_feedback_is_settled_once(
    tmp_path: Path, undisturbed: dict[str, np.ndarray]
) -> None:
    """Also where the answer is lost, and the update delivered by the next process."""
    hand = tiny_run(tmp_path / "hand")
    owed = asyncio.run(by_hand(hand))
    assert same(hand.state(), undisturbed)
    run = tiny_run(tmp_path / "run")
    asyncio.run(with_restarts(run, {"b": Fragile(run, "b", "after sending")}))
    for name, slot in (("a", "0-0"), ("b", "1-0")):
        place = run.directory / "workers" / name / "slots" / slot / "owed"
        assert any(np.any(leaf) for leaf in owed[name].values())
        assert same(Feedback.load(place).residual, owed[name])
    run.close()
    hand.close()


def test_a_loss_that_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent, it is told, the round doesn't wait, the next one is fine."""
    run = tiny_run(tmp_path)
    original = Trainer.train
    states: list[Any] = []

    def train(self: Trainer, part: Any, state: Any, *slot: int) -> Any:
        round_, block, _ = slot
        if block == 1:
            states.append(state)
        trained = original(self, part, state, *slot)
        if (round_, block) == (1, 1):
            return trained._replace(loss=float("nan"))
        return trained

    monkeypatch.setattr(Trainer, "train", train)
    asyncio.run(with_restarts(run, {}))
    log = run.coordinator.status()["rounds_log"]
    assert [r["heard"] for r in log] == [2, 1, 2]
    assert any("the loss is nan, nothing is sent" in line for line in run.said)
    assert [state is None for state in states] == [True, False, True]
    run.close()


def test_a_graceful_stop_sends_the_update_in_hand(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            a, b = run.worker("a"), run.worker("b")
            original = b._trainer.train

            def train(*args: Any) -> Any:
                b.stop()
                return original(*args)

            b._slots._trainer = Wrapped(b._slots._trainer, train)  # type: ignore[assignment]
            for worker in (a, b):
                await worker.register()
            other = asyncio.create_task(a.run())
            assert await b.run() == "left"
            assert any(u.worker == "b" for u in run.ledger.remembered())
            assert not run.coordinator.board.members.get("b").live
            a.stop()
            assert await other == "left"

    asyncio.run(scenario())
    assert (
        b"".join(
            p.read_bytes() for p in (tmp_path / "workers" / "b" / "outbox").iterdir()
        )
        == b""
    )
    run.close()


class Wrapped:
    """A trainer whose ``train`` is another."""

    def __init__(self, trainer: Trainer, train: Any) -> None:
        self._trainer, self.train = trainer, train

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def test_stop_while_it_waits_for_work(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)  # waits for two workers

    async def scenario() -> None:
        async with running(run):
            a = run.worker("a")
            await a.register()
            task = asyncio.create_task(a.run())
            while not run.coordinator.board.members.get("a").live:
                await asyncio.sleep(0.002)
            a.stop()
            assert await asyncio.wait_for(task, 5) == "left"

    asyncio.run(scenario())
    run.close()


def test_a_second_process_with_the_same_token_ends_the_first(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            old = run.worker("a")
            await old.register()
            task = asyncio.create_task(old.run())
            await asyncio.sleep(0.05)
            new = run.worker("a", folder=tmp_path / "elsewhere")
            await new.register()
            taking = asyncio.create_task(new.run())
            with pytest.raises(LinkError, match="another process has taken over"):
                await asyncio.wait_for(task, 10)
            assert not taking.done()
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    asyncio.run(scenario())
    run.close()


def test_too_late_is_not_sent_to_the_end(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)

    class Stalled(DirectLink):
        async def submit(self, *given: Any) -> Verdict:
            await asyncio.sleep(3600)
            raise AssertionError

        async def heartbeat(self, request: Heartbeat) -> Pulse:
            sending = request.doing == "sending"
            return Pulse(request.round + sending, not sending)

        async def work(self, request: WorkRequest) -> Work:
            if request.after >= 0:
                return Work("stop", why="that was all")
            return await super().work(request)

    async def scenario() -> None:
        async with running(run):
            a, b = run.worker("a", link=Stalled(run, "a")), run.worker("b")
            for worker in (a, b):
                await worker.register()
            other = asyncio.create_task(b.run())
            assert await asyncio.wait_for(a.run(), 10) == "finished"
            assert any("too late, not sent to the end" in line for line in run.said)
            assert Outbox(tmp_path / "workers" / "a" / "outbox").pending() is None
            b.stop()
            await other

    asyncio.run(scenario())
    run.close()


def test_an_answer_about_a_round_that_is_over_stops_nothing(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)

    async def scenario() -> None:
        link = run.link("a")
        answer: asyncio.Future[Pulse] = asyncio.get_running_loop().create_future()

        async def heartbeat(request: Heartbeat) -> Pulse:
            return await answer

        link.heartbeat = heartbeat  # type: ignore[method-assign]
        worker = run.worker("a", link=link)
        worker._round = 0
        worker._wanted.set()
        pulse = asyncio.create_task(worker._pulse({}))
        await asyncio.sleep(0)
        worker._round = 1  # the next round has begun
        answer.set_result(Pulse(1, False))
        await pulse
        assert worker._wanted.is_set()
        worker._cache.close()

    asyncio.run(scenario())
    run.close()


def test_what_is_on_disk_of_another_model_is_ignored(
    tmp_path: Path, undisturbed: dict[str, np.ndarray]
) -> None:
    run = tiny_run(tmp_path)
    for name, block in (("a", 0), ("b", 1)):
        place = tmp_path / "workers" / name / "slots" / f"{block}-0"
        place.mkdir(parents=True)
        other = {"block.kernel": np.ones((3, 3), np.float32)}
        Feedback(other).save(place / "owed")
        strange: dict[str, Any] = {"round": np.int64(-1), "leaf.x": np.ones(3)}
        np.savez(place / "inner.npz", **strange)
        (place / "before.inner.npz").write_bytes(b"PK\x03\x04 no zip after all")
        outbox = tmp_path / "workers" / name / "outbox"
        outbox.mkdir()
        (outbox / "upload.json").write_bytes(b'{"round": "x"}')
        (outbox / "update").write_bytes(b"garbage")
    asyncio.run(with_restarts(run, {}))
    assert same(run.state(), undisturbed)
    run.close()


def test_an_update_of_another_run_is_refused_and_forgotten(
    tmp_path: Path, undisturbed: dict[str, np.ndarray]
) -> None:
    run = tiny_run(tmp_path)
    outbox = Outbox(tmp_path / "workers" / "a" / "outbox")
    outbox.file.write_bytes(b"12345678")
    digest, session = "0" * 64, uuid.uuid4().hex
    outbox.put(Upload(session, 0, 0, 0, 0, 8, digest, ticket="of another run"))
    asyncio.run(with_restarts(run, {}))
    assert any("isn't delivered" in line for line in run.said)
    assert same(run.state(), undisturbed)
    run.close()


def test_an_unreachable_coordinator_costs_no_update(tmp_path: Path) -> None:
    """What couldn't be delivered is still there for the next process."""
    run = tiny_run(tmp_path)

    class Cut(DirectLink):
        async def submit(self, *given: Any) -> Verdict:
            raise LinkError("no route", code="unreachable")

    async def scenario() -> None:
        async with running(run):
            a, b = run.worker("a", link=Cut(run, "a")), run.worker("b")
            for worker in (a, b):
                await worker.register()
            other = asyncio.create_task(b.run())
            for _ in range(2):  # also where it is what a process before has trained
                with pytest.raises(LinkError, match="no route"):
                    await a.run()
                outbox = Outbox(tmp_path / "workers" / "a" / "outbox")
                assert outbox.pending() is not None
                a = run.worker("a", link=Cut(run, "a"))
                await a.register()
            a._cache.close()
            b.stop()
            await other

    asyncio.run(scenario())
    run.close()


def test_late_workers_count_later_with_gate(tmp_path: Path) -> None:
    """Real workers, one of them slow, a quorum: the run ends and nothing is lost."""
    policy = Policy(deadline=30.0, late="gate", quorum=1, grace=0.0, max_age=4)
    run = TinyRun(
        tmp_path, blocks=1, replicas=2, rounds=6, workers=2, policy=policy,
        recipe="weighted_sgd",
    )  # fmt: skip

    class Slow(DirectLink):
        async def submit(self, *given: Any) -> Verdict:
            round_ = run.coordinator.board.round
            while run.coordinator.board.round == round_ < 5:
                await asyncio.sleep(0.002)
            return await super().submit(*given)

    async def scenario() -> None:
        async with running(run) as task:
            workers = [run.worker("a"), run.worker("b", link=Slow(run, "b"))]
            for worker in workers:
                await worker.register()
            await asyncio.gather(*(worker.run() for worker in workers))
            await task

    asyncio.run(scenario())
    ages = run.coordinator.status()["staleness"]
    applied = sum(r["heard"] for r in run.coordinator.status()["rounds_log"])
    assert sum(ages) == applied == len(run.ledger.remembered())
    assert sum(ages[1:]) > 0
    run.close()


def test_a_folder_serves_one_process(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    worker = run.worker("a")
    with pytest.raises(LinkError, match="used by another process"):
        run.worker("a")
    worker._cache.close()
    shutil.rmtree(tmp_path / "workers")
    run.close()
