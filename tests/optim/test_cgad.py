"""CGAD against a NumPy oracle, against Adam, and at the edges of its gate."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax.optim import adam_decay, cgad, scale_by_cgad

PARAMS = {"w": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.array([0.1, -0.3])}
SHUT = 32.0


def gradients(rounds: int, seed: int = 0) -> list[dict[str, jax.Array]]:
    draw = np.random.default_rng(seed).standard_normal
    return [
        {"w": jnp.float32(draw((2, 2))), "b": jnp.float32(draw(2))}
        for _ in range(rounds)
    ]


def trajectory(tx: Any, ages: Any, jit: bool = False, **extra: Any) -> Any:
    """Updates of each round, and the last state."""
    update = jax.jit(tx.update) if jit else tx.update
    state, steps = tx.init(PARAMS), []
    for gradient, age in zip(gradients(len(ages)), ages, strict=True):
        kwargs = extra if age is None else {"age": age, **extra}
        step, state = update(gradient, state, PARAMS, **kwargs)
        steps.append(step)
    return steps, state


def assert_same(one: Any, other: Any, **tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if tolerance:
            np.testing.assert_allclose(a, b, **tolerance)
        else:
            np.testing.assert_array_equal(a, b)


def oracle(ages: list[float], gate: str, alpha: float = 0.2) -> np.ndarray:
    """Steps of leaf ``b`` in double precision, written from the paper's formulas."""
    m, v, steps = np.zeros(2), np.zeros(2), []
    for t, (age, gradient) in enumerate(
        zip(ages, gradients(len(ages)), strict=True), 1
    ):
        weight = np.exp(-alpha * age)
        weight *= (1 + np.cos(np.pi * age / 32)) / 2 if age <= 32 else 0
        g = np.float64(gradient["b"]) * (weight if gate in ("pre", "both") else 1)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        steps.append(-0.01 * step * (weight if gate in ("post", "both") else 1))
    return np.array(steps)


@pytest.mark.parametrize("gate", ["pre", "post", "both"])
def test_agrees_with_the_formulas_in_double_precision(gate: Any) -> None:
    ages = [0, 3, 1, 7.5, 16, 2, 40, 0]
    steps, state = trajectory(cgad(0.01, gate=gate), ages)
    found = np.array([step["b"] for step in steps])
    np.testing.assert_allclose(found, oracle(ages, gate), rtol=2e-4, atol=1e-9)
    assert int(state.count) == len(ages)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("gate", ["pre", "post", "both"])
def test_at_age_zero_it_is_adam_bit_for_bit(gate: Any, jit: bool) -> None:
    adam = optax.adam(0.01, b1=0.8, b2=0.99, eps=1e-6, eps_root=1e-9)
    ours = cgad(0.01, b1=0.8, b2=0.99, eps=1e-6, eps_root=1e-9, gate=gate)
    plain, state = trajectory(adam, [None] * 6, jit=jit)
    for ages in ([None] * 6, [0] * 6):
        steps, ours_state = trajectory(ours, ages, jit=jit)
        assert_same(steps, plain)
        assert_same(ours_state.nu, state[0].nu)
        assert_same(ours_state.mu, state[0].mu)


@pytest.mark.parametrize(("age", "weight"), [(4, 0.432226), (16, 0.0203811)])
def test_a_constant_age_is_adam_with_a_larger_epsilon(
    age: float, weight: float
) -> None:
    eps = 1e-2  # large enough to matter
    steps, _ = trajectory(cgad(0.01, eps=eps), [age] * 8)
    adam, _ = trajectory(optax.adam(0.01, eps=eps / weight), [None] * 8)
    assert_same(steps, adam, rtol=1e-4, atol=0)
    # The same with a schedule of the learning rate, which is read at the count.
    decay = optax.linear_schedule(0.01, 0.001, 8)
    steps, _ = trajectory(cgad(decay, eps=eps), [age] * 8)
    adam, _ = trajectory(optax.adam(decay, eps=eps / weight), [None] * 8)
    assert_same(steps, adam, rtol=1e-4, atol=0)


def test_a_gate_after_the_moments_does_not_cancel() -> None:
    # Under "post" an age of 4 is a smaller learning rate, whatever epsilon is.
    steps, state = trajectory(cgad(0.01, gate="post"), [4] * 5)
    adam, adam_state = trajectory(optax.adam(0.01 * 0.432226), [None] * 5)
    assert_same(steps, adam, rtol=1e-5, atol=0)
    assert_same(state.nu, adam_state[0].nu)


def test_beyond_the_cut_off_moments_decay_by_their_betas() -> None:
    tx = cgad(0.1)
    _, state = trajectory(tx, [0, 1, 2])
    _, after = tx.update(gradients(1, seed=5)[0], state, PARAMS, age=SHUT + 8)
    assert_same(after.mu, jax.tree.map(lambda m: np.float32(0.9) * m, state.mu))
    assert_same(after.nu, jax.tree.map(lambda v: np.float32(0.999) * v, state.nu))
    assert int(after.count) == int(state.count) + 1


def test_a_closed_gate_still_moves() -> None:
    # 50 gradients of one, then 30 beyond the cut-off: 9.3 learning rates further.
    tx = scale_by_cgad()
    one = jnp.ones(1)

    def step(state: Any, age: Any) -> Any:
        move, state = tx.update(one, state, age=age)
        return state, move

    ages = jnp.array([0.0] * 50 + [40.0] * 30)
    _, moves = jax.jit(lambda a: jax.lax.scan(step, tx.init(one), a))(ages)
    assert float(moves[50:].sum()) == pytest.approx(9.3, abs=0.1)
    # One to ten closed updates in, as the closed form has them.
    assert float(moves[50 + 9, 0]) == pytest.approx(0.38, abs=0.02)


@pytest.mark.parametrize("gate", ["pre", "post", "both"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_first_update_with_the_gate_shut_is_zero(gate: Any, dtype: Any) -> None:
    tx = cgad(0.1, gate=gate)
    params = jnp.ones(3, dtype)
    step, state = tx.update(params, tx.init(params), params, age=SHUT)
    np.testing.assert_array_equal(step, np.zeros(3))
    assert step.dtype == dtype
    # And so is one whose gradient is zero, gate open.
    step, _ = tx.update(jnp.zeros(3, dtype), state, params)
    assert np.isfinite(np.float32(step)).all()


class TestSkip:
    """``closed="skip"``."""

    @pytest.mark.parametrize("gate", ["pre", "post"])
    def test_a_closed_update_leaves_everything_alone(self, gate: Any) -> None:
        tx = cgad(optax.linear_schedule(0.1, 0.0, 4), gate=gate, closed="skip")
        open_steps, open_state = trajectory(tx, [0, 1])
        _, state = trajectory(tx, [0, 1])
        step, after = tx.update(gradients(1, seed=5)[0], state, PARAMS, age=SHUT)
        assert_same(step, jax.tree.map(jnp.zeros_like, PARAMS))
        assert_same(after, open_state)
        # The first update of all may be closed as well.
        step, fresh = tx.update(gradients(1)[0], tx.init(PARAMS), PARAMS, age=SHUT)
        assert_same(step, jax.tree.map(jnp.zeros_like, PARAMS))
        assert_same(fresh, tx.init(PARAMS))
        assert np.abs(open_steps[1]["w"]).min() > 0

    def test_an_open_update_is_what_it_was(self) -> None:
        ages = [0, 5, 31, 2]
        skip, state = trajectory(cgad(0.1, closed="skip"), ages, jit=True)
        decay, decayed = trajectory(cgad(0.1), ages, jit=True)
        assert_same(skip, decay, rtol=1e-6, atol=0)
        assert_same(state, decayed, rtol=1e-6, atol=0)

    def test_one_open_leaf_is_enough(self) -> None:
        tx = scale_by_cgad(closed="skip")
        ages = {"w": SHUT, "b": 0}
        step, state = tx.update(gradients(1)[0], tx.init(PARAMS), age=ages)
        assert int(state.count) == 1
        assert np.abs(step["b"]).min() > 0


def test_one_age_is_the_same_as_a_tree_of_it() -> None:
    one, _ = trajectory(cgad(0.1), [3, 5])
    tree, _ = trajectory(cgad(0.1), [{"w": 3, "b": 3}, {"w": 5, "b": 5}])
    assert_same(one, tree)


def test_each_leaf_is_gated_by_its_own_age() -> None:
    tx = cgad(0.1)
    _, state = tx.update(
        gradients(1)[0], tx.init(PARAMS), PARAMS, age={"w": SHUT, "b": 0}
    )
    np.testing.assert_array_equal(state.mu["w"], np.zeros((2, 2)))
    np.testing.assert_allclose(state.mu["b"], 0.1 * gradients(1)[0]["b"], rtol=1e-6)


def test_adam_decay_has_no_gate() -> None:
    steps, _ = trajectory(adam_decay(0.1), [2, 40])
    same, _ = trajectory(cgad(0.1, tau_cut=None), [2, 40])
    assert_same(steps, same)
    _, state = adam_decay(0.1).update(
        {"w": jnp.ones(1)}, adam_decay(0.1).init({"w": jnp.ones(1)}), age=40
    )
    np.testing.assert_allclose(state.mu["w"], [0.1 * np.exp(-8)], rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision_leaves_have_float32_moments(dtype: Any) -> None:
    tx = cgad(0.1)
    params = jnp.ones(2, dtype)
    state = tx.init(params)
    # At age 16 the square of 1e-3 * 0.0204 is 4e-10: float16 would have 0.
    step, state = jax.jit(tx.update)(jnp.full(2, 1e-3, dtype), state, age=16.0)
    assert state.mu.dtype == state.nu.dtype == jnp.float32
    np.testing.assert_allclose(state.nu, np.full(2, 1e-3 * (2.038e-5) ** 2), rtol=3e-3)
    assert step.dtype == dtype
    np.testing.assert_allclose(np.float32(step), np.full(2, -0.1), rtol=5e-3)


def test_second_moments_of_bfloat16_leaves_decay() -> None:
    # In bfloat16 0.999 * v rounds back to v, and v never leaves its peak.
    tx = cgad(0.1)
    params = jnp.ones(1, jnp.bfloat16)
    _, state = tx.update(params, tx.init(params))

    def zero(state: Any, _: Any) -> Any:
        return tx.update(jnp.zeros(1, jnp.bfloat16), state)[1], None

    after, _ = jax.jit(lambda s: jax.lax.scan(zero, s, length=2000))(state)
    ratio = float(after.nu[0] / state.nu[0])
    assert ratio == pytest.approx(0.999**2000, rel=1e-2)  # 0.135


def test_the_first_moment_may_be_kept_in_another_dtype() -> None:
    state = cgad(0.1, mu_dtype=jnp.bfloat16).init(PARAMS)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.mu)} == {jnp.dtype("bfloat16")}
    assert {leaf.dtype for leaf in jax.tree.leaves(state.nu)} == {jnp.dtype("float32")}


def test_alpha_may_be_a_vmapped_axis() -> None:
    gradient = gradients(2)

    def run(alpha: jax.Array) -> Any:
        tx = cgad(0.1, alpha=alpha)
        _, state = tx.update(gradient[0], tx.init(PARAMS), age=0)
        return tx.update(gradient[1], state, age=4)[0]["b"]

    alphas = jnp.array([0.0, 0.2, 0.4])
    rows = jax.jit(jax.vmap(run))(alphas)
    for row, alpha in zip(rows, alphas, strict=True):
        np.testing.assert_allclose(row, run(float(alpha)), rtol=1e-5)
    assert np.abs(np.diff(rows, axis=0)).min() > 1e-4


def test_every_hyperparameter_may_be_a_schedule_or_an_array() -> None:
    plain = {"b1": 0.8, "b2": 0.9, "eps": 1e-3, "eps_root": 1e-4, "alpha": 0.1}
    plain["tau_cut"] = 20.0
    steps, _ = trajectory(cgad(0.1, **plain), [1, 2, 3])
    arrays = {name: jnp.float32(value) for name, value in plain.items()}
    constant = {name: (lambda _, v=value: v) for name, value in plain.items()}
    for other in (arrays, constant):
        again, _ = trajectory(cgad(lambda _: 0.1, **other), [1, 2, 3])
        assert_same(again, steps, rtol=1e-5, atol=0)
    # A schedule is read at the updates so far: the second update sees count 1.
    late, _ = trajectory(cgad(0.1, alpha=lambda count: 0.3 * count), [0, 4])
    fixed, _ = trajectory(cgad(0.1, alpha=0.3), [0, 4])
    assert_same(late, fixed, rtol=1e-6, atol=0)


def test_a_gradient_of_none_leaves_its_moments_alone() -> None:
    tx = cgad(0.1)
    _, state = trajectory(tx, [0, 0])
    step, after = tx.update({"w": gradients(1)[0]["w"], "b": None}, state, age=1)
    assert step["b"] is None
    np.testing.assert_array_equal(after.nu["b"], state.nu["b"])
    assert jax.tree.structure(after) == jax.tree.structure(state)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"b1": 1.0}, "b1"),
        ({"b2": -0.1}, "b2"),
        ({"b2": float("nan")}, "b2"),
        ({"eps": -1e-8}, "eps"),
        ({"eps_root": -1.0}, "eps_root"),
        ({"alpha": -0.2}, "alpha"),
        ({"tau_cut": 0}, "tau_cut"),
        ({"gate": "before"}, "gate"),
        ({"closed": "open"}, "closed"),
        # In bfloat16 0.999 is 1, and the first update is 0 / 0.
        ({"b2": jnp.bfloat16(0.999)}, "b2"),
        ({"eps": jnp.float16(1e-8)}, "eps"),
    ],
)
def test_bad_settings_are_named(arguments: dict, named: str) -> None:
    for factory in (lambda **kw: cgad(0.1, **kw), scale_by_cgad):
        with pytest.raises(ValueError, match=f"^{named} must be"):
            factory(**arguments)


@pytest.mark.parametrize("age", [-1, float("nan"), {"w": 0}, None])
def test_bad_ages_are_refused(age: Any) -> None:
    tx = cgad(0.1)
    with pytest.raises(ValueError, match="^age "):
        tx.update(gradients(1)[0], tx.init(PARAMS), PARAMS, age=age)


def test_a_traced_nan_age_is_not_hidden() -> None:
    steps, _ = trajectory(cgad(0.1), [float("nan")], jit=True)
    assert np.isnan(steps[0]["w"]).all()
    negative, _ = trajectory(cgad(0.1), [-2.0], jit=True)
    fresh, _ = trajectory(cgad(0.1), [0.0], jit=True)
    assert_same(negative, fresh)
