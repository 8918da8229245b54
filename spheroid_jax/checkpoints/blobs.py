"""How an item lies on disk: raw bytes and an index with their digests.

The Orbax handler of items. Orbax's own array format needs a second pass over what it
wrote for the digests, and loads through several copies; see
``benchmarks/checkpoint.py`` for figures. Here bytes are hashed on their way, once.

``data.P`` of process P is the elements of its boxes, one after the other, C order,
little-endian. ``index.P.json`` names leaves and boxes; a box has a digest for each
``PIECE`` bytes of it, the last one shorter, under the digest's name.
"""

import asyncio
import dataclasses
import json
import os
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from spheroid_jax import manifests
from spheroid_jax.checkpoints import digests
from spheroid_jax.checkpoints.leaves import Item, Start
from spheroid_jax.checkpoints.threads import Pending, parallel
from spheroid_jax.flushing import start_flush

PIECE = 4 << 20  # bytes to a digest
_STRIDE = 512 << 10  # bytes at a time; read and digested while in a core's cache
_AT_ONCE = threading.BoundedSemaphore(2)  # items; each has several threads


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a box of a leaf is on disk."""

    file: Path
    offset: int
    start: Start
    shape: tuple[int, ...]
    dtype: np.dtype
    piece: int  # bytes to a digest
    digests: tuple[str, ...]
    digest: str  # their name


Catalog = dict[str, tuple[dict[str, Any], list[Source]]]


class _Write:
    """An item being written; the future that Orbax waits for."""

    def __init__(self, directory: Path, args: "ItemSave") -> None:
        def run() -> None:
            with _AT_ONCE:
                write(directory, args.item, args.digest)

        self._pending = Pending(run, args.seconds)

    def result(self, timeout: float | None = None) -> None:
        del timeout  # the deadline is ours
        self._pending.wait()


class ItemHandler(ocp.handlers.AsyncCheckpointHandler):
    """Lets Orbax's CheckpointManager write items."""

    async def async_save(self, directory: Any, args: "ItemSave") -> list[Any]:
        """Starts to write; the returned future ends when all is on disk."""
        return [_Write(Path(directory), args)]

    def save(self, directory: Any, args: "ItemSave") -> None:
        """Writes and waits."""
        for future in asyncio.run(self.async_save(directory, args)):
            future.result()

    def restore(self, directory: Any, args: Any = None) -> Any:
        """Not through Orbax: items are read in parts, see ``catalog`` and ``read``."""
        raise NotImplementedError


@ocp.args.register_with_handler(ItemHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class ItemSave(ocp.args.CheckpointArgs):
    """An item to write within some seconds."""

    item: Item
    seconds: float
    digest: str


def write(directory: Path, item: Item, digest: str) -> None:
    """Writes this process's data and index of an item; both are on disk on return."""
    new_digest = digests.DIGESTS[digest]
    process = jax.process_index()
    data = directory / f"data.{process}"
    offset = 0
    boxes: list[dict[str, Any]] = []
    pieces: list[tuple[int, memoryview]] = []
    for box in item.boxes:
        flat = _bytes(box.data)
        starts = range(0, len(flat), PIECE)
        pieces += [(offset + at, flat[at : at + PIECE]) for at in starts]
        boxes.append(
            {
                "leaf": box.leaf,
                "start": list(box.start),
                "shape": list(box.data.shape),
                "offset": offset,
                "pieces": len(starts),
            }
        )
        offset += len(flat)
    descriptor = os.open(data, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:

        def put(piece: tuple[int, memoryview]) -> str:
            at, content = piece
            digested = new_digest()
            for skip, part in _strides(content):
                digested.update(part)
                _pwrite(descriptor, part, at + skip)
            start_flush(descriptor, at, len(content))
            return digested.hexdigest()

        found = iter(parallel(put, pieces))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    for entry in boxes:
        entry[digest] = [next(found) for _ in range(entry.pop("pieces"))]
    index = {"bytes": offset, "piece": PIECE, "leaves": item.leaves, "boxes": boxes}
    path = directory / f"index.{process}.json"
    path.write_text(json.dumps(index), encoding="utf-8")
    manifests.sync(path)


def catalog(directory: Path) -> Catalog:
    """Returns {leaf: (record, sources)} from an item's indexes of all processes.

    The indexes must have been verified. Raises manifests.Damage for a data file that
    is missing or of another size.
    """
    found: Catalog = {}
    for path in sorted(directory.glob("index.*.json")):
        index = json.loads(path.read_bytes())
        data = directory / path.name.replace("index", "data").removesuffix(".json")
        manifests.check_size(data, index["bytes"])
        for name, record in index["leaves"].items():
            found.setdefault(name, (record, []))
        for box in index["boxes"]:
            record, sources = found[box["leaf"]]
            digest = next(name for name in digests.DIGESTS if name in box)
            sources.append(
                Source(
                    data,
                    box["offset"],
                    tuple(box["start"]),
                    tuple(box["shape"]),
                    np.dtype(record["dtype"]),
                    index["piece"],
                    tuple(box[digest]),
                    digest,
                )
            )
    return found


def read(wanted: list[tuple[Source, np.ndarray]]) -> None:
    """Fills arrays, contiguous and of their sources' shapes, checking every digest.

    Raises:
      manifests.Damage: for the first piece that isn't what was written.
    """
    pieces = []
    for source, target in wanted:
        flat = _bytes(target)
        for number, digest in enumerate(source.digests):
            at = number * source.piece
            pieces.append((source, at, flat[at : at + source.piece], digest))
    files = {source.file for source, *_ in pieces}
    descriptors = {}
    try:
        for file in files:
            descriptors[file] = os.open(file, os.O_RDONLY)

        def get(piece: tuple[Source, int, memoryview, str]) -> None:
            source, at, target, digest = piece
            digested = digests.DIGESTS[source.digest]()
            for skip, part in _strides(target):
                _pread(descriptors[source.file], part, source.offset + at + skip)
                digested.update(part)
            if digested.hexdigest() != digest:
                raise manifests.Damage(
                    f"file {source.file} has another {digests.title(source.digest)} "
                    f"than when it was written from byte {source.offset + at} on"
                )

        parallel(get, pieces)
    except OSError as error:
        raise manifests.Damage(
            f"a file of {sorted(map(str, files))[0]} can't be read ({error.strerror})"
        ) from error
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def verify(directory: Path) -> None:
    """Raises manifests.Damage if a piece of an item isn't what was written."""
    for _, sources in catalog(directory).values():
        for source in sources:
            read([(source, np.empty(source.shape, source.dtype))])


def _bytes(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array, not a copy."""
    return array.reshape(-1).view(np.uint8).data


def _strides(content: memoryview) -> list[tuple[int, memoryview]]:
    """Parts of what has a digest: (where in it, bytes)."""
    starts = range(0, len(content), _STRIDE)
    return [(at, content[at : at + _STRIDE]) for at in starts]


def _pwrite(descriptor: int, view: memoryview, at: int) -> None:
    while view:
        done = os.pwrite(descriptor, view, at)
        view, at = view[done:], at + done


def _pread(descriptor: int, view: memoryview, at: int) -> None:
    while view:
        done = os.preadv(descriptor, [view], at)
        if done == 0:
            raise OSError(0, "it ends early")
        view, at = view[done:], at + done
