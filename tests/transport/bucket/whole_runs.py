"""Whole runs of a small model whose workers come through a bucket, and its bill."""

import asyncio
import collections
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from spheroid_jax.transport.bucket.coordinator_side import serve_bucket
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.worker_side import BucketLink
from spheroid_jax.transport.http.retry import Pace
from spheroid_jax.transport.trainer import Trainer
from tests.transport import tiny
from tests.transport.tiny import TinyRun

POLL = 0.02
PACE = Pace(patience=20.0, first_patience=20.0, first_delay=0.01, longest_delay=0.05)
WIDTH = 96  # of the small model: a block has 37 kB, a step of int4 about 6


class Counting(BlobStore):
    """Another store's objects; requests and bytes are counted.

    Attributes:
      asked: requests by what they do and what they are about, such as ``("read",
        "index")``.
      moved: bytes of objects by direction and what they are.
    """

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store.address.url)
        self._same = store
        self.asked: collections.Counter[tuple[str, str]] = collections.Counter()
        self.moved: collections.Counter[tuple[str, str]] = collections.Counter()

    async def _do(self, what: str, key: str, size: int, start: Any) -> Any:
        room = about(key)
        self.asked[what, room] += 1
        result = await super()._do(what, key, size, start)
        if what == "read":
            self.moved["down", room] += len(result.value)
        if what == "write":
            self.moved["up", room] += size
        return result

    async def _run(self, start: Any) -> Any:
        return await self._same._run(start)


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


def about(key: str) -> str:
    """What an object is: ``index``, ``data`` or ``step`` of an item, or where it is."""
    first, _, rest = key.partition("/")
    name = rest.rpartition("/")[2]
    return name.split("-")[0] if first == "items" and name else first


def _init(blocks: int, width: int) -> Callable[[jax.Array], Any]:
    def make(key: jax.Array) -> Any:
        one, two = jax.random.split(key)
        return {
            "blocks": {
                "kernel": jax.random.normal(one, (blocks, width + 1, width)),
                "bias": jnp.ones((blocks, width)),
            },
            "interface": {"head": jax.random.normal(two, (width,))},
        }

    return make


@functools.cache
def made(blocks: int) -> tuple[Any, Any, Trainer, Any]:
    """Engine, weights, trainer and init of the small model, compiled once."""
    engine, weigh = tiny.engine(blocks, 1, "sgd")
    init = _init(blocks, WIDTH)
    trainer = Trainer(engine, init, tiny.KEY(), tiny.windows, tiny.LOCAL_STEPS)
    trainer.compile()
    return engine, weigh, trainer, init


@contextlib.asynccontextmanager
async def served(run: TinyRun, store: BlobStore, **how: Any) -> AsyncIterator[None]:
    """The run's coordinator at a bucket, without tokens."""
    given = {"poll_seconds": POLL, "say": run.said.append, **how}
    folder = run.directory / "exchange" / "from_bucket"
    front = serve_bucket(run.coordinator, store, folder, keys=None, **given)
    task = asyncio.create_task(front)
    try:
        yield
        await asyncio.sleep(0)
    finally:
        if task.done():
            task.result()  # it ended by itself
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def link(name: str, store: BlobStore) -> BucketLink:
    """A worker's way through the bucket."""
    return BucketLink(store, name, pace=PACE)


def train(
    run: TinyRun,
    links: dict[str, Any],
    store: BlobStore,
    during: Callable[[], Coroutine[Any, Any, None]] | None = None,
    **how: Any,
) -> None:
    """Runs coordinator and workers to the end of the run."""

    async def main() -> None:
        async with asyncio.timeout(60), served(run, store, **how):
            workers = [run.worker(name, link=way) for name, way in links.items()]
            running = asyncio.create_task(run.coordinator.run())
            other = during() if during else asyncio.sleep(0)
            beside: asyncio.Task[None] = asyncio.create_task(other)
            for worker in workers:
                await worker.register()
            await asyncio.gather(*(worker.run() for worker in workers))
            await running
            await beside

    asyncio.run(main())


def small(directory: Path, blocks: int = 2, **how: Any) -> TinyRun:
    """A run of the small model with a worker a block.

    Signs of life are rare, so that messages are no more on a slow machine.
    """
    given = {"blocks": blocks, "workers": blocks, "heartbeat": 5.0, **how}
    return TinyRun(directory, make=made(blocks), **given)
