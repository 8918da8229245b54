"""Update files for tests, and changes to them that keep them consistent."""

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spheroid_jax.transport.updates import Encoding, UpdateReader, write_update

PRELUDE = 16


def write(
    path: Path, leaves: Mapping[str, np.ndarray], kind: str = "float32", zstd: int = 0
) -> bytes:
    """Writes an update, returns the file's bytes."""
    write_update(path, leaves, Encoding(kind, zstd), {"round": 3})
    return path.read_bytes()


def opened(path: Path, leaves: Mapping[str, np.ndarray], **options: Any) -> Any:
    """A reader of an update with these leaves."""
    write(path, leaves, **options)
    return UpdateReader(path)


def whole(reader: UpdateReader) -> dict[str, np.ndarray]:
    """All leaves of an update, flat."""
    return {
        name: reader.read(name, 0, int(np.prod(shape, dtype=np.int64)))
        for name, shape in reader.leaves.items()
    }


def sealed(header: bytes, chunks: list[bytes]) -> bytes:
    """A file of a header and chunks, with right lengths and check sums."""
    start = struct.pack("<8sII", b"SPHRUPDT", 1, len(header)) + header
    table = b"".join(struct.pack("<II", len(c), zlib.crc32(c)) for c in chunks)
    return start + b"".join(chunks) + table + struct.pack("<I", zlib.crc32(start))


def parted(data: bytes, chunks: int) -> tuple[dict[str, Any], list[bytes]]:
    """The header and the chunks of a file."""
    (length,) = struct.unpack_from("<I", data, 12)
    header = json.loads(data[PRELUDE : PRELUDE + length])
    at, found = PRELUDE + length, []
    table = len(data) - 4 - 8 * chunks
    for number in range(chunks):
        (size,) = struct.unpack_from("<I", data, table + 8 * number)
        found.append(data[at : at + size])
        at += size
    return header, found


def changed(data: bytes, change: Callable[[dict[str, Any]], Any], chunks: int) -> bytes:
    """A file whose header was changed in place, with right check sums."""
    header, found = parted(data, chunks)
    change(header)
    return sealed(json.dumps(header).encode(), found)
