"""Pieces of an item: which to ask for together, how they come in, where they lie."""

import collections
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

from spheroid_jax.checkpoints.digests import DIGESTS
from spheroid_jax.transport.items import index
from spheroid_jax.transport.items.index import DATA, INDEX, Piece
from spheroid_jax.transport.protocol import Item

PART = ".part"  # ends the name of a directory whose item isn't complete
_GAP = 64 << 10  # bytes that are fetched again rather than by one request more
_BATCH = 4 << 20  # bytes that are verified and written at a time
_VECTORS = 512  # buffers that go into one call of the system


def runs(pieces: Sequence[Piece], missing: Mapping[int, Piece]) -> list[list[Piece]]:
    """Groups of adjacent pieces that hold the missing ones, by offset.

    Small gaps are part of a group, for a request costs more than they do.
    """
    found: list[list[Piece]] = []
    gap: list[Piece] = []
    for piece in pieces:
        if piece.offset not in missing:
            gap.append(piece)
            continue
        if found and sum(p.size for p in gap) <= _GAP:
            found[-1] += [*gap, piece]
        else:
            found.append([piece])
        gap = []
    return found


async def batches(
    run: list[Piece], chunks: AsyncGenerator[bytes | memoryview, None]
) -> AsyncGenerator[tuple[list[Piece], list[memoryview]], None]:
    """Cuts the bytes of a run into batches of whole pieces, as they come in.

    The bytes aren't copied. What comes after the run is left unread.
    """
    planned = iter(_planned(run))
    batch = next(planned)
    parts: list[memoryview] = []
    missing = sum(piece.size for piece in batch)
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            view = memoryview(chunk)
            while view:
                parts.append(view[:missing])
                view = view[missing:]
                missing -= len(parts[-1])
                if missing:
                    continue
                yield batch, parts
                batch, parts = next(planned, []), []
                missing = sum(piece.size for piece in batch)
                if not batch:
                    return


def _planned(run: list[Piece]) -> list[list[Piece]]:
    planned: list[list[Piece]] = []
    size = _BATCH
    for piece in run:
        if size + piece.size > _BATCH:
            planned.append([])
            size = 0
        planned[-1].append(piece)
        size += piece.size
    return planned


def take(parts: collections.deque[memoryview], size: int) -> list[memoryview]:
    """Removes the first ``size`` bytes, and returns them."""
    taken = []
    while size:
        part = parts.popleft()
        if len(part) > size:
            parts.appendleft(part[size:])
            part = part[:size]
        taken.append(part)
        size -= len(part)
    return taken


def are(parts: Sequence[bytes | memoryview], piece: Piece) -> bool:
    """Whether some bytes are those of a piece."""
    hasher = DIGESTS[piece.kind]()
    for part in parts:
        hasher.update(memoryview(part))
    return hasher.hexdigest() == piece.digest


def pieces_beside(target: Path) -> dict[str, tuple[Path, Piece]]:
    """Pieces of complete items in the directories beside ``target``, by digest."""
    found: dict[str, tuple[Path, Piece]] = {}
    for path in sorted(target.parent.iterdir()):
        if path == target or path.name.endswith(PART):
            continue
        try:
            content = (path / INDEX).read_bytes()
            size = (path / DATA).stat().st_size
            item = Item(index.digest(content), size)
            for piece in index.pieces(content, item):
                found[piece.digest] = path / DATA, piece
        except (OSError, index.BadIndex):
            continue
    return found


def read_file(path: Path, piece: Piece) -> bytes | None:
    """As ``read``, from the file at ``path``."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return read(descriptor, piece)
    finally:
        os.close(descriptor)


def read(descriptor: int, piece: Piece) -> bytes | None:
    """The bytes of a piece, if they are what they must be."""
    try:
        content = os.pread(descriptor, piece.size, piece.offset)
    except OSError:
        return None
    return content if are([content], piece) else None


def write(descriptor: int, parts: Sequence[bytes | memoryview], at: int) -> None:
    """Writes all of some bytes."""
    if len(parts) > _VECTORS:
        parts = [b"".join(parts)]
    done = os.pwritev(descriptor, parts, at)
    if done < sum(map(len, parts)):  # a signal, or the disk is nearly full
        view = memoryview(b"".join(parts))
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], at + done)
