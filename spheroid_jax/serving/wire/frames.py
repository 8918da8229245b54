"""Frames: how messages lie in a stream of bytes; no sockets here.

A frame is a head of 32 bytes, a header (MessagePack) and a payload (raw arrays):

    magic 4 | version 2 | zero 2 | header bytes 4 | payload bytes 8 | digest 8 | check 4

All little-endian. ``digest`` is the XXH3 (64 bits) of header and payload, ``check`` the
low half of the XXH3 of the 28 bytes before it, so a length is believed only once it has
been proven and is within the limits: nothing is allocated before. Both find accidents,
not forgeries; against those there is TLS.
"""

import dataclasses
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash

VERSION = 1  # peers of different versions refuse each other
MAGIC = b"\x9fSPW"  # neither text nor TLS begins like this
_HEAD = struct.Struct("<4sHHIQQI")
HEAD_BYTES = _HEAD.size
_PROVEN = HEAD_BYTES - 4  # bytes of the head that its check covers


class FrameError(ValueError):
    """What came is no frame that can be read; one line.

    Attributes:
      code: ``foreign`` (another protocol), ``version``, ``corrupt``, ``too_large``,
        ``malformed`` or ``short`` (it ends early).
    """

    def __init__(self, message: str, code: str):
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The most bytes that a frame may have.

    Attributes:
      header: of the header.
      payload: of all arrays together.
    """

    header: int = 64 << 10
    payload: int = 64 << 20


DEFAULT = Sizes()
# For a peer that hasn't proven who it is.
STRANGER = Sizes(header=4 << 10, payload=0)


class Frame(NamedTuple):
    """A frame that arrived whole: the header, and the payload as (bytes,) uint8."""

    header: bytes
    payload: np.ndarray


class _Head(NamedTuple):
    header: int
    payload: int
    digest: int


def frame(
    header: bytes, payload: Sequence[np.ndarray] = ()
) -> list[bytes | memoryview]:
    """The pieces of a frame, to be sent one after the other; the payload isn't copied.

    Args:
      header: of at least one byte.
      payload: arrays (bytes,) of uint8.
    """
    digest = xxhash.xxh3_64(header)
    for part in payload:
        digest.update(part.data)
    size = sum(part.size for part in payload)
    head = _HEAD.pack(MAGIC, VERSION, 0, len(header), size, digest.intdigest(), 0)
    check = xxhash.xxh3_64_intdigest(head[:_PROVEN]) & 0xFFFFFFFF
    first = head[:_PROVEN] + check.to_bytes(4, "little") + header
    return [first, *(part.data for part in payload if part.size)]


class FrameReader:
    """Makes frames of bytes, however they are cut; holds one unfinished frame at most.

    Bytes are put where :meth:`buffer` says and announced with :meth:`advance`;
    :meth:`next` takes them out again. A large payload goes straight to its place.

    Attributes:
      sizes: limits of the frames to come.
    """

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        self._store = memoryview(bytearray(_room(sizes)))
        self._start = self._end = 0  # of the bytes in the store
        self._head: _Head | None = None
        self._header = b""
        self._payload: np.ndarray | None = None
        self._filled = 0  # bytes of the payload that are there

    def allow(self, sizes: Sizes) -> None:
        """Other limits, for all frames that :meth:`next` hasn't begun with."""
        left = self._store[self._start : self._end]
        store = memoryview(bytearray(max(_room(sizes), len(left))))
        store[: len(left)] = left
        self._store, self._start, self._end = store, 0, len(left)
        self.sizes = sizes

    @property
    def expected(self) -> int:
        """Bytes of the frame that has begun, as far as is known; 0: none has."""
        if self._head is not None:
            return HEAD_BYTES + self._head.header + self._head.payload
        return HEAD_BYTES if self._end > self._start else 0

    @property
    def filling(self) -> bool:
        """Whether a payload is on its way: :meth:`next` can't know more yet."""
        return self._payload is not None and self._filled < self._payload.size

    def buffer(self) -> memoryview:
        """Where the next bytes go; empty if frames have to be taken out first."""
        if self._payload is not None and self.filling:
            return self._payload.data[self._filled :]
        if self._start:
            left = self._end - self._start
            self._store[:left] = bytes(self._store[self._start : self._end])
            self._start, self._end = 0, left
        return self._store[self._end :]

    def advance(self, count: int) -> None:
        """So many bytes have been put into the buffer."""
        if self.filling:
            self._filled += count
        else:
            self._end += count

    def next(self) -> Frame | None:
        """The next frame that is there whole.

        Raises:
          FrameError: this is no frame; the reader is of no more use.
        """
        if self._head is None:
            self._head = self._read_head()
            if self._head is None:
                return None
        head = self._head
        if self._payload is None:
            if self._end - self._start < head.header:
                return None
            self._header = bytes(self._take(head.header))
            self._payload = np.empty(head.payload, np.uint8)
            there = self._take(min(head.payload, self._end - self._start))
            self._payload.data[: len(there)] = there
            self._filled = len(there)
        if self._filled < head.payload:
            return None
        done = Frame(self._header, self._payload)
        self._head = self._payload = None
        digest = xxhash.xxh3_64(done.header)
        digest.update(done.payload.data)
        if digest.intdigest() != head.digest:
            raise FrameError("a frame arrived corrupted", "corrupt")
        return done

    def end(self) -> None:
        """There won't be more.

        Raises:
          FrameError: in the middle of a frame.
        """
        if self.expected:
            raise FrameError("the connection ended in the middle of a frame", "short")

    def _take(self, count: int) -> memoryview:
        taken = self._store[self._start : self._start + count]
        self._start += count
        return taken

    def _read_head(self) -> _Head | None:
        there = self._store[self._start : self._end]
        _check_beginning(bytes(there[:6]))
        if len(there) < HEAD_BYTES:
            return None
        raw = bytes(self._take(HEAD_BYTES))
        _, _, zero, header, payload, digest, check = _HEAD.unpack(raw)
        if xxhash.xxh3_64_intdigest(raw[:_PROVEN]) & 0xFFFFFFFF != check or zero:
            raise FrameError("the head of a frame arrived corrupted", "corrupt")
        if not 0 < header <= self.sizes.header or payload > self.sizes.payload:
            raise FrameError(
                f"a frame of {header} + {payload} bytes, where {self.sizes.header} + "
                f"{self.sizes.payload} are the most",
                "too_large",
            )
        return _Head(header, payload, digest)


def _room(sizes: Sizes) -> int:
    return HEAD_BYTES + sizes.header


def _check_beginning(first: bytes) -> None:
    """Refuses other protocols, and other versions of this one, by their first bytes."""
    if not MAGIC.startswith(first[:4]):
        # A record of TLS: its kind (alert or handshake), and version 3.
        tls = first[:1] in (b"\x15", b"\x16") and first[1:2] in (b"\x03", b"")
        raise FrameError(
            "the peer speaks TLS, this side doesn't: give both certificates, or none"
            if tls
            else "the peer doesn't speak this protocol: is the address right?",
            "foreign",
        )
    if len(first) == 6 and (version := int.from_bytes(first[4:], "little")) != VERSION:
        raise FrameError(
            f"the peer speaks version {version} of the protocol, this side version "
            f"{VERSION}: install the same spheroid_jax on both",
            "version",
        )
