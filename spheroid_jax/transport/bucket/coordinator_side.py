"""The coordinator's side of a bucket: a front like that of HTTP, by looking again.

Workers come by names that are keys of the bucket. Whoever may write there can use any
name; with ``keys`` they must also sign with the token of that name.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.claim import Claim
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.intake import BucketIntake, Keys
from spheroid_jax.transport.bucket.layout import Run
from spheroid_jax.transport.bucket.publishing import Publisher
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.talk import Talk
from spheroid_jax.transport.bucket.tally import Tally
from spheroid_jax.transport.bucket.voice import House
from spheroid_jax.transport.coordinator_api import CoordinatorAPI
from spheroid_jax.transport.protocol import VERSION

POLL_SECONDS = 2.0
KEEP_ROUNDS = 3
_LOG = logging.getLogger(__name__)
_LONGEST = 30.0  # seconds between looks at a bucket that fails
_AT_ONCE = 8  # workers that are looked at


async def serve_bucket(
    coordinator: CoordinatorAPI,
    store: BlobStore,
    directory: Path,
    *,
    keys: Keys | None,
    poll_seconds: float = POLL_SECONDS,
    keep_rounds: int = KEEP_ROUNDS,
    say: Callable[[str], None] = _LOG.warning,
) -> None:
    """Serves workers through a bucket until it is cancelled.

    Args:
      coordinator: whom to ask.
      store: the prefix of this run alone.
      directory: for updates on their way, on the disk of the accepted ones; this
        function's own.
      keys: gives the SHA-256 (32 bytes) of a worker's token, None for a name that has
        none or a revoked one. Without ``keys`` nothing is signed, and who may write to
        the bucket can speak for every worker.
      poll_seconds: between looks; half of it is added to every answer.
      keep_rounds: rounds after which items, updates and verdicts are deleted; more
        than the greatest age of late updates.
      say: gets a line for the operator.

    Raises:
      BucketError: the bucket can't be used at all, or the prefix is another run's
        (``taken``; nothing is written then), found out at the start.
      ValueError: an argument makes no sense.
    """
    if not 0 < poll_seconds <= 3600:
        raise ValueError(f"poll_seconds must be in (0, 3600], not {poll_seconds}")
    if keep_rounds < 1:
        raise ValueError(f"keep_rounds must be at least 1, not {keep_rounds}")
    await store.check()
    front = _Front(coordinator, store, directory, keys, poll_seconds, keep_rounds, say)
    await front.claim.take()
    try:
        await front.serve()
    finally:
        await front.close()


class _Front:
    """All conversations."""

    def __init__(
        self,
        coordinator: CoordinatorAPI,
        store: BlobStore,
        directory: Path,
        keys: Keys | None,
        poll_seconds: float,
        keep_rounds: int,
        say: Callable[[str], None],
    ) -> None:
        self._coordinator, self._store = coordinator, store
        self._poll, self._keep, self._say = poll_seconds, keep_rounds, say
        self.run = Run(
            VERSION,
            str(coordinator.status()["run"]),
            secrets.token_hex(16),
            poll_seconds,
            keys is not None,
        )
        self.claim = Claim(store, self.run, say)
        self._items = Publisher(store)
        tally = Tally(coordinator, self.run.epoch)
        self._intake = BucketIntake(
            coordinator, store, directory, self.run.run, keys, tally, say
        )
        # No worker takes an answer with a smaller number, in this epoch.
        numbers = itertools.count(1)
        self._house = House(
            coordinator,
            store,
            keys,
            self.run,
            self._items,
            tally,
            lambda: next(numbers),
            self._pause,
            self._complain,
            say,
        )
        self._talks: dict[str, Talk] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._cleaned = -1
        self._complained = ""

    async def serve(self) -> None:
        failed = 0
        while True:
            looks: list[Callable[[], Awaitable[None]]]
            looks = [self._look_for_workers, self._look_for_updates, self._clean]
            looks.append(self.claim.look)
            looks += [partial(self._look_at, talk) for talk in self._talks.values()]
            done = await asyncio.gather(*map(self._tried, looks))
            # A bucket that fails now and then isn't left alone for that.
            failed = 0 if any(done[:2]) else failed + 1
            if all(done):
                self._complained = ""
            await asyncio.sleep(self._pause(failed))

    def _pause(self, failed: int) -> float:
        return min(max(_LONGEST, self._poll), self._poll * 2.0 ** min(failed, 10))

    async def _tried(self, look: Callable[[], Awaitable[None]]) -> bool:
        try:
            await look()
        except BucketError as error:
            self._complain(str(error))
            return False
        return True

    async def close(self) -> None:
        await asyncio.gather(*(talk.close() for talk in self._talks.values()))
        await self._intake.close()
        await self._items.close()

    async def _look_for_workers(self) -> None:
        for key in await self._store.list("workers/"):
            name = key.split("/")[1]
            if layout.is_worker(name) and name not in self._talks:
                self._talks[name] = Talk(self._house, name)

    async def _look_for_updates(self) -> None:
        self._intake.look(await self._store.list("updates/"))

    async def _clean(self) -> None:
        round_ = int(self._coordinator.status()["round"])
        if round_ != self._cleaned:
            before = round_ - self._keep
            await self._intake.clean(before)
            await self._items.clean(before, round_)
            self._cleaned = round_

    def _complain(self, text: str) -> None:
        if text != self._complained:
            self._complained = text
            self._say(text)

    async def _look_at(self, talk: Talk) -> None:
        async with self._places:
            await talk.look()
