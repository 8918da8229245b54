"""FADAS against a NumPy loop, against optax's AMSGrad, and its rule for the step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax.optim.fadas import fadas

RNG = np.random.default_rng(3)
DELTAS = RNG.normal(size=(12, 2, 3)).astype(np.float32)
AGES = [0, 3, 1, 0, 7, 2, 16, 5, 0, 1, 40, 4]


def outputs(transformation: Any, ages: Any = AGES) -> np.ndarray:
    def body(state: Any, item: Any) -> Any:
        updates, state = transformation.update(item[0], state, age=item[1])
        return state, updates

    state = transformation.init(jnp.zeros((2, 3)))
    items = (jnp.asarray(DELTAS), jnp.asarray(ages, jnp.float32))
    return np.asarray(jax.jit(lambda s: jax.lax.scan(body, s, items)[1])(state))


def oracle(rates: list[float], b1: float, b2: float, eps: float) -> np.ndarray:
    m = v = v_max = np.zeros(DELTAS.shape[1:])
    steps = []
    for delta, rate in zip(DELTAS.astype(np.float64), rates, strict=True):
        m = b1 * m + (1 - b1) * delta
        v = b2 * v + (1 - b2) * delta**2
        v_max = np.maximum(v_max, v)
        steps.append(-rate * m / (np.sqrt(v_max) + eps))
    return np.stack(steps)


@pytest.mark.parametrize("tau_c", [0.0, 1.0, 4.0])
def test_step_is_divided_by_ages_beyond_the_threshold(tau_c: float) -> None:
    rates = [0.1 if a <= tau_c else 0.1 / a for a in AGES]
    got = outputs(fadas(0.1, b1=0.8, b2=0.6, eps=1e-3, tau_c=tau_c))
    np.testing.assert_allclose(got, oracle(rates, 0.8, 0.6, 1e-3), rtol=2e-5, atol=1e-7)


def test_the_rule_of_the_theorem_is_a_minimum() -> None:
    rates = [0.1 if a <= 1 else min(0.1, 0.5 / a) for a in AGES]
    got = outputs(fadas(0.1, b2=0.6, lr_scale=0.5))
    np.testing.assert_allclose(got, oracle(rates, 0.9, 0.6, 1e-8), rtol=2e-5, atol=1e-7)


def test_age_scales_the_step_and_not_the_moments() -> None:
    transformation = fadas(0.1)
    delta = jnp.asarray(DELTAS[0])
    fresh, fresh_state = transformation.update(delta, transformation.init(delta))
    late, late_state = transformation.update(delta, transformation.init(delta), age=8)
    np.testing.assert_allclose(late, fresh / 8, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, late_state, fresh_state)


def test_fresh_updates_are_amsgrad_without_bias_correction() -> None:
    amsgrad = optax.chain(
        optax.scale_by_amsgrad(
            0.9, 0.99, bias_correction_mu=False, bias_correction_nu=False
        ),
        optax.scale(-0.1),
    )
    with_age = optax.with_extra_args_support(amsgrad)
    np.testing.assert_allclose(
        outputs(fadas(0.1, b2=0.99), ages=[0] * 12), outputs(with_age), rtol=2e-5
    )


@pytest.mark.parametrize("age", [0.0, 0.5, 1.0, 1.5])
def test_no_age_lengthens_the_step(age: float) -> None:
    transformation = fadas(0.1, tau_c=0.25)
    delta = jnp.ones(2)
    fresh, _ = transformation.update(delta, transformation.init(delta))
    aged, _ = transformation.update(delta, transformation.init(delta), age=age)
    np.testing.assert_allclose(aged, fresh / max(age, 1.0), rtol=1e-6)


def test_each_leaf_has_its_age_and_a_traced_age_compiles_once() -> None:
    tree = {"a": jnp.ones(2), "b": jnp.ones(1), "c": None}
    transformation = fadas(0.1)
    traces = []

    @jax.jit
    def step(age: Any) -> Any:
        traces.append(age)
        return transformation.update(tree, transformation.init(tree), age=age)[0]

    u = step({"a": 4.0, "b": 0.0})
    np.testing.assert_allclose(u["a"] * 4, [u["b"][0]] * 2, rtol=1e-6)
    assert u["c"] is None
    step({"a": 9.0, "b": 2.0})
    assert len(traces) == 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_halves_have_float32_moments_and_finite_steps(dtype: Any) -> None:
    # In float16 the square of 1e-4 and an epsilon of 1e-8 are both zero.
    transformation = fadas(jnp.float32(0.1))
    params = jnp.asarray([1e-4, 0.0], dtype)
    u, state = transformation.update(params, transformation.init(params), age=3)
    assert u.dtype == dtype
    assert {x.dtype.name for x in (state.mu, state.nu, state.nu_max)} == {"float32"}
    # 0.1 m / sqrt(0.001 m^2) = 0.1 * 3.162, divided by the age.
    np.testing.assert_allclose(u.astype(jnp.float32), [-0.1 * 10**0.5 / 3, 0], 1e-2)


def test_hyper_parameters_can_be_injected() -> None:
    injected = optax.inject_hyperparams(fadas, hyperparam_dtype=jnp.float32)(
        learning_rate=0.1, tau_c=2.0
    )
    np.testing.assert_allclose(
        outputs(injected), outputs(fadas(0.1, tau_c=2.0)), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau_c": -1.0}, "tau_c must be .* got -1.0"),
        ({"lr_scale": 0.0}, "lr_scale must be > 0.* got 0.0"),
        ({"b2": 1.0}, "b2 must be .* got 1.0"),
    ],
)
def test_bad_numbers_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fadas(0.1, **arguments)


@pytest.mark.parametrize("age", [-1, float("nan")])
def test_bad_ages_are_refused(age: float) -> None:
    transformation = fadas(0.1)
    with pytest.raises(ValueError, match="age must be a number of outer updates"):
        transformation.update(jnp.ones(1), transformation.init(jnp.ones(1)), age=age)
