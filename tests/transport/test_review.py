"""What a hostile or unlucky peer, disk or moment must not do to a run."""

import asyncio
import errno
import resource
import sys
import threading
import types
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.reports.log import MetricsLog, read_metrics
from spheroid_jax.runs.exchange import coordinate, frame
from spheroid_jax.transport.assignment import Slot
from spheroid_jax.transport.coordinator import Model, Rules, broadcast
from spheroid_jax.transport.coordinator.history import History
from spheroid_jax.transport.coordinator.members import Members
from spheroid_jax.transport.coordinator.model import Arrival
from spheroid_jax.transport.http.limits import connections_for
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.items.cache import ItemCache
from spheroid_jax.transport.items.published import Published
from spheroid_jax.transport.protocol import (
    Item,
    ProtocolError,
    Register,
    Registered,
    Upload,
    Verdict,
    Work,
    decode,
    encode,
)
from spheroid_jax.transport.updates import Encoding, write_update
from tests.transport import tiny
from tests.transport.coordinator.puppets import Puppet, ones, opened, running
from tests.transport.tiny import LOCKSTEP, Clock, DirectLink, TinyRun

SECONDS = 15.0


class Liar(DirectLink):
    """A coordinator that names items as it likes."""

    async def work(self, request: Any) -> Work:
        work = await super().work(request)
        if work.do != "train":
            return work
        items = {"../../victims": work.items["block"], **work.items}
        return msgspec.structs.replace(work, items=items)


def test_an_items_kind_is_no_path(tmp_path: Path) -> None:
    """Whatever the coordinator calls an item, no folder but the worker's is touched."""
    run = TinyRun(tmp_path / "run", rounds=1, blocks=1)
    victims = run.directory / "workers" / "victims"
    for name in "abc":
        (victims / name).mkdir(parents=True)
        (victims / name / "precious").touch()

    async def scenario() -> None:
        async with asyncio.timeout(SECONDS):
            running = asyncio.create_task(run.coordinator.run())
            worker = run.worker("ada", link=Liar(run, "ada"))
            await worker.register()
            await worker.run()
            await running

    asyncio.run(scenario())
    assert sorted(p.name for p in victims.iterdir()) == ["a", "b", "c"]
    run.close()


@pytest.mark.parametrize("kind", ["..", "../x", "/tmp", "a/b", ""])
def test_the_cache_takes_no_path_for_a_kind(tmp_path: Path, kind: str) -> None:
    class NoLink:
        async def fetch(self, *given: Any) -> int:
            raise AssertionError

    with (
        ItemCache(tmp_path / "items") as cache,
        pytest.raises(ValueError, match="word"),
    ):
        asyncio.run(cache.get(NoLink(), Item("0" * 64, 1), kind))  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["worker", "run"])
def test_what_a_coordinator_calls_a_worker_is_a_files_name(field: str) -> None:
    """The worker's folder is named after both."""
    given = {"worker": "ada", "run": "0f" * 16, field: "../../.ssh"}
    told = Registered(
        1, given["run"], given["worker"], {}, "0" * 64, "", lease=1.0, heartbeat=1.0
    )
    with pytest.raises(ProtocolError, match=field):
        decode(encode(told), Registered)


def test_a_round_that_is_yet_to_come_is_not_given_up(tmp_path: Path) -> None:
    """One worker alone can't have all rounds pass with nothing in them."""
    run = TinyRun(tmp_path, rounds=50, blocks=1)

    async def scenario() -> None:
        async with running(run):
            ada = await Puppet(run, "ada").join()
            await opened(run, 0)
            work = await ada.ask(after=2**31)
            assert (work.do, work.round) == ("train", 0)
            await asyncio.sleep(0.1)
            assert run.coordinator.board.round == 0

    asyncio.run(scenario())
    run.close()


def test_being_given_the_same_work_again_is_no_news(tmp_path: Path) -> None:
    """Everyone who waits looks again at news; one worker alone makes few."""
    run = TinyRun(tmp_path, workers=2)

    async def scenario() -> None:
        async with running(run):
            ada, bob = [await Puppet(run, name).join() for name in ("ada", "bob")]
            await opened(run, 0)
            await ada.ask()
            await bob.ask()
            seen = run.coordinator.board.version
            for _ in range(5):
                await ada.ask()
                await ada.register()
            assert run.coordinator.board.version == seen

    asyncio.run(scenario())
    run.close()


def test_a_device_is_one_line_on_a_terminal() -> None:
    members = Members(1, 1, 10.0)
    device = "cpu\x1b]0;owned\x07\nround 7/7: all is well\u2028"
    members.register("ada", Register(1, "0" * 32, device=device), 0.0)
    member = members.get("ada")
    assert member.device.isprintable()
    assert member.device.startswith("cpu ]0;owned")


def test_spares_get_what_is_free_and_nothing_else() -> None:
    members = Members(2, 1, 10.0)
    for number, name in enumerate("abcd"):
        members.register(name, Register(1, f"{number:032x}"), 0.0)
        members.speaking(name, f"{number:032x}", 0.0, ready=True)
    members.reassign()
    assert members.held == {"a": Slot(0, 0), "b": Slot(1, 0)}
    members.fill(set())
    assert members.held.keys() == {"a", "b"}
    members.leave(members.get("b"))
    members.fill({Slot(1, 0)})  # heard of already
    assert members.held.keys() == {"a"}
    members.fill(set())
    assert members.held == {"a": Slot(0, 0), "c": Slot(1, 0)}


def test_a_look_at_a_long_run_is_as_quick_as_at_a_short_one() -> None:
    """By counts that are kept; they are those of the rounds, also after a restart."""

    class Untouchable(list):
        def __iter__(self) -> Any:
            raise AssertionError("all rounds were gone through")

    rows = [
        (n, {"ages": [0, n % 3], "bytes_up": 5, "bytes_down": 7, "blocks": [2]})
        for n in range(1, 10)
    ]
    history = History(rows, [], 9)
    history.count_bytes(down=1, up=2)
    history.add(10, {"ages": [0, 4], **history.take_bytes(), "blocks": [2]})
    history.rounds = Untouchable(history.rounds)
    assert history.staleness() == [13, 3, 3, 0, 1]
    assert history.total_bytes() == {"down": 64, "up": 47}


def test_parts_are_dropped_where_they_are_made(tmp_path: Path) -> None:
    """On the event loop: from a thread, it changes under the loop's hands."""
    run = TinyRun(tmp_path, rounds=2, blocks=1)
    dropped: list[tuple[int, bool]] = []

    class Parts:
        def drop(self, before: int) -> None:
            here = threading.current_thread() is threading.main_thread()
            dropped.append((before, here))

    class Given:
        class network:
            max_age, late = 4, "drop"

    async def scenario() -> None:
        async with running(run) as task:
            tidying = asyncio.create_task(
                coordinate._tidy(run.coordinator, Parts(), Given())  # type: ignore[arg-type]
            )
            ada = await Puppet(run, "ada").join()
            for round_ in range(2):
                await opened(run, round_)
                for _ in range(3):
                    await ada.beat("training", round_)
                    await ada.beat("waiting", round_)
                    await asyncio.sleep(0.01)
                await ada.once()
            await task
            await asyncio.sleep(0.01)
            tidying.cancel()

    asyncio.run(scenario())
    assert dropped == [(0, True), (1, True), (2, True)]
    run.close()


def test_handed_over_updates_leave_no_pile(tmp_path: Path) -> None:
    """Who sends attempt after attempt that is rejected takes no more and more."""
    uploads = Uploads(tmp_path, 1 << 20, each=3)

    class Rejects:
        async def commit(self, worker: str, upload: Upload, path: Path) -> Verdict:
            path.unlink()
            return Verdict("rejected", "no")

    async def scenario() -> None:
        for attempt in range(12):
            upload = Upload("0" * 32, 0, 0, 0, attempt, 0, blake3().hexdigest(), "")
            await uploads.begin("ada", upload)
            name = f"0-0-ada-{attempt}"
            said = await uploads.commit("ada", name, Rejects())  # type: ignore[arg-type]
            assert said.verdict == "rejected"
            assert len(list(tmp_path.iterdir())) <= 4
        assert len(uploads._parts) <= 4

    asyncio.run(scenario())
    uploads.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux")
def test_a_line_that_can_not_be_printed_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open("/dev/full", "w", encoding="ascii") as full:
        monkeypatch.setattr(sys, "stdout", full)
        frame.say("the disk is full")
        frame.say("café")
        monkeypatch.undo()
        with pytest.raises(OSError, match="space"):
            full.close()


def test_a_disk_that_refuses_records_is_not_waited_for(tmp_path: Path) -> None:
    """tensorboardX's thread ends at an error; its queue has room for ten records."""

    def refuse(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write() -> None:
        with MetricsLog(tmp_path) as log:
            log.write("m", 1, {"a": 1.0}, step=1, seconds=0.0)
            events = log._writers["m"].file_writer.event_writer._ev_writer
            events._py_recordio_writer.write = refuse
            events._py_recordio_writer.flush = refuse
            for round_ in range(2, 40):
                log.write("m", round_, {"a": 1.0, "b": 2.0}, step=1, seconds=0.0)
            events._py_recordio_writer.flush = lambda: None

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(SECONDS)
    assert not writing.is_alive()
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 39


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "raised"),
    [
        (1024, 1 << 20, 1024, 2304),
        (1024, 1024, 384, None),
        (1 << 16, 1 << 20, 1024, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 1024, None),
        (64, 64, 16, None),
    ],
)
def test_connections_leave_files_to_be_opened(
    monkeypatch: pytest.MonkeyPatch,
    soft: int,
    hard: int,
    connections: int,
    raised: int | None,
) -> None:
    """A stranger who only connects must not have a checkpoint fail."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda what, to: asked.append(to))
    assert connections_for(coordinate._FILES) == connections
    assert [to[0] for to in asked if to[0] != soft] == ([raised] if raised else [])


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
def test_who_holds_updates_back_has_one_vote(tmp_path: Path, rule: str) -> None:
    """With ``gate`` a worker may send those of several rounds at once."""
    policy = LOCKSTEP._replace(deadline=10.0, late="gate", max_age=4)
    clock = Clock()
    run = TinyRun(
        tmp_path, blocks=1, replicas=3, workers=3, rounds=9, policy=policy,
        clock=clock, lease=1e9, rules=Rules(rule=rule, trim=0.34),
    )  # fmt: skip

    async def scenario() -> None:
        async with running(run):
            evil, ada, bob = [
                await Puppet(run, n).join() for n in ("evil", "ada", "bob")
            ]
            kept = []
            for round_ in range(5):
                await opened(run, round_)
                kept.append(await evil.ask())
                if round_ < 4:
                    await ada.send(await ada.ask(), ones(run, 0.01))
                    await bob.send(await bob.ask(), ones(run, 0.01))
                    clock.advance(10.0)
            before = run.state()
            for work in kept:
                verdict = await evil.send(work, ones(run, -0.03))
                assert (verdict.verdict, verdict.applies_in) == ("accepted", 4)
            await ada.send(await ada.ask(), ones(run, 0.01))
            await bob.send(await bob.ask(), ones(run, 0.01))
            await opened(run, 5)
            for name, leaf in run.state().items():
                if "params" in name:
                    np.testing.assert_allclose(leaf, before[name] - 0.007, atol=1e-6)

    asyncio.run(scenario())
    run.close()


def test_a_slot_that_nothing_comes_of_goes_to_a_spare(tmp_path: Path) -> None:
    """Signs of life alone keep it for three rounds."""
    clock = Clock()
    run = TinyRun(
        tmp_path, blocks=1, replicas=1, workers=2, rounds=9, clock=clock, lease=1e9,
        policy=LOCKSTEP._replace(deadline=10.0),
    )  # fmt: skip

    async def scenario() -> None:
        async with running(run):
            idle, ada = [await Puppet(run, name).join() for name in ("idle", "ada")]
            for round_ in range(3):
                await opened(run, round_)
                assert (await idle.ask()).do == "train"
                await idle.beat("training", round_)
                assert (await ada.ask()).do == "wait"
                clock.advance(10.0)
            for round_ in range(3, 6):
                await opened(run, round_)
                assert (await idle.ask()).do == "wait"
                assert (await ada.once()).verdict == "accepted"

    asyncio.run(scenario())
    run.close()


def test_who_is_slow_and_heard_keeps_its_slot() -> None:
    """Nor does it go when nobody waits for it."""
    members = Members(1, 1, 10.0)
    for number, name in enumerate("ab"):
        members.register(name, Register(1, f"{number:032x}"), 0.0)
        members.speaking(name, f"{number:032x}", 0.0, ready=True)
        members.reassign()
    for round_ in range(9):
        members.count_missing({Slot(0, 0)} if round_ % 3 == 2 else set())
        members.reassign()
        assert members.held == {"a": Slot(0, 0)}
    members.leave(members.get("b"))
    for _ in range(9):
        members.count_missing(set())
        members.reassign()
    assert members.held == {"a": Slot(0, 0)}


def test_a_process_that_fails_as_it_starts_keeps_no_slot() -> None:
    """Registering is no sign of life: it may be all that it ever does."""
    members = Members(1, 1, 10.0)
    members.register("a", Register(1, "0" * 32), 0.0)
    members.speaking("a", "0" * 32, 0.0, ready=True)
    members.reassign()
    for second in range(1, 12):
        members.register("a", Register(1, f"{second:032x}"), float(second))
    assert [m.name for m in members.expire(11.0)] == ["a"]
    assert not members.held


@pytest.mark.parametrize("base", ["..", "a/b", "0" * 63, "/etc"])
def test_what_a_step_starts_from_is_a_digest(base: str) -> None:
    """It names a folder beside the item's."""
    with pytest.raises(ProtocolError, match="base"):
        decode(encode(Item("0" * 64, 1, base)), Item)
    assert decode(encode(Item("0" * 64, 1)), Item).base == ""


@pytest.mark.parametrize("fails", ["write", "publish"])
def test_a_step_that_can_not_be_written_costs_bytes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The round is done, its items are there in full, and the next step is one."""
    engine, weigh = tiny.engine(2, 1, "sgd")
    delta = {
        n: np.full(s, 0.5, np.float32) for n, s in tiny.trainer(2, 1).shapes.items()
    }
    write_update(tmp_path / "update", delta, Encoding(), {})
    arrivals = [Arrival(tmp_path / "update", 0, 0)]

    def refuse(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    where = tmp_path / "checkpoints"
    with Checkpoints(where, keep=2, identity={}, digest="blake3") as checkpoints:
        model = Model(
            engine, Rules(weigh), lambda: (tiny.init(2)(tiny.KEY()), tiny.KEY()),
            lambda params: {}, checkpoints, where, Encoding("int8"),
        )  # fmt: skip
        before = tiny.flat(model.params)
        with monkeypatch.context() as patched:
            if fails == "write":
                patched.setattr(broadcast, "write_step", refuse)
            else:
                patched.setattr(broadcast, "os", types.SimpleNamespace(replace=refuse))
            model.step(arrivals)
            model.save()
        published = Published()
        assert all(item.base == "" for item in model.publish(published)[0].values())
        for name, leaf in tiny.flat(model.params).items():
            if "blocks" not in name:
                np.testing.assert_allclose(leaf, before[name] - 0.35, atol=0.01)
        model.step(arrivals)
        model.save()
        assert all(len(i.base) == 64 for i in model.publish(published)[0].values())
