import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from spheroid_jax.transport.updates import (
    RULES,
    UpdateError,
    Weighted,
    aggregate,
    write_update,
)
from spheroid_jax.transport.updates.aggregation import cut
from spheroid_jax.transport.updates.encoding import Encoding
from spheroid_jax.transport.updates.file import UpdateReader
from spheroid_jax.transport.updates.header import CHUNK
from tests.transport.updates.files import opened

SHAPES = {"a/w": (3, CHUNK // 2 + 5), "b": (), "empty": (0, 4), "z": (7,)}


def tree(seed, shapes=None, scale=1.0):
    noise = np.random.default_rng(seed)
    return {
        name: np.asarray(scale * noise.standard_normal(shape), np.float32)
        for name, shape in (shapes or SHAPES).items()
    }


@pytest.fixture
def readers(tmp_path):
    opened_ones = []

    def of(trees, **options):
        new = [
            opened(tmp_path / f"{len(opened_ones)}-{n}", leaves, **options)
            for n, leaves in enumerate(trees)
        ]
        opened_ones.extend(new)
        return new

    yield of
    for reader in opened_ones:
        reader.close()


def gathered(pieces, shapes=None):
    """All pieces in their places; each number must come exactly once."""
    result = {
        name: np.full(math.prod(shape), np.nan, np.float32)
        for name, shape in (shapes or SHAPES).items()
    }
    for name, start, values in pieces:
        assert values.dtype == np.float32
        part = result[name][start : start + len(values)]
        assert len(part) == len(values)
        assert np.isnan(part).all()
        part[:] = values
    return result


def flat(trees, name):
    return np.stack([leaves[name].reshape(-1) for leaves in trees])


def test_mean_is_the_naive_sum_bit_for_bit(readers):
    trees = [tree(n) for n in range(4)]
    weights = [1.0, 0.5, 0.3, 1.0]
    found = gathered(
        aggregate([*map(Weighted, readers(trees), weights)], "mean"), SHAPES
    )
    for name in SHAPES:
        total = np.float32(weights[0]) * trees[0][name]
        for weight, leaves in zip(weights[1:], trees[1:], strict=True):
            total = total + np.float32(weight) * leaves[name]
        np.testing.assert_array_equal(found[name], (total / np.float32(4)).reshape(-1))


def test_mean_is_the_simulators(readers):
    from spheroid_jax.partition import masked_mean

    trees = [tree(n) for n in range(5)]
    present = np.array([True, False, True, True, False])
    stacked = {name: np.stack([t[name] for t in trees]) for name in SHAPES}
    expected = masked_mean(stacked, present)
    there = [leaves for leaves, here in zip(trees, present, strict=True) if here]
    found = gathered(aggregate([*map(Weighted, readers(there))], "mean"))
    for name in SHAPES:
        np.testing.assert_allclose(
            found[name], np.asarray(expected[name]).reshape(-1), rtol=1e-6, atol=1e-6
        )


def test_mean_depends_on_order_alone(readers):
    trees = [tree(n) for n in range(3)]
    a, b, c = map(Weighted, readers(trees))
    first, again = (gathered(aggregate([a, b, c], "mean")) for _ in range(2))
    for name in SHAPES:
        np.testing.assert_array_equal(first[name], again[name])


def test_weights_are_not_normalised(readers):
    same = readers([tree(0), tree(0)])
    found = gathered(aggregate([Weighted(r, 0.25) for r in same], "mean"))
    np.testing.assert_array_equal(found["z"], np.float32(0.25) * tree(0)["z"])


@pytest.mark.parametrize("rule", RULES)
def test_one_update_is_itself(readers, rule):
    leaves = tree(1)
    leaves["z"][0] = -0.0
    found = gathered(aggregate([Weighted(*readers([leaves]))], rule))
    for name in SHAPES:
        expected = leaves[name].reshape(-1)
        assert found[name].tobytes() == expected.tobytes()


@pytest.mark.parametrize("rule", RULES)
def test_zero_updates_make_zero(readers, rule):
    zeros = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    found = gathered(
        aggregate([Weighted(r) for r in readers([zeros] * 3, kind="int4")], rule)
    )
    for values in found.values():
        np.testing.assert_array_equal(values, 0)


@given(
    values=st.integers(1, 15).flatmap(
        lambda n: arrays.arrays(
            np.float32,
            (n, 5),
            elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False),
        )
    ),
    trim=st.floats(0, 0.49),
    rule=st.sampled_from(["median", "trimmed_mean"]),
)
@settings(max_examples=60, deadline=None)
def test_middle_rules_are_numpys_and_within_what_is_left(
    tmp_path_factory, values, trim, rule
):
    folder = tmp_path_factory.mktemp("updates")
    files = [opened(folder / str(n), {"x": row}) for n, row in enumerate(values)]
    found = gathered(aggregate([*map(Weighted, files)], rule, trim), {"x": (5,)})["x"]
    for reader in files:
        reader.close()
    rows = np.sort(values.astype(np.float64), axis=0)
    if rule == "median":
        expected = np.median(rows, axis=0)
        low, high = rows[(len(rows) - 1) // 2], rows[len(rows) // 2]
    else:
        k = math.floor(trim * len(rows) + 1e-9)
        left = rows[k : len(rows) - k]
        expected, low, high = left.mean(axis=0), left[0], left[-1]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-37)
    assert (found >= low).all()
    assert (found <= high).all()


@pytest.mark.parametrize("scale", [0.1, 1e38])
@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
def test_middle_of_the_same_is_the_same(readers, rule, scale):
    # In float32 the sum of five, or of six, rounds, and at 1e38 it isn't finite.
    same = tree(3, {"x": (500,)}, scale)
    updates = [Weighted(reader) for reader in readers([same] * 8)]
    found = gathered(aggregate(updates, rule), {"x": (500,)})
    np.testing.assert_array_equal(found["x"], same["x"])


@pytest.mark.parametrize(
    ("trim", "count", "expected"),
    [(0.2, 5, 1), (0.2, 4, 0), (0.29, 100, 29), (0.49, 2, 0), (0.499, 3, 1), (0, 9, 0)],
)
def test_trimmed_mean_leaves_out_the_floor(trim, count, expected):
    assert cut("trimmed_mean", trim, count) == expected


ATTACKS = {
    "huge": lambda delta: 1e6 * delta,
    "sign flipped": lambda delta: -1e6 * delta,
    "constant": lambda delta: np.full_like(delta, 1e37),
    "random": lambda delta: 1e12 * np.random.default_rng(9).permutation(delta),
}


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("attack", ATTACKS)
def test_one_of_five_cannot_leave_the_honest_range(readers, attack, place):
    honest = [tree(n, {"x": (1000,)}) for n in range(4)]
    poisoned = {"x": ATTACKS[attack](tree(7, {"x": (1000,)})["x"]).astype(np.float32)}
    trees = [*honest[:place], poisoned, *honest[place:]]
    updates = [*map(Weighted, readers(trees))]
    lowest, highest = flat(honest, "x").min(axis=0), flat(honest, "x").max(axis=0)
    for rule in ("median", "trimmed_mean"):
        found = gathered(aggregate(updates, rule), {"x": (1000,)})["x"]
        assert (found >= lowest).all()
        assert (found <= highest).all()
    moved = gathered(aggregate(updates, "mean"), {"x": (1000,)})["x"]
    assert np.abs(moved).max() > 1e3  # the mean has no defence, so it is an attack


def test_only_some_leaves_in_the_given_order(readers):
    one = Weighted(*readers([tree(0)]))
    names = [name for name, *_ in aggregate([one], "mean", leaves=["z", "b"])]
    assert names == ["z", "b"]


def test_pieces_come_in_order_and_leaves_by_name(readers):
    pieces = [
        (name, start)
        for name, start, _ in aggregate([*map(Weighted, readers([tree(0)]))], "mean")
    ]
    assert pieces == [("a/w", 0), ("a/w", CHUNK), ("b", 0), ("z", 0)]


@pytest.mark.parametrize("rule", RULES)
def test_memory_does_not_grow_with_the_leaf(tmp_path, rule):
    peaks = []
    for chunks in (2, 16):
        leaf = {"x": np.ones(chunks * CHUNK, np.float32)}
        paths = [tmp_path / f"{chunks}-{n}" for n in range(3)]
        for path in paths:
            write_update(path, leaf, Encoding("int8", 1), {})
        updates = [Weighted(UpdateReader(path)) for path in paths]
        tracemalloc.start()
        for _ in aggregate(updates, rule):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        for reader, *_ in updates:
            reader.close()
    chunk = 4 * CHUNK
    assert peaks[1] < peaks[0] + chunk / 4
    assert peaks[1] < (3 + 7) * chunk


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rule": "krum"}, "rule is 'krum': take one of mean"),
        ({"trim": 0.5}, "trim is 0.5"),
        ({"trim": -0.1}, "trim is -0.1"),
        ({"trim": math.nan}, "trim is nan"),
        ({"updates": []}, "no updates"),
        ({"leaves": ["w"]}, "no leaf 'w'"),
        ({"weight": math.inf}, "weight inf"),
        ({"weight": 1e39}, r"weight 1e\+39"),
    ],
)
def test_arguments_that_cannot_be(readers, change, said):
    weight = change.pop("weight", 1.0)
    arguments = {"updates": [Weighted(*readers([tree(0)]), weight)], "rule": "mean"}
    with pytest.raises(ValueError, match=said):
        aggregate(**{**arguments, **change})


def test_updates_of_other_trees_are_refused(readers):
    updates = [*map(Weighted, readers([tree(0), tree(0, {"z": (7,)})]))]
    with pytest.raises(ValueError, match="update 1 has other leaves"):
        aggregate(updates, "mean")


def test_damage_found_late_is_told(tmp_path, readers):
    one, two = readers([tree(0), tree(1)])
    path = next(itertools.islice(tmp_path.glob("*-1"), 1))
    data = bytearray(path.read_bytes())
    data[-60 - 8 * 4] ^= 1  # within the last chunks
    path.write_bytes(data)
    with pytest.raises(UpdateError, match="damaged bytes"):
        list(aggregate([Weighted(one), Weighted(two)], "mean"))
