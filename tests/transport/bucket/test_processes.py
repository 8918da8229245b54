"""Several processes of a worker, and revoked ones, through a folder."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.coordinator_side import serve_bucket
from spheroid_jax.transport.bucket.hearing import Hearing
from spheroid_jax.transport.bucket.layout import Answer, Run
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.worker_side import BucketLink
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    Register,
    Registered,
    WorkRequest,
)
from tests.transport.bucket.whole_runs import PACE, POLL
from tests.transport.tiny import TinyRun

OLD, NEW = "1" * 32, "2" * 32


class Scene:
    """A run of one block whose workers come by a folder, and sign."""

    def __init__(self, path: Path, workers: int = 1) -> None:
        self.run = TinyRun(path / "run", blocks=1, workers=workers)
        self.store = BlobStore(f"file://{path}/bucket")
        self.token = self.run.token("ann")

    def link(self, token: str = "") -> BucketLink:
        return BucketLink(self.store, "ann", token or self.token, pace=PACE, grace=2.0)

    def key(self, name: str) -> bytes | None:
        row = self.run.ledger.tokens().get(name)
        if row is None or row.revoked is not None:
            return None
        return bytes.fromhex(row.sha256)

    def state(self) -> Any:
        (ann,) = self.run.coordinator.status()["workers"]
        return ann["state"]

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        folder = self.run.directory / "exchange" / "from_bucket"
        front = serve_bucket(
            self.run.coordinator, self.store, folder, keys=self.key, poll_seconds=POLL
        )
        tasks = [
            asyncio.create_task(front),
            asyncio.create_task(self.run.coordinator.run()),
        ]
        try:
            async with asyncio.timeout(30):
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.run.close()


async def at_work(link: BucketLink, session: str) -> None:
    await link.register(Register(VERSION, session))
    while (await link.work(WorkRequest(session, wait=1.0))).do != "train":
        pass


def test_a_process_that_starts_ousts_nobody_and_one_that_asks_does(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    old, new = scene.link(), scene.link()

    async def work() -> None:
        async with scene.serving():
            await at_work(old, OLD)
            await new.register(Register(VERSION, NEW))
            for _ in range(2):
                await new.heartbeat(Heartbeat(NEW))
                await old.heartbeat(Heartbeat(OLD, "training"))
            assert scene.state() == "training"
            while (await new.work(WorkRequest(NEW, wait=1.0))).do != "train":
                pass
            with pytest.raises(LinkError) as caught:
                await old.heartbeat(Heartbeat(OLD, "training"))
            assert (caught.value.code, caught.value.status) == ("superseded", 409)
            # And the newer one goes on.
            await new.heartbeat(Heartbeat(NEW, "training"))
            assert scene.state() == "training"

    asyncio.run(work())


def test_one_with_a_question_open_hears_that_it_is_ousted(tmp_path: Path) -> None:
    scene = Scene(tmp_path, workers=2)  # no round opens
    old, new = scene.link(), scene.link()

    async def work() -> None:
        async with scene.serving():
            await old.register(Register(VERSION, OLD))
            asking = asyncio.create_task(old.work(WorkRequest(OLD, wait=60.0)))
            while not scene.run.coordinator.board.members.get("ann").live:
                await asyncio.sleep(POLL)
            await new.register(Register(VERSION, NEW))
            assert (await new.work(WorkRequest(NEW, wait=0.1))).do == "wait"
            with pytest.raises(LinkError, match="another process has taken over"):
                await asking

    asyncio.run(work())


@pytest.mark.parametrize("replaced", [False, True])
def test_a_revoked_worker_hears_it_without_a_question_open(
    tmp_path: Path, replaced: bool
) -> None:
    scene = Scene(tmp_path)
    old = scene.link()

    async def work() -> None:
        async with scene.serving():
            await at_work(old, OLD)
            await old.heartbeat(Heartbeat(OLD, "training"))
            if replaced:
                new = scene.link(scene.run.token("ann"))
            else:
                scene.run.ledger.revoke("ann")
            await asyncio.sleep(20 * POLL)
            with pytest.raises(LinkError, match="token of ann was revoked") as caught:
                await old.heartbeat(Heartbeat(OLD, "training"))
            assert (caught.value.code, caught.value.status) == ("unauthorized", 401)
            if replaced:
                await at_work(new, NEW)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("ousted", "ends"),
    [
        ([OLD], True),
        ([], False),
        (["3" * 32], False),
        (None, True),  # a coordinator of before, where who greets takes over
    ],
)
def test_an_answer_to_another_process_says_who_is_to_end(
    tmp_path: Path, ousted: list[str] | None, ends: bool
) -> None:
    """One's own may have been written over before one looked."""
    store, run = (
        BlobStore(f"file://{tmp_path}"),
        Run(VERSION, "run", "e" * 32, 1, False),
    )
    registered = Registered(VERSION, "run", "ann", {}, "0" * 64, "", 60.0, 5.0)

    async def answer(hearing: Hearing, number: int, to: str, given: Any) -> None:
        content = layout.seal(
            Answer(number, registered=registered, ousted=given),
            "answer", "ann", to, number, run="run", subject=run.epoch, key=None,
        )  # fmt: skip
        await store.put(layout.answer("ann"), content)
        await hearing.answer(run, OLD)

    async def work() -> None:
        hearing = Hearing(store, "ann", None, lambda line: None)
        await answer(hearing, 1, OLD, ousted and [])
        assert not hearing.superseded
        await answer(hearing, 2, NEW, ousted)
        assert hearing.superseded is ends

    asyncio.run(work())
