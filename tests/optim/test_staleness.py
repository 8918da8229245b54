"""The weight of an age, and the transformation that applies it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.optim import polynomial_weight, scale_by_staleness, staleness_weight

# Ages and weights for alpha = 0.2, 0.4, 0.1 at a cut-off of 32, from the formula in
# double precision, to the digits shown.
VECTORS = [
    (0, 1.0, 1.0, 1.0),
    (1, 0.8168, 0.6687, 0.9027),
    (2, 0.6639, 0.4450, 0.8109),
    (4, 0.4322, 0.1942, 0.6448),
    (8, 0.1723, 0.03479, 0.3835),
    (12, 0.06272, 0.00569, 0.2082),
    (16, 0.02038, 8.31e-4, 0.1009),
    (24, 1.205e-3, 9.9e-6, 0.01329),
    (31, 4.89e-6, 9.9e-9, 1.09e-4),
]
weigh = jax.jit(staleness_weight)


@pytest.mark.parametrize(("age", "default", "steep", "flat"), VECTORS)
def test_reference_values(age: int, default: float, steep: float, flat: float) -> None:
    for alpha, value in ((0.2, default), (0.4, steep), (0.1, flat)):
        assert float(weigh(age, alpha, 32.0)) == pytest.approx(value, rel=6e-3)
    assert float(weigh(age, 0.2, 32.0)) == pytest.approx(default, rel=1e-3)


def test_agrees_with_double_precision_even_next_to_the_cut_off() -> None:
    ages = np.array([0.5, 7.25, 30.0, 31.5, 31.99])
    expected = 0.5 * (1 + np.cos(np.pi * ages / 32)) * np.exp(-0.2 * ages)
    np.testing.assert_allclose(weigh(ages, 0.2, 32.0), expected, rtol=5e-4)


def test_age_zero_counts_fully_and_the_cut_off_shuts() -> None:
    assert float(staleness_weight(0)) == 1.0
    shut = staleness_weight(jnp.array([32.0, 32.5, 33.0, 1e6, jnp.inf]))
    np.testing.assert_array_equal(shut, np.zeros(5))


@pytest.mark.parametrize("cut", [None, math.inf, np.float32(np.inf)])
def test_without_a_gate_only_the_exponential_is_left(cut: float | None) -> None:
    ages = jnp.array([0.0, 4.0, 40.0])
    expected = np.exp(-0.2 * np.asarray(ages))
    np.testing.assert_allclose(staleness_weight(ages, 0.2, cut), expected, rtol=1e-6)


def test_without_decay_only_the_gate_is_left() -> None:
    weights = staleness_weight(jnp.array([0.0, 16.0, 32.0]), alpha=0.0)
    np.testing.assert_allclose(weights, [1.0, 0.5, 0.0], rtol=1e-6)
    # An infinite age isn't 0 * inf.
    assert float(staleness_weight(jnp.inf, 0.0, None)) == 1.0


@settings(max_examples=60, deadline=None)
@given(
    alpha=st.floats(0.05, 2.0), age=st.floats(0.0, 200.0), cut=st.floats(20.0, 1000.0)
)
def test_age_times_weight_is_bounded(alpha: float, age: float, cut: float) -> None:
    bound = 1 / (math.e * alpha)
    assert age * float(weigh(age, alpha, cut)) <= bound * (1 + 1e-5)


def test_the_bound_is_approached_at_one_over_alpha() -> None:
    # With the gate the maximum is a little lower: 1.74 at age 4.5 for alpha = 0.2.
    ages = jnp.linspace(0, 40, 4001)
    product = ages * weigh(ages, 0.2, None)
    assert float(product.max()) == pytest.approx(1 / (math.e * 0.2), rel=1e-4)
    gated = ages * weigh(ages, 0.2, 32.0)
    assert float(gated.max()) == pytest.approx(1.74, abs=5e-3)
    assert float(ages[gated.argmax()]) == pytest.approx(4.5, abs=0.1)


@pytest.mark.parametrize("age", [0.0, 4.0, 32.0, 33.0, 1e30])
def test_gradients_are_finite_at_and_beyond_the_cut_off(age: float) -> None:
    gradients = jax.grad(staleness_weight, argnums=(0, 1, 2))(age, 0.2, 32.0)
    assert np.isfinite(gradients).all()
    if age == 4.0:  # d/d alpha = -age * weight
        assert float(gradients[1]) == pytest.approx(-4 * 0.4322, rel=1e-3)
    if age >= 32:
        assert float(gradients[1]) == 0.0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"age": -1}, "age"),
        ({"age": math.nan}, "age"),
        ({"age": jnp.array([1.0, -0.5])}, "age"),
        ({"age": 1, "alpha": -0.1}, "alpha"),
        ({"age": 1, "alpha": math.nan}, "alpha"),
        ({"age": 1, "tau_cut": 0}, "tau_cut"),
        ({"age": 1, "tau_cut": -3.0}, "tau_cut"),
        ({"age": 1, "tau_cut": math.nan}, "tau_cut"),
    ],
)
def test_bad_concrete_arguments_are_named(arguments: dict, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named} must be"):
        staleness_weight(**arguments)


def test_traced_arguments_are_never_checked() -> None:
    # A negative age counts as 0, a NaN stays visible.
    weights = weigh(jnp.array([-3.0, jnp.nan]), 0.2, 32.0)
    assert float(weights[0]) == 1.0
    assert np.isnan(weights[1])
    assert np.isnan(weigh(jnp.nan, 0.2, None))


@pytest.mark.parametrize("age", [3, np.int32(3), jnp.int32(3), jnp.bfloat16(3)])
def test_weights_are_float32(age: object) -> None:
    weight = staleness_weight(age)
    assert weight.dtype == jnp.float32
    assert weight.shape == ()


def test_polynomial_weights() -> None:
    ages = jnp.array([0, 3, 8])
    np.testing.assert_allclose(polynomial_weight(ages), [1, 1 / 2, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(
        polynomial_weight(ages, 1.0), [1, 1 / 4, 1 / 9], rtol=1e-6
    )
    with pytest.raises(ValueError, match=r"^exponent must be >= 0, got -1"):
        polynomial_weight(1, -1)
    with pytest.raises(ValueError, match=r"^age must be"):
        polynomial_weight(-1)
    assert float(jax.jit(polynomial_weight)(-5.0)) == 1.0


UPDATES = {
    "a": jnp.ones(2),
    "b": {"c": jnp.ones((2, 2), jnp.bfloat16), "d": None, "e": jnp.ones(3)},
}


def applied(age: object, **arguments: object) -> dict:
    tx = scale_by_staleness(**arguments)
    return tx.update(UPDATES, tx.init(UPDATES), age=age)[0]


def test_one_age_scales_every_leaf_in_its_dtype() -> None:
    scaled = applied(4)
    assert scaled["b"]["d"] is None
    assert scaled["b"]["c"].dtype == jnp.bfloat16
    np.testing.assert_allclose(scaled["a"], np.full(2, 0.43225), rtol=1e-4)
    np.testing.assert_allclose(
        scaled["b"]["c"].astype(np.float32), np.full((2, 2), 0.43225), rtol=4e-3
    )


def test_no_age_is_age_zero() -> None:
    tx = scale_by_staleness()
    scaled, state = tx.update(UPDATES, tx.init(UPDATES))
    assert state == optax.EmptyState()
    np.testing.assert_array_equal(scaled["a"], UPDATES["a"])


def test_ages_may_stand_above_the_leaves() -> None:
    scaled = applied({"a": 0, "b": 8})
    full = applied({"a": 0, "b": {"c": 8, "d": None, "e": 8}})
    np.testing.assert_allclose(scaled["a"], np.ones(2))
    np.testing.assert_allclose(scaled["b"]["e"], np.full(3, 0.17234), rtol=1e-4)
    for one, other in zip(jax.tree.leaves(scaled), jax.tree.leaves(full), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("age", "message"),
    [
        ({"a": 0}, r"^age has no value for updates\['b'\]\['c'\]"),
        ({"a": 0, "b": 0, "z": 1}, r"^age\['z'\] stands at no leaf of updates"),
        ({"a": {"deeper": 0}, "b": 0}, r"^age has no value for updates\['a'\]"),
        ([0, 1], r"^age has no value for updates\['a'\]"),
        (None, r"^age must be a number or a tree of numbers, got None"),
        (jnp.zeros(2), r"^age must be a scalar for each leaf, got shape \(2,\)"),
        ({"a": 0, "b": -1}, r"^age must be a number of outer updates >= 0, got -1"),
    ],
)
def test_ages_that_do_not_match_give_one_error(age: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        applied(age)
    assert "\n" not in str(error.value)


def test_ages_for_everything_serve_a_part_of_the_tree() -> None:
    # Masked leaves are placeholders: their ages are left over.
    tx = optax.masked(scale_by_staleness(), {"a": True, "b": False})
    ages = {"a": 8, "b": {"c": 1, "d": 1, "e": 1}}
    scaled, _ = tx.update(UPDATES, tx.init(UPDATES), age=ages)
    np.testing.assert_allclose(scaled["a"], np.full(2, 0.17234), rtol=1e-4)
    np.testing.assert_array_equal(scaled["b"]["e"], np.ones(3))


def test_schedules_are_read_at_the_number_of_updates() -> None:
    tx = scale_by_staleness(alpha=lambda count: 0.1 * count, tau_cut=None)
    state, found = tx.init(UPDATES), []
    for _ in range(3):
        scaled, state = tx.update(UPDATES, state, age=2)
        found.append(float(scaled["a"][0]))
    np.testing.assert_allclose(found, np.exp([0, -0.2, -0.4]), rtol=1e-6)


@pytest.mark.parametrize("bad", [{"alpha": -1.0}, {"tau_cut": 0.0}])
def test_bad_settings_are_refused_at_once(bad: dict) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(bad))} must be"):
        scale_by_staleness(**bad)
