"""PA-CGAD: ages, counts and moments of fragments that are synced at different times."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax.optim import cgad, fragment_names, pa_cgad

PARAMS = {
    "embed": jnp.ones((3, 2)),
    "layers": [{"w": jnp.full((2, 2), i + 1.0)} for i in range(3)],
}
# Sorted: 0, 1, 2. The third layer shares a fragment with the embedding.
FRAGMENTS = {"embed": 2, "layers": [0, 1, 2]}
LEAVES = {0: [1], 1: [2], 2: [0, 3]}  # of PARAMS, by fragment


def gradients(rounds: int) -> list[Any]:
    draw = np.random.default_rng(0).standard_normal
    return [
        jax.tree.map(lambda p: jnp.float32(draw(p.shape)), PARAMS)
        for _ in range(rounds)
    ]


def run(tx: Any, calls: list[dict], jit: bool = False) -> list[tuple[Any, Any]]:
    """(updates, state) after each call."""
    update = jax.jit(tx.update) if jit else tx.update
    state, history = tx.init(PARAMS), []
    for gradient, kwargs in zip(gradients(len(calls)), calls, strict=True):
        steps, state = update(gradient, state, PARAMS, **kwargs)
        history.append((steps, state))
    return history


def one(fragment: int) -> np.ndarray:
    return np.arange(3) == fragment


def assert_same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("gate", ["pre", "post", "both"])
def test_with_everything_synced_it_is_cgad(gate: Any) -> None:
    calls: list[dict] = [{"age": age} for age in (0, 4, 2, 40, 1)]
    ours = run(pa_cgad(0.1, FRAGMENTS, gate=gate), calls, jit=True)
    all_true = [{**call, "synced": np.ones(3, bool)} for call in calls]
    traced = run(pa_cgad(0.1, FRAGMENTS, gate=gate), all_true, jit=True)
    reference = run(cgad(0.1, gate=gate), calls, jit=True)
    for (a, state), (b, _), (c, plain) in zip(ours, traced, reference, strict=True):
        for x, y, z in zip(*map(jax.tree.leaves, (a, b, c)), strict=True):
            np.testing.assert_allclose(x, z, rtol=1e-6, atol=0)
            np.testing.assert_allclose(y, z, rtol=1e-6, atol=0)
        np.testing.assert_array_equal(state.ages, np.zeros(3))
        np.testing.assert_array_equal(state.counts, np.full(3, plain.count))


@pytest.mark.parametrize("jit", [False, True])
def test_synced_and_fresh_it_is_adam(jit: bool) -> None:
    def adam(gradient: Any, state: Any, params: Any) -> Any:
        return optax.adam(0.1).update(gradient, state, params)

    plain = optax.GradientTransformation(optax.adam(0.1).init, adam)
    ours = run(pa_cgad(0.1, "all"), [{}, {}, {}], jit=jit)
    for (a, _), (b, _) in zip(ours, run(plain, [{}, {}, {}], jit=jit), strict=True):
        assert_same(a, b)


def test_round_robin_ages_settle_at_fragments_minus_one() -> None:
    calls = [{"synced": one(t % 3)} for t in range(7)]
    tx = pa_cgad(0.1, FRAGMENTS, alpha=0.2, tau_cut=None)
    history = run(tx, calls, jit=True)
    before = [np.zeros(3, int)] + [np.asarray(s.ages) for _, s in history]
    assert [int(before[t][t % 3]) for t in range(7)] == [0, 1, 2, 2, 2, 2, 2]
    np.testing.assert_array_equal(history[-1][1].ages, [0, 2, 1])
    np.testing.assert_array_equal(history[-1][1].counts, [3, 2, 2])
    # The age that weighed a gradient is the one from before: fragment 1's first
    # moment after its first update, at age 1, is 0.1 * exp(-0.2) * gradient.
    mu = history[1][1].mu["layers"][1]["w"]
    expected = 0.1 * np.exp(-0.2) * gradients(2)[1]["layers"][1]["w"]
    np.testing.assert_allclose(mu, expected, rtol=1e-5)


@pytest.mark.parametrize("bad", [False, True])
def test_unsynced_fragments_are_left_alone(bad: bool) -> None:
    tx = pa_cgad(0.1, FRAGMENTS)
    (_, before), *_ = run(tx, [{}])
    gradient = gradients(1)[0]
    if bad:  # not even a NaN reaches them
        gradient["layers"][0]["w"] = jnp.full((2, 2), jnp.nan)
    step, after = tx.update(gradient, before, PARAMS, age=2, synced=one(1))
    steps = jax.tree.leaves(step)
    assert np.abs(steps[2]).min() > 0
    for fragment in (0, 2):
        for leaf in LEAVES[fragment]:
            np.testing.assert_array_equal(steps[leaf], np.zeros_like(steps[leaf]))
            for moments in ("mu", "nu"):
                old, new = (
                    jax.tree.leaves(getattr(s, moments))[leaf] for s in (before, after)
                )
                np.testing.assert_array_equal(old, new)
    np.testing.assert_array_equal(after.ages, [1, 0, 1])
    np.testing.assert_array_equal(after.counts, [1, 2, 1])


def test_each_fragment_is_an_optimizer_of_its_own() -> None:
    # What a fragment sees is CGAD at max(age, its own age), on its rounds alone.
    schedule = [(0, 0), (1, 3), (1, 0), (0, 1), (2, 0), (1, 0), (0, 5)]
    calls = [{"synced": one(f), "age": age} for f, age in schedule]
    history = run(pa_cgad(optax.linear_schedule(0.1, 0.05, 3), FRAGMENTS), calls)
    tx, given = cgad(optax.linear_schedule(0.1, 0.05, 3)), gradients(len(calls))
    for fragment, leaves in LEAVES.items():
        own, state = 0, tx.init([jax.tree.leaves(PARAMS)[i] for i in leaves])
        for t, (f, age) in enumerate(schedule):
            if f != fragment:
                own += 1
                continue
            gradient = [jax.tree.leaves(given[t])[i] for i in leaves]
            expected, state = tx.update(gradient, state, age=max(age, own))
            own = 0
            found = [jax.tree.leaves(history[t][0])[i] for i in leaves]
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)


def test_one_compiled_program_serves_every_fragment() -> None:
    tx, traces = pa_cgad(0.1, FRAGMENTS), []

    @jax.jit
    def update(gradient: Any, state: Any, age: Any, synced: Any) -> Any:
        traces.append(None)
        return tx.update(gradient, state, age=age, synced=synced)

    state = tx.init(PARAMS)
    for t in range(4):
        _, state = update(gradients(1)[0], state, jnp.float32(t), one(t % 3))
    assert len(traces) == 1

    def step(state: Any, given: Any) -> Any:
        steps, state = tx.update(gradients(1)[0], state, age=given[0], synced=given[1])
        return state, steps

    ages, synced = (
        jnp.arange(4.0),
        jnp.stack([jnp.asarray(one(t % 3)) for t in range(4)]),
    )
    scanned, _ = jax.jit(lambda s: jax.lax.scan(step, s, (ages, synced)))(
        tx.init(PARAMS)
    )
    for a, b in zip(jax.tree.leaves(scanned), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_what_is_synced_may_be_named() -> None:
    tx = pa_cgad(0.1, {"embed": "outside", "layers": "inside"})
    assert fragment_names({"embed": "outside", "layers": "inside"}) == (
        "inside",
        "outside",
    )
    (by_name, state), *_ = run(tx, [{"synced": {"outside": True}}])
    (by_vector, _), *_ = run(tx, [{"synced": np.array([False, True])}])
    assert_same(by_name, by_vector)
    np.testing.assert_array_equal(state.ages, [1, 0])


def test_each_fragment_may_arrive_with_its_own_age() -> None:
    (_, state), *_ = run(
        pa_cgad(0.1, FRAGMENTS, tau_cut=None), [{"age": np.array([0, 5, 10])}]
    )
    gradient = gradients(1)[0]["layers"]
    for i, age in enumerate((0, 5, 10)):
        np.testing.assert_allclose(
            state.mu["layers"][i]["w"],
            0.1 * np.exp(-0.2 * age) * gradient[i]["w"],
            rtol=1e-5,
        )


def test_a_fragment_that_was_never_synced_has_finite_gradients() -> None:
    def loss(alpha: jax.Array) -> jax.Array:
        tx = pa_cgad(0.1, FRAGMENTS, alpha=alpha)
        state = tx.init(PARAMS)
        for age in (0, 3):
            steps, state = tx.update(
                gradients(1)[0], state, age=age, synced=jnp.asarray(one(0))
            )
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(steps))

    assert np.isfinite(jax.jit(jax.grad(loss))(0.2))


def test_a_fragment_that_was_never_synced_raises_no_alarm() -> None:
    with jax.debug_nans(True):
        (steps, _), *_ = run(pa_cgad(0.1, FRAGMENTS), [{"synced": one(0)}])
    np.testing.assert_array_equal(steps["embed"], np.zeros((3, 2)))


def test_ages_reach_the_cut_off_without_gradients() -> None:
    # Long unsynced, then synced: the gate is shut, and the first step is 0, not NaN.
    tx = pa_cgad(0.1, FRAGMENTS, tau_cut=3.0)
    calls = [{"synced": one(0)}] * 3 + [{"synced": one(1)}]
    steps, state = run(tx, calls)[-1]
    np.testing.assert_array_equal(steps["layers"][1]["w"], np.zeros((2, 2)))
    assert int(state.counts[1]) == 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision_leaves_have_float32_moments(dtype: Any) -> None:
    tx = pa_cgad(0.1, "all")
    params = {"w": jnp.ones(2, dtype)}
    step, state = tx.update(params, tx.init(params), params, age=16)
    assert step["w"].dtype == dtype
    assert state.mu["w"].dtype == state.nu["w"].dtype == jnp.float32
    assert state.ages.dtype == state.counts.dtype == jnp.int32
    assert float(state.nu["w"][0]) > 0


def test_ages_of_fragments_survive_partition() -> None:
    # Inside partition the transformation sees the embedding masked away.
    labels = {"embed": "adam", "layers": "ours"}
    tx = optax.partition(
        {"adam": optax.adam(0.1), "ours": pa_cgad(0.1, FRAGMENTS)}, labels
    )
    state = tx.init(PARAMS)
    whole = pa_cgad(0.1, FRAGMENTS)
    whole_state = whole.init(PARAMS)
    for gradient, synced in zip(gradients(2), (one(0), one(2)), strict=True):
        steps, state = tx.update(gradient, state, PARAMS, synced=synced, age=0)
        expected, whole_state = whole.update(gradient, whole_state, synced=synced)
        for a, b in zip(steps["layers"], expected["layers"], strict=True):
            np.testing.assert_allclose(a["w"], b["w"], rtol=1e-6)
    inner = state.inner_states["ours"].inner_state
    np.testing.assert_array_equal(inner.ages, [1, 2, 0])
    # Masked by a whole subtree, labels below it are left over.
    masked = optax.masked(pa_cgad(0.1, FRAGMENTS), {"embed": True, "layers": False})
    steps, _ = masked.update(gradients(1)[0], masked.init(PARAMS), PARAMS)
    assert_same(steps["layers"], gradients(1)[0]["layers"])


@pytest.mark.parametrize(
    ("fragments", "message"),
    [
        ({"embed": 0}, r"^fragments has no value for params\['layers'\]"),
        ({"embed": 0, "layers": [0, 1]}, r"^fragments has no value for params"),
        (
            {"embed": 0, "layers": 1, "head": 2},
            r"^fragments\['head'\] stands at no leaf of params",
        ),
    ],
)
def test_fragments_that_do_not_match_are_refused(fragments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pa_cgad(0.1, fragments).init(PARAMS)


@pytest.mark.parametrize("fragments", [{}, {"embed": 0, "layers": "x"}])
def test_labels_must_exist_and_sort(fragments: Any) -> None:
    with pytest.raises(ValueError, match="^fragments must hold"):
        pa_cgad(0.1, fragments)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"synced": np.ones(2, bool)}, r"^synced must be 3 booleans .* shape \(2,\)"),
        ({"synced": True}, r"^synced must be 3 booleans .* shape \(\)"),
        ({"synced": np.array([0, 1, 2])}, r"^synced must be 3 booleans .* got int"),
        ({"synced": {"layers": True}}, r"^synced has unknown labels \['layers'\]"),
        ({"age": -1}, r"^age must be"),
        ({"age": np.array([0.0, np.nan, 1.0])}, r"^age must be"),
        ({"age": np.zeros(2)}, r"^age must be a scalar or have shape \(3,\)"),
    ],
)
def test_bad_calls_are_refused(kwargs: dict, message: str) -> None:
    tx = pa_cgad(0.1, FRAGMENTS)
    with pytest.raises(ValueError, match=message):
        tx.update(gradients(1)[0], tx.init(PARAMS), PARAMS, **kwargs)


@pytest.mark.parametrize("bad", [{"b2": 1.0}, {"alpha": -1.0}, {"gate": "no"}])
def test_bad_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(bad))} must be"):
        pa_cgad(0.1, FRAGMENTS, **bad)
