"""What hosts say to each other: messages, and the arrays that go with them.

A message is a frame: header = MessagePack of [message, [[name, type, shape], ...]],
payload = the arrays, C order, little-endian, each from a multiple of 8 bytes on. Types
and bounds are checked when a message is read. Unknown fields are ignored, so that a
newer peer of the same version may say more.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import ml_dtypes
import msgspec
import numpy as np

from spheroid_jax.serving.wire.frames import Frame, FrameError, frame

Arrays = dict[str, np.ndarray]

# Every length has a bound: msgspec checks it before it allocates.
Id = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]  # refuses NaN, too
Text = Annotated[str, msgspec.Meta(max_length=500)]
Address = Annotated[str, msgspec.Meta(max_length=100)]
Route = Annotated[tuple[Address, ...], msgspec.Meta(max_length=256)]
Secret = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Fact = Annotated[str, msgspec.Meta(max_length=200)] | int | float | bool | None
FactName = Annotated[str, msgspec.Meta(max_length=32)]
Facts = Annotated[dict[FactName, Fact], msgspec.Meta(max_length=32)]

Fill = Literal["expected", "drawn", "given", "drafted", "written"]
Answer = Literal["last", "ensemble"]
# Arrays of a sweep that have a row for each position that decides a byte.
OF_WINDOW = ("logs", "draft")
WireDtype = Literal["float32", "bfloat16", "float16"]
FailureKind = Literal["busy", "lost", "peer", "late", "refused", "broken"]


class StageSeconds(msgspec.Struct, frozen=True, array_like=True):
    """What a sweep took at one stage: computing, and waiting before that."""

    compute: Seconds
    queue: Seconds


Spent = Annotated[tuple[StageSeconds, ...], msgspec.Meta(max_length=256)]


class Sweep(msgspec.Struct, frozen=True, tag="sweep", omit_defaults=True):
    """One trip of one row, at one stage of its way.

    Arrays: ``bytes`` uint8 (count,); beyond stage 0 ``state`` (count, width), and
    ``guess`` (count, width) and, of the w positions that decide a byte, ``logs`` and
    ``draft`` (w, 256) where the method needs them.
    """

    request: Id
    number: Count  # of the sweep in its attempt
    attempt: Count  # how often the request was begun anew
    frontend: Id  # who gets the result, on its own connection
    deadline: Seconds  # left, when it was sent
    start: Count  # place of the first input position
    index: Count  # its absolute index
    known: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]  # decided bytes
    count: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]  # these and the guesses
    route: Route = ()  # addresses of the stages after this one
    fresh: bool = False  # the cache begins empty
    fill: Fill = "given"
    answer: Answer = "last"
    seed: Seed = 0
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 1.0
    top_k: Count = 0  # 0: off
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    want_logprobs: bool = False
    wire_dtype: WireDtype = "float32"  # of state, guess and logs on the wire
    seconds: Spent = ()  # of the stages before

    def __post_init__(self) -> None:
        if self.known > self.count:
            raise ValueError(f"known={self.known} is more than count={self.count}")


class Result(msgspec.Struct, frozen=True, tag="result", omit_defaults=True):
    """The bytes that a sweep drew.

    Arrays: ``bytes`` uint8 (w,); ``context`` uint8 (count,) if the guesses were made on
    the way; ``logprob`` float32 (w,) if it was wanted.
    """

    request: Id
    number: Count
    attempt: Count
    at: Count  # stage
    seconds: Spent = ()  # of all stages, first one first


class Failure(msgspec.Struct, frozen=True, tag="failure", omit_defaults=True):
    """Why a sweep has no result.

    ``busy``: no room; ``lost``: no cache of this request here; ``peer``: the next stage
    can't be reached; ``late``: the deadline has passed; ``refused``: it makes no sense;
    ``broken``: this stage failed.
    """

    request: Id
    number: Count
    attempt: Count
    at: Count  # stage
    kind: FailureKind
    text: Text = ""


class Close(msgspec.Struct, frozen=True, tag="close"):
    """A request is over: what is held for this attempt, or one before, can go."""

    request: Id
    attempt: Count


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Asks for a :class:`Pong` with the same number."""

    number: Count


class Pong(msgspec.Struct, frozen=True, tag="pong", omit_defaults=True):
    """How a stage does."""

    number: Count
    queue: Count = 0  # sweeps that wait
    oldest: Seconds = 0.0  # of what is computed or waits longest
    slots_free: Count = 0
    slots: Count = 0
    computed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0  # sweeps so far
    draining: bool = False  # takes no new requests: it is about to end


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The dialler's first word."""

    nonce: Secret
    software: Text = ""  # such as "spheroid_jax 0.1.0"


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """The listener's answer to :class:`Hello`."""

    nonce: Secret
    software: Text = ""


class Proof(msgspec.Struct, frozen=True, tag="proof"):
    """The dialler shows that it knows a token, and says who it is."""

    id: Id
    role: Text  # such as "frontend" or "stage"
    facts: Facts
    mac: Secret


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The listener shows that it knows the same token, and says who it is."""

    id: Id
    role: Text
    facts: Facts
    mac: Secret


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The last word before the connection is closed: why it is."""

    code: Annotated[str, msgspec.Meta(max_length=32)]
    text: Text = ""


Message = (
    Sweep
    | Result
    | Failure
    | Close
    | Ping
    | Pong
    | Hello
    | Challenge
    | Proof
    | Welcome
    | Goodbye
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


def plain(text: str) -> str:
    """A peer's text for our log: one short line of printable characters."""
    line = " ".join(text.split())[:300]
    return "".join(c if c.isprintable() else "?" for c in line)


def _raw(array: np.ndarray) -> np.ndarray:
    """The bytes of an array; a view where it is contiguous and little-endian."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _shown(array: np.ndarray | None) -> str:
    return "not there" if array is None else f"{array.shape} of {array.dtype.name}"
