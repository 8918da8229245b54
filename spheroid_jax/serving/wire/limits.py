"""What a peer may take of us, and the error that ends a connection."""

import dataclasses

from spheroid_jax.serving.wire.frames import DEFAULT, Sizes


class WireError(ConnectionError):
    """A connection that can't be made, or is over; one line.

    Attributes:
      code: ``unreachable``, ``untrusted`` (TLS), ``unauthorized``, ``revoked``,
        ``busy``, ``foreign``, ``version``, ``corrupt``, ``too_large``, ``malformed``,
        ``short``, ``slow``, ``lost``, ``internal`` or ``closed``.
    """

    def __init__(self, message: str, code: str):
        super().__init__(message)
        self.code = code

    def again(self) -> "WireError":
        """The same, to be raised once more: one that is shared gathers tracebacks."""
        return WireError(str(self), self.code)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a peer may take of us; seconds and bytes.

    Attributes:
      sizes: of a frame.
      buffered: bytes that wait to be sent before ``send`` waits; one frame more at
        most.
      connect_seconds: for dialling altogether: name, TCP, TLS and handshake.
      handshake_seconds: for a stranger to prove who it is; TLS has as much before.
      frame_seconds: in which a frame that has begun has to end, or go on at ``rate``.
      send_seconds: in which a peer takes what waits for it, or ``rate`` of it.
      rate: bytes per second, the least.
      close_seconds: for the last words, when a connection is closed.
      revocation_seconds: between looks whether tokens are still valid.
      strangers: connections at once that haven't proven anything; for one more the
        oldest goes.
      strangers_each: of them from one address.
      connections: at once.
    """

    sizes: Sizes = DEFAULT
    buffered: int = 1 << 20
    connect_seconds: float = 10.0
    handshake_seconds: float = 5.0
    frame_seconds: float = 10.0
    send_seconds: float = 10.0
    rate: float = 4 << 10
    close_seconds: float = 2.0
    revocation_seconds: float = 1.0
    strangers: int = 64
    strangers_each: int = 32
    connections: int = 1024
