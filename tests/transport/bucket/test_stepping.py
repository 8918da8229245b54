"""Steps through a bucket: few bytes, and the whole data for whom they are no use."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.worker_side import BucketLink
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.server import make_app, serve
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.link import Progress
from spheroid_jax.transport.protocol import (
    Item,
)
from spheroid_jax.transport.updates import Encoding
from tests.transport.bucket.whole_runs import (
    PACE,
    Counting,
    Spoiling,
    about,
    link,
    made,
    served,
    small,
    train,
)
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
