"""Frames: what is sent arrives, and nothing else does."""

import contextlib
import struct
import tracemalloc

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.serving.wire.frames import (
    HEAD_BYTES,
    MAGIC,
    STRANGER,
    VERSION,
    FrameError,
    FrameReader,
    Sizes,
    frame,
)
from tests.serving.wire.hosts import frames

SMALL = Sizes(header=64, payload=4096)


def head(header: int, payload: int, digest: int = 0, zero: int = 0) -> bytes:
    """A head as docs/serving.md describes it, with whatever it claims."""
    first = MAGIC + struct.pack("<HHIQQ", VERSION, zero, header, payload, digest)
    return first + struct.pack("<I", xxhash.xxh3_64_intdigest(first) & 0xFFFFFFFF)


def made(header: bytes, *payload: bytes) -> bytes:
    return b"".join(frame(header, [np.frombuffer(p, np.uint8) for p in payload]))


def test_what_is_kept_for_later_versions_must_be_zero():
    good = head(1, 0, xxhash.xxh3_64_intdigest(b"h")) + b"h"
    assert len(frames(good)) == 1
    with pytest.raises(FrameError):
        frames(head(1, 0, xxhash.xxh3_64_intdigest(b"h"), zero=1) + b"h")


def test_a_frame_is_laid_out_as_documented():
    expected = head(3, 5, xxhash.xxh3_64_intdigest(b"abcdefgh")) + b"abcdefgh"
    assert made(b"abc", b"de", b"", b"fgh") == expected
    assert HEAD_BYTES == 32


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=64), st.binary(max_size=300))),
    st.integers(1, 400),
)
@settings(deadline=None, max_examples=60)
def test_frames_arrive_however_the_stream_is_cut(sent, step):
    stream = b"".join(made(*one) for one in sent)
    found = frames(stream, SMALL, step)
    assert [(one.header, one.payload.tobytes()) for one in found] == sent


def test_every_flipped_bit_is_noticed():
    good = made(b"header", b"payload" * 3)
    assert len(frames(good)) == 1
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            frames(bytes(bad))


def test_a_frame_cut_short_is_noticed_at_every_byte():
    good = made(b"header", b"payload")
    for size in range(1, len(good)):
        with pytest.raises(FrameError) as caught:
            frames(good[:size])
        assert caught.value.code == "short"


@pytest.mark.parametrize(
    ("header", "payload"), [(2**32 - 1, 0), (1, 2**60), (65, 0), (1, 4097), (0, 0)]
)
def test_lengths_that_lie_are_refused_before_anything_is_allocated(header, payload):
    reader = FrameReader(SMALL)
    reader.buffer()[:32] = head(header, payload)
    reader.advance(32)
    tracemalloc.start()
    with pytest.raises(FrameError, match="most") as caught:
        reader.next()
    assert tracemalloc.get_traced_memory()[1] < 10_000
    tracemalloc.stop()
    assert caught.value.code == "too_large"


def test_lengths_are_believed_only_when_they_are_proven():
    """A length with a flipped bit isn't waited for."""
    bad = bytearray(made(b"h", b"p"))
    bad[8] ^= 0x20  # of the header's length: 33 bytes in place of 1
    with pytest.raises(FrameError, match="head") as caught:
        frames(bytes(bad))
    assert caught.value.code == "corrupt"


@given(st.binary(max_size=200), st.integers(1, 50), st.booleans(), st.integers(0, 40))
@settings(deadline=None, max_examples=300)
def test_noise_is_a_frame_error_and_nothing_else(noise, step, begins_well, keep):
    good = made(b"header", b"payload")
    stream = good[:keep] + noise if begins_well else noise
    found = []
    with contextlib.suppress(FrameError):  # anything else fails the test
        found = frames(stream, SMALL, step)
    if found:
        assert stream == b"".join(made(h, payload.tobytes()) for h, payload in found)


@given(st.integers(0, 100), st.integers(0, 5000), st.binary(max_size=200))
@settings(deadline=None, max_examples=100)
def test_a_proven_head_with_anything_behind_it(header, payload, rest):
    with pytest.raises(FrameError):
        frames(head(header, payload, digest=1) + rest, SMALL)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\n", "doesn't speak this protocol"),
        (b"G", "doesn't speak this protocol"),
        (b"\x16\x03\x01\x02\x00", "speaks TLS"),
        (b"\x15\x03\x03\x00\x02", "speaks TLS"),
        (MAGIC + b"\x02\x00", f"speaks version 2 .* this side version {VERSION}"),
    ],
)
def test_another_protocol_is_named_at_its_first_bytes(data, said):
    reader = FrameReader(Sizes())
    reader.buffer()[: len(data)] = data
    reader.advance(len(data))
    with pytest.raises(FrameError, match=said):
        reader.next()


def test_a_stranger_gets_a_few_kib_and_no_payload():
    reader = FrameReader(STRANGER)
    assert len(reader.buffer()) < 8 << 10
    with pytest.raises(FrameError):
        frames(made(b"hello", b"x"), STRANGER)
    with pytest.raises(FrameError):
        frames(made(b"x" * 5000), STRANGER)


def test_more_is_allowed_from_one_frame_to_the_next():
    first, second = made(b"hello"), made(b"h" * 6000, b"p" * 10_000)
    reader, stream = FrameReader(STRANGER), memoryview(first + second)
    room = reader.buffer()
    room[:] = stream[: len(room)]  # as much of the second as there is room for
    reader.advance(len(room))
    assert reader.next().header == b"hello"
    reader.allow(Sizes())
    for byte in stream[len(room) :]:
        assert reader.next() is None
        reader.buffer()[:1] = bytes([byte])
        reader.advance(1)
    found = reader.next()
    assert (len(found.header), found.payload.tobytes()) == (6000, b"p" * 10_000)


def test_a_large_payload_goes_straight_to_its_place():
    payload = np.arange(1 << 20, dtype=np.uint8)
    (first, rest) = frame(b"h", [payload])
    assert np.shares_memory(np.frombuffer(rest, np.uint8), payload)
    reader = FrameReader(Sizes())
    reader.buffer()[: len(first)] = first
    reader.advance(len(first))
    assert reader.next() is None
    assert reader.filling
    room = reader.buffer()
    assert len(room) == payload.size
    room[:] = rest
    reader.advance(len(rest))
    found = reader.next()
    assert np.shares_memory(found.payload, np.frombuffer(room, np.uint8))
    np.testing.assert_array_equal(found.payload, payload)
