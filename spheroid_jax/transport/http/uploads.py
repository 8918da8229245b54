"""What has come of the updates that workers send: parts that grow, and go on.

A part is ``NAME.part`` in a directory, with the message that announced it beside it
as ``NAME.json``; that is all there is to it, so that parts outlive the process. Names
are made here, of checked messages: what a client calls a part is only ever looked up,
never joined to a path. A ``NAME.json`` without its part was handed to the coordinator.

Files are written and hashed in threads; the event loop only ever waits for them.
"""

import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from spheroid_jax.transport.coordinator_api import CoordinatorAPI
from spheroid_jax.transport.http.bodies import Piece, Pieces
from spheroid_jax.transport.protocol import (
    NAME,
    ProtocolError,
    Upload,
    Verdict,
    encode,
    upload_name,
)

OFFSET = "Upload-Offset"  # the header
# As protocol.upload_name makes them.
UPLOAD_NAME = re.compile(
    # NAME without its anchors.
    rf"[0-9]{{1,16}}-[0-9]{{1,16}}-{NAME[1:-2]}-[0-9]{{1,16}}",
    re.ASCII,
)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_Result = TypeVar("_Result")


class WrongOffset(ProtocolError):
    """The part has another length; ``headers`` say where to go on."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message, status=409, code="conflict")
        self.headers = {OFFSET: str(offset)}


class _Record(msgspec.Struct, frozen=True):
    """What ``NAME.json`` holds."""

    worker: str
    upload: Upload


@dataclasses.dataclass
class _Part:
    """An update on its way."""

    name: str
    worker: str
    upload: Upload
    path: Path
    touched: float  # when it last grew
    size: int = 0  # bytes that are written
    hasher: Any = None  # of these bytes; None: has to be made of the file
    handed: bool = False  # to the coordinator: the file isn't ours any more
    dropped: bool = False
    turn: int = 0  # of the newest request for it
    cut: Callable[[], None] | None = None  # ends the transfer that is running
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    def write(self, descriptor: int, piece: Piece) -> None:
        """Writes at the end; all of it or nothing."""
        view, offset = memoryview(piece), self.size
        try:
            while view:
                count = os.pwrite(descriptor, view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self.size)
            if error.errno in _FULL:
                raise _disk_full("the disk is full") from error
            raise

    def digest(self) -> str:
        """SHA-256 of what is there, in hex."""
        if self.hasher is None:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        return str(self.hasher.hexdigest())

    def open(self) -> int:
        """A descriptor to append with; the file is as long as ``size`` says."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            there = os.fstat(descriptor).st_size
            if there < self.size:  # somebody else was at it
                self.size, self.hasher = there, None
            elif there > self.size:
                os.ftruncate(descriptor, self.size)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _disk_full(what: str) -> ProtocolError:
    return ProtocolError(
        f"{what}; the coordinator's host needs space, the update is kept where it is",
        status=507,
        code="disk_full",
    )


class Uploads:
    """The parts of all workers.

    Args:
      directory: for the parts; made if it isn't there. Parts in it are taken up.
      quota: bytes that the announced parts may have in all.
      expire: seconds after which a part that doesn't grow is deleted.
      each: parts of one worker; a further one takes the place of its oldest.
      clock: seconds, for ``expire``.
    """

    def __init__(
        self,
        directory: Path,
        quota: int,
        *,
        expire: float = 3600.0,
        each: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.quota, self.expire = quota, expire
        self._directory, self._each, self._clock = Path(directory), each, clock
        self._parts: dict[str, _Part] = {}
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="uploads")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._take_up()

    @property
    def held(self) -> int:
        """Bytes that are announced and not handed over; ``quota`` bounds them."""
        return sum(p.upload.bytes for p in self._parts.values() if not p.handed)

    async def begin(self, worker: str, upload: Upload) -> int:
        """Makes a part, or finds it; how long it is.

        Raises:
          ProtocolError: 409 the name has another content; 413 longer than the whole
            quota; 507 no space for it now.
        """
        name = upload_name(worker, upload)
        part = self._parts.get(name)
        if part is not None and not part.handed:
            there = part.upload
            if (there.bytes, there.sha256) != (upload.bytes, upload.sha256):
                raise ProtocolError(
                    f"upload {name} was announced with another content; "
                    "a new content is a new attempt",
                    status=409,
                    code="conflict",
                )
            part.upload = upload  # of the newest session
        else:
            part = self._announce(name, worker, upload)
        await self._run(self._write_record, part)
        return part.size

    def offset(self, worker: str, name: str) -> int:
        """How long a part is.

        Raises:
          ProtocolError: 404, the worker has no such part.
        """
        return self._find(worker, name).size

    def announced(self, worker: str, name: str) -> int:
        """Bytes that a part will have.

        Raises:
          ProtocolError: 404, the worker has no such part.
        """
        return self._find(worker, name).upload.bytes

    async def receive(
        self,
        worker: str,
        name: str,
        offset: int,
        pieces: Pieces,
        cut: Callable[[], None],
    ) -> int:
        """Appends pieces, until there are no more or the next one raises; the length.

        Of two at once the newer goes on: ``cut`` of the older is called, which has to
        make its ``pieces`` raise.

        Args:
          worker: that sends it.
          name: of the part.
          offset: that the sender goes on from.
          pieces: of bytes; no more of them than ``announced`` less ``offset``. Each is
            left as it is until the second one after it is asked for.
          cut: ends ``pieces``.

        Raises:
          WrongOffset: ``offset`` isn't the length.
          ProtocolError: 404 no such part; 507 no space.
        """
        part = self._find(worker, name)
        async with self._hold(part, cut):
            if part.handed or offset != part.size:
                raise WrongOffset(f"upload {name} is at byte {part.size}", part.size)
            descriptor = await self._run(part.open)
            try:
                if offset != part.size:
                    raise WrongOffset(
                        f"upload {name} is at byte {part.size}", part.size
                    )
                await self._append_all(part, descriptor, pieces)
            finally:
                os.close(descriptor)
            return part.size

    async def commit(
        self, worker: str, name: str, coordinator: CoordinatorAPI
    ) -> Verdict:
        """Hands a complete part to the coordinator; the same verdict every time.

        Raises:
          WrongOffset: it isn't complete.
          ProtocolError: 404 no such part; 422 its digest is wrong, and it is deleted;
            what the coordinator raises.
        """
        part = self._find(worker, name)
        if part.cut is not None:
            part.cut()  # who commits has sent all
        async with part.lock:
            self._check_there(part)
            if part.handed:
                return await self._ask_again(part, coordinator)
            if part.size != part.upload.bytes:
                raise WrongOffset(
                    f"upload {name} has {part.size} of {part.upload.bytes} bytes",
                    part.size,
                )
            if await self._run(part.digest) != part.upload.sha256:
                self._forget(part)
                raise ProtocolError(
                    f"the bytes of {name} aren't those announced; send it again from "
                    "the start",
                    status=422,
                    code="corrupted",
                )
            try:
                return await coordinator.commit(worker, part.upload, part.path)
            finally:
                if not part.path.exists():
                    part.handed, part.hasher = True, None
                    part.touched = self._clock()

    def discard(self, worker: str, upload: Upload) -> None:
        """Deletes what there is of an update that isn't wanted any more."""
        part = self._parts.get(upload_name(worker, upload))
        if part is not None and not part.handed and not part.lock.locked():
            self._forget(part)

    def drop(self, before_round: int) -> int:
        """Deletes the parts of rounds before this one; how many there were.

        Transfers that run are cut.
        """
        return self._forget_all(lambda part: part.upload.round < before_round)

    def drop_expired(self) -> int:
        """Deletes the parts that haven't grown for long; how many there were."""
        last = self._clock() - self.expire
        return self._forget_all(
            lambda part: part.touched < last and not part.lock.locked()
        )

    def close(self) -> None:
        """Waits for the threads. Parts stay."""
        self._threads.shutdown()

    async def _run(self, function: Callable[..., _Result], *args: Any) -> _Result:
        """In a thread; a cancelled caller doesn't leave before it is done."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, function, *args)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            raise

    async def _append_all(self, part: _Part, descriptor: int, pieces: Pieces) -> None:
        """Reads the next piece while the one before it is written and hashed."""
        before = part.size
        writing: asyncio.Task[None] | None = None
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    if writing is not None:
                        await writing
                    if part.dropped:
                        raise _unknown(part.name)
                    write = self._append(part, descriptor, piece)
                    writing = asyncio.create_task(write)
            if writing is not None:
                await writing
        finally:
            if writing is not None:
                await asyncio.wait({writing})
                writing.cancelled() or writing.exception()  # what was raised is told
            if part.size > before:
                part.touched = self._clock()

    async def _append(self, part: _Part, descriptor: int, piece: Piece) -> None:
        """Hashes a piece while it is written; all of it is there then, or nothing."""
        writing = asyncio.create_task(self._run(part.write, descriptor, piece))
        if part.hasher is not None:
            await self._run(part.hasher.update, piece)
        try:
            await writing
        except BaseException:
            part.hasher = None  # it knows too much; the file is hashed in the end
            raise
        part.size += len(piece)

    @contextlib.asynccontextmanager
    async def _hold(self, part: _Part, cut: Callable[[], None]) -> AsyncIterator[None]:
        """The part, for one transfer: the newest that asks."""
        part.turn += 1
        turn = part.turn
        if part.cut is not None:
            part.cut()
        async with part.lock:
            self._check_there(part)
            if part.turn != turn:
                raise WrongOffset("a newer request goes on with this", part.size)
            part.cut = cut
            try:
                yield
            finally:
                part.cut = None

    async def _ask_again(self, part: _Part, coordinator: CoordinatorAPI) -> Verdict:
        verdict = await coordinator.begin(part.worker, part.upload)
        if verdict is None:  # it was handed over, but died before it was accepted
            self._forget(part)
            raise _unknown(part.name)
        return verdict

    def _announce(self, name: str, worker: str, upload: Upload) -> _Part:
        """A new part, if there is space for it."""
        if upload.bytes > self.quota:
            raise ProtocolError(
                f"an update of {upload.bytes} bytes is larger than all that the "
                f"coordinator keeps for uploads, {self.quota} bytes",
                status=413,
                code="too_large",
            )
        own = [p for p in self._parts.values() if p.worker == worker and not p.handed]
        own.sort(key=lambda part: part.touched)
        for old in own[: max(0, len(own) - self._each + 1)]:
            self._forget(old)
        if self.held + upload.bytes > self.quota:
            raise _disk_full(f"other uploads hold the {self.quota} bytes of the quota")
        if shutil.disk_usage(self._directory).free < upload.bytes:
            raise _disk_full(f"there is no space for {upload.bytes} bytes")
        part = _Part(
            name,
            worker,
            upload,
            self._directory / f"{name}.part",
            touched=self._clock(),
            hasher=hashlib.sha256(),
        )
        self._parts[name] = part
        return part

    def _write_record(self, part: _Part) -> None:
        """First the part, then the record: a record alone means handed over."""
        try:
            with part.path.open("ab"):
                pass
            new = part.path.with_suffix(".new")
            new.write_bytes(encode(_Record(part.worker, part.upload)))
            new.replace(part.path.with_suffix(".json"))
        except OSError as error:
            self._forget(part)
            if error.errno in _FULL:
                raise _disk_full("the disk is full") from error
            raise

    def _take_up(self) -> None:
        """The parts that an earlier process left; what can't be read is deleted."""
        for path in self._directory.glob("*.json"):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=_Record)
            except (msgspec.DecodeError, OSError):
                continue
            if path.stem != upload_name(record.worker, record.upload):
                continue
            part = _Part(
                path.stem,
                record.worker,
                record.upload,
                path.with_suffix(".part"),
                touched=self._clock(),
            )
            try:
                part.size = part.path.stat().st_size
            except FileNotFoundError:
                part.handed = True
            self._parts[part.name] = part
        for path in self._directory.iterdir():
            ours = path.suffix in (".part", ".json", ".new")
            if ours and (path.stem not in self._parts or path.suffix == ".new"):
                path.unlink()

    def _find(self, worker: str, name: str) -> _Part:
        part = self._parts.get(name) if UPLOAD_NAME.fullmatch(name) else None
        if part is None or part.worker != worker:
            raise _unknown(name)
        return part

    def _check_there(self, part: _Part) -> None:
        if part.dropped:
            raise _unknown(part.name)

    def _forget(self, part: _Part) -> None:
        part.dropped = True
        if self._parts.get(part.name) is part:
            del self._parts[part.name]
        # The record first: a record without a part would mean that it was handed over.
        # A file that was handed over isn't at this path.
        for path in (part.path.with_suffix(".json"), part.path):
            with contextlib.suppress(OSError):
                path.unlink()

    def _forget_all(self, which: Callable[[_Part], bool]) -> int:
        found = [part for part in self._parts.values() if which(part)]
        for part in found:
            if part.cut is not None:
                part.cut()
            self._forget(part)
        return len(found)


def _unknown(name: str) -> ProtocolError:
    said = name if UPLOAD_NAME.fullmatch(name) else "of this name"
    return ProtocolError(
        f"there is no upload {said}; announce it again", status=404, code="unknown"
    )
