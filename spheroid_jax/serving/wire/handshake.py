"""The handshake on a stream: who the peer is, before anything else is said."""

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from spheroid_jax.serving.wire.auth import (
    SOFTWARE,
    Credentials,
    Identity,
    Transcript,
    key_of,
    prove,
    proven,
    who_proves,
)
from spheroid_jax.serving.wire.codec import pack, unpack
from spheroid_jax.serving.wire.frames import HEAD_BYTES, FrameError
from spheroid_jax.serving.wire.limits import WireError
from spheroid_jax.serving.wire.messages import (
    Challenge,
    Fact,
    Goodbye,
    Hello,
    Message,
    Proof,
    Welcome,
    plain,
)
from spheroid_jax.serving.wire.stream import Stream
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.ledger import LedgerError

log = logging.getLogger(__name__)
_Said = TypeVar("_Said", Hello, Challenge, Proof, Welcome)


@dataclasses.dataclass(frozen=True)
class Peer:
    """Who is at the other end, proven.

    Attributes:
      where: its address; of a dialler its port says nothing.
      name: that its token goes by; "" at the dialler's end, which knows one token.
      id, role, facts: as of :class:`~spheroid_jax.serving.wire.auth.Identity`.
      software: such as "spheroid_jax 0.1.0".
      key: of its token.
    """

    where: str
    name: str
    id: bytes
    role: str
    facts: Mapping[str, Fact]
    software: str
    key: bytes = dataclasses.field(repr=False)


async def introduce(
    stream: Stream, token: Token, identity: Identity, seconds: float
) -> Peer:
    """The dialler's side.

    Raises:
      WireError: it failed; the stream has been ended.
    """
    return await _within(stream, _introduce(stream, token, identity), seconds)


async def welcome(
    stream: Stream, credentials: Credentials, identity: Identity, seconds: float
) -> Peer:
    """The listener's side.

    Raises:
      WireError: it failed; the stream has been ended.
    """
    return await _within(stream, _welcome(stream, credentials, identity), seconds)


def failed(stream: Stream, error: FrameError | WireError) -> WireError:
    """Ends a stream for what went wrong on it, and tells the peer."""
    if isinstance(error, WireError):
        found = error
    else:
        found = WireError(f"{stream.where}: {error}", error.code)
    stream.end(found, pack(Goodbye(found.code, str(error)[:500])))
    return stream.error or found


def ended_by_peer(stream: Stream, said: Goodbye) -> WireError:
    """The error for a peer's last word; ends the stream."""
    error = WireError(
        f"{stream.where} ended the connection: {plain(said.text) or 'without a word'}",
        plain(said.code),
    )
    stream.end(error)
    stream.close()
    return stream.error or error


async def _introduce(stream: Stream, token: Token, identity: Identity) -> Peer:
    key = key_of(token)
    hello = Hello(secrets.token_bytes(32), SOFTWARE)
    await stream.send(sent := pack(hello))
    challenge, challenged = await _hear(stream, Challenge)
    if challenge.nonce == hello.nonce:
        raise WireError(f"{stream.where} repeats what it is told", "unauthorized")
    transcript = Transcript(_header(sent), challenged)
    facts = dict(identity.facts)
    mac = prove(key, "dialler", transcript, identity)
    await stream.send(pack(Proof(identity.id, identity.role, facts, mac)))
    said, _ = await _hear(stream, Welcome)
    if not proven(key, "listener", transcript, said, mac):
        raise WireError(
            f"{stream.where} doesn't know the token: it isn't who it should be, or "
            "it has another token file",
            "unauthorized",
        )
    _not_oneself(stream, said.id, identity)
    software = plain(challenge.software)
    return Peer(stream.where, "", said.id, said.role, said.facts, software, key)


async def _welcome(
    stream: Stream, credentials: Credentials, identity: Identity
) -> Peer:
    hello, greeted = await _hear(stream, Hello)
    await stream.send(sent := pack(Challenge(secrets.token_bytes(32), SOFTWARE)))
    transcript = Transcript(greeted, _header(sent))
    proof, _ = await _hear(stream, Proof)
    try:
        keys = {} if credentials.admits is None else credentials.admits.current()
    except LedgerError as error:
        log.error("tokens can't be checked: %s", error)
        raise WireError("tokens can't be checked now: try again", "busy") from None
    found = who_proves(keys, transcript, proof)
    if found is None:
        raise WireError(
            f"{stream.where} has a token that isn't known here, or was revoked: give "
            "both sides the same token file, or add it to the ledger",
            "unauthorized",
        )
    name, key = found
    _not_oneself(stream, proof.id, identity)
    mac = prove(key, "listener", transcript, identity, proof.mac)
    facts = dict(identity.facts)
    await stream.send(pack(Welcome(identity.id, identity.role, facts, mac)))
    software = plain(hello.software)
    return Peer(stream.where, name, proof.id, proof.role, proof.facts, software, key)


async def _within(
    stream: Stream, steps: Coroutine[Any, Any, Peer], seconds: float
) -> Peer:
    try:
        async with asyncio.timeout(seconds):
            peer = await steps
    except TimeoutError:
        slow = f"{stream.where} didn't end its handshake within {seconds:g} s"
        raise failed(stream, WireError(slow, "slow")) from None
    except (FrameError, WireError) as error:
        raise failed(stream, error) from None
    except BaseException:
        stream.cut()
        raise
    stream.trust()
    return peer


async def _hear(stream: Stream, kind: type[_Said]) -> tuple[_Said, bytes]:
    """The next message, which must be of this kind; and its header as it came."""
    found = await stream.receive()
    if found is None:
        raise WireError(
            f"{stream.where} closed the connection before the handshake: does one "
            "side want TLS, and the other not?",
            "closed",
        )
    message: Message
    message, arrays = unpack(found)
    if isinstance(message, Goodbye):
        raise ended_by_peer(stream, message)
    if not isinstance(message, kind) or arrays:
        raise FrameError("another message than the handshake's next came", "malformed")
    return message, found.header


def _header(sent: list[bytes | memoryview]) -> bytes:
    return bytes(sent[0])[HEAD_BYTES:]


def _not_oneself(stream: Stream, peer: bytes, identity: Identity) -> None:
    if peer == identity.id:
        raise WireError(f"{stream.where} is this process itself", "malformed")
