"""What has come of the updates that workers send: parts that grow, and go on.

A part is ``NAME.part`` in a directory, with the message that announced it beside it
as ``NAME.json``; that is all there is to it, so that parts outlive the process. Names
are made here, of checked messages: what a client calls a part is only ever looked up,
never joined to a path. A ``NAME.json`` without its part was handed to the coordinator.

Files are written and hashed in threads; the event loop only ever waits for them.
"""

import asyncio
import contextlib
import functools
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from spheroid_jax.transport.coordinator_api import CoordinatorAPI
from spheroid_jax.transport.http.appending import append_all
from spheroid_jax.transport.http.bodies import Pieces
from spheroid_jax.transport.http.parts import (
    UPLOAD_NAME,
    Part,
    WrongOffset,
    disk_full,
    take_up,
    unknown,
)
from spheroid_jax.transport.protocol import (
    ProtocolError,
    Upload,
    Verdict,
    upload_name,
)

_Result = TypeVar("_Result")


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
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="uploads")
        # Whole files are hashed after a restart. That takes long, and nobody else's
        # upload is to wait for it.
        self._hashing = ThreadPoolExecutor(2, thread_name_prefix="hashing")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._parts = {part.name: part for part in take_up(self._directory, clock())}

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
        is_new = part is None or part.handed
        if part is not None and not part.handed:
            there = part.upload
            if (there.bytes, there.blake3) != (upload.bytes, upload.blake3):
                raise ProtocolError(
                    f"upload {name} was announced with another content; "
                    "a new content is a new attempt",
                    status=409,
                    code="conflict",
                )
            part.upload = upload  # of the newest session
        else:
            part = self._announce(name, worker, upload)
        try:
            async with part.recording:  # who announces it twice may do so at once
                await self._run(functools.partial(part.keep_record, is_new=is_new))
        except Exception:
            self._forget(part)
            raise
        if part.dropped:  # meanwhile, and its record was made again
            if name not in self._parts:
                self._forget(part)
            raise unknown(name)
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
                async with contextlib.aclosing(pieces):
                    await append_all(part, descriptor, pieces, self._threads)
            finally:
                if part.size > offset:
                    part.touched = self._clock()
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
            await self._run(part.look)
            if part.size != part.upload.bytes:
                raise WrongOffset(
                    f"upload {name} has {part.size} of {part.upload.bytes} bytes",
                    part.size,
                )
            pool = self._hashing if part.hasher is None else None
            digest = await self._run(part.digest, pool)
            self._check_there(part)  # its round may have ended meanwhile
            if digest != part.upload.blake3:
                self._forget(part)
                raise ProtocolError(
                    f"the bytes of {name} aren't those announced; send it again from "
                    "the start",
                    status=422,
                    code="corrupted",
                )
            part.handing = True
            try:
                return await coordinator.commit(worker, part.upload, part.path)
            finally:
                part.handing = False
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

        Transfers that run are cut; what the coordinator looks at now is left.
        """
        return self._forget_all(
            lambda part: part.upload.round < before_round and not part.handing
        )

    def drop_expired(self) -> int:
        """Deletes the parts that haven't grown for long; how many there were."""
        last = self._clock() - self.expire
        return self._forget_all(
            lambda part: part.touched < last and not part.lock.locked()
        )

    def close(self) -> None:
        """Waits for the threads. Parts stay."""
        self._threads.shutdown()
        self._hashing.shutdown()

    async def _run(
        self, function: Callable[[], _Result], pool: Executor | None = None
    ) -> _Result:
        """In a thread; a cancelled caller doesn't leave before it is done."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(pool or self._threads, function)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            raise

    @contextlib.asynccontextmanager
    async def _hold(self, part: Part, cut: Callable[[], None]) -> AsyncIterator[None]:
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

    async def _ask_again(self, part: Part, coordinator: CoordinatorAPI) -> Verdict:
        verdict = await coordinator.begin(part.worker, part.upload)
        if verdict is None:  # it was handed over, but died before it was accepted
            self._forget(part)
            raise unknown(part.name)
        return verdict

    def _announce(self, name: str, worker: str, upload: Upload) -> Part:
        """A new part, if there is space for it."""
        if upload.bytes > self.quota:
            raise ProtocolError(
                f"an update of {upload.bytes} bytes is larger than all that the "
                f"coordinator keeps for uploads, {self.quota} bytes",
                status=413,
                code="too_large",
            )
        own = [p for p in self._parts.values() if p.worker == worker and not p.handing]
        own.sort(key=lambda part: part.touched)
        # Of those handed over there is but the name, by which a verdict is asked for
        # again; the coordinator knows it too.
        for kind in (False, True):
            of_kind = [part for part in own if part.handed is kind]
            oldest = of_kind[: max(0, len(of_kind) - self._each + 1)]
            self._forget_all(lambda part, oldest=oldest: part in oldest)  # type: ignore[misc]
        if self.held + upload.bytes > self.quota:
            raise disk_full(f"other uploads hold the {self.quota} bytes of the quota")
        if shutil.disk_usage(self._directory).free < upload.bytes:
            raise disk_full(f"there is no space for {upload.bytes} bytes")
        part = Part(
            name,
            worker,
            upload,
            self._directory / f"{name}.part",
            touched=self._clock(),
            hasher=blake3(),
        )
        self._parts[name] = part
        return part

    def _find(self, worker: str, name: str) -> Part:
        part = self._parts.get(name) if UPLOAD_NAME.fullmatch(name) else None
        if part is None or part.worker != worker:
            raise unknown(name)
        return part

    def _check_there(self, part: Part) -> None:
        if part.dropped:
            raise unknown(part.name)

    def _forget(self, part: Part) -> None:
        part.dropped = True
        if self._parts.get(part.name) is part:
            del self._parts[part.name]
        # The record first: a record without a part would mean that it was handed over.
        # A file that was handed over isn't at this path.
        for path in (part.path.with_suffix(".json"), part.path):
            with contextlib.suppress(OSError):
                path.unlink()

    def _forget_all(self, which: Callable[[Part], bool]) -> int:
        found = [part for part in self._parts.values() if which(part)]
        for part in found:
            if part.cut is not None:
                part.cut()
            self._forget(part)
        return len(found)
