"""What coordinator and workers say to each other: messages, verdicts, limits.

Messages are JSON. Their types are checked when they are read: a message that isn't
what it should be is a :class:`ProtocolError` with one line, never a surprise later.
Unknown fields are ignored, so that a newer peer of the same version may say more.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec

VERSION = 2  # of the protocol; peers of different versions don't work together
PREFIX = f"/v{VERSION}"
MESSAGE_LIMIT = 1 << 20  # bytes of a JSON body
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z"  # of workers; safe as a file's name

Name = Annotated[str, msgspec.Meta(pattern=NAME)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
NoDigest = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]  # or one
Session = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
# What a JSON number can hold exactly, so that every client can.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Text = Annotated[str, msgspec.Meta(max_length=500)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]

Message = TypeVar("Message", bound=msgspec.Struct)


class ProtocolError(ValueError):
    """A peer said something that can't be understood or served; one line.

    Attributes:
      status: the HTTP status that tells of it.
      code: a word for programs: ``malformed``, ``unauthorized``, ``forbidden``,
        ``unknown``, ``conflict``, ``superseded``, ``version``, ``too_large``,
        ``too_slow``, ``busy``, ``disk_full``.
    """

    def __init__(self, message: str, *, status: int = 400, code: str = "malformed"):
        super().__init__(message)
        self.status, self.code = status, code


class Problem(msgspec.Struct, frozen=True):
    """The body of every answer that is an error."""

    error: str  # one line: cause and cure
    code: str  # as of ProtocolError


class Register(msgspec.Struct, frozen=True):
    """A worker presents itself; its name is that of its token."""

    protocol: int
    session: Session  # drawn anew by every process that is started
    software: Text = ""  # version of spheroid_jax
    device: Text = ""  # such as "cpu" or "NVIDIA A100"


class Registered(msgspec.Struct, frozen=True):
    """What a worker needs to know of the run."""

    protocol: int
    # A worker's folder is named after these two.
    run: Name  # identifies the run, over restarts of the coordinator
    worker: Name  # the name that goes with the token
    config: dict[str, Any]  # the whole configuration
    config_sha256: Digest  # of its JSON
    corpus_sha256: str  # of the text to train on
    lease: float  # seconds without a sign of life after which a slot is given away
    heartbeat: float  # seconds between signs of life


class Item(msgspec.Struct, frozen=True):
    """An item of a checkpoint: immutable, known by its digest."""

    digest: Digest
    bytes: Count  # of its data
    base: NoDigest = ""  # an older item, from which a step leads to it; empty: none
    step_bytes: Count = 0  # of that step


class WorkRequest(msgspec.Struct, frozen=True):
    """A worker asks what to do; answered at once, or when there is something."""

    session: Session
    after: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] = -1  # newest round it did
    wait: Annotated[float, msgspec.Meta(ge=0, le=60)] = 20.0  # seconds


class Work(msgspec.Struct, frozen=True):
    """What a worker has to do.

    ``train``: its part of ``round``. ``wait``: ask again. ``stop``: the run is over.
    """

    do: Literal["train", "wait", "stop"]
    why: str = ""  # for a reader of the worker's screen
    round: int = 0
    block: int = 0
    replica: int = 0
    deadline: float | None = None  # seconds from now; None: the round has none
    items: dict[str, Item] = {}  # "block" and "interface"
    ticket: Text = ""  # to be shown with the update: this work was given to the worker


class Heartbeat(msgspec.Struct, frozen=True):
    """A sign of life."""

    session: Session
    doing: Literal["waiting", "fetching", "training", "sending"] = "waiting"
    round: int = 0
    # Seconds, of the newest round that is done: where its time went.
    fetch_seconds: Seconds = 0.0
    train_seconds: Seconds = 0.0
    send_seconds: Seconds = 0.0
    wait_seconds: Seconds = 0.0


class Pulse(msgspec.Struct, frozen=True):
    """The answer to a sign of life."""

    round: int  # that is open now
    wanted: bool  # whether the update the worker is at can still be accepted


class Leave(msgspec.Struct, frozen=True):
    """A worker goes, and tells."""

    session: Session


class Upload(msgspec.Struct, frozen=True):
    """A worker announces the update of a round."""

    session: Session
    round: Count
    block: Count
    replica: Count
    attempt: Count  # counts from 0; an attempt has one content
    bytes: Count
    blake3: Digest  # of the file
    ticket: Text  # that came with the work
    loss: float = 0.0  # mean of the local phase, for the log


class Uploading(msgspec.Struct, frozen=True):
    """Where to go on with an upload; ``verdict`` says that there is nothing to do."""

    upload: str  # names it in the address
    offset: Count = 0  # bytes that are there
    verdict: "Verdict | None" = None


class Verdict(msgspec.Struct, frozen=True):
    """What became of an update.

    ``accepted``: it will be in round ``applies_in``, at age ``age``. ``late``: the
    round closed before. ``stale``: too old even for late updates. ``duplicate``:
    another update has its place. ``rejected``: it must not touch the model.
    """

    verdict: Literal["accepted", "late", "stale", "duplicate", "rejected"]
    why: str = ""
    age: int = 0
    applies_in: int = 0


def encode(message: msgspec.Struct) -> bytes:
    """A message as JSON."""
    return msgspec.json.encode(message)


def decode(body: bytes, kind: type[Message]) -> Message:
    """Reads a message.

    Raises:
      ProtocolError: the body isn't JSON, or not of this kind.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # msgspec names the field, as in "Expected `int`, got `str` - at `$.round`".
        said = " ".join(str(error).split())[:200]
        raise ProtocolError(f"not a {kind.__name__} message: {said}") from error


def upload_name(worker: str, update: Upload) -> str:
    """The name of an update: the same one for every try to send it."""
    return f"{update.round}-{update.block}-{worker}-{update.attempt}"
