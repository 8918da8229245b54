"""What the head of an update's file says, checked as far as it can be by itself."""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from spheroid_jax.transport.updates.encoding import (
    Encoding,
    UpdateError,
    check,
    largest_size,
    plain_size,
)

CHUNK = 1 << 18  # numbers of a leaf that are encoded together
LIMIT = 1 << 20  # bytes of a header; reading one takes some 30 times that
_NAME = 1000  # characters of a leaf's name
_AXES = 32  # of a leaf
_AXIS = 1 << 40  # numbers along an axis
_CHUNKS = 1 << 20  # of an update: a terabyte of float32
_FIELDS = {"encoding", "facts", "leaves"}


class Header(NamedTuple):
    """The contents of an update; leaves are in the order of their names."""

    encoding: Encoding
    leaves: dict[str, tuple[int, ...]]
    facts: dict[str, Any]


class Sizes(NamedTuple):
    """Bytes that chunks may take, over all leaves; both (chunks,) int64."""

    least: np.ndarray
    most: np.ndarray


def chunks_of(count: int) -> int:
    """Chunks of a leaf of ``count`` numbers."""
    return -(-count // CHUNK)


def sizes(header: Header) -> Sizes:
    """What the chunks of a file with this header may take."""
    least: list[np.ndarray] = []
    most: list[np.ndarray] = []
    for shape in header.leaves.values():
        whole, rest = divmod(math.prod(shape), CHUNK)
        for number, count in ((whole, CHUNK), (1, rest)):
            if count and number:
                plain = plain_size(header.encoding.kind, count)
                low = 1 if header.encoding.zstd else plain
                high = largest_size(header.encoding, count)
                least.append(np.full(number, low, np.int64))
                most.append(np.full(number, high, np.int64))
    none = np.zeros(0, np.int64)
    return Sizes(np.concatenate([none, *least]), np.concatenate([none, *most]))


def to_bytes(header: Header) -> bytes:
    """A header as JSON.

    Raises:
      ValueError: it isn't one that ``from_bytes`` takes.
    """
    content = {
        "encoding": header.encoding._asdict(),
        "facts": header.facts,
        "leaves": [[name, list(shape)] for name, shape in header.leaves.items()],
    }
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"facts of an update must be finite JSON: {said}") from error
    from_bytes(text.encode())
    return text.encode()


def from_bytes(data: bytes) -> Header:
    """Reads a header.

    Raises:
      UpdateError: it isn't one; whatever it is, the memory taken is bounded.
    """
    if len(data) > LIMIT:
        raise UpdateError(f"a header of {len(data)} bytes: {LIMIT} at most")
    try:
        content = json.loads(
            data.decode("utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            object_pairs_hook=_unique,
        )
    except UpdateError:
        raise
    except (ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise UpdateError(f"a header that isn't JSON ({said})") from error
    if not isinstance(content, dict) or set(content) != _FIELDS:
        raise UpdateError(f"a header without exactly the fields {sorted(_FIELDS)}")
    if not isinstance(content["facts"], dict):
        raise UpdateError("facts that aren't a JSON object")
    return Header(
        _encoding(content["encoding"]), _leaves(content["leaves"]), content["facts"]
    )


def _encoding(value: Any) -> Encoding:
    if not isinstance(value, dict) or set(value) != set(Encoding._fields):
        raise UpdateError("an encoding that isn't a kind and a zstd level")
    encoding = Encoding(**value)
    try:
        check(encoding)
    except ValueError as error:
        raise UpdateError(str(error)) from error
    return encoding


def _leaves(value: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, list) or not value:
        raise UpdateError("no list of leaves")
    leaves: dict[str, tuple[int, ...]] = {}
    last, chunks = "", 0
    for entry in value:
        if not isinstance(entry, list) or len(entry) != 2:
            raise UpdateError("a leaf that isn't a name and a shape")
        name, shape = entry
        if not isinstance(name, str) or not 0 < len(name) <= _NAME:
            raise UpdateError(f"a leaf's name that isn't 1 to {_NAME} characters")
        if not name.isprintable():
            raise UpdateError(f"a leaf's name that can't be printed, {name[:80]!a}")
        if name <= last:
            raise UpdateError(f"leaves out of order or twice, at {name[:80]!r}")
        if not isinstance(shape, list) or len(shape) > _AXES:
            raise UpdateError(f"leaf {name[:80]!r}: a shape of not 0 to {_AXES} axes")
        if not all(type(axis) is int and 0 <= axis <= _AXIS for axis in shape):
            raise UpdateError(f"leaf {name[:80]!r}: an axis not of 0 to {_AXIS}")
        leaves[name] = tuple(shape)
        last = name
        chunks += chunks_of(math.prod(shape))
    if chunks > _CHUNKS:
        raise UpdateError(f"{chunks} chunks of {CHUNK} numbers: {_CHUNKS} at most")
    return leaves


def header_of(
    shapes: Mapping[str, tuple[int, ...]], encoding: Encoding, facts: Mapping[str, Any]
) -> Header:
    """A header with its leaves in order.

    Raises:
      ValueError: there is no such encoding.
    """
    check(encoding)
    return Header(encoding, {name: shapes[name] for name in sorted(shapes)}, {**facts})


def _no_constant(name: str) -> float:
    raise UpdateError(f"a header with {name}, which isn't JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UpdateError(f"a header with the number {text[:80]}, which is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise UpdateError("a header that says something twice")
    return result
