import math

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from spheroid_jax.transport.updates.encoding import (
    KINDS,
    LARGEST,
    Encoding,
    UpdateError,
    check,
    decode,
    encode,
    fault,
    largest_size,
    plain_size,
)

ALL = [Encoding(kind, level) for kind in KINDS for level in (0, 3)]
LEVELS = {"int8": (256, 127), "int4": (128, 7)}
numbers = arrays.arrays(
    np.float32,
    st.integers(1, 700),
    elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False),
)


def there_and_back(values, encoding):
    data = encode(values, encoding)
    assert len(data) <= largest_size(encoding, len(values))
    result = decode(data, len(values), encoding)
    assert result.dtype == np.float32
    assert result.shape == values.shape
    return result


def noise(count, seed=0, scale=1.0):
    values = scale * np.random.default_rng(seed).standard_normal(count)
    return values.astype(np.float32)


@given(numbers, st.sampled_from([0, 3]))
@settings(max_examples=50, deadline=None)
def test_float32_is_exact(values, level):
    assert there_and_back(values, Encoding("float32", level)).tobytes() == (
        values.tobytes()
    )


def nearest_bfloat16(values):
    """Round to nearest even by integer arithmetic on the bits."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return rounded.astype(np.uint32).view(np.float32)


@given(numbers, st.sampled_from([0, 3]))
@settings(max_examples=50, deadline=None)
def test_bfloat16_is_rounded_to_nearest_even(values, level):
    found = there_and_back(values, Encoding("bfloat16", level))
    np.testing.assert_array_equal(found, nearest_bfloat16(values))


def test_bfloat16_ties_go_to_even():
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8], np.float32)  # steps are 2^-7
    found = there_and_back(ties, Encoding("bfloat16"))
    np.testing.assert_array_equal(found, np.float32([1, 1 + 2.0**-6]))


@given(numbers, st.sampled_from(sorted(LEVELS)), st.sampled_from([0, 3]))
@settings(max_examples=100, deadline=None)
def test_whole_numbers_are_within_half_a_step_of_their_block(values, kind, level):
    length, top = LEVELS[kind]
    found = there_and_back(values, Encoding(kind, level))
    for start in range(0, len(values), length):
        block = values[start : start + length].astype(np.float64)
        # bfloat16 keeps 8 bits of a scale, and float32 24.
        loss = 2.0**-8 if kind == "int4" else 2.0**-22
        step = np.abs(block).max() / top * (1 + loss)
        error = np.abs(found[start : start + length] - block)
        assert error.max() <= step / 2 * (1 + 1e-5) + 1e-36


def test_int8_by_hand():
    values = np.float32([127, -127, 0.4, 0.5, 1.5, -2.6])  # a scale of 1
    found = there_and_back(values, Encoding("int8"))
    np.testing.assert_array_equal(found, [127, -127, 0, 0, 2, -3])  # ties to even


def test_int4_by_hand():
    values = np.float32([-7, 7, 0.4, 0.5, 1.5, -2.6, 3.0])
    data = encode(values, Encoding("int4"))
    # A scale, 1.0 in bfloat16, then two numbers a byte, the first in its low half.
    assert data == bytes([0x80, 0x3F, 0x79, 0x00, 0xD2, 0x03])
    np.testing.assert_array_equal(
        decode(data, 7, Encoding("int4")), [-7, 7, 0, 0, 2, -3, 3]
    )


@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 255, 256, 257, 1000])
def test_every_length_comes_back(encoding, count):
    values = noise(count)
    found = there_and_back(values, encoding)
    assert np.abs(found - values).max() <= np.abs(values).max() / 13
    if encoding.zstd == 0:
        assert len(encode(values, encoding)) == plain_size(encoding.kind, count)


@pytest.mark.parametrize(
    ("kind", "bits"),
    [("float32", 32), ("bfloat16", 16), ("int8", 8.125), ("int4", 4.125)],
)
def test_bits_a_number(kind, bits):
    assert 8 * plain_size(kind, 1 << 18) == bits * (1 << 18)


@pytest.mark.parametrize("encoding", ALL)
def test_zero_is_exact_also_beside_large_blocks(encoding):
    values = np.zeros(512, np.float32)
    values[300] = 3.0
    with np.errstate(all="raise"):
        found = there_and_back(values, encoding)
    np.testing.assert_array_equal(found, values if encoding.kind != "int4" else found)
    np.testing.assert_array_equal(np.delete(found, 300), 0)
    assert found[300] == pytest.approx(3.0, rel=2**-8)


@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-12, 1e-6, 1e12, 1e30, 1e37])
def test_every_magnitude_that_trains_works(encoding, scale):
    values = np.clip(noise(640), -3, 3)
    found = there_and_back((values * scale).astype(np.float32), encoding) / scale
    assert np.isfinite(found).all()
    # The worst case is int4: half of a step of a seventh of the largest.
    assert np.abs(found - values).max() <= 3 / 13
    assert np.abs(found).max() >= 1


@pytest.mark.parametrize("encoding", ALL)
def test_the_largest_and_the_smallest_are_finite(encoding):
    for value in (LARGEST, 1e-45, 1e-41, 2e-40):
        values = np.full(300, value, np.float32)
        assert fault(values, encoding.kind) == ""
        found = there_and_back(values, encoding)
        assert np.abs(found - values).max() <= max(value / 100, 1e-39)


@pytest.mark.parametrize("kind", sorted(LEVELS))
def test_no_sign_is_lost_where_scales_have_few_bits(kind):
    for value in np.geomspace(1e-44, 1e-37, 200).astype(np.float32):
        found = there_and_back(np.float32([value, -value]), Encoding(kind))
        assert found[0] >= 0
        assert found[1] == -found[0]


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_sent_is_told(kind):
    assert fault(np.float32([1, math.nan]), kind) == "a value that is NaN or infinite"
    assert fault(np.float32([1, -math.inf]), kind) == "a value that is NaN or infinite"
    said = fault(np.float32([0, -2e38]), kind)
    assert bool(said) == (kind != "float32")
    assert "2e+38" in said or kind == "float32"


@pytest.mark.parametrize("encoding", ALL)
def test_the_same_numbers_are_the_same_bytes(encoding):
    assert encode(noise(5000), encoding) == encode(noise(5000), encoding)


@pytest.mark.parametrize("encoding", ALL)
def test_arguments_are_left_alone(encoding):
    values = noise(500)
    values.flags.writeable = False
    encode(values, encoding)


def test_eight_times_less_than_float32():
    count = 1 << 18
    values = noise(count, scale=1e-3)
    assert 4 * count / len(encode(values, Encoding("int4", 3))) > 8
    error = there_and_back(values, Encoding("int4", 3)) - values
    assert np.linalg.norm(error) < 0.125 * np.linalg.norm(values)


@given(
    st.sampled_from(ALL), st.integers(1, 300), st.binary(max_size=1300), st.booleans()
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_decode_or_are_told(encoding, count, data, fit):
    if fit:  # the right size, so that it is read
        data = (data * 1300 or b"x" * 1300)[: plain_size(encoding.kind, count)]
        if encoding.zstd:
            data = zstandard.compress(data)
    try:
        assert decode(data, count, encoding).shape == (count,)
    except UpdateError:
        assert not fit


def test_zstd_that_unpacks_to_more_is_refused_before_it_is_unpacked(monkeypatch):
    bomb = zstandard.compress(bytes(1 << 24))
    monkeypatch.setattr(zstandard, "ZstdDecompressor", None)
    with pytest.raises(UpdateError, match="zstd of 16777216 bytes where there must be"):
        decode(bomb, 100, Encoding("float32", 3))


def without_size(data):
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    return compressor.compress(data)


# A frame by hand of 400 zeros that asks for a window of 64 MiB: magic, two bytes of
# size less 256, window 2^(10 + 16), a last block that repeats one byte 400 times.
WIDE = (
    bytes.fromhex("28b52ffd 40 80")
    + (400 - 256).to_bytes(2, "little")
    + (400 << 3 | 1 << 1 | 1).to_bytes(3, "little")
    + b"\0"
)


@pytest.mark.parametrize(
    "frame",
    [
        without_size(bytes(400)),
        zstandard.compress(bytes(200)) + zstandard.compress(bytes(200)),
        zstandard.compress(bytes(400)) + b"more",
        zstandard.compress(bytes(399)),
        zstandard.compress(bytes(400))[:-1],
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + zstandard.compress(bytes(400)),
        b"",
        WIDE[:-1],
    ],
    ids=[
        "no-size",
        "two",
        "more",
        "short",
        "cut",
        "skippable",
        "nothing",
        "cut and wide",
    ],
)
def test_zstd_must_be_one_frame_of_the_right_size(frame):
    with pytest.raises(UpdateError):
        decode(frame, 100, Encoding("float32", 3))


@pytest.mark.parametrize(
    "encoding",
    [
        Encoding("float16"),
        Encoding("int4", 23),
        Encoding("int4", -1),
        Encoding("int4", True),
        Encoding("int4", 1.0),
        Encoding(["int4"]),
        Encoding("a" * 1000),
    ],
)
def test_encodings_that_there_are_not(encoding):
    with pytest.raises(ValueError, match=r"take (one of float32|0 \(off\))") as caught:
        check(encoding)
    assert len(str(caught.value)) < 200


def test_a_wide_window_takes_no_memory():
    # Whole, it is unpacked into place; cut, zstd would make room for the window.
    assert not decode(WIDE, 100, Encoding("float32", 3)).any()
    with pytest.raises(UpdateError, match="too much memory"):
        decode(WIDE[:-1], 100, Encoding("float32", 3))
