"""Messages between hosts of a served model: frames over TCP, or over TLS.

A host listens (:func:`listen`) and dials (:func:`dial`); both give a
:class:`Connection`. ``docs/serving.md`` says what crosses.
"""

from spheroid_jax.serving.wire.auth import (
    Credentials,
    Identity,
    LedgerTokens,
    OneToken,
)
from spheroid_jax.serving.wire.connection import Connection, Handler, Watcher
from spheroid_jax.serving.wire.dialling import dial, split_address
from spheroid_jax.serving.wire.frames import FrameError, Sizes
from spheroid_jax.serving.wire.handshake import Peer
from spheroid_jax.serving.wire.limits import Limits, WireError
from spheroid_jax.serving.wire.listening import Listener, listen

__all__ = [
    "Connection",
    "Credentials",
    "FrameError",
    "Handler",
    "Identity",
    "LedgerTokens",
    "Limits",
    "Listener",
    "OneToken",
    "Peer",
    "Sizes",
    "Watcher",
    "WireError",
    "dial",
    "listen",
    "split_address",
]
