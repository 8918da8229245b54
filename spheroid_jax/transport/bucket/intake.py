"""Updates on their way out of the bucket: read, verified, handed to the coordinator."""

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.layout import Announced, Outcome, Refusal
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.tally import Tally
from spheroid_jax.transport.coordinator_api import CoordinatorAPI
from spheroid_jax.transport.protocol import (
    ProtocolError,
    Upload,
    Verdict,
    upload_name,
)

_AT_ONCE = 4  # updates, each with a piece in memory
_MISSES = 10  # looks for a piece that isn't there
# Not the update's fault: it stays in the bucket, and is looked at again.
_LATER = ("unknown", "busy", "disk_full")

Keys = Callable[[str], bytes | None]


class _Corrupted(Exception):
    """An update's data aren't what was announced; one line."""


class BucketIntake:
    """Takes updates from the bucket, and leaves verdicts there."""

    def __init__(
        self,
        coordinator: CoordinatorAPI,
        store: BlobStore,
        directory: Path,
        run: str,
        keys: Keys | None,
        tally: Tally,
        say: Callable[[str], None],
    ) -> None:
        """``directory`` holds updates while they come; what is there is deleted."""
        self._coordinator, self._store, self._directory = coordinator, store, directory
        self._run, self._keys, self._tally, self._say = run, keys, tally, say
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._settled: dict[str, bytes] = {}  # generations that need no more looks
        self._said: dict[str, str] = {}
        self._missed: dict[str, int] = {}
        self._failure: BaseException | None = None
        self._places = asyncio.Semaphore(_AT_ONCE)
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob("*.part"):
            left.unlink()

    def look(self, keys: Iterable[str]) -> None:
        """Starts to take updates that are complete, of a listing of ``updates/``.

        Raises:
          Exception: what the coordinator raised that it mustn't.
        """
        if self._failure is not None:
            raise self._failure
        for key in keys:
            parts = key.split("/")
            if len(parts) != 3 or parts[2] != "update.json":
                continue
            name = parts[1]
            if layout.upload_of(name) is not None and name not in self._tasks:
                task = asyncio.create_task(self._take(name))
                self._tasks[name] = task
                task.add_done_callback(functools.partial(self._ended, name))

    async def clean(self, before: int) -> None:
        """Deletes what is left of updates of rounds before ``before``."""
        for prefix in ("updates/", "verdicts/"):
            for key in await self._store.list(prefix):
                name = key.split("/")[1].removesuffix(".json")
                found = layout.upload_of(name)
                if found and found.round < before and name not in self._tasks:
                    await self._store.delete(key)
                    self._settled.pop(name, None)
                    self._said.pop(name, None)

    async def close(self) -> None:
        """Ends what is under way; it is taken up at the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error

    async def _take(self, name: str) -> None:
        async with self._places:
            try:
                await self._take_now(name)
            except (BucketError, OSError) as error:
                self._complain(name, f"{error}; trying again")

    def _complain(self, name: str, text: str) -> None:
        if self._said.get(name) != text:  # it may lie there for long
            self._said[name] = text
            self._say(f"update {name}: {text}")

    async def _take_now(self, name: str) -> None:
        try:
            found = await self._store.read(
                layout.update(name), unless=self._settled.get(name)
            )
        except BucketError as error:
            if error.code != "too_large":
                raise
            self._complain(name, f"ignored, as {error}")
            return
        if found is None:
            return
        try:
            worker, session, announced = self._checked(name, found.content)
        except ProtocolError as error:
            # Nobody is answered: the answer's place belongs to the true worker.
            self._complain(name, f"ignored, as {error}")
            self._settled[name] = found.generation
            return
        outcome = await self._outcome(name, worker, announced, len(found.content))
        if outcome is None:
            return
        message = layout.seal(
            outcome,
            "verdict",
            worker,
            session,
            0,
            run=self._run,
            subject=name,
            key=self._keys(worker) if self._keys else None,
        )
        await self._store.put(layout.verdict(name), message)
        self._settled[name] = found.generation
        self._said.pop(name, None)
        if outcome.verdict is not None:
            await self._store.delete(layout.update(name))
            # Of an earlier series, if there was one, until the round is cleaned up.
            for number in range(len(announced.blake3)):
                key = layout.update_data(name, announced.series, number)
                await self._store.delete(key)

    def _checked(self, name: str, content: bytes) -> tuple[str, str, Announced]:
        said = layout.upload_of(name)
        assert said is not None  # else it isn't looked at
        key = None
        if self._keys is not None:
            key = self._keys(said.worker)
            if key is None:
                raise ProtocolError(f"{said.worker} has no token, or a revoked one")
        envelope = layout.unseal(content, "update", self._run, key)
        announced = layout.opened(envelope, Announced)
        upload = announced.upload
        if (
            envelope.worker != said.worker
            or envelope.subject != name
            or envelope.session != upload.session
            or upload_name(said.worker, upload) != name
        ):
            raise ProtocolError("its message is about another update")
        if len(announced.blake3) != -(-upload.bytes // announced.piece):
            raise ProtocolError("its pieces don't add up")
        return envelope.worker, envelope.session, announced

    async def _outcome(
        self, name: str, worker: str, announced: Announced, size: int
    ) -> Outcome | None:
        """What to tell; None: nothing yet."""
        upload, series = announced.upload, announced.series
        try:
            verdict = await self._coordinator.begin(worker, upload)
            self._tally.heard(worker, upload.session, announced.moved, size)
            if verdict is None:
                verdict = await self._commit(name, worker, announced)
        except ProtocolError as error:
            if error.code in _LATER:
                return None
            return Outcome(series, refusal=Refusal.of(error))
        except _Corrupted as error:
            return Outcome(series, refusal=Refusal(str(error), "corrupted", 422))
        return Outcome(series, verdict=verdict)

    async def _commit(self, name: str, worker: str, announced: Announced) -> Verdict:
        path = self._directory / f"{name}.part"
        try:
            await self._download(name, worker, announced, path)
            return await self._coordinator.commit(worker, announced.upload, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    async def _download(
        self, name: str, worker: str, announced: Announced, path: Path
    ) -> None:
        upload: Upload = announced.upload
        whole = blake3()
        with path.open("wb") as file:
            for number, digest in enumerate(announced.blake3):
                start = number * announced.piece
                size = min(announced.piece, upload.bytes - start)
                key = layout.update_data(name, announced.series, number)
                content = await self._piece(key, size)
                self._coordinator.add_bytes(worker, up=size)
                if await asyncio.to_thread(_digest, content) != digest:
                    raise _Corrupted(f"piece {number} has another digest than it must")
                await asyncio.to_thread(_append, file, content, whole)
            await asyncio.to_thread(_flush, file)
        if whole.hexdigest() != upload.blake3:
            raise _Corrupted("the update has another digest than it must")

    async def _piece(self, key: str, size: int) -> bytes:
        try:
            content = await self._store.get(key, 0, size)
        except BucketError as error:
            if error.code != "short":
                raise
            raise _Corrupted(f"{key} ends early") from error
        if content is None:
            # Reads may be behind; the worker wrote it before its mark.
            self._missed[key] = self._missed.get(key, 0) + 1
            if self._missed[key] > _MISSES:
                raise _Corrupted(f"{key} is missing")
            raise BucketError(f"{key} isn't there yet", code="failed")
        self._missed.pop(key, None)
        return content


def _digest(content: bytes) -> str:
    return blake3(content).hexdigest()


def _append(file: BinaryIO, content: bytes, whole: Any) -> None:
    file.write(content)
    whole.update(content)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
