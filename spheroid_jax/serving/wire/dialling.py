"""Connecting to a listener."""

import asyncio
import contextlib
import ssl

from spheroid_jax.serving.wire import handshake
from spheroid_jax.serving.wire.auth import Credentials, Identity
from spheroid_jax.serving.wire.connection import Connection, Handler, Watcher, ignore
from spheroid_jax.serving.wire.limits import Limits, WireError
from spheroid_jax.serving.wire.stream import Stream
from spheroid_jax.transport.http.tls import (
    another_name,
    is_for_another_name,
    is_loopback,
)


async def dial(
    address: str,
    credentials: Credentials,
    handler: Handler = ignore,
    *,
    identity: Identity,
    closed: Watcher | None = None,
    limits: Limits | None = None,
) -> Connection:
    """Connects to a listener, and proves who is who.

    Args:
      address: ``HOST:PORT``.
      credentials: with a token.
      handler: of what the peer says.
      identity: of this process.
      closed: is called once, when the connection is over.
      limits: of the connection.

    Raises:
      WireError: it can't be had; one line.
      ValueError: the address is none, or it would be plain TCP to another machine.
    """
    host, port = split_address(address)
    limits = limits or Limits()
    token, context = credentials.token, credentials.client
    if token is None:
        raise ValueError(f"dialling {address} needs a token: give --token-file")
    if context is None and not credentials.insecure and not is_loopback(host):
        raise ValueError(
            f"{address} is another machine, and plain TCP can be read and changed on "
            "the way; give --ca for TLS, or --insecure in a net you trust"
        )
    try:
        async with asyncio.timeout(limits.connect_seconds):
            stream = await _connect(host, port, context, limits)
            stream.where = address
            peer = await handshake.introduce(
                stream, token, identity, limits.connect_seconds
            )
    except TimeoutError:
        seconds = f"{limits.connect_seconds:g} s"
        said = f"{address} didn't answer within {seconds}: is it running?"
        raise WireError(said, "unreachable") from None
    connection = Connection(stream, peer, limits)
    connection.start(handler, closed)
    return connection


async def _connect(
    host: str, port: int, context: ssl.SSLContext | None, limits: Limits
) -> Stream:
    address = f"{host}:{port}"
    try:
        _, stream = await asyncio.get_running_loop().create_connection(
            lambda: Stream(limits),
            host,
            port,
            ssl=context,
            server_hostname=host if context else None,
            ssl_handshake_timeout=limits.connect_seconds if context else None,
            ssl_shutdown_timeout=limits.close_seconds if context else None,
        )
    except ssl.SSLCertVerificationError as error:
        if is_for_another_name(error):
            raise WireError(another_name(address), "untrusted") from None
        raise WireError(
            f"{address} has a certificate that isn't trusted ({error.verify_message}); "
            "give --ca=FILE with the certificate of who signed it",
            "untrusted",
        ) from None
    except ssl.SSLError as error:
        said = error.reason or "it isn't TLS"
        raise WireError(
            f"{address} and this side don't agree on TLS ({said}); has it a "
            "certificate?",
            "untrusted",
        ) from None
    except OSError as error:
        said = error.strerror or str(error) or type(error).__name__
        raise WireError(
            f"{address} can't be reached ({said}); is it running, and is the address "
            "right?",
            "unreachable",
        ) from None
    return stream


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, or ``[IPv6]:PORT``.

    Raises:
      ValueError: it isn't one.

    >>> split_address("[::1]:8471")
    ('::1', 8471)
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    with contextlib.suppress(ValueError):
        if host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16:
            return host, int(port)
    raise ValueError(f"{address!r} isn't an address: write HOST:PORT, such as a:8471")
