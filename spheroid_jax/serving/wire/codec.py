"""Messages and arrays as frames, and back; what arrays of a sweep have to be.

header = MessagePack of [message, [[name, type, shape], ...]], payload = the arrays, C
order, little-endian, each from a multiple of 8 bytes on. Types and bounds are checked
when a message is read. Unknown fields are ignored, so that a newer peer of the same
version may say more.
"""

import math
from collections.abc import Mapping
from typing import Annotated

import ml_dtypes
import msgspec
import numpy as np

from spheroid_jax.serving.wire.frames import Frame, FrameError, frame
from spheroid_jax.serving.wire.messages import (
    OF_WINDOW,
    Arrays,
    Message,
    Sweep,
    WireDtype,
    plain,
)

_NUMPY = (
    *("bool", "float16", "float32", "float64"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)
DTYPES: dict[str, np.dtype] = {
    **{name: np.dtype(name) for name in _NUMPY},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
_ALIGNED = 8  # bytes
_MOST_ARRAYS = 16


class _Described(msgspec.Struct, frozen=True, array_like=True):
    """An array in the payload."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,32}\Z")]
    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)], ...],
        msgspec.Meta(max_length=8),
    ]


class _Header(msgspec.Struct, frozen=True, array_like=True):
    message: Message
    arrays: Annotated[tuple[_Described, ...], msgspec.Meta(max_length=_MOST_ARRAYS)]


_DECODER = msgspec.msgpack.Decoder(_Header)
_ENCODER = msgspec.msgpack.Encoder()


def pack(
    message: Message, arrays: Mapping[str, np.ndarray] | None = None
) -> list[bytes | memoryview]:
    """The pieces of a frame with a message; contiguous arrays aren't copied.

    So they must stay as they are until the frame has been sent.

    Args:
      message: to be sent.
      arrays: {name: array} with types of :data:`DTYPES`.

    Raises:
      ValueError: an array has another type.
    """
    described, parts, offset = [], [], 0
    for name, array in (arrays or {}).items():
        if DTYPES.get(array.dtype.name) is None:
            raise ValueError(
                f"array {name} is of {array.dtype}, which isn't sent: use one of "
                f"{', '.join(DTYPES)}"
            )
        described.append(_Described(name, array.dtype.name, array.shape))
        raw = _raw(array)
        if gap := -offset % _ALIGNED:
            parts.append(np.zeros(gap, np.uint8))
        parts.append(raw)
        offset += gap + raw.size
    return frame(_ENCODER.encode(_Header(message, tuple(described))), parts)


def unpack(found: Frame) -> tuple[Message, Arrays]:
    """Reads a frame's message; its arrays are views of the payload.

    Raises:
      FrameError: it is none, or its arrays aren't what it says; one line.
    """
    try:
        header = _DECODER.decode(found.header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        said = plain(str(error))
        raise FrameError(f"a frame holds no message: {said}", "malformed") from None
    arrays: Arrays = {}
    offset = 0
    for one in header.arrays:
        dtype = DTYPES.get(one.dtype)
        if dtype is None or one.name in arrays:
            raise FrameError(
                f"array {one.name} is of unknown type {plain(one.dtype)}, or there "
                "twice",
                "malformed",
            )
        offset += -offset % _ALIGNED
        size = math.prod(one.shape) * dtype.itemsize
        if offset + size > found.payload.size:
            raise FrameError(f"array {one.name} is longer than its frame", "malformed")
        raw = found.payload[offset : offset + size]
        if one.dtype == "bool" and size and raw.max() > 1:
            raise FrameError(f"array {one.name} isn't of truth values", "malformed")
        try:
            arrays[one.name] = raw.view(dtype).reshape(one.shape)
        except ValueError:  # such as (0, 2**31 - 1, 2**31 - 1, 2**31 - 1)
            raise FrameError(
                f"array {one.name} has an impossible shape", "malformed"
            ) from None
        offset += size
    if offset != found.payload.size:
        raise FrameError("a frame is longer than its arrays", "malformed")
    return header.message, arrays


def narrowed(array: np.ndarray, wire_dtype: WireDtype) -> np.ndarray:
    """A float array as it is sent.

    What float16 can't hold becomes infinite, and shows as ``broken`` further on; it is
    not bent into range.
    """
    with np.errstate(over="ignore"):
        return array.astype(DTYPES[wire_dtype], copy=False)


def widened(array: np.ndarray) -> np.ndarray:
    """A float array as it is computed with: float32."""
    return array.astype(np.float32, copy=False)


def check_sweep(sweep: Sweep, arrays: Mapping[str, np.ndarray]) -> None:
    """Whether the arrays of a sweep fit it and each other.

    Raises:
      ValueError: they don't; one line, for a :class:`Failure` ``refused``.
    """
    count, floats = sweep.count, ("float32", "bfloat16", "float16")
    given = arrays.get("bytes")
    if given is None or given.dtype != np.uint8 or given.shape != (count,):
        raise ValueError(f"bytes must be {count} of uint8, it is {_shown(given)}")
    for name in arrays.keys() - {"bytes"}:
        array = arrays[name]
        if name not in ("state", "guess", *OF_WINDOW):
            raise ValueError(f"array {name} doesn't belong to a sweep")
        of_window = name in OF_WINDOW
        rows = count - sweep.known + 1 if of_window else count
        fits = array.ndim == 2 and len(array) == rows and array.dtype.name in floats
        if not fits or (of_window and array.shape[1] != 256):
            width = "256" if of_window else "width"
            raise ValueError(
                f"{name} must be ({rows}, {width}) of {' or '.join(floats)}, it is "
                f"{_shown(array)}"
            )
    if "state" not in arrays and len(arrays) > 1:
        raise ValueError("guess, logs and draft go with a state, there is none")
    if "guess" in arrays and arrays["guess"].shape != arrays["state"].shape:
        raise ValueError("guess and state must have one shape")


def _raw(array: np.ndarray) -> np.ndarray:
    """The bytes of an array; a view where it is contiguous and little-endian."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _shown(array: np.ndarray | None) -> str:
    return "not there" if array is None else f"{array.shape} of {array.dtype.name}"
