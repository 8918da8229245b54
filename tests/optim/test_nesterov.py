"""Delayed and discounted Nesterov against NumPy loops and the linear model of delay."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from spheroid_jax.optim.nesterov import (
    delayed_nesterov,
    polynomial_nesterov,
    staleness_nesterov,
)

RNG = np.random.default_rng(7)
DELTAS = RNG.normal(size=(12, 2, 3)).astype(np.float32)
AGES = [0, 3, 1, 0, 7, 2, 16, 5, 0, 1, 40, 4]

# How much of the input and of the momentum is kept, by the weight of the age.
MODES: dict[str, Callable[[float], tuple[float, float]]] = {
    "input": lambda w: (w, 1.0),
    "momentum": lambda w: (1.0, w),
    "both": lambda w: (w, w),
}


def outputs(
    transformation: optax.GradientTransformationExtraArgs, ages: Any = AGES
) -> np.ndarray:
    """Updates on DELTAS, from one scan: (steps, 2, 3)."""

    def body(state: Any, item: Any) -> Any:
        updates, state = transformation.update(item[0], state, age=item[1])
        return state, updates

    state = transformation.init(jnp.zeros((2, 3)))
    items = (jnp.asarray(DELTAS), jnp.asarray(ages, jnp.float32))
    return np.asarray(jax.jit(lambda s: jax.lax.scan(body, s, items)[1])(state))


def delayed_oracle(
    rate: float, beta: float, period: int, c: float, deltas: np.ndarray
) -> np.ndarray:
    """Algorithm 3 of arXiv 2401.09135 as a loop over a list of what arrived."""
    m, waiting, steps = np.zeros(deltas.shape[1:]), [], []
    for delta in deltas.astype(np.float64):
        waiting.append(delta)
        if len(waiting) == period:
            m = beta * m + np.mean(waiting, axis=0)
            waiting = []
            steps.append(-rate * ((1 - c * period + c) * beta * m + delta / period))
        else:
            steps.append(-rate * (c * beta * m + delta / period))
    return np.stack(steps)


def discounted_oracle(
    rate: float, mu: float, weights: list[float], mode: str
) -> np.ndarray:
    m, steps = np.zeros(DELTAS.shape[1:]), []
    for delta, w in zip(DELTAS.astype(np.float64), weights, strict=True):
        s, k = MODES[mode](w)
        m = mu * k * m + s * delta
        steps.append(-rate * (s * delta + mu * k * m))
    return np.stack(steps)


@pytest.mark.parametrize(
    ("period", "activation"), [(1, 0.0), (3, 0.0), (4, 0.1), (4, 0.25), (20, 0.0)]
)
def test_delayed_nesterov_follows_the_algorithm(period: int, activation: float) -> None:
    transformation = delayed_nesterov(0.7, 0.9, period, activation)
    expected = delayed_oracle(0.7, 0.9, period, activation, DELTAS)
    np.testing.assert_allclose(outputs(transformation), expected, rtol=2e-5, atol=1e-6)


def test_delayed_nesterov_of_period_one_is_optax_sgd() -> None:
    ours, theirs = delayed_nesterov(0.7, period=1), optax.sgd(0.7, 0.9, nesterov=True)
    state, reference = ours.init(DELTAS[0]), theirs.init(DELTAS[0])
    for delta in DELTAS:
        # Ages are accepted, and ignored.
        u, state = ours.update(jnp.asarray(delta), state, age=5)
        expected, reference = theirs.update(jnp.asarray(delta), reference)
        np.testing.assert_array_max_ulp(np.asarray(u), np.asarray(expected), maxulp=1)


def test_a_period_adds_up_to_one_nesterov_step_on_its_mean() -> None:
    totals = outputs(delayed_nesterov(0.7, 0.9, 4)).reshape(3, 4, 2, 3).sum(axis=1)
    means = DELTAS.reshape(3, 4, 2, 3).mean(axis=1)
    nesterov = optax.sgd(0.7, 0.9, nesterov=True)
    state = nesterov.init(jnp.zeros((2, 3)))
    for total, mean in zip(totals, means, strict=True):
        expected, state = nesterov.update(jnp.asarray(mean), state)
        np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", [0.0, 0.1, 0.25])
def test_activation_only_spreads_the_momentum_over_the_period(
    activation: float,
) -> None:
    # In the steady state, momentum 10, all give one Nesterov step: -0.7 (1 + 0.9 * 10).
    transformation = delayed_nesterov(0.7, 0.9, 4, activation)
    one = jnp.ones(1)
    state, got = transformation.init(one)._replace(trace=10 * one), []
    for _ in range(4):
        u, state = transformation.update(one, state)
        got.append(float(u[0]))
    early = -0.7 * (0.25 + activation * 0.9 * 10)
    np.testing.assert_allclose(got[:3], [early] * 3, rtol=1e-5)
    np.testing.assert_allclose(sum(got), -7.0, rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weight", ["exponential", "polynomial"])
def test_staleness_nesterov_follows_the_recursion(mode: Any, weight: Any) -> None:
    weights = {
        "exponential": [float(np.exp(-0.2 * a)) for a in AGES],
        "polynomial": [float((1 + a) ** -0.2) for a in AGES],
    }[weight]
    transformation = staleness_nesterov(0.7, 0.9, 0.2, mode, weight)
    expected = discounted_oracle(0.7, 0.9, weights, mode)
    np.testing.assert_allclose(outputs(transformation), expected, rtol=2e-5, atol=1e-6)


def test_polynomial_nesterov_divides_by_the_root_of_one_plus_age() -> None:
    weights = [1 / np.sqrt(1 + a) for a in AGES]
    expected = discounted_oracle(0.3, 0.9, weights, "input")
    got = outputs(polynomial_nesterov(0.3))
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_without_age_every_mode_is_optax_sgd(mode: Any) -> None:
    ours, theirs = staleness_nesterov(0.7, mode=mode), optax.sgd(0.7, 0.9, True)
    state, reference = ours.init(DELTAS[0]), theirs.init(DELTAS[0])
    for delta in DELTAS[:4]:
        u, state = ours.update(jnp.asarray(delta), state)
        expected, reference = theirs.update(jnp.asarray(delta), reference)
        np.testing.assert_array_max_ulp(np.asarray(u), np.asarray(expected), maxulp=1)


def test_each_leaf_has_the_age_that_stands_above_it() -> None:
    tree = {"a": {"x": jnp.ones(2), "y": jnp.ones(3)}, "b": jnp.ones(1), "c": None}
    transformation = staleness_nesterov(1.0, 0.5, 0.2)
    u, state = transformation.update(
        tree, transformation.init(tree), age={"a": 5.0, "b": 0.0}
    )
    aged = -1.5 * np.exp(-1.0)  # -(w + 0.5 w) with w = exp(-0.2 * 5)
    np.testing.assert_allclose(u["a"]["x"], [aged] * 2, rtol=1e-6)
    np.testing.assert_allclose(u["a"]["y"], [aged] * 3, rtol=1e-6)
    np.testing.assert_allclose(u["b"], [-1.5], rtol=1e-6)
    assert u["c"] is None
    assert state.trace["c"] is None


def test_a_missing_update_leaves_the_momentum_alone() -> None:
    params = {"w": jnp.ones(2), "v": jnp.ones(2)}
    for transformation in (delayed_nesterov(0.1), staleness_nesterov(0.1)):
        _, state = transformation.update(params, transformation.init(params))
        u, after = transformation.update({"w": None, "v": jnp.ones(2)}, state, age=1)
        assert u["w"] is None
        np.testing.assert_array_equal(after.trace["w"], state.trace["w"])
        structures: list[Any] = [jax.tree.structure(x) for x in (after, state)]
        assert structures[0] == structures[1]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_state_is_float32_and_updates_keep_their_dtype(dtype: Any) -> None:
    params = {"w": jnp.full(3, 0.5, dtype)}
    for transformation in (
        delayed_nesterov(jnp.float32(0.1), activation=0.1),
        staleness_nesterov(jnp.float32(0.1), mode="both"),
    ):
        u, state = transformation.update(params, transformation.init(params), age=2)
        assert u["w"].dtype == dtype
        floats = [x for x in jax.tree.leaves(state) if x.dtype != jnp.int32]
        assert {x.dtype for x in floats} == {jnp.dtype("float32")}


def test_small_halves_add_up_in_the_momentum() -> None:
    # With a bfloat16 trace 256 + 1 stays 256.
    transformation = staleness_nesterov(1.0, 0.999)
    ones = jnp.ones(1, jnp.bfloat16)
    state = transformation.init(ones)._replace(trace=jnp.full(1, 256.0))
    _, state = transformation.update(ones, state)
    np.testing.assert_allclose(state.trace, [256 * 0.999 + 1], rtol=1e-6)


def test_schedules_are_read_at_the_count_before_the_update() -> None:
    rate = optax.piecewise_constant_schedule(1.0, {2: 0.1})
    ones = jnp.ones(1)
    for transformation in (
        delayed_nesterov(rate, 0.0, 1),
        staleness_nesterov(rate, lambda count: 0.0 * count),
    ):
        state, got = transformation.init(ones), []
        for _ in range(4):
            u, state = transformation.update(ones, state)
            got.append(float(u[0]))
        np.testing.assert_allclose(got, [-1, -1, -0.1, -0.1], rtol=1e-6)


def test_momentum_is_sharded_like_the_parameters() -> None:
    mesh = jax.make_mesh((8,), ("fsdp",))
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    params = jax.device_put(jnp.ones(16, jnp.bfloat16), rows)
    for transformation in (delayed_nesterov(0.1), staleness_nesterov(0.1)):
        state = transformation.init(params)
        _, after = jax.jit(transformation.update)(params, state)
        for trace in (state.trace, after.trace):
            assert trace.sharding.is_equivalent_to(rows, 1)


def test_under_injection_and_other_transformations() -> None:
    injected = optax.inject_hyperparams(delayed_nesterov, hyperparam_dtype=jnp.float32)(
        learning_rate=0.7, momentum=0.9, period=4, activation=0.1
    )
    np.testing.assert_allclose(
        outputs(injected), outputs(delayed_nesterov(0.7, 0.9, 4, 0.1)), rtol=1e-6
    )
    chained = optax.chain(
        optax.clip_by_global_norm(1e6), staleness_nesterov(0.7), optax.scale(2.0)
    )
    np.testing.assert_allclose(
        outputs(chained), 2 * outputs(staleness_nesterov(0.7)), rtol=1e-6
    )


# Linear model: a pseudo-gradient is kappa times the parameter `age` outer updates ago.
# The largest stable kappa, to two or three digits. Nesterov 0.7/0.9 breaks first.
THRESHOLDS = [
    ("nesterov", 0, 1.95),
    ("nesterov", 1, 0.36),
    ("nesterov", 4, 0.047),
    ("nesterov", 8, 0.022),
    ("delayed_4", 1, 3.2),
    ("delayed_4", 4, 0.50),
    ("delayed_4", 8, 0.124),
    ("delayed_8", 8, 0.54),
    ("input", 4, 0.104),
    ("input", 8, 0.109),
    ("momentum", 8, 0.22),
    ("both", 4, 0.65),
    ("both", 8, 1.07),
]
RULES: dict[str, optax.GradientTransformationExtraArgs] = {
    "nesterov": staleness_nesterov(0.7, alpha=0.0),
    "delayed_4": delayed_nesterov(0.7, period=4),
    "delayed_8": delayed_nesterov(0.7, period=8),
    "input": staleness_nesterov(0.7, mode="input"),
    "momentum": staleness_nesterov(0.7, mode="momentum"),
    "both": staleness_nesterov(0.7, mode="both"),
}
ROUNDS = 4000


def model_in_numpy(rule: str, age: int, kappas: np.ndarray) -> np.ndarray:
    """Largest |parameter| over the last 200 rounds of the scalar recursion."""
    path = [np.ones_like(kappas)] * (age + 1)
    m = waiting = np.zeros_like(kappas)
    period = int(rule[-1]) if rule.startswith("delayed") else 1
    w = np.exp(-0.2 * age)
    s, k = MODES[rule](w) if rule in MODES else (1.0, 1.0)
    for t in range(ROUNDS):
        delta = s * kappas * path[-1 - age]
        waiting = waiting + delta
        ends = (t + 1) % period == 0
        if ends:
            m, waiting = 0.9 * k * m + waiting / period, np.zeros_like(kappas)
        step = delta / period + ends * 0.9 * k * m
        path.append(np.clip(path[-1] - 0.7 * step, -1e9, 1e9))
    return np.abs(np.stack(path[-200:])).max(axis=0)


def model_in_jax(rule: str, age: int, kappas: np.ndarray) -> np.ndarray:
    """The same with the transformation itself."""
    transformation = RULES[rule]

    def body(carry: Any, _: Any) -> Any:
        past, state = carry
        delta = jnp.asarray(kappas, jnp.float32) * past[age]
        u, state = transformation.update(delta, state, age=jnp.float32(age))
        new = jnp.clip(past[0] + u, -1e9, 1e9)
        return (jnp.roll(past, 1, axis=0).at[0].set(new), state), new

    past = jnp.ones((age + 1, len(kappas)))
    carry = (past, transformation.init(past[0]))
    _, path = jax.lax.scan(body, carry, None, ROUNDS)
    return np.abs(np.asarray(path[-200:])).max(axis=0)


@pytest.mark.parametrize(("rule", "age", "expected"), THRESHOLDS)
def test_stability_ends_where_the_linear_model_says(
    rule: str, age: int, expected: float
) -> None:
    grid = expected * np.geomspace(0.8, 1.25, 46)  # 1 % apart
    unstable = model_in_numpy(rule, age, grid) > 10.0
    threshold = grid[np.argmax(unstable)]
    assert unstable.any()
    np.testing.assert_allclose(threshold, expected, rtol=0.06)
    inside, outside = model_in_jax(rule, age, threshold * np.array([0.95, 1.03]))
    assert inside < 1.0
    assert outside > 10.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"period": 0}, "period must be a whole number >= 1, got 0"),
        ({"period": 2.5}, "period must be a whole number >= 1, got 2.5"),
        ({"activation": 0.3}, "activation must be in .*, got 0.3"),
        ({"activation": -0.1}, "activation must be in .*, got -0.1"),
        ({"momentum": 1.0}, "momentum must be in .*, got 1.0"),
    ],
)
def test_bad_numbers_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        delayed_nesterov(0.7, **arguments)


def test_bad_choices_and_ages_are_refused() -> None:
    with pytest.raises(ValueError, match="mode must be .* got 'output'"):
        staleness_nesterov(0.7, mode="output")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weight must be .* got 'linear'"):
        staleness_nesterov(0.7, weight="linear")  # type: ignore[arg-type]
    transformation = staleness_nesterov(0.7)
    state = transformation.init(jnp.ones(2))
    with pytest.raises(ValueError, match="age must be .* got -1"):
        transformation.update(jnp.ones(2), state, age=-1)
