"""Files that are no updates: each is told in a line, before memory is taken."""

import json
import math
import os
import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.transport.updates import (
    KINDS,
    UpdateError,
    UpdateReader,
)
from spheroid_jax.transport.updates.header import CHUNK, LIMIT
from tests.transport.updates.files import (
    PRELUDE,
    changed,
    opened,
    parted,
    sealed,
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
CHUNKS = 3


@pytest.fixture
def path(tmp_path):
    return tmp_path / "7-0-alice-0.update"


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def told(path):
    """Reads a file wholly; why it can't be, empty if it can."""
    try:
        with UpdateReader(path) as reader:
            for name, values in whole(reader).items():
                assert values.shape == (math.prod(reader.leaves[name]),)
    except UpdateError as error:
        return str(error)
    return ""


def refused(path, data, read=True):
    """The one line that says what is wrong with a file, on opening or reading."""
    path.write_bytes(data)
    said = told(path)
    if not read:
        with pytest.raises(UpdateError):
            UpdateReader(path)
    assert said.startswith(f"update {path.name} ")
    assert "\n" not in said
    assert len(said) < 500
    return said


@pytest.mark.parametrize("zstd", [0, 3])
def test_every_flipped_bit_is_seen(path, zstd):
    data = write(path, LEAVES, "int8", zstd)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        refused(path, bytes(flipped))


def test_every_truncation_is_seen_on_opening(path):
    data = write(path, LEAVES, "int4", 3)
    for size in range(len(data)):
        refused(path, data[:size], read=False)
    for more in (b"\0", b"\0" * 8, data):
        refused(path, data + more, read=False)
        refused(path, more + data, read=False)


def test_chunks_that_changed_places_are_seen(path):
    leaves = {"x": noise(10), "y": noise(10, seed=1)}
    data = bytearray(write(path, leaves))
    (length,) = struct.unpack_from("<I", data, 12)
    at = PRELUDE + length
    data[at : at + 80] = data[at + 40 : at + 80] + data[at : at + 40]
    assert "damaged bytes (their CRC-32 is another) in chunk 0" in refused(
        path, bytes(data)
    )


def test_files_that_are_none(path):
    with pytest.raises(UpdateError, match=r"can't be read \(No such file or dir"):
        UpdateReader(path)
    with pytest.raises(UpdateError, match="no file"):
        UpdateReader(path.parent)
    os.mkfifo(path)
    with pytest.raises(UpdateError, match="no file"):
        UpdateReader(path)


def test_ranges_that_there_are_not(path):
    with opened(path, LEAVES) as reader:
        for start, stop in [(-1, 1), (0, 3), (2, 1), (3, 3)]:
            with pytest.raises(ValueError, match="no range"):
                reader.read("bias", start, stop)
        with pytest.raises(ValueError, match="no leaf 'y'"):
            reader.read("y", 0, 0)


def test_closed_is_closed(path):
    reader = opened(path, LEAVES)
    reader.close()
    reader.close()
    with pytest.raises(UpdateError, match="can't be read"):
        reader.read("bias", 0, 2)


def test_files_that_shrink_while_they_are_read(path):
    with opened(path, {"x": noise(1000)}) as reader:
        os.truncate(path, 500)
        with pytest.raises(UpdateError, match="an early end in chunk 0 of leaf 'x'"):
            reader.read("x", 0, 1)


def leaf(header, number=0):
    return header["leaves"][number]


HEADERS = {
    "a field less": lambda h: h.pop("facts"),
    "a field more": lambda h: h.update(more=1),
    "facts of another type": lambda h: h.update(facts=[]),
    "no leaves": lambda h: h["leaves"].clear(),
    "leaves of another type": lambda h: h.update(leaves={"bias": [2]}),
    "a leaf of three": lambda h: leaf(h).append(0),
    "a leaf that is none": lambda h: h["leaves"].insert(0, None),
    "a name that is none": lambda h: leaf(h).__setitem__(0, 1),
    "an empty name": lambda h: leaf(h).__setitem__(0, ""),
    "a long name": lambda h: leaf(h).__setitem__(0, "a" * 1001),
    "a line in a name": lambda h: leaf(h).__setitem__(0, "a\nb"),
    "half a character": lambda h: leaf(h).__setitem__(0, "\ud800"),
    "out of order": lambda h: h["leaves"].reverse(),
    "a leaf twice": lambda h: h["leaves"].insert(0, leaf(h)),
    "a shape that is none": lambda h: leaf(h).__setitem__(1, 2),
    "a shape of text": lambda h: leaf(h).__setitem__(1, "2"),
    "an axis of truth": lambda h: leaf(h, 2).__setitem__(1, [True]),
    "a negative axis": lambda h: leaf(h).__setitem__(1, [-1, -2]),
    "a broken axis": lambda h: leaf(h).__setitem__(1, [2.0]),
    "a huge axis": lambda h: leaf(h).__setitem__(1, [2**64 + 2]),
    "a huge product": lambda h: leaf(h).__setitem__(1, [2**30, 2**30]),
    "huge but empty": lambda h: leaf(h, 3).__setitem__(1, [0, 2**64]),
    "many axes": lambda h: leaf(h, 3).__setitem__(1, [0] * 33),
    "other counts": lambda h: leaf(h).__setitem__(1, [3]),
    "many chunks": lambda h: leaf(h).__setitem__(1, [2**39]),
    "another kind": lambda h: h["encoding"].update(kind="float16"),
    "no kind": lambda h: h["encoding"].update(kind=None),
    "kinds": lambda h: h["encoding"].update(kind=["int8"]),
    "a level too high": lambda h: h["encoding"].update(zstd=23),
    "a level of truth": lambda h: h["encoding"].update(zstd=True),
    "a parameter more": lambda h: h["encoding"].update(window=30),
    "a parameter less": lambda h: h["encoding"].pop("zstd"),
    "no encoding": lambda h: h.update(encoding="int8"),
    "another encoding": lambda h: h["encoding"].update(kind="bfloat16"),
    "NaN": lambda h: h["facts"].update(x=math.nan),
}


@pytest.mark.parametrize("change", HEADERS)
def test_headers_that_say_something_else(path, change):
    data = changed(write(path, LEAVES), HEADERS[change], CHUNKS)
    refused(path, data, read=False)


RAW = {
    "no JSON": b"{",
    "no text": b"\xff\xfe{}",
    "null": b"null",
    "deep": b"[" * 100_000,
    "deep in facts": b'{"facts":' + b'{"a":' * 100_000,
    "digits": b'{"facts":{"a":' + b"9" * 10_000 + b"}}",
    "beyond a float": b'{"encoding":{"kind":"float32","zstd":0},"facts":{"a":1e999},'
    b'"leaves":[["x",[0]]]}',
    "twice": b'{"encoding":{"kind":"float32","zstd":0},"facts":{},"facts":{},'
    b'"leaves":[["x",[0]]]}',
    "too long": b" " * (LIMIT + 1),
}


@pytest.mark.parametrize("header", RAW)
def test_headers_that_are_none(path, header):
    refused(path, sealed(RAW[header], []), read=False)


def test_a_header_by_hand_is_read(path):
    header = b'{"encoding":{"kind":"float32","zstd":0},"facts":{},"leaves":[["x",[1]]]}'
    path.write_bytes(sealed(header, [struct.pack("<f", 2.5)]))
    with UpdateReader(path) as reader:
        np.testing.assert_array_equal(reader.read("x", 0, 1), [2.5])


def test_another_version_and_another_kind_of_file(path):
    data = write(path, LEAVES)
    later = data[:8] + struct.pack("<I", 2) + data[12:]
    assert "version 2 of the format, not 1" in refused(path, later, read=False)
    assert "another kind of file" in refused(path, b"PK" + data[2:], read=False)


def test_bombs_take_no_memory(path):
    header, _ = parted(write(path, {"x": noise(CHUNK)}, "float32", 3), 1)
    bomb = zstandard.compress(bytes(1 << 28))
    raw = json.dumps(header).encode()
    path.write_bytes(sealed(raw, [bomb]))
    tracemalloc.start()
    said = refused(path, sealed(raw, [bomb]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "zstd of 268435456 bytes where there must be 1048576" in said
    assert peak < 4 << 20


def test_many_small_values_in_a_header_take_bounded_memory(path):
    header = b'{"a":[' + b"[]," * (LIMIT // 3 - 10) + b"0]}"
    data = sealed(header, [])
    tracemalloc.start()
    refused(path, data, read=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_sizes_beyond_the_file_take_no_memory(path):
    header, _ = parted(write(path, {"x": noise(9)}, "int4", 3), 1)
    header["leaves"] = [["x", [CHUNK << 19]]]
    start = json.dumps(header).encode()
    tracemalloc.start()
    said = refused(path, sealed(start, [b"x"]), read=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"too few for {1 << 19} chunks" in said
    assert peak < 1 << 20


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    path = tmp_path_factory.mktemp("sample") / "u"
    return path, {
        (kind, zstd): write(path, LEAVES, kind, zstd)
        for kind in KINDS
        for zstd in (0, 3)
    }


def opens_or_is_told(path, data):
    path.write_bytes(data)
    assert "\n" not in told(path)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_fuzz_of_bytes(sample, data):
    path, files = sample
    content = bytearray(files[data.draw(st.sampled_from(sorted(files)))])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        new = data.draw(st.binary(max_size=8))
        content[at : at + data.draw(st.integers(0, 8))] = new
        content = content or bytearray(b"x")
    opens_or_is_told(path, bytes(content))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_fuzz_of_chunks_under_right_check_sums(sample, data):
    """What somebody sends who knows the format."""
    path, files = sample
    header, chunks = parted(files[data.draw(st.sampled_from(sorted(files)))], CHUNKS)
    victim = data.draw(st.integers(0, CHUNKS - 1))
    chunk = bytearray(chunks[victim])
    at = data.draw(st.integers(0, len(chunk)))
    new = data.draw(st.binary(max_size=12))
    same = data.draw(st.booleans())
    chunk[at : at + (len(new) if same else data.draw(st.integers(0, 12)))] = new
    chunks[victim] = bytes(chunk[: len(chunks[victim])]) if same else bytes(chunk)
    opens_or_is_told(path, sealed(json.dumps(header).encode(), chunks))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([*KINDS, *ORDER, 2**40, -1]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["kind", "zstd", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_fuzz_of_headers_under_right_check_sums(sample, data):
    path, files = sample
    header, chunks = parted(files[data.draw(st.sampled_from(sorted(files)))], CHUNKS)
    where = data.draw(
        st.sampled_from(
            ["encoding", "kind", "zstd", "facts", "leaves", "leaf", "shape"]
        )
    )
    value = data.draw(json_values)
    if where in header:
        header[where] = value
    elif where in header["encoding"]:
        header["encoding"][where] = value
    elif where == "leaf":
        header["leaves"][data.draw(st.integers(0, 3))] = value
    else:
        header["leaves"][data.draw(st.integers(0, 3))][1] = value
    opens_or_is_told(path, sealed(json.dumps(header).encode(), chunks))
