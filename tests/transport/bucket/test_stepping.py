"""Steps through a bucket: few bytes, and the whole data for whom they are no use."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spheroid_jax.transport.bucket import conversation, layout
from spheroid_jax.transport.bucket.publishing import Publisher
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.worker_side import BucketLink
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.server import make_app, serve
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.link import LinkError, Progress
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    Item,
    Register,
    WorkRequest,
)
from spheroid_jax.transport.updates import Encoding
from tests.transport.bucket.whole_runs import (
    PACE,
    Counting,
    about,
    link,
    made,
    served,
    small,
    train,
)
from tests.transport.items.making import numbers, write_item
from tests.transport.tiny import TinyRun, same

INT4 = Encoding("int4", 3)
ROUNDS = 4
PART = sum(4 * int(np.prod(shape)) for shape in made(2)[2].shapes.values())
SESSION = "ab" * 16


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The model of a run without any network."""
    run = small(tmp_path_factory.mktemp("direct"), rounds=ROUNDS, broadcast=INT4)
    asyncio.run(run.together(["ann", "bob"]))
    return run.state()


def trained(directory: Path, store: BlobStore, ways: dict[str, Any]) -> TinyRun:
    run = small(directory, rounds=ROUNDS, broadcast=INT4)
    train(run, ways, store)
    return run


def test_after_the_first_round_steps_are_all_that_moves(
    tmp_path: Path, straight: dict[str, np.ndarray]
) -> None:
    bucket = BlobStore("memory://")
    front, ann, bob = (Counting(bucket) for _ in range(3))
    run = trained(tmp_path, front, {"ann": link("ann", ann), "bob": link("bob", bob)})
    assert same(run.state(), straight)
    for worker in (ann, bob):
        assert worker.moved["down", "data"] == PART
        assert 0 < worker.moved["down", "step"] < 0.25 * PART * (ROUNDS - 1)
    # Both blocks, and the interface, once; it wasn't put for nobody.
    head = 4 * 96
    assert front.moved["up", "data"] == 2 * PART - head
    assert front.moved["up", "step"] > 0
    # What they have read is counted, in the round that they read it for.
    rows = run.coordinator.board.history.rounds
    assert rows[0]["bytes_down"] >= 2 * PART
    assert all(0 < row["bytes_down"] < 2 * PART for row in rows[1:])
    read = ann.received + bob.received
    said = run.coordinator.board.history.total_bytes()["down"]
    items = sum(w.moved["down", k] for w in (ann, bob) for k in ("data", "step"))
    assert items <= said <= read


@contextlib.asynccontextmanager
async def over_http(run: TinyRun, name: str) -> AsyncIterator[HttpLink]:
    secret = run.token(name)
    uploads = Uploads(run.directory / "exchange" / "parts", 1 << 24)
    limits = Limits(shutdown=0.2)
    server = await serve(make_app(run.coordinator, uploads, limits), "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.port}"
        async with HttpLink(url, Token(secret), pace=PACE) as way:
            yield way
    finally:
        await server.close()


def test_workers_of_both_kinds_come_to_the_same_model(
    tmp_path: Path, straight: dict[str, np.ndarray]
) -> None:
    run = small(tmp_path, rounds=ROUNDS, broadcast=INT4)
    bucket = BlobStore("memory://")
    bob = Counting(bucket)

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            served(run, bucket),
            over_http(run, "ann") as ann,
        ):
            ways = {"ann": ann, "bob": link("bob", bob)}
            workers = [run.worker(name, link=way) for name, way in ways.items()]
            running = asyncio.create_task(run.coordinator.run())
            for worker in workers:
                await worker.register()
            await asyncio.gather(running, *(worker.run() for worker in workers))

    asyncio.run(main())
    assert same(run.state(), straight)
    assert bob.moved["down", "step"] > 0


class Spoiling(BlobStore):
    """Another store's objects; what is put is changed, or not put."""

    def __init__(self, store: BlobStore, change: Callable[[str, bytes], bytes | None]):
        super().__init__(store.address.url)
        self._same, self._change = store, change

    async def _run(self, start: Any) -> Any:
        return await self._same._run(start)

    async def put(self, key: str, content: bytes) -> None:
        changed = self._change(key, content)
        if changed is not None:
            await super().put(key, changed)


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("spoil", "falls_back"),
    [
        (flipped, True),
        (lambda content: content[:-1], True),
        (lambda content: None, True),
        (lambda content: b"\0" * len(content), True),
        (lambda content: content + b"more", False),
    ],
    ids=["flipped", "cut", "gone", "zeros", "longer"],
)
def test_a_step_that_is_no_good_costs_the_data_and_no_more(
    tmp_path: Path,
    straight: dict[str, np.ndarray],
    spoil: Callable[[bytes], bytes | None],
    falls_back: bool,
) -> None:
    bucket = BlobStore("memory://")

    def change(key: str, content: bytes) -> bytes | None:
        return spoil(content) if about(key) == "step" else content

    ann, bob = Counting(bucket), Counting(bucket)
    ways = {"ann": link("ann", ann), "bob": link("bob", bob)}
    run = trained(tmp_path, Spoiling(bucket, change), ways)
    assert same(run.state(), straight)
    for worker in (ann, bob):
        moved = worker.moved["down", "data"]
        # A leaf that the damage isn't in needn't be fetched.
        assert moved > 0.95 * ROUNDS * PART if falls_back else moved == PART


class Forgetful(BucketLink):
    """Keeps no older item, as a worker whose disk is new."""

    async def fetch(
        self, item: Item, target: Path, progress: Progress | None = None
    ) -> int:
        for other in target.parent.glob("*") if target.parent.exists() else ():
            if other != target:
                shutil.rmtree(other)
        return await super().fetch(item, target, progress)


def test_who_lacks_the_older_item_gets_the_data(
    tmp_path: Path, straight: dict[str, np.ndarray]
) -> None:
    bucket = BlobStore("memory://")
    ann, bob = Counting(bucket), Counting(bucket)
    ways = {"ann": link("ann", ann), "bob": Forgetful(bob, "bob", pace=PACE)}
    run = trained(tmp_path, bucket, ways)
    assert same(run.state(), straight)
    assert bob.moved["down", "data"] == ROUNDS * PART
    assert bob.moved["down", "step"] == 0
    # What was put for Bob's interface doesn't tempt Ann.
    assert ann.moved["down", "data"] == PART


def test_steps_go_with_their_rounds(tmp_path: Path) -> None:
    bucket = BlobStore("memory://")
    ways = {name: link(name, bucket) for name in ("ann", "bob")}
    run = small(tmp_path, rounds=6, broadcast=INT4)
    train(run, ways, bucket, keep_rounds=1)

    left = asyncio.run(bucket.list("items/"))
    # Of the newest rounds, of which the last one is in no work: two blocks and the
    # interface each.
    assert len({key.split("/")[1] for key in left}) <= 3 * 3
    assert not [key for key in left if about(key) == "data"]
    assert [key for key in left if about(key) == "step"]


# By hand: one item that a step leads to.


def stepped(bench: Any, size: int = 1000) -> Item:
    """The block of round 0, from now on with a step of which nothing can come."""
    made_ = bench.coordinator.items[0, "block"]
    (bench.root / "coordinator" / "0-block" / "step.0").write_bytes(b"s" * 77)
    item = Item(made_.digest, size, "ab" * 32, 77)
    bench.coordinator.items[0, "block"] = item
    return item


async def keys_of(store: BlobStore, item: Item) -> set[str]:
    return {key.split("/")[-1] for key in await store.list(f"items/{item.digest}/")}


def test_a_coordinator_that_starts_anew_is_told_again(
    bench: Any, tmp_path: Path
) -> None:
    item = stepped(bench)

    def change(key: str, content: bytes) -> bytes | None:
        return None if about(key) == "data" else content

    async def work() -> None:
        link_ = bench.link("ada")
        async with bench.serving(Spoiling(bench.store, change)):
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            assert await keys_of(bench.store, item) == {"index", "step-00000"}
            fetching = asyncio.create_task(link_.fetch(item, tmp_path / "item"))
            await asyncio.sleep(0.2)
            assert not fetching.done()
        bench.coordinator.restart()
        async with bench.serving():
            await fetching

    asyncio.run(asyncio.wait_for(work(), 30))
    sent = bench.root / "coordinator" / "0-block" / "data.0"
    assert (tmp_path / "item" / "data.0").read_bytes() == sent.read_bytes()


def test_data_that_somebody_deleted_are_put_again(bench: Any, tmp_path: Path) -> None:
    item = stepped(bench)

    async def work() -> None:
        async with bench.serving():
            link_ = bench.link("ada")
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            for n in range(2):
                await link_.fetch(item, tmp_path / str(n) / "item")
                await bench.store.delete(layout.item_data(item.digest, 0))

    asyncio.run(asyncio.wait_for(work(), 30))
    for n in range(2):
        assert (tmp_path / str(n) / "item" / "data.0").stat().st_size == item.bytes


def test_what_is_needed_again_after_its_round_is_put_again(bench: Any) -> None:
    item = stepped(bench)
    directory = bench.root / "coordinator" / "0-block"

    async def work() -> None:
        publisher = Publisher(bench.store)
        for whole in (False, True, False):
            await publisher.publish(item, directory, 0, whole=whole)
            there = await keys_of(bench.store, item)
            assert there == {"index", "data-00000" if whole else "step-00000"}
            await publisher.clean(5, 5)
            assert await keys_of(bench.store, item) == set()

    asyncio.run(asyncio.wait_for(work(), 30))


class Behind(Counting):
    """Items of another store, each object not there when it is read first."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store)
        self.missed: set[str] = set()

    async def _do(self, what: str, key: str, size: int, start: Any) -> Any:
        hidden = about(key) in ("index", "step") and key not in self.missed
        if what == "read" and hidden:
            self.missed.add(key)
            return await self._run(lambda s: s.read("no such key"))
        return await super()._do(what, key, size, start)


def test_what_was_put_and_isnt_shown_yet_is_waited_for(
    tmp_path: Path, straight: dict[str, np.ndarray]
) -> None:
    bucket = BlobStore("memory://")
    ann, bob = Behind(bucket), Behind(bucket)
    run = trained(tmp_path, bucket, {"ann": link("ann", ann), "bob": link("bob", bob)})
    assert same(run.state(), straight)
    for store in (ann, bob):
        assert {about(key) for key in store.missed} == {"index", "step"}
        assert store.moved["down", "data"] == PART
    assert not [line for line in run.said if "isn't there" in line]


def test_an_item_that_nobody_has_any_more_is_told(bench: Any, tmp_path: Path) -> None:
    item = stepped(bench)

    async def work() -> None:
        async with bench.serving():
            link_ = bench.link("ada")
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            bench.coordinator.items.clear()
            with pytest.raises(LinkError, match="has item .* no more") as caught:
                await link_.fetch(item, tmp_path / "item")
            assert (caught.value.code, caught.value.status) == ("unknown", 404)
            # And no more is said of it.
            await link_.heartbeat(Heartbeat(SESSION))
            assert link_._talk._wants == {}

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_step_that_the_disk_lost_is_no_obstacle(bench: Any, tmp_path: Path) -> None:
    item = stepped(bench)
    (bench.root / "coordinator" / "0-block" / "step.0").unlink()

    async def work() -> None:
        async with bench.serving():
            link_ = bench.link("ada")
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            assert await keys_of(bench.store, item) == {"index", "data-00000"}

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_worker_that_knows_no_steps_finds_the_data(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of before: its messages have neither wants nor bytes."""
    item = stepped(bench)
    monkeypatch.setattr(conversation, "Said", lambda *said: layout.Said(*said[:4]))

    async def work() -> None:
        async with bench.serving():
            link_ = bench.link("ada")
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            assert {"index", "data-00000"} <= await keys_of(bench.store, item)

    asyncio.run(asyncio.wait_for(work(), 30))


def test_what_was_read_is_counted_once_over_a_restart(
    bench: Any, tmp_path: Path
) -> None:
    own = Counting(bench.store)

    async def work() -> None:
        link_ = bench.link("ada", store=own)
        async with bench.serving():
            await link_.register(Register(VERSION, SESSION))
            got = await link_.work(WorkRequest(SESSION))
            await link_.fetch(got.items["block"], tmp_path / "item")
            await link_.heartbeat(Heartbeat(SESSION))
        bench.coordinator.restart()
        async with bench.serving():
            await link_.heartbeat(Heartbeat(SESSION))
            await link_.heartbeat(Heartbeat(SESSION))

    asyncio.run(asyncio.wait_for(work(), 30))
    assert 1000 < bench.coordinator.down["ada"] <= own.received


def test_pieces_of_large_items_and_their_steps(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "PIECE", 1000)
    directory = bench.root / "coordinator" / "0-block"
    shutil.rmtree(directory)
    whole = write_item(directory, {"a": numbers(1080)})
    (directory / "step.0").write_bytes(b"s" * 2500)
    item = Item(whole.digest, 4320, "ab" * 32, 2500)
    bench.coordinator.items[0, "block"] = item

    async def work() -> None:
        async with bench.serving():
            link_ = bench.link("ada")
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            steps = {f"step-{n:05d}" for n in range(3)}
            assert await keys_of(bench.store, item) == {"index", *steps}
            await link_.fetch(item, tmp_path / "item")
            data = {f"data-{n:05d}" for n in range(5)}
            assert await keys_of(bench.store, item) == {"index", *steps, *data}

    asyncio.run(asyncio.wait_for(work(), 30))
