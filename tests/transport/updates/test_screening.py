import json
import math
import statistics
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.transport.updates import (
    KINDS,
    Encoding,
    NormBound,
    UpdateReader,
    screen,
    write_update,
)
from spheroid_jax.transport.updates.header import CHUNK
from tests.transport.updates.files import opened, parted, sealed

SHAPES = {"a": (), "none": (0,), "w": (2, 3), "x": (CHUNK + 3,)}


def leaves(seed=0):
    noise = np.random.default_rng(seed)
    return {
        name: np.asarray(noise.standard_normal(shape), np.float32)
        for name, shape in SHAPES.items()
    }


def screened(path, update, expected=None, bound=None, kind="float32"):
    write_update(path, update, Encoding(kind), {}, finite=False)
    with UpdateReader(path) as reader:
        return screen(reader, expected or SHAPES, bound)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "u"


def test_norm_is_over_all_leaves(path):
    update = leaves()
    found = screened(path, update)
    squares = [np.sum(leaf.astype(np.longdouble) ** 2) for leaf in update.values()]
    assert found.norm == pytest.approx(float(np.sqrt(sum(squares))), rel=1e-12)
    assert found.why == ""


def test_norm_does_not_lose_small_numbers(path):
    # 2^24 + 1 in float32 is 2^24: a sum in float32 would stop there.
    update = {"x": np.concatenate([[2.0**12], np.ones(2 * CHUNK)]).astype(np.float32)}
    found = screened(path, update, {"x": update["x"].shape})
    assert found.norm == math.sqrt(2**24 + 2 * CHUNK)


def test_norm_of_the_largest_numbers_is_finite(path):
    update = {"x": np.full(4, 3e38, np.float32)}
    found = screened(path, update, {"x": (4,)})
    assert found == (pytest.approx(6e38, rel=1e-6), "")


def test_bound_itself_is_accepted(path):
    update = {"x": np.float32([3, 4])}
    assert screened(path, update, {"x": (2,)}, 5.0) == (5.0, "")
    found = screened(path, update, {"x": (2,)}, math.nextafter(5.0, 0))
    assert found == (5.0, "its norm 5 is over the bound 5")
    assert screened(path, update, {"x": (2,)}, 0.5).why == (
        "its norm 5 is over the bound 0.5"
    )
    assert screened(path, update, {"x": (2,)}, math.nan).why


@pytest.mark.parametrize(
    ("value", "said"),
    [(math.nan, "NaN"), (math.inf, "an infinite"), (-math.inf, "an infinite")],
)
@pytest.mark.parametrize("name", ["a", "w", "x"])
def test_not_finite_anywhere(path, name, value, said):
    update = leaves()
    update[name].reshape(-1)[-1] = value
    found = screened(path, update, bound=1e9)
    assert math.isnan(found.norm)
    assert found.why.startswith(f"leaf '{name}' holds {said}")


def test_infinity_beside_nan_is_not_finite(path):
    update = {"x": np.float32([math.inf, -math.inf, math.nan])}
    assert "holds" in screened(path, update, {"x": (3,)}).why


@pytest.mark.parametrize("kind", ["int8", "int4", "bfloat16"])
def test_scales_that_make_infinity_or_nan_are_seen(path, kind):
    reader = opened(path, {"x": np.ones(64, np.float32)}, kind=kind)
    reader.close()
    header, [chunk] = parted(path.read_bytes(), 1)
    for scale in (b"\x80\x7f", b"\xc0\x7f", b"\x7f\x7f"):  # inf, NaN, the largest
        bad = scale if kind != "int8" else b"\0\0" + scale
        path.write_bytes(sealed(json.dumps(header).encode(), [bad + chunk[len(bad) :]]))
        with UpdateReader(path) as reader:
            found = screen(reader, {"x": (64,)}, None)
        largest = scale == b"\x7f\x7f"
        assert (
            found.why == "" if kind == "bfloat16" and largest else "holds" in found.why
        )


def without(update, name):
    return {key: leaf for key, leaf in update.items() if key != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda u: without(u, "w"), "leaf 'w' is missing"),
        (lambda u: without(u, "none"), "leaf 'none' is missing"),
        (lambda u: {**u, "y": u["w"]}, "leaf 'y' isn't one of this block's"),
        (lambda u: {**u, "w": u["w"].T}, "leaf 'w' has shape (3, 2), not (2, 3)"),
        (lambda u: {**u, "a": u["a"][np.newaxis]}, "leaf 'a' has shape (1,), not ()"),
    ],
)
def test_another_tree(path, change, said):
    found = screened(path, change(leaves()))
    assert math.isnan(found.norm)
    assert found.why == said


def test_damage_is_a_finding(path):
    with opened(path, leaves()) as reader:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
        found = screen(reader, SHAPES, None)
    assert "damaged bytes" in found.why


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_of_chunks(path, kind):
    peaks = []
    for chunks in (2, 16):
        update = {"x": np.ones(chunks * CHUNK, np.float32)}
        with opened(path, update, kind=kind, zstd=1) as reader:
            tracemalloc.start()
            screen(reader, {"x": (chunks * CHUNK,)}, None)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + CHUNK
    assert peaks[1] < 8 * 4 * CHUNK


# The bound.

norms = st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=40)


@given(norms)
@settings(deadline=None)
def test_bound_follows_the_median_of_the_last(values):
    bound = NormBound(factor=4, window=9)
    for value in values:
        bound.accept(2, value)
    assert bound.bound(2, 0.0) == 4 * statistics.median_low(values[-9:])


def test_first_bound_is_the_norm_of_the_part():
    bound = NormBound(first=3, relative=0.5, factor=4)
    for norm in (1.0, 2.0):
        assert bound.bound(0, 30.0) == 15
        bound.accept(0, norm)
    bound.accept(0, 3.0)
    assert bound.bound(0, 30.0) == 8
    assert bound.bound(1, 30.0) == 15  # another block
    assert bound.bound(1, 0.0) == math.inf


def test_zero_updates_do_not_lock_a_block():
    bound = NormBound(least=0.01)
    for _ in range(30):
        bound.accept(0, 0.0)
    assert bound.bound(0, 50.0) == 0.5


@given(st.lists(st.floats(0.5, 2.0), min_size=60, max_size=60), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_a_minority_at_the_bound_does_not_raise_it(honest, seed):
    """Two of five workers send the bound itself, in any order, for 60 rounds."""
    order, bound = np.random.default_rng(seed), NormBound()
    part = 10.0
    for norm in honest[:20]:  # what is known before they turn
        bound.accept(0, norm)
    for norm in honest[20:]:
        sent = [norm, norm, norm, bound.bound(0, part), bound.bound(0, part)]
        order.shuffle(sent)
        for value in sent:
            assert bound.bound(0, part) <= 5 * 2.0
            if value <= bound.bound(0, part):
                bound.accept(0, value)
    assert bound.bound(0, part) >= 5 * 0.5


def test_a_minority_from_the_first_round_on_gets_the_norm_of_the_part():
    bound, part, honest = NormBound(), 100.0, 1.0
    for _ in range(40):
        for attacker in (False, True, False, True, False):
            limit = bound.bound(0, part)
            assert limit <= part
            bound.accept(0, limit if attacker else honest)
    assert bound.bound(0, part) == 5 * honest


def test_alone_an_attacker_gains_a_factor_each_half_window():
    bound, limits = NormBound(factor=5, window=20, first=5), []
    for _ in range(20):
        bound.accept(0, 1.0)
    for _ in range(110):
        limits.append(bound.bound(0, 1.0))
        bound.accept(0, limits[-1])
    # 11 of 20 have to be replaced before the median moves.
    assert limits == [pytest.approx(5 ** (1 + n // 11)) for n in range(110)]


def test_alone_in_a_new_block_an_attacker_is_no_faster_but_once():
    bound, limits = NormBound(factor=5, window=20, first=5), []
    for _ in range(60):
        limits.append(bound.bound(0, 1.0))
        bound.accept(0, limits[-1])
    assert limits[:12] == [1.0] * 5 + [5.0] * 6 + [25.0]
    for n in range(1, 60):
        assert limits[n] <= 5 ** (2 + (n - 11) // 11) if n >= 11 else limits[n] <= 5


def test_honest_norms_may_grow_and_shrink():
    """A warm-up from nothing over 100 updates, then a decay: none is refused."""
    bound = NormBound()
    steps = [n / 100 for n in range(100)] + [0.98**n for n in range(200)]
    for norm in steps:
        assert norm <= bound.bound(0, 50.0)
        bound.accept(0, norm)


def test_state_is_json_and_goes_on():
    bound = NormBound()
    for n in range(30):
        bound.accept(n % 2, 1.0 + n)
    again = NormBound()
    again.restore(json.loads(json.dumps(bound.state(), allow_nan=False)))
    for block in (0, 1, 2):
        assert again.bound(block, 7.0) == bound.bound(block, 7.0)
    bound.forget(1)
    assert bound.bound(1, 7.0) == 7.0
    assert again.bound(1, 7.0) != 7.0


@pytest.mark.parametrize(
    "state",
    [
        {"a": []},
        {"-1": []},
        {"0": 1.0},
        {"0": ["1"]},
        {"0": [True]},
        {"0": [math.nan]},
        {"0": [-1.0]},
    ],
)
def test_states_that_are_none(state):
    bound = NormBound()
    bound.accept(3, 1.0)
    with pytest.raises(ValueError, match="no state of norms, at block"):
        bound.restore(state)
    assert bound.state() == {"3": [1.0]}


@pytest.mark.parametrize("norm", [math.nan, math.inf, -1.0])
def test_norms_that_nobody_accepted(norm):
    with pytest.raises(ValueError, match="norm is"):
        NormBound().accept(0, norm)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"factor": 1.0}, "factor is 1.0"),
        ({"factor": math.nan}, "factor is nan"),
        ({"first": 0}, "first is 0"),
        ({"first": 21}, "first is 21: take 1 to window, 20"),
        ({"relative": 0.0}, "least is 0.001"),
        ({"least": 0.0}, "least is 0.0"),
    ],
)
def test_settings_that_cannot_be(arguments, said):
    with pytest.raises(ValueError, match=said):
        NormBound(**arguments)
