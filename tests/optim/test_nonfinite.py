"""One bad worker, one bad leaf, one bad age: what is left out, and what isn't."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax.optim.nonfinite import finite_mean, skip_nonfinite
from spheroid_jax.optim.staleness import scale_by_staleness

NAN, INF = float("nan"), float("inf")
GOOD = {"a": jnp.array([3.0, -4.0]), "b": jnp.array([[12.0]]), "c": None}


def with_bad(value: float) -> Any:
    return {**GOOD, "b": jnp.array([[value]])}


@pytest.fixture(scope="module")
def adam() -> tuple[Any, Callable[..., Any]]:
    optimizer = skip_nonfinite(optax.adam(0.1), max_norm=6.5)
    return optimizer, jax.jit(optimizer.update)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_bad_leaf_skips_that_update_and_nothing_else(adam: Any, bad: float) -> None:
    optimizer, update = adam
    start = optimizer.init(GOOD)
    _, once = update(GOOD, start)
    nothing, skipped = update(with_bad(bad), once)
    for leaf in jax.tree.leaves(nothing):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))
    assert nothing["c"] is None
    jax.tree.map(np.testing.assert_array_equal, skipped.inner, once.inner)
    assert (int(skipped.skipped), bool(skipped.last_finite)) == (1, False)
    # The next good one is what it would have been without the bad one.
    after, state = update(GOOD, skipped)
    expected, reference = update(GOOD, once)
    jax.tree.map(np.testing.assert_array_equal, after, expected)
    jax.tree.map(np.testing.assert_array_equal, state.inner, reference.inner)
    assert (int(state.skipped), bool(state.last_finite)) == (1, True)
    assert int(reference.skipped) == 0


def test_accepted_updates_are_those_of_the_inner_optimizer() -> None:
    adam, wrapped = optax.adam(0.1), skip_nonfinite(optax.adam(0.1))
    expected, _ = adam.update(GOOD, adam.init(GOOD))
    got, _ = wrapped.update(GOOD, wrapped.init(GOOD))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.parametrize(
    ("scale", "limit", "norm"),
    # GOOD has norm 13.
    [(1.0, 6.5, 6.5), (1.0, 20.0, 13.0), (0.0, 6.5, 0.0), (1e30, 6.5, 6.5)],
)
def test_clipping_comes_after_screening_and_cannot_overflow(
    scale: float, limit: float, norm: float
) -> None:
    optimizer = skip_nonfinite(optax.identity(), max_norm=limit)
    scaled = jax.tree.map(lambda x: scale * x, GOOD)
    got, _ = optimizer.update(scaled, optimizer.init(GOOD))
    direction = np.array([3.0, -4.0, 12.0]) / 13
    flat = np.concatenate([np.ravel(x) for x in jax.tree.leaves(got)])
    np.testing.assert_allclose(flat, norm * direction, rtol=1e-6)


def test_an_infinity_does_not_pass_as_a_clipped_update() -> None:
    # Clipped first, the Inf leaf would be NaN and every other leaf zero.
    optimizer = skip_nonfinite(optax.sgd(1.0), max_norm=1.0)
    _, state = optimizer.update(with_bad(INF), optimizer.init(GOOD))
    assert int(state.skipped) == 1


def test_halves_are_clipped_in_float32() -> None:
    optimizer = skip_nonfinite(optax.identity(), max_norm=1.0)
    g = jnp.full(4, 300.0, jnp.float16)  # the square overflows float16
    got, _ = optimizer.update(g, optimizer.init(g))
    assert got.dtype == jnp.float16
    np.testing.assert_allclose(got, [0.5] * 4)


def test_a_traced_age_that_is_not_a_number_does_no_harm() -> None:
    inner = optax.chain(scale_by_staleness(), optax.adam(0.1))
    optimizer = skip_nonfinite(inner)
    update = jax.jit(lambda g, s, age: optimizer.update(g, s, age=age))
    state = optimizer.init(GOOD)
    _, state = update(GOOD, state, jnp.float32(2.0))
    got, after = update(GOOD, state, jnp.float32(NAN))
    jax.tree.map(np.testing.assert_array_equal, after.inner, state.inner)
    assert float(got["b"][0, 0]) == 0.0
    assert not bool(after.last_finite)


def test_under_scan_with_a_bad_round() -> None:
    optimizer = skip_nonfinite(optax.sgd(1.0, momentum=0.5))
    rounds = jnp.array([1.0, 1.0, NAN, 1.0])

    def body(carry: Any, g: jax.Array) -> Any:
        x, state = carry
        u, state = optimizer.update(g, state)
        return (x + u, state), x + u

    start = jnp.float32(0.0)
    (_, state), path = jax.lax.scan(body, (start, optimizer.init(start)), rounds)
    # Momenta 1, 1.5, (kept), 1.75.
    np.testing.assert_allclose(path, [-1.0, -2.5, -2.5, -4.25])
    assert int(state.skipped) == 1


@pytest.mark.parametrize("limit", [0.0, -1.0, NAN])
def test_a_bad_limit_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="max_norm must be > 0, or None, got"):
        skip_nonfinite(optax.identity(), max_norm=limit)


def workers(bad: dict[int, float]) -> Any:
    """Four workers; of the bad ones a single element of a single leaf is bad."""
    w = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    b = np.array([1.0, 2.0, 4.0, 9.0], np.float32)
    for k, value in bad.items():
        w[k, 1, 2] = value
    return {"w": jnp.asarray(w), "b": jnp.asarray(b), "none": None}


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_one_bad_worker_of_four_is_left_out(bad: float) -> None:
    mean, kept = jax.jit(finite_mean)(workers({1: bad}))
    assert kept.tolist() == [True, False, True, True]
    base = np.arange(6, dtype=np.float32).reshape(2, 3)
    # The others begin at 0, 12 and 18: mean 10. All of it is exact in float32.
    np.testing.assert_array_equal(mean["w"], base + 10)
    # Also in the leaf where the bad worker's own value is fine.
    np.testing.assert_allclose(mean["b"], 14 / 3, rtol=1e-7)
    assert mean["none"] is None


def test_nobody_bad_is_the_plain_mean() -> None:
    mean, kept = finite_mean(workers({}))
    assert kept.all()
    np.testing.assert_array_equal(mean["w"], workers({})["w"].mean(axis=0))


def test_nobody_left_gives_zeros() -> None:
    mean, kept = finite_mean(workers({0: NAN, 1: INF, 2: NAN, 3: -INF}))
    assert kept.tolist() == [False] * 4
    np.testing.assert_array_equal(mean["w"], np.zeros((2, 3)))
    np.testing.assert_array_equal(mean["b"], 0.0)


def test_those_not_accepted_are_left_out_too() -> None:
    accepted = jnp.array([True, True, False, False])
    mean, kept = finite_mean(workers({0: NAN}), accepted)
    assert kept.tolist() == [False, True, False, False]
    np.testing.assert_array_equal(mean["b"], 2.0)


def test_halves_are_summed_wide() -> None:
    # The sum of three, 180,000, is more than float16 holds.
    stacked = jnp.array([60000.0, 60000.0, NAN, 60000.0], jnp.float16)
    mean, _ = finite_mean({"x": stacked})
    assert mean["x"].dtype == jnp.float16
    np.testing.assert_array_equal(mean["x"], np.float16(60000.0))


def test_screening_workers_then_the_mean_keeps_the_moments_finite() -> None:
    adam = optax.adam(0.1)
    mean, _ = finite_mean(workers({2: NAN}))
    _, state = adam.update(mean, adam.init(mean))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


@pytest.mark.parametrize(
    ("stacked", "accepted"),
    [
        ({}, None),
        ({"a": jnp.ones(3), "b": jnp.ones(4)}, None),
        ({"a": jnp.ones(3)}, jnp.ones(4, bool)),
        ({"a": jnp.ones(())}, None),
    ],
)
def test_workers_have_to_agree(stacked: Any, accepted: Any) -> None:
    with pytest.raises(ValueError, match="leading axes"):
        finite_mean(stacked, accepted)
