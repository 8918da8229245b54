"""The index of an item, read from a peer that needn't be right.

What an index says is checked before any of it is used: types, dtypes, that boxes lie
inside their leaves, that the data has no gaps, that sizes add up.
"""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from spheroid_jax import manifests
from spheroid_jax.checkpoints.digests import BLAKE3, SHA256
from spheroid_jax.transport.protocol import Digest, Item

INDEX, DATA = "index.0.json", "data.0"
INDEX_LIMIT = 16 << 20  # bytes; enough for items of 800 GB
_PIECE_LIMIT = 64 << 20  # bytes; a piece is held in memory
_AXES = 32
_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Shape = Annotated[list[_Size], msgspec.Meta(max_length=_AXES)]


class BadIndex(ValueError):
    """An index that can't be trusted; one line."""


class Piece(NamedTuple):
    """A run of an item's data that has a digest of its own."""

    offset: int
    size: int
    digest: str
    kind: str = BLAKE3  # of the digest; one of digests.CRYPTOGRAPHIC


class _Leaf(msgspec.Struct, frozen=True):
    described: str = msgspec.field(name="is")
    dtype: str
    shape: _Shape


class _Box(msgspec.Struct, frozen=True):
    leaf: str
    start: _Shape
    shape: _Shape
    offset: _Size
    blake3: list[Digest] | None = None  # of every piece; these or those
    sha256: list[Digest] | None = None


class _Index(msgspec.Struct, frozen=True):
    bytes: _Size
    piece: Annotated[int, msgspec.Meta(ge=1, le=_PIECE_LIMIT)]
    leaves: dict[str, _Leaf]
    boxes: list[_Box]


def digest(content: bytes) -> str:
    """The digest of the item that has this index, as ``manifests.item_digests``."""
    return manifests.sha256_of_json([hashlib.sha256(content).hexdigest()])


def pieces(content: bytes, item: Item) -> list[Piece]:
    """The pieces of an item's data, from its index, which is checked wholly.

    Raises:
      BadIndex: It is another item's, or makes no sense; says what.
    """
    if digest(content) != item.digest:
        raise BadIndex("it has another SHA-256 than it must")
    try:
        index = msgspec.json.decode(content, type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise BadIndex(f"it isn't an index ({said})") from error
    for name, leaf in index.leaves.items():
        if leaf.dtype not in _BYTES:
            raise BadIndex(f"{name!r:.100} has a dtype that can't be sent")
        if leaf.described != f"{leaf.dtype}{leaf.shape}":
            raise BadIndex(f"{name!r:.100} is described in two ways")
    found = list(_pieces(index))
    size = sum(piece.size for piece in found)
    if not size == index.bytes == item.bytes:
        raise BadIndex(
            f"its pieces have {size} bytes, it says {index.bytes}, and the item has "
            f"{item.bytes}"
        )
    if size != sum(_size(leaf.shape, leaf) for leaf in index.leaves.values()):
        raise BadIndex("its boxes don't hold its leaves")
    return found


def _pieces(index: _Index) -> Iterator[Piece]:
    end = 0
    for box in index.boxes:
        leaf = index.leaves.get(box.leaf)
        if leaf is None or not _inside(box, leaf):
            raise BadIndex(f"a box of {box.leaf!r:.100} isn't inside its leaf")
        size = _size(box.shape, leaf)
        kind = BLAKE3 if box.blake3 is not None else SHA256
        digests = box.blake3 if box.blake3 is not None else box.sha256
        count = -(-size // index.piece)
        if box.offset != end or digests is None or len(digests) != count:
            raise BadIndex(f"a box of {box.leaf!r:.100} isn't where it must be")
        for number, digest_ in enumerate(digests):
            at = number * index.piece
            yield Piece(end + at, min(index.piece, size - at), digest_, kind)
        end += size


def _inside(box: _Box, leaf: _Leaf) -> bool:
    return len(box.start) == len(box.shape) == len(leaf.shape) and all(
        a + n <= whole
        for a, n, whole in zip(box.start, box.shape, leaf.shape, strict=True)
    )


def _size(shape: list[int], leaf: _Leaf) -> int:
    return math.prod(shape) * _BYTES[leaf.dtype]


def holds(directory: Path, item: Item) -> bool:
    """Whether a directory has an item's own index, and data of its size.

    The data itself is checked when it is loaded.
    """
    try:
        index = (directory / INDEX).read_bytes()
        size = (directory / DATA).stat().st_size
    except OSError:
        return False
    return size == item.bytes and digest(index) == item.digest
