import concurrent.futures
import json
import math
import os
import struct
import tracemalloc
import zlib

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3

from spheroid_jax.transport.updates import (
    KINDS,
    Encoding,
    UpdateError,
    UpdateReader,
    ranges,
    write_update,
)
from spheroid_jax.transport.updates.header import CHUNK, LIMIT
from tests.transport.updates.files import (
    opened,
    whole,
    write,
)

LEAVES = {
    "block/w": np.arange(12, dtype=np.float32).reshape(3, 4) - 5,
    "bias": np.float32([0.5, -2]),
    "gain": np.float32(3),
    "none": np.zeros((0, 4), np.float32),
}
ORDER = ["bias", "block/w", "gain", "none"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "7-0-alice-0.update"


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("zstd", [0, 3])
def test_what_was_written_is_read(path, zstd):
    with opened(path, LEAVES, zstd=zstd) as reader:
        assert reader.facts == {"round": 3}
        assert reader.encoding == Encoding("float32", zstd)
        assert list(reader.leaves) == ORDER
        for name, values in whole(reader).items():
            assert reader.leaves[name] == LEAVES[name].shape
            np.testing.assert_array_equal(values, LEAVES[name].reshape(-1))


def test_file_and_digest_are_those_returned(path):
    written = write_update(path, LEAVES, Encoding("int8", 3), {})
    data = path.read_bytes()
    assert written == (len(data), blake3(data).hexdigest())
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zstd", [0, 1])
def test_any_range_is_that_of_the_whole(path, kind, zstd):
    count = 2 * CHUNK + 77
    with opened(path, {"a": noise(5), "x": noise(count)}, kind=kind, zstd=zstd) as file:
        everything = file.read("x", 0, count)
        for start, stop in [
            (0, 0),
            (0, 1),
            (CHUNK - 1, CHUNK + 1),
            (CHUNK, 2 * CHUNK),
            (count - 3, count),
            (count, count),
            (5, 2 * CHUNK + 5),
        ]:
            np.testing.assert_array_equal(
                file.read("x", start, stop), everything[start:stop]
            )
        error = np.abs(everything - noise(count)).max()
        assert (
            error <= {"float32": 0, "bfloat16": 0.02, "int8": 0.03, "int4": 0.5}[kind]
        )


def test_threads_may_read_at_the_same_time(path):
    values = noise(4, CHUNK)
    with (
        opened(path, {"x": values}, zstd=1) as file,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        wanted = [n % 4 for n in range(40)]
        found = pool.map(lambda n: file.read("x", n * CHUNK, (n + 1) * CHUNK), wanted)
        for n, got in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(got, values[n])


def test_chunks_are_encoded_by_themselves(path):
    values = noise(CHUNK + 5)
    both = opened(path, {"x": values}, kind="int4")
    tail = opened(path.with_name("tail"), {"x": values[CHUNK:]}, kind="int4")
    with both, tail:
        np.testing.assert_array_equal(
            both.read("x", CHUNK, CHUNK + 5), tail.read("x", 0, 5)
        )


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_floats_become_float32(path, dtype):
    with opened(path, {"x": np.array([0.5, -3, 1.25], dtype)}) as reader:
        np.testing.assert_array_equal(reader.read("x", 0, 3), [0.5, -3, 1.25])


def test_transposed_leaves_are_written_in_c_order(path):
    with opened(path, {"x": LEAVES["block/w"].T}) as reader:
        assert reader.leaves["x"] == (4, 3)
        np.testing.assert_array_equal(reader.read("x", 0, 3), LEAVES["block/w"][:, 0])


def test_an_update_in_place_of_another(path):
    write(path, LEAVES)
    with opened(path, {"x": np.ones(2)}) as reader:
        assert list(reader.leaves) == ["x"]


# What can't be written.


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_refused(path, value, kind):
    with pytest.raises(UpdateError, match="leaf 'x' has a value that is NaN or inf"):
        write(path, {"a": np.ones(3), "x": np.array([1.0, value])}, kind)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS[1:])
def test_too_large_for_an_encoding_is_refused(path, kind):
    with pytest.raises(UpdateError, match=r"magnitude 2e\+38, over " + kind):
        write(path, {"x": np.float32([2e38])}, kind)


def test_float64_beyond_float32_is_refused(path):
    with pytest.raises(UpdateError, match="infinite"):
        write(path, {"x": np.array([1e39])})


def test_anything_is_written_for_tests_of_a_receiver(path):
    bad = {"x": np.float32([math.nan, math.inf, 1])}
    for kind in KINDS:
        write_update(path, bad, Encoding(kind), {}, finite=False)
        with UpdateReader(path) as reader:
            reader.read("x", 0, 3)
    write_update(path, bad, Encoding(), {}, finite=False)
    with UpdateReader(path) as reader:
        np.testing.assert_array_equal(reader.read("x", 0, 3), bad["x"])


@pytest.mark.parametrize(
    ("leaves", "facts", "said"),
    [
        ({}, {}, "no list of leaves"),
        ({"x": np.arange(3)}, {}, "leaf 'x' is int64: an update is of floats"),
        ({"x": np.array([{}])}, {}, "leaf 'x' is object"),
        ({"x": np.array([1j])}, {}, "leaf 'x' is complex"),
        ({"a\nb": np.ones(1)}, {}, "can't be printed"),
        ({"\ud800": np.ones(1)}, {}, "can't be printed"),
        ({"": np.ones(1)}, {}, "1 to 1000 characters"),
        ({"x": np.ones(1)}, {"a": math.nan}, "facts of an update must be finite JSON"),
        ({"x": np.ones(1)}, {"a": b"b"}, "facts of an update must be finite JSON"),
        ({"x": np.ones(1)}, {"a": "b" * LIMIT}, f"{LIMIT} at most"),
    ],
)
def test_what_is_no_update(path, leaves, facts, said):
    with pytest.raises(ValueError, match=said):
        write_update(path, leaves, Encoding(), facts)
    assert list(path.parent.iterdir()) == []


def test_a_full_disk_leaves_nothing(path, monkeypatch):
    path.write_bytes(b"before")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, LEAVES)
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == {
        path.name: b"before"
    }


# Sizes.


def test_memory_of_writing_and_reading_is_of_chunks(tmp_path):
    peaks = []
    for chunks in (2, 24):
        leaves = {"x": np.ones(chunks * CHUNK, np.float32)}
        tracemalloc.start()
        with opened(tmp_path / "u", leaves, kind="int4", zstd=1) as reader:
            for start, stop in ranges(chunks * CHUNK):
                reader.read("x", start, stop)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + CHUNK
    assert peaks[1] < 8 * 4 * CHUNK


def test_more_than_two_gibibytes(path):
    """Offsets past 2^32: a leaf of 4.3 GB, which is a hole in the file."""
    count = (1 << 30) + 5
    header = json.dumps(
        {
            "encoding": {"kind": "float32", "zstd": 0},
            "facts": {},
            "leaves": [["x", [count]], ["y", [2]]],
        }
    ).encode()
    start = struct.pack("<8sII", b"SPHRUPDT", 1, len(header)) + header
    zero = struct.pack("<II", 4 * CHUNK, zlib.crc32(bytes(4 * CHUNK)))
    rest = struct.pack("<II", 20, zlib.crc32(bytes(20)))
    last = struct.pack("<ff", 1.5, -2)
    with open(path, "wb") as file:
        file.write(start)
        file.seek(4 * count, os.SEEK_CUR)
        file.write(last + zero * (count // CHUNK) + rest)
        file.write(struct.pack("<II", 8, zlib.crc32(last)))
        file.write(struct.pack("<I", zlib.crc32(start)))
    with UpdateReader(path) as reader:
        np.testing.assert_array_equal(reader.read("y", 0, 2), [1.5, -2])
        np.testing.assert_array_equal(reader.read("x", count - 7, count), np.zeros(7))
