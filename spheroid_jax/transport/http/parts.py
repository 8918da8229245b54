"""One update on its way: its file, its record, and what can be wrong with it."""

import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from spheroid_jax.flushing import start_flush
from spheroid_jax.transport.http.bodies import Piece
from spheroid_jax.transport.protocol import (
    NAME,
    ProtocolError,
    Upload,
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
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class WrongOffset(ProtocolError):
    """The part has another length; ``headers`` say where to go on."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message, status=409, code="conflict")
        self.headers = {OFFSET: str(offset)}


class Record(msgspec.Struct, frozen=True):
    """What ``NAME.json`` holds."""

    worker: str
    upload: Upload


@dataclasses.dataclass(eq=False)
class Part:
    """An update on its way. What works on its file is meant for a thread."""

    name: str
    worker: str
    upload: Upload
    path: Path
    touched: float  # when it last grew
    size: int = 0  # bytes that are written
    hasher: Any = None  # of these bytes; None: has to be made of the file
    handed: bool = False  # to the coordinator: the file isn't ours any more
    handing: bool = False  # over to the coordinator, at this moment
    dropped: bool = False
    turn: int = 0  # of the newest request for it
    cut: Callable[[], None] | None = None  # ends the transfer that is running
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    recording: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    def append(self, descriptor: int, piece: Piece) -> None:
        """Writes at the end, hashes it, and has the disk begin with it."""
        self.write(descriptor, piece)
        if self.hasher is not None:
            self.hasher.update(piece)
        start_flush(descriptor, self.size, len(piece))

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
            if error.errno in FULL:
                raise disk_full("the disk is full") from error
            raise

    def digest(self) -> str:
        """BLAKE3 of what is there, in hex."""
        if self.hasher is None:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, blake3).hexdigest()  # type: ignore[arg-type]
        return str(self.hasher.hexdigest())

    def open(self) -> int:
        """A descriptor to append with; the file is as long as ``size`` says."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o666)
        try:
            self._compare(os.fstat(descriptor).st_size)
            os.ftruncate(descriptor, self.size)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def look(self) -> None:
        """Finds what another hand did to the file."""
        try:
            self._compare(self.path.stat().st_size)
        except FileNotFoundError:
            self._compare(0)

    def _compare(self, there: int) -> None:
        if there < self.size:
            self.size, self.hasher = there, None

    def keep_record(self, *, is_new: bool = True) -> None:
        """Makes the part and then its record: a record alone means handed over.

        Only a new part is made: another may be handed over at this moment.
        """
        try:
            if is_new:
                with self.path.open("ab"):
                    pass
            new = self.path.with_suffix(".new")
            new.write_bytes(encode(Record(self.worker, self.upload)))
            new.replace(self.path.with_suffix(".json"))
        except OSError as error:
            if error.errno in FULL:
                raise disk_full("the disk is full") from error
            raise


def take_up(directory: Path, now: float) -> list[Part]:
    """The parts that an earlier process left; what can't be read is deleted."""
    parts = []
    for path in directory.glob("*.json"):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=Record)
        except (msgspec.DecodeError, OSError):
            continue
        name = upload_name(record.worker, record.upload)
        if path.stem != name:
            continue
        part = Part(name, record.worker, record.upload, path.with_suffix(".part"), now)
        try:
            part.size = part.path.stat().st_size
        except FileNotFoundError:
            part.handed = True
        parts.append(part)
    names = {part.name for part in parts}
    for path in directory.iterdir():
        ours = path.suffix in (".part", ".json", ".new")
        if ours and (path.stem not in names or path.suffix == ".new"):
            path.unlink()
    return parts


def disk_full(what: str) -> ProtocolError:
    """The error of a disk or a quota without space."""
    return ProtocolError(
        f"{what}; the coordinator's host needs space, the update is kept where it is",
        status=507,
        code="disk_full",
    )


def unknown(name: str) -> ProtocolError:
    """The error of an upload that isn't here."""
    said = name if UPLOAD_NAME.fullmatch(name) else "of this name"
    return ProtocolError(
        f"there is no upload {said}; announce it again", status=404, code="unknown"
    )
