"""An update on its way into a bucket: pieces first, then the mark, then a verdict."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path

from blake3 import blake3

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.layout import Announced, Moved, Outcome
from spheroid_jax.transport.bucket.publishing import read_range
from spheroid_jax.transport.bucket.source import Tried
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.link import LinkError, Progress
from spheroid_jax.transport.protocol import (
    ProtocolError,
    Upload,
    Verdict,
    upload_name,
)

_SERIES = 4  # times that an update is written which arrives corrupted


class Sending:
    """Sends updates of one worker; a transfer that failed goes on where it was."""

    def __init__(
        self,
        store: BlobStore,
        worker: str,
        key: bytes | None,
        *,
        tried: Tried,
        look: Callable[[], Awaitable[None]],
        count: Callable[[], int],
        moved: Callable[[], Moved],
        clock: Callable[[], float],
        patience: float,
    ) -> None:
        """What the link lends.

        Args:
          store: where to.
          worker: whose updates.
          key: signs.
          tried: ``tried(what, attempt)`` calls ``attempt`` until it works.
          look: a pause, and a look whether the coordinator is still the same.
          count: numbers a message.
          moved: says how much was read of the bucket.
          clock: seconds.
          patience: seconds until a verdict must be there.
        """
        self._store, self._worker, self._key = store, worker, key
        self._tried, self._look, self._count = tried, look, count
        self._moved = moved
        self._clock, self._patience = clock, patience
        self._there: dict[str, list[str]] = {}  # digests of pieces, by name and series

    async def send(
        self, upload: Upload, path: Path, progress: Progress, run: str
    ) -> Verdict:
        """See ``Link.submit``."""
        name = upload_name(self._worker, upload)
        outcome = await self._read(name, upload, run)
        for series in range(_SERIES):
            if outcome is not None and outcome.verdict is not None:
                self._there.clear()
                return outcome.verdict
            pieces = await self._put_pieces(name, series, upload, path, progress)
            await self._announce(name, series, upload, pieces, run)
            outcome = await self._wait(name, series, upload, run)
            refusal = outcome.refusal
            if refusal is not None and refusal.code != "corrupted":
                raise LinkError(
                    f"{self._store.address.url}: the coordinator refuses update "
                    f"{name}: {refusal.error}",
                    code=refusal.code,
                    status=refusal.status,
                )
        if outcome is not None and outcome.verdict is not None:
            return outcome.verdict
        raise LinkError(
            f"{self._store.address.url}: update {name} arrived corrupted {_SERIES} "
            "times; check the disks and what is between here and the bucket",
            code="corrupted",
        )

    async def _put_pieces(
        self, name: str, series: int, upload: Upload, path: Path, progress: Progress
    ) -> list[str]:
        there = self._there.setdefault(f"{name}/{series}", [])
        for number in range(len(there), -(-upload.bytes // layout.PIECE)):
            start = number * layout.PIECE
            stop = min(start + layout.PIECE, upload.bytes)
            try:
                content = await asyncio.to_thread(read_range, path, start, stop)
            except OSError as error:
                raise LinkError(
                    f"update {path} can't be read ({error}); check that disk",
                    code="disk",
                ) from error
            digest = await asyncio.to_thread(_digest, content)
            key = layout.update_data(name, series, number)
            put = functools.partial(self._store.put, key, content)
            await self._tried(f"sending update {name}", put)
            there.append(digest)
            progress(stop, upload.bytes)
        return list(there)

    async def _announce(
        self, name: str, series: int, upload: Upload, pieces: list[str], run: str
    ) -> None:
        content = layout.seal(
            Announced(upload, series, layout.PIECE, pieces, self._moved()),
            "update",
            self._worker,
            upload.session,
            self._count(),
            run=run,
            subject=name,
            key=self._key,
        )
        await self._tried(
            f"announcing update {name}",
            lambda: self._store.put(layout.update(name), content),
        )

    async def _wait(self, name: str, series: int, upload: Upload, run: str) -> Outcome:
        ends = self._clock() + self._patience
        while self._clock() < ends:
            await self._look()
            outcome = await self._read(name, upload, run)
            if outcome is not None and (outcome.verdict or outcome.series == series):
                return outcome
        raise LinkError(
            f"{self._store.address.url}: no verdict on update {name} within "
            f"{self._patience:.0f} s; is the coordinator running, with this bucket?",
            code="unreachable",
        )

    async def _read(self, name: str, upload: Upload, run: str) -> Outcome | None:
        """A verdict on the update, or what was said of it to this process."""
        found = await self._tried(
            f"reading the verdict on {name}",
            lambda: self._store.read(layout.verdict(name)),
        )
        if found is None:
            return None
        try:
            envelope = layout.unseal(found.content, "verdict", run, self._key)
            outcome = layout.opened(envelope, Outcome)
        except ProtocolError:
            return None  # not the coordinator's; its own may still come
        if (envelope.worker, envelope.subject) != (self._worker, name):
            return None
        if outcome.verdict is None and envelope.session != upload.session:
            return None
        return outcome


def _digest(content: bytes) -> str:
    return blake3(content).hexdigest()
