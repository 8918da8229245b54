"""What hosts say to each other: messages, with bounds on all that they hold.

How they cross, and the arrays that go with them, is in
:mod:`spheroid_jax.serving.wire.codec`.
"""

from typing import Annotated, Literal

import msgspec
import numpy as np

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


def plain(text: str) -> str:
    """A peer's text for our log: one short line of printable characters."""
    line = " ".join(text.split())[:300]
    return "".join(c if c.isprintable() else "?" for c in line)
