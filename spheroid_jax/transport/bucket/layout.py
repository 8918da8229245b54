"""What is where in the bucket, and the messages that lie there.

Every message but ``run.json`` is in an :class:`Envelope`, which says who speaks, in
which session, and how many messages came before. With tokens in use it carries an
HMAC-SHA256; the key is the token's SHA-256, all that the coordinator has of a token.
"""

import hashlib
import hmac
import re
from typing import Annotated, Literal, NamedTuple

import msgspec

from spheroid_jax.transport.protocol import (
    NAME,
    Count,
    Digest,
    Heartbeat,
    Message,
    Name,
    ProtocolError,
    Pulse,
    Registered,
    Session,
    Upload,
    Verdict,
    Work,
    WorkRequest,
    decode,
    encode,
)

RUN = "run.json"
PIECE = 16 << 20  # bytes of an object of an item's data, and of an update by default
PIECE_LIMIT = 64 << 20  # bytes of any object
WANTS = 8  # items that a worker can miss at a time
_UPLOAD = re.compile(  # round-block-worker-attempt
    r"^(\d{1,16})-\d{1,16}-([A-Za-z0-9][A-Za-z0-9_.-]{0,63})-\d{1,16}\Z", re.ASCII
)

Kind = Literal["hello", "said", "update", "answer", "verdict"]


class Run(msgspec.Struct, frozen=True):
    """``run.json``: what there is to know before a worker presents itself."""

    protocol: int
    run: str
    epoch: Session  # drawn anew whenever a coordinator starts
    poll_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    signed: bool


class Envelope(msgspec.Struct, frozen=True):
    """A message, and by whom it is."""

    kind: Kind
    worker: Name
    session: Session
    counter: Count
    subject: str  # the epoch, or the name of the update it is about
    body: msgspec.Raw
    mac: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """A ProtocolError on its way."""

    error: str
    code: str
    status: int

    @classmethod
    def of(cls, error: ProtocolError) -> "Refusal":
        """What is told of it."""
        return cls(str(error), error.code, error.status)


class Moved(msgspec.Struct, frozen=True):
    """What a worker has read of the bucket since it met this start of a coordinator."""

    epoch: Session
    down: Count  # bytes of objects


class Said(msgspec.Struct, frozen=True):
    """``workers/NAME/pulse.json``: all that a worker has to say at the moment."""

    heartbeat: Heartbeat
    ask: WorkRequest | None = None
    asked: Count = 0  # numbers what is asked
    leave: bool = False
    # Items whose data it misses. None: it knows nothing of steps, and always needs
    # the data.
    wants: Annotated[list[Digest], msgspec.Meta(max_length=WANTS)] | None = None
    moved: Moved | None = None


class Answer(msgspec.Struct, frozen=True):
    """``work/NAME.json``: all that the coordinator has to say to a worker."""

    heard: Count  # counter of the newest message that was read
    registered: Registered | None = None
    pulse: Pulse | None = None
    work: Work | None = None
    asked: Count = 0  # which question ``work`` answers
    refusal: Refusal | None = None  # of the message that was read last
    gone: list[Digest] = []  # what it wants, and there is no more
    # Sessions of processes that are told to end, whoever the answer is to. None: a
    # coordinator that lets a newer process take over as soon as it greets.
    ousted: list[Session] | None = None


class Announced(msgspec.Struct, frozen=True):
    """``updates/UPLOAD/update.json``: an update whose data are all there."""

    upload: Upload
    series: Annotated[int, msgspec.Meta(ge=0, le=99)]  # of objects; each try its own
    piece: Annotated[int, msgspec.Meta(ge=1 << 20, le=PIECE_LIMIT)]
    blake3: list[Digest]  # of every piece
    moved: Moved | None = None


class Outcome(msgspec.Struct, frozen=True):
    """``verdicts/UPLOAD.json``: what became of an update."""

    series: int
    verdict: Verdict | None = None
    refusal: Refusal | None = None


class UploadName(NamedTuple):
    """What the name of an update says."""

    round: int
    worker: str


def hello(worker: str) -> str:
    """Where a worker presents itself."""
    return f"workers/{worker}/hello.json"


def pulse(worker: str) -> str:
    """Where a worker speaks."""
    return f"workers/{worker}/pulse.json"


def answer(worker: str) -> str:
    """Where a worker is spoken to."""
    return f"work/{worker}.json"


def update(upload: str) -> str:
    """The mark that an update is complete."""
    return f"updates/{upload}/update.json"


def update_data(upload: str, series: int, number: int) -> str:
    """A piece of an update."""
    return f"updates/{upload}/data-{series:02d}-{number:05d}"


def verdict(upload: str) -> str:
    """What became of an update."""
    return f"verdicts/{upload}.json"


def item_index(digest: str) -> str:
    """An item's index, the mark that its data or its step are complete."""
    return f"items/{digest}/index"


def item_data(digest: str, number: int) -> str:
    """``PIECE`` bytes of an item's data; the last one is shorter."""
    return f"items/{digest}/data-{number:05d}"


def item_step(digest: str, number: int) -> str:
    """``PIECE`` bytes of the step that leads to an item; the last one is shorter."""
    return f"items/{digest}/step-{number:05d}"


def is_worker(text: str) -> bool:
    """Whether a part of a key can be a worker's name."""
    return re.match(NAME, text) is not None


def upload_of(text: str) -> UploadName | None:
    """Reads a part of a key as an update's name; None if it is none."""
    found = _UPLOAD.match(text)
    return None if found is None else UploadName(int(found[1]), found[2])


def key_of(token: str) -> bytes:
    """What a worker with this token signs with: its digest, as in the ledger."""
    return hashlib.sha256(token.encode()).digest()


def seal(
    body: msgspec.Struct,
    kind: Kind,
    worker: str,
    session: str,
    counter: int,
    *,
    run: str,
    subject: str,
    key: bytes | None,
) -> bytes:
    """A message as it lies in the bucket; signed if there is a key."""
    raw = msgspec.Raw(encode(body))
    plain = Envelope(kind, worker, session, counter, subject, raw)
    if key is None:
        return encode(plain)
    return encode(msgspec.structs.replace(plain, mac=_mac(plain, run, key)))


def unseal(content: bytes, kind: Kind, run: str, key: bytes | None) -> Envelope:
    """Reads a message, and checks its signature if there is a key.

    Raises:
      ProtocolError: it is no such message, or it isn't by whom it says.
    """
    envelope = decode(content, Envelope)
    if envelope.kind != kind:
        raise ProtocolError(f"a message of kind {envelope.kind} where {kind} belongs")
    if key is not None and not hmac.compare_digest(
        _mac(envelope, run, key).encode(), envelope.mac.encode(errors="replace")
    ):
        raise ProtocolError(
            f"a message in the name of {envelope.worker} has a wrong signature",
            status=401,
            code="unauthorized",
        )
    return envelope


def opened(envelope: Envelope, kind: type[Message]) -> Message:
    """The message inside.

    Raises:
      ProtocolError: it isn't of that kind.
    """
    return decode(bytes(envelope.body), kind)


def _mac(envelope: Envelope, run: str, key: bytes) -> str:
    # Every part has a length, so no two messages are the same text.
    parts = (
        b"spheroid_jax bucket 1",
        envelope.kind.encode(),
        run.encode(errors="replace"),
        envelope.subject.encode(errors="replace"),
        envelope.worker.encode(),
        envelope.session.encode(),
        str(envelope.counter).encode(),
        bytes(envelope.body),
    )
    text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.new(key, text, hashlib.sha256).hexdigest()
