"""Who is who: both sides prove that they know a token, which never crosses.

    dialler                                   listener
      Hello(nonce) ------------------------------->
      <------------------------- Challenge(nonce)
      Proof(who, mac) ---------------------------->    tries every token that it knows
      <------------------------- Welcome(who, mac)

The keys are the SHA-256 of tokens, as a ledger keeps them. A MAC covers its side, both
first messages and what its sender says of itself, so one that was seen before, of
another connection or of the other side is worth nothing.
"""

import dataclasses
import hashlib
import hmac
import secrets
import ssl
from collections.abc import Mapping
from importlib import metadata
from typing import Literal, Protocol

import msgspec

from spheroid_jax.serving.wire.messages import Fact, Proof, Welcome
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.ledger import Ledger

SOFTWARE = f"spheroid_jax {metadata.version('spheroid_jax')}"
_LABEL = b"spheroid_jax wire 1"
_FACTS_LIMIT = 3 << 10  # bytes; a stranger's frame holds little

Side = Literal["dialler", "listener"]


class Keys(Protocol):
    """Whom a listener lets in."""

    def current(self) -> Mapping[str, bytes]:
        """{name: SHA-256 of its token}, as of now.

        Raises:
          LedgerError: if that can't be known now.
        """
        ...


class OneToken:
    """Everybody who knows this token, under one name."""

    def __init__(self, token: Token, name: str = "shared"):
        self._keys = {name: key_of(token)}

    def current(self) -> Mapping[str, bytes]:
        """The one key."""
        return self._keys


class LedgerTokens:
    """Everybody who has a valid token in a ledger; other processes may change that."""

    def __init__(self, ledger: Ledger):
        self._ledger = ledger
        self._keys: dict[str, bytes] = {}
        self._version: int | None = None

    def current(self) -> Mapping[str, bytes]:
        """The keys of the tokens that are valid now."""
        version = self._ledger.data_version()
        if version != self._version:
            self._keys = {
                name: bytes.fromhex(row.sha256)
                for name, row in self._ledger.tokens().items()
                if row.revoked is None
            }
            self._version = version
        return self._keys


@dataclasses.dataclass(frozen=True)
class Credentials:
    """What a process proves itself with, and whom it believes.

    Attributes:
      token: for dialling.
      admits: who may dial; for listening.
      client: TLS for dialling; None: plain TCP.
      server: TLS for listening; None: plain TCP.
      insecure: plain TCP to and from other machines is fine.
    """

    token: Token | None = None
    admits: Keys | None = None
    client: ssl.SSLContext | None = None
    server: ssl.SSLContext | None = None
    insecure: bool = False

    @classmethod
    def shared(cls, token: Token) -> "Credentials":
        """One token for dialling and for being dialled."""
        return cls(token, OneToken(token))


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a process says of itself to peers that have proven themselves.

    Attributes:
      id: 16 bytes, drawn anew by every process.
      role: such as "frontend" or "stage".
      facts: {name: text, number, truth value or None}, small.
    """

    role: str
    facts: Mapping[str, Fact] = dataclasses.field(default_factory=dict)
    id: bytes = dataclasses.field(default_factory=lambda: secrets.token_bytes(16))

    def __post_init__(self) -> None:
        size = len(msgspec.msgpack.encode((self.role, dict(self.facts))))
        if size > _FACTS_LIMIT or len(self.id) != 16:
            raise ValueError(
                f"role and facts take {size} bytes, the id {len(self.id)}: at most "
                f"{_FACTS_LIMIT}, and 16"
            )


@dataclasses.dataclass(frozen=True)
class Transcript:
    """The first two messages of a handshake, as they crossed."""

    hello: bytes
    challenge: bytes


def key_of(token: Token) -> bytes:
    """The key that goes with a token: its SHA-256, as in a ledger."""
    return hashlib.sha256(token.reveal().encode()).digest()


def prove(
    key: bytes, side: Side, transcript: Transcript, who: Identity, answers: bytes = b""
) -> bytes:
    """The MAC of one side.

    Args:
      key: of the token.
      side: that proves itself.
      transcript: of this handshake.
      who: says it of itself.
      answers: the MAC of the other side, where it came before.
    """
    return _mac(key, side, transcript, who.id, who.role, dict(who.facts), answers)


def proven(
    key: bytes,
    side: Side,
    transcript: Transcript,
    said: Proof | Welcome,
    answers: bytes = b"",
) -> bool:
    """Whether ``said`` comes from that side, by somebody who knows the key."""
    right = _mac(key, side, transcript, said.id, said.role, said.facts, answers)
    return hmac.compare_digest(right, said.mac)


def who_proves(
    keys: Mapping[str, bytes], transcript: Transcript, proof: Proof
) -> tuple[str, bytes] | None:
    """Name and key of a dialler; None if it knows none of the tokens."""
    found = None
    for name, key in keys.items():  # all, so that time tells nothing
        if proven(key, "dialler", transcript, proof):
            found = name, key
    return found


def _mac(
    key: bytes,
    side: Side,
    transcript: Transcript,
    id_: bytes,
    role: str,
    facts: dict[str, Fact],
    answers: bytes,
) -> bytes:
    # Every part has a length, so no two conversations are the same text.
    parts = (
        *(_LABEL, side.encode(), transcript.hello, transcript.challenge),
        *(id_, role.encode(), msgspec.msgpack.encode(facts), answers),
    )
    text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.new(key, text, hashlib.sha256).digest()
