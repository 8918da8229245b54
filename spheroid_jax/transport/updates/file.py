"""An update as one file: a header, and chunks that can be read one by one.

All numbers are little-endian::

    8 bytes   "SPHRUPDT"
    4         version of the format
    4         length of the header
    ...       header, JSON: encoding, facts, leaves with their shapes in order of name
    ...       chunks: of each leaf, each ``CHUNK`` numbers of it, the last one fewer
    8 each    table of the chunks: bytes, CRC-32
    4         CRC-32 of all that comes before the chunks

The table is behind the chunks so that a file is written in one go. Opening a file
checks that all sizes fit together to the byte; reading a chunk checks its CRC-32, which
finds damage (a flipped bit of a disk), not malice: what a chunk says may be anything.
Sizes are limited before memory is taken. Nothing of a file is executed.
"""

import math
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from blake3 import blake3

from spheroid_jax import manifests
from spheroid_jax.transport.updates.encoding import (
    Encoding,
    UpdateError,
    decode,
    encode,
    fault,
)
from spheroid_jax.transport.updates.header import (
    CHUNK,
    LIMIT,
    chunks_of,
    from_bytes,
    header_of,
    sizes,
    to_bytes,
)

VERSION = 1
_MAGIC = b"SPHRUPDT"
_PRELUDE = struct.Struct("<8sII")
_ROW = struct.Struct("<II")
_CHECK = struct.Struct("<I")
_FLOATS = {
    np.dtype(t) for t in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)
}


class Written(NamedTuple):
    """A file that was written."""

    bytes: int
    blake3: str


def ranges(count: int) -> Iterator[tuple[int, int]]:
    """The (start, stop) of the chunks of a leaf of ``count`` numbers."""
    for start in range(0, count, CHUNK):
        yield start, min(start + CHUNK, count)


def write_update(
    path: Path,
    delta: Mapping[str, np.ndarray],
    encoding: Encoding,
    facts: Mapping[str, Any],
    *,
    finite: bool = True,
) -> Written:
    """Writes an update; it is on disk under its name, whole, on return, or not at all.

    Takes memory for a few chunks.

    Args:
      path: of the file; one that is there is replaced. ``path`` + ".part" is written
        first.
      delta: leaves by name, of float16, bfloat16, float32 or float64; at least one.
        Converted to float32 before they are encoded.
      encoding: what to write the numbers as.
      facts: JSON that goes along.
      finite: whether to refuse numbers that the encoding can't carry. False is for
        tests of who receives such updates.

    Raises:
      UpdateError: a number is NaN, infinite, or too large for the encoding.
      ValueError: no such encoding, no leaves, leaves of another type, facts that
        aren't JSON.
      OSError: the file can't be written; nothing of it is left.
    """
    arrays = {name: np.asarray(delta[name]) for name in sorted(delta)}
    for name, array in arrays.items():
        if array.dtype not in _FLOATS:
            raise ValueError(f"leaf {name!r} is {array.dtype}: an update is of floats")
    shapes = {name: array.shape for name, array in arrays.items()}
    header = to_bytes(header_of(shapes, encoding, facts))
    start = _PRELUDE.pack(_MAGIC, VERSION, len(header)) + header
    part = path.with_name(path.name + ".part")
    digest, size = blake3(), 0
    try:
        with open(part, "wb") as file:
            for piece in _pieces(start, arrays, encoding, finite):
                file.write(piece)
                digest.update(piece)
                size += len(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    manifests.sync(path.parent)
    return Written(size, digest.hexdigest())


def _pieces(
    start: bytes, arrays: Mapping[str, np.ndarray], encoding: Encoding, finite: bool
) -> Iterator[bytes]:
    """The bytes of a file, in order."""
    yield start
    table = bytearray()
    for name, array in arrays.items():
        flat = array.reshape(-1)
        for begin, end in ranges(flat.size):
            with np.errstate(over="ignore"):  # of float64: told as infinite below
                values = flat[begin:end].astype(np.float32, copy=False)
            why = fault(values, encoding.kind) if finite else ""
            if why:
                raise UpdateError(f"leaf {name!r} has {why}: it can't be sent")
            with np.errstate(all="ignore" if not finite else "warn"):
                chunk = encode(values, encoding)
            table += _ROW.pack(len(chunk), zlib.crc32(chunk))
            yield chunk
    yield bytes(table)
    yield _CHECK.pack(zlib.crc32(start))


class UpdateReader:
    """An update's file, open; memory for a chunk is taken while one is read.

    Several threads may read at the same time. A context manager.

    Attributes:
      facts: what was written along; from the sender, so to be judged.
      encoding: how the numbers are written.
      leaves: {name: shape}, in the order of the names.
      bytes: of the file.
    """

    def __init__(self, path: Path) -> None:
        """Opens a file and checks its structure.

        Raises:
          UpdateError: the file can't be read, or isn't an update from end to end.
        """
        self._path = path
        self._descriptor = -1
        try:
            # A pipe would be waited for, but for O_NONBLOCK.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            self._open()
        except (OSError, UpdateError) as error:
            self.close()
            raise self._error(error) from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UpdateError("no file")
        self.bytes = found.st_size
        if self.bytes < _PRELUDE.size:
            raise UpdateError(f"{self.bytes} bytes, too few for an update")
        prelude = self._bytes_at(0, _PRELUDE.size)
        magic, version, length = _PRELUDE.unpack(prelude)
        if magic != _MAGIC:
            raise UpdateError("another kind of file")
        if version != VERSION:
            raise UpdateError(f"version {version} of the format, not {VERSION}")
        if length > min(LIMIT, self.bytes - _PRELUDE.size):
            raise UpdateError(f"a header of {length} bytes in a file of {self.bytes}")
        raw = self._bytes_at(_PRELUDE.size, length)
        header = from_bytes(raw)
        self.encoding, self.leaves, self.facts = header
        self._first: dict[str, int] = {}
        chunks = 0
        for name, shape in self.leaves.items():
            self._first[name] = chunks
            chunks += chunks_of(math.prod(shape))
        begin = _PRELUDE.size + length
        end = self.bytes - _CHECK.size - chunks * _ROW.size
        if end < begin:
            raise UpdateError(f"{self.bytes} bytes, too few for {chunks} chunks")
        table = np.frombuffer(self._bytes_at(end, chunks * _ROW.size), "<u4")
        lengths, self._crc = table[0::2].astype(np.int64), table[1::2]
        least, most = sizes(header)
        if np.any(lengths < least) or np.any(lengths > most):
            raise UpdateError("a chunk of a size that its numbers can't have")
        self._offsets = begin + np.concatenate([[0], np.cumsum(lengths)])
        if self._offsets[-1] != end:
            raise UpdateError(
                f"chunks of {self._offsets[-1] - begin} bytes in a file with room for "
                f"{end - begin}"
            )
        check = self._bytes_at(self.bytes - _CHECK.size, _CHECK.size)
        if _CHECK.unpack(check) != (zlib.crc32(prelude + raw),):
            raise UpdateError("a damaged header (its CRC-32 is another)")

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Numbers of a leaf in C order: (stop - start,) float32.

        Only the chunks that hold them are read; all of one is ``ranges``.

        Raises:
          UpdateError: what is read isn't what was written, or can't be read.
          ValueError: there is no such leaf or range.
        """
        if name not in self.leaves:
            raise ValueError(f"the update has no leaf {name!r}")
        count = math.prod(self.leaves[name])
        if not 0 <= start <= stop <= count:
            raise ValueError(f"leaf {name!r} has no range {start}:{stop} of {count}")
        result = np.empty(stop - start, np.float32)
        for chunk in range(start // CHUNK, chunks_of(stop) if start < stop else 0):
            at = chunk * CHUNK
            values = self._chunk(name, chunk, min(CHUNK, count - at))
            low, high = max(start, at), min(stop, at + CHUNK)
            result[low - start : high - start] = values[low - at : high - at]
        return result

    def _chunk(self, name: str, chunk: int, count: int) -> np.ndarray:
        number = self._first[name] + chunk
        begin, end = map(int, self._offsets[number : number + 2])
        try:
            data = self._bytes_at(begin, end - begin)
            if zlib.crc32(data) != self._crc[number]:
                raise UpdateError("damaged bytes (their CRC-32 is another)")
            return decode(data, count, self.encoding)
        except (OSError, UpdateError) as error:
            raise self._error(error, f" in chunk {chunk} of leaf {name!r}") from error

    def _bytes_at(self, offset: int, size: int) -> bytes:
        pieces = []
        while size:
            piece = os.pread(self._descriptor, size, offset)
            if not piece:
                raise UpdateError("an early end")
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _error(self, error: Exception, where: str = "") -> UpdateError:
        said = f"has {error}"
        if isinstance(error, OSError):
            said = f"can't be read ({error.strerror})"
        return UpdateError(f"update {self._path.name} {said}{where}")

    def close(self) -> None:
        """Closes the file; once is enough, twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "UpdateReader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
