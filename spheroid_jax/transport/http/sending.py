"""Sending an update: in pieces that suit the line, from where the last one ended."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from spheroid_jax.transport.http import answers
from spheroid_jax.transport.http.file_body import FileBody
from spheroid_jax.transport.http.retry import TOO_MANY_REQUESTS, Again
from spheroid_jax.transport.link import LinkError, Progress
from spheroid_jax.transport.protocol import Upload, Uploading, Verdict

if TYPE_CHECKING:
    from spheroid_jax.transport.http.asking import Asking

_SMALLEST, _LARGEST = 1 << 20, 64 << 20  # bytes of a request
_SECONDS = 10.0  # that a request should take; they vary, and 20 are too many
_GROWTH = 4  # of a request's size over the one before
_CORRUPTED = 3  # times that a whole update may arrive corrupted
_MOVES = 3  # times that the coordinator may correct where to go on
_HASHED = 50e6  # bytes a second that the coordinator reads again at the least


class Speed:
    """How much to send by one request; learnt from those before."""

    def __init__(self) -> None:
        self.size = 4 * _SMALLEST

    def learn(self, sent: int, seconds: float) -> None:
        """A request of ``sent`` bytes took so long; short ones tell nothing."""
        if sent < _SMALLEST:
            return
        fit = int(sent / max(seconds, 1e-6) * _SECONDS)
        size = min(fit, _GROWTH * max(sent, self.size // _GROWTH))
        self.size = max(_SMALLEST, min(_LARGEST, size))

    def failed(self) -> None:
        """A request broke."""
        self.size = max(_SMALLEST, self.size // 2)


async def submit(
    link: "Asking",
    upload: Upload,
    path: Path,
    progress: Progress | None,
    speed: Speed,
) -> Verdict:
    """Sends a file, and returns what became of it; see ``Link.submit``.

    After anything that went wrong the coordinator is asked anew: it knows how much
    it has, or even the verdict.
    """
    sending = _Sending(link, upload, path, progress, speed)
    tries = link.tries(f"sending the update of round {upload.round + 1}")
    best = corrupted = 0
    with sending.opened():
        while True:
            try:
                return await sending.run()
            except Again as again:
                trouble = again
            except LinkError as error:
                if error.status == 404:  # the coordinator lost what it had
                    trouble = Again(str(error), garbled=True, code=error.code)
                elif error.code == "corrupted":
                    corrupted, best, sending.reached = corrupted + 1, 0, 0
                    if corrupted >= _CORRUPTED:
                        raise LinkError(
                            f"{link.url}: the update of round {upload.round + 1} "
                            f"arrived corrupted {corrupted} times; check {path} and "
                            "what is between here and there",
                            code="corrupted",
                            status=error.status,
                        ) from None
                    trouble = Again(str(error), code="corrupted")
                else:
                    raise
            if sending.reached > best:
                best = sending.reached
                tries.progress()
            await tries.pause(trouble)


class _Sending:
    """One update; ``run`` is called again after trouble."""

    def __init__(
        self,
        link: "Asking",
        upload: Upload,
        path: Path,
        progress: Progress | None,
        speed: Speed,
    ) -> None:
        self._link, self._upload, self._path = link, upload, path
        self._progress = progress or (lambda done, total: None)
        self._speed = speed
        self._file: BinaryIO | None = None
        self.reached = 0  # bytes that the coordinator said to have

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Holds the file open; raises LinkError if it isn't what was announced."""
        try:
            self._file = file = self._path.open("rb", buffering=0)
        except OSError as error:
            raise self._unreadable(str(error.strerror)) from None
        with file:
            size = os.fstat(file.fileno()).st_size
            if size != self._upload.bytes:
                raise self._unreadable(f"{size} bytes, not {self._upload.bytes}")
            yield

    async def run(self) -> Verdict:
        """One pass, to a verdict; raises Again or LinkError."""
        total = self._upload.bytes
        begun = await self._link.post("/uploads", self._upload, Uploading)
        if begun.verdict is not None:
            return begun.verdict
        where = f"/uploads/{answers.segment(begun.upload)}"
        at = begun.offset
        if at > total:
            raise Again("it has more of the update than there is", garbled=True)
        self._reach(at)
        moves = 0
        while at < total:
            try:
                at = await self._piece(where, at)
            except Again as again:
                moves += 1
                if again.offset is None or again.offset > total or moves > _MOVES:
                    raise
                at = again.offset
            self._reach(at)
        # The coordinator may have to read it all again before it answers.
        wait = total / _HASHED
        return await self._link.post(f"{where}/commit", None, Verdict, wait=wait)

    def _reach(self, at: int) -> None:
        self.reached = max(self.reached, at)
        self._progress(at, self._upload.bytes)

    async def _piece(self, where: str, at: int) -> int:
        """Sends the bytes from ``at`` on by one request; returns where to go on."""
        link = self._link
        stop = min(self._upload.bytes, at + self._speed.size)
        headers = {
            "Upload-Offset": str(at),
            "Content-Length": str(stop - at),
            "Content-Type": "application/octet-stream",
        }
        stall = link.timeouts.stall
        assert self._file is not None  # opened
        body = FileBody(self._file, at, stop, lambda: _put_off(watch, stall))
        began = link.tools.clock()
        try:
            # aiohttp's time-out of reading would run while the body is being sent.
            async with asyncio.timeout(stall) as watch:
                async with link.ask(
                    "PATCH", where, body=body, headers=headers, wait=None
                ) as answer:
                    reached = answers.offset(answer, at + 1, stop)
        except TimeoutError:
            self._speed.failed()
            raise Again("it took too long", cure="check the connection") from None
        except Again as again:
            if again.status != TOO_MANY_REQUESTS:  # smaller ones would be more
                self._speed.failed()
            if body.unreadable:
                raise self._unreadable(body.unreadable) from None
            raise
        self._speed.learn(reached - at, link.tools.clock() - began)
        return reached

    def _unreadable(self, why: str) -> LinkError:
        return LinkError(
            f"update {self._path} can't be sent ({why}); check that disk", code="disk"
        )


def _put_off(watch: asyncio.Timeout, seconds: float) -> None:
    with contextlib.suppress(RuntimeError):  # it is over already
        watch.reschedule(asyncio.get_running_loop().time() + seconds)
