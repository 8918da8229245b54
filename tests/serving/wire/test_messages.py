"""Messages: all of them cross unharmed; what isn't one is refused with one line."""

import contextlib

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.serving.wire import messages
from spheroid_jax.serving.wire.codec import (
    DTYPES,
    check_sweep,
    narrowed,
    pack,
    unpack,
    widened,
)
from spheroid_jax.serving.wire.frames import Frame, FrameError, frame
from spheroid_jax.serving.wire.messages import Close, StageSeconds, plain
from tests.serving.wire.hosts import BYTES, SWEEP, framed, frames

ID, MAC = bytes(range(16)), bytes(range(32))
ALL = [
    SWEEP,
    msgspec.structs.replace(
        SWEEP,
        fresh=True,
        fill="drafted",
        answer="ensemble",
        seed=2**32 - 1,
        temperature=0.0,
        top_k=5,
        top_p=0.25,
        want_logprobs=True,
        wire_dtype="bfloat16",
        seconds=(StageSeconds(0.5, 0.25),),
    ),
    messages.Result(ID, 1, 2, 3, (StageSeconds(0.1, 0.0), StageSeconds(0.2, 0.3))),
    messages.Failure(ID, 1, 2, 3, "peer", "127.0.0.1:1 can't be reached — ü"),
    Close(ID, 4),
    messages.Ping(5),
    messages.Pong(5, 1, 2.5, 3, 4, 2**40, True),
    messages.Hello(MAC, "spheroid_jax 0.1.0"),
    messages.Challenge(MAC),
    messages.Proof(ID, "frontend", {"a": 1, "b": 1.5, "c": "x", "d": None}, MAC),
    messages.Welcome(ID, "stage", {"last": True}, MAC),
    messages.Goodbye("closed", "it ends"),
]


def crossed(message, arrays=None):
    (found,) = frames(framed(message, arrays))
    return unpack(found)


@pytest.mark.parametrize("message", ALL, ids=lambda m: type(m).__name__)
def test_every_message_crosses(message):
    found, arrays = crossed(message, BYTES)
    assert found == message
    assert type(found) is type(message)
    np.testing.assert_array_equal(arrays["bytes"], BYTES["bytes"])


def test_every_kind_of_message_is_tried_here():
    kinds = set(messages.Message.__args__)
    assert {type(message) for message in ALL} == kinds


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 5), (2, 0, 3), (1, 2, 1, 7)])
def test_arrays_of_every_type_cross_bit_for_bit(dtype, shape):
    rng = np.random.default_rng(0)
    kind = DTYPES[dtype]
    size = int(np.prod(shape)) * kind.itemsize
    raw = rng.integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
    array = raw.view(kind).reshape(shape)  # NaNs and infinities among them
    _, found = crossed(Close(ID, 0), {"one": raw[:1], "two": array, "three": raw})
    assert found["two"].dtype == kind
    assert found["two"].shape == shape
    assert found["two"].tobytes() == array.tobytes()
    assert found["three"].tobytes() == raw.tobytes()
    assert found["two"].flags.aligned


def test_arrays_that_lie_otherwise_cross_by_value():
    grid = np.arange(12.0).reshape(3, 4)
    sent = {"t": grid.T, "s": grid[::2, 1::2], "b": grid.astype(">f8"), "r": grid[::-1]}
    _, found = crossed(Close(ID, 0), sent)
    for name, array in sent.items():
        np.testing.assert_array_equal(found[name], array)


def test_contiguous_arrays_arent_copied():
    array = np.ones((64, 64), np.float32)
    *_, part = pack(Close(ID, 0), {"state": array})
    assert np.shares_memory(np.frombuffer(part, np.float32), array)


@pytest.mark.parametrize("dtype", ["complex64", "object", "U3", "M8[s]"])
def test_other_types_arent_sent(dtype):
    with pytest.raises(ValueError, match=r"array x .* isn't sent: use one of"):
        pack(Close(ID, 0), {"x": np.zeros(3, dtype)})


def test_small_messages_are_small():
    """A trip's result is w bytes and little more; of 64 drawn bytes at most half."""
    result = messages.Result(ID, 1, 0, 2, (StageSeconds(0.1, 0.1),) * 3)
    assert len(framed(result, {"bytes": np.zeros(64, np.uint8)})) < 256
    assert len(framed(Close(ID, 0))) < 100


def header(message, arrays=()):
    return msgspec.msgpack.encode([message, list(arrays)])


def plain_sweep(**changed):
    return {**msgspec.to_builtins(SWEEP, builtin_types=(bytes,)), **changed}


@pytest.mark.parametrize(
    "raw",
    [
        b"\xc1",
        b"",
        b"not msgpack",
        header({}),
        header({"type": "sweep"}),
        header({"type": "unheard_of"}),
        header([1, 2, 3]),
        header(plain_sweep(request=b"short")),
        header(plain_sweep(request="r" * 16)),
        header(plain_sweep(number=-1)),
        header(plain_sweep(number=2**31)),
        header(plain_sweep(number="1")),
        header(plain_sweep(known=0)),
        header(plain_sweep(known=5, count=4)),
        header(plain_sweep(deadline=float("nan"))),
        header(plain_sweep(deadline=-1.0)),
        header(plain_sweep(temperature=float("nan"))),
        header(plain_sweep(temperature=float("inf"))),
        header(plain_sweep(top_p=0.0)),
        header(plain_sweep(top_p=1.5)),
        header(plain_sweep(seed=2**32)),
        header(plain_sweep(fill="guessed")),
        header(plain_sweep(answer="first")),
        header(plain_sweep(route=["a:1"] * 257)),
        header(plain_sweep(route=["a" * 101])),
        header(plain_sweep()) + b"\x00",
        header(plain_sweep(more=None))[:-3] + b"\xdd\xff\xff\xff\xff",
        b"\x92\x81\xa1x" + b"\x91" * 60_000,  # a field we don't know, nested deeply
        b"\x92" + b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_what_is_no_message_is_refused(raw):
    with pytest.raises(FrameError) as caught:
        unpack(Frame(raw, np.zeros(0, np.uint8)))
    assert caught.value.code == "malformed"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_fields_that_arent_known_are_ignored():
    found, _ = unpack(Frame(header(plain_sweep(novelty=[1])), np.zeros(0, np.uint8)))
    assert found == SWEEP


@pytest.mark.parametrize(
    "described",
    [
        [["x", "float32", [3]]],  # 12 bytes of 8
        [["x", "uint8", [7]]],  # 7 of 8
        [],
        [["x", "uint8", [2**31 - 1] * 8]],
        [["x", "uint8", [-8]]],
        [["x", "uint8", [0] + [2**31 - 1] * 7], ["y", "uint8", [8]]],
        [["x", "float128", [0]], ["y", "uint8", [8]]],
        [["x", "object", [1]]],
        [["x", "uint8", [8]], ["x", "uint8", [0]]],
        [["x", "bool", [8]]],  # 7 isn't a truth value
        [["X/", "uint8", [8]]],
        [["x", "uint8", [1] * 9]],
        [[f"x{'y' * n}", "uint8", [0]] for n in range(17)],
    ],
)
def test_arrays_that_arent_what_is_said_are_refused(described):
    payload = np.full(8, 7, np.uint8)
    with pytest.raises(FrameError) as caught:
        unpack(Frame(header(msgspec.to_builtins(messages.Ping(1)), described), payload))
    assert caught.value.code == "malformed"


@given(st.binary(max_size=120))
@settings(deadline=None, max_examples=300)
def test_noise_behind_a_right_checksum_is_a_frame_error(noise):
    good = header(plain_sweep(), [["bytes", "uint8", [4]]])
    for raw in (noise or b"\x00", good[: len(noise)] + noise + good[2 * len(noise) :]):
        pieces = frame(raw, [np.zeros(4, np.uint8)])
        (found,) = frames(b"".join(pieces))
        with contextlib.suppress(FrameError):  # anything else fails the test
            assert isinstance(unpack(found)[0], messages.Message)


def test_floats_are_narrowed_for_the_wire_and_no_further():
    state = np.array([1.0, -3.14159, 70_000.0, np.nan], np.float32)
    assert narrowed(state, "float32") is state
    half = narrowed(state, "float16")
    assert half.dtype == np.float16
    assert np.isinf(half[2])  # shows, rather than being bent into range
    brain = narrowed(state, "bfloat16")
    assert brain.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(widened(brain)[:3], state[:3], rtol=2**-8)
    assert widened(brain).dtype == np.float32
    assert np.isnan(widened(brain)[3])


def state(count=4, width=6, dtype="float32"):
    return np.zeros((count, width), DTYPES[dtype])


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"state": state()},
        {"state": state(dtype="bfloat16"), "guess": state(dtype="float16")},
        {"state": state(), "logs": state(width=256)},
    ],
)
def test_a_sweep_whose_arrays_fit(arrays):
    check_sweep(SWEEP, {**BYTES, **arrays})


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"bytes": np.zeros(3, np.uint8)}, r"bytes must be 4 .* \(3,\)"),
        ({"bytes": np.zeros(4, np.int8)}, "bytes must be 4 .* int8"),
        ({"state": state(3)}, r"state must be \(4, width\)"),
        ({"state": state()[0]}, "state must be"),
        ({"state": np.zeros((4, 6), np.int32)}, "state must be"),
        ({"state": state(), "logs": state()}, r"logs must be \(4, 256\)"),
        ({"state": state(), "guess": state(width=5)}, "one shape"),
        ({"guess": state()}, "there is none"),
        ({"extra": state()}, "doesn't belong"),
    ],
)
def test_a_sweep_whose_arrays_dont_fit(arrays, said):
    with pytest.raises(ValueError, match=said):
        check_sweep(SWEEP, {**BYTES, **arrays})


def test_a_sweep_without_bytes():
    with pytest.raises(ValueError, match="bytes must be 4 of uint8, it is not there"):
        check_sweep(SWEEP, {})


def test_a_peers_text_cant_forge_lines_of_our_log():
    assert plain("one\nline\x1b[31m\r" + "x" * 900) == "one line?[31m " + "x" * 286
