"""Buckets that fail now and then, that show what was, and links that give up."""

import asyncio
import collections
import hashlib
import random
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from blake3 import blake3

from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.store import BlobStore, Found
from spheroid_jax.transport.bucket.worker_side import BucketLink
from spheroid_jax.transport.http.retry import Pace
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import (
    VERSION,
    Register,
    Upload,
    Verdict,
    WorkRequest,
)

LIMIT = 30.0  # seconds of a test's work
NAMES = {"ada": "a1" * 16, "bob": "b2" * 16}  # their sessions


def run(work: Any) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(LIMIT):
            return await work

    return asyncio.run(limited())


class Flaky(BlobStore):
    """Fails some operations, half of them after they were done."""

    def __init__(self, store: BlobStore, seed: int, share: float):
        super().__init__(store.address.url)
        self._same, self._random, self._share = store, random.Random(seed), share
        self.failed = 0

    async def _run(self, start: Any) -> Any:
        fails, late = self._random.random() < self._share, self._random.random() < 0.5
        if fails and not late:
            self.failed += 1
            raise BucketError("the bucket is busy", code="unreachable")
        result = await self._same._run(start)
        if fails:
            self.failed += 1
            raise BucketError("the answer was lost", code="unreachable")
        return result


class Behind(BlobStore):
    """Shows listings as they were some looks ago."""

    def __init__(self, store: BlobStore, looks: int):
        super().__init__(store.address.url)
        self._same, self._looks = store, looks
        self._seen: dict[str, collections.deque[list[str]]] = {}

    async def _run(self, start: Any) -> Any:
        return await self._same._run(start)

    async def list(self, prefix: str = "") -> list[str]:
        seen = self._seen.setdefault(prefix, collections.deque())
        seen.append(await super().list(prefix))
        return seen.popleft() if len(seen) > self._looks else []


class Past(BlobStore):
    """Shows objects and listings as they were some time ago, each look another.

    As a folder does over a network, whose hosts remember for a while what was there,
    and what was not; of all stores with the same history.
    """

    def __init__(
        self, history: dict[str, list[tuple[float, bytes | None]]], lag: float
    ):
        super().__init__("memory://past")
        self._history, self._lag = history, lag
        self._chance = random.Random(5)

    def _at(self, key: str, when: float) -> bytes | None:
        was = [content for at, content in self._history.get(key, []) if at <= when]
        return was[-1] if was else None

    def _when(self) -> float:
        return time.monotonic() - self._chance.uniform(0.0, self._lag)

    async def put(self, key: str, content: bytes) -> None:
        self._history.setdefault(key, []).append((time.monotonic(), content))

    async def delete(self, key: str) -> None:
        self._history.setdefault(key, []).append((time.monotonic(), None))

    async def get(self, key: str, start: int, stop: int) -> bytes | None:
        content = self._at(key, self._when())
        if content is not None and stop > len(content):
            raise BucketError("it ends early", code="short")
        return None if content is None else content[start:stop]

    async def _changed(
        self, key: str, unless: bytes | None, limit: int
    ) -> Found | Literal["same"] | None:
        content = self._at(key, self._when())
        if content is None:
            return None
        generation = hashlib.sha256(content).digest()
        return "same" if generation == unless else Found(content, generation)

    async def list(self, prefix: str = "") -> list[str]:
        when = self._when()
        keys = [key for key in self._history if key.startswith(prefix)]
        return sorted(key for key in keys if self._at(key, when) is not None)


@pytest.mark.parametrize("lag", [0.05, 0.3])
def test_a_folder_that_shows_what_was(bench: Any, tmp_path: Path, lag: float) -> None:
    """New objects that aren't there yet, deleted ones that still are, old content."""
    history: dict[str, list[tuple[float, bytes | None]]] = {}

    async def work() -> None:
        async with bench.serving(Past(history, lag)):
            links = {who: bench.link(who, store=Past(history, lag)) for who in NAMES}
            check(
                bench,
                await asyncio.gather(
                    *(train(links[who], who, tmp_path) for who in NAMES)
                ),
            )

    run(work())
    assert len(bench.said) < 60  # of old messages, and none for each look


async def train(link: BucketLink, who: str, folder: Path) -> list[Verdict]:
    session = NAMES[who]
    await link.register(Register(VERSION, session))
    verdicts: list[Verdict] = []
    after = -1
    while True:
        work = await link.work(WorkRequest(session, after, wait=5.0))
        if work.do == "stop":
            return verdicts
        if work.do == "train":
            try:
                for kind, item in work.items.items():
                    await link.fetch(item, folder / who / kind / str(work.round))
            except LinkError as error:
                if error.code != "unknown":
                    raise
                continue  # as a worker does: it asks again
            path = folder / f"{who}-{work.round}"
            path.write_bytes(content := f"{who} {work.round}".encode())
            digest = blake3(content).hexdigest()
            size = len(content)
            upload = Upload(session, work.round, 0, 0, 0, size, digest, work.ticket)
            verdicts.append(await link.submit(upload, path))
            after = work.round


def check(bench: Any, both: list[list[Verdict]]) -> None:
    for verdicts in both:
        assert [v.verdict for v in verdicts] == ["accepted"] * 3
    names = [f"{r}-0-{who}-0" for r in range(3) for who in NAMES]
    assert sorted(bench.coordinator.commits) == sorted(names)
    assert bench.coordinator.accepted["1-0-ada-0"] == b"ada 1"


@pytest.mark.parametrize("seed", range(4))
def test_a_bucket_that_fails_now_and_then(
    bench: Any, tmp_path: Path, seed: int
) -> None:
    stores = [Flaky(bench.store, 3 * seed + n, 0.15) for n in range(3)]

    async def work() -> None:
        await bench.store.list()
        # The start itself is refused where the bucket is; that is for an operator.
        stores[0]._share, share = 0.0, stores[0]._share
        async with bench.serving(stores[0]):
            links = [
                bench.link(who, store=store)
                for who, store in zip(NAMES, stores[1:], strict=True)
            ]
            tasks = [
                asyncio.create_task(train(link, who, tmp_path))
                for who, link in zip(NAMES, links, strict=True)
            ]
            while not bench.coordinator.sessions:
                await asyncio.sleep(0.01)
            stores[0]._share = share
            check(bench, await asyncio.gather(*tasks))

    run(work())
    assert all(store.failed for store in stores)


def test_listings_that_are_behind(bench: Any, tmp_path: Path) -> None:
    async def work() -> None:
        async with bench.serving(Behind(bench.store, 5)):
            check(
                bench,
                await asyncio.gather(
                    *(train(bench.link(who), who, tmp_path) for who in NAMES)
                ),
            )

    run(work())


def test_a_bucket_that_stays_away_is_given_up(bench: Any) -> None:
    gone = Flaky(bench.store, 0, 1.0)
    link = bench.link("ada", store=gone, pace=Pace(0.2, 0.2, 0.01, 0.05))
    with pytest.raises(LinkError, match="registering failed: ") as caught:
        run(link.register(Register(VERSION, NAMES["ada"])))
    assert caught.value.code == "unreachable"
    assert "\n" not in str(caught.value)


def test_a_bucket_that_stays_away_is_asked_less_and_less(bench: Any) -> None:
    store = Flaky(bench.store, 0, 0.0)

    async def work() -> None:
        async with bench.serving(store):
            await bench.link("ada").register(Register(VERSION, NAMES["ada"]))
            store._share = 1.0
            before = store.failed
            await asyncio.sleep(0.6)
            # 60 looks of 4 requests without a pause that grows; six with it.
            assert 4 <= store.failed - before <= 60
            # And it comes back.
            store._share = 0.0
            await bench.link("bob").register(Register(VERSION, NAMES["bob"]))

    run(work())
    assert len(bench.said) < 10


def test_no_coordinator_and_no_verdict(bench: Any, tmp_path: Path) -> None:
    pace = Pace(0.3, 0.3, 0.01, 0.05)

    async def work() -> None:
        link = bench.link("ada", pace=pace, grace=0.1)
        with pytest.raises(LinkError, match=r"no run\.json: .*coordinator running"):
            await link.register(Register(VERSION, NAMES["ada"]))
        with pytest.raises(LinkError, match="register first"):
            await link.work(WorkRequest(NAMES["ada"]))
        async with bench.serving():
            await link.register(Register(VERSION, NAMES["ada"]))
        path = tmp_path / "update"
        path.write_bytes(b"x")
        digest = blake3(b"x").hexdigest()
        upload = Upload(NAMES["ada"], 0, 0, 0, 0, 1, digest, "t")
        with pytest.raises(LinkError, match="no verdict on update 0-0-ada-0"):
            await link.submit(upload, path)
        # Silence isn't a reason to stop.
        assert (await link.work(WorkRequest(NAMES["ada"], wait=0.1))).do == "wait"

    run(work())


def test_a_name_that_can_be_none(bench: Any) -> None:
    for name in ("", "../x", "a/b", "ü", "a" * 65):
        with pytest.raises(ValueError, match="the worker's name"):
            BucketLink(bench.store, name)


def test_the_token_is_not_shown(bench: Any) -> None:
    link = BucketLink(bench.store, "ada", "spheroid_hush")
    assert "hush" not in repr(link) + repr(vars(link)) + repr(vars(link._talk))
