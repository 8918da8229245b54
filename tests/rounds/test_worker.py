"""A worker's local phase: AdamW in plain NumPy, what decays, the schedule, clipping."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax import partition
from spheroid_jax.models import Autoregressive, InterfaceShape, TransformerShape
from spheroid_jax.objectives import Batch, cross_entropy, split_windows
from spheroid_jax.optim.quantized import adamw_8bit
from spheroid_jax.rounds import Engine, decays, inner_optimizer, local_phase
from spheroid_jax.rounds.worker import renewed

STEPS, BATCH, LENGTH, WIDTH = 6, 2, 8, 16


def bigram(params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Any]:
    """The next byte from the last one: the least that has kernels and a table."""
    del key
    x, y = split_windows(batch.windows)
    dense = params["layers"]["dense"]
    h = jnp.tanh(params["interface"]["table"][x])
    logits = h @ dense["kernel"] + dense["bias"][None, None]
    ce = jnp.mean(cross_entropy(logits, y))
    return ce, {"ce": ce}


@pytest.fixture(scope="module")
def params() -> Any:
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(0.25 * rng.standard_normal(shape), jnp.float32)

    return {
        "layers": {"dense": {"kernel": draw(WIDTH, 256), "bias": draw(256)}},
        "interface": {"table": draw(256, WIDTH)},
    }


@pytest.fixture(scope="module")
def real_params() -> Any:
    """Of a reference with two layers; nothing to compile."""
    model = Autoregressive(
        TransformerShape(width=WIDTH, heads=2, mlp_width=32, layers=2),
        InterfaceShape(width=WIDTH, seq_len=LENGTH, noisy=False),
    )
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype),
        jax.eval_shape(model.init, jax.random.key(0)),
    )


@pytest.fixture(scope="module")
def windows() -> jax.Array:
    shape = (STEPS, BATCH, LENGTH + 1)
    return jax.random.randint(jax.random.key(1), shape, 0, 256).astype(jnp.uint8)


@pytest.fixture(scope="module")
def inner() -> optax.GradientTransformation:
    return inner_optimizer(1e-2, STEPS, warmup_steps=2)


@pytest.fixture(scope="module")
def plainly_trained(params: Any, windows: jax.Array, inner: Any) -> Any:
    """Step by step in a Python loop, as a newcomer would write it."""

    @jax.jit
    def step(params: Any, state: Any, batch: jax.Array) -> Any:
        (loss, _), gradient = jax.value_and_grad(bigram, has_aux=True)(
            params, Batch(batch, jnp.int32(0)), jax.random.key(0)
        )
        updates, state = inner.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, losses, path = inner.init(params), [], []
    for batch in windows:
        params, state, loss = step(params, state, batch)
        losses.append(float(loss))
        path.append(params)
    return {"path": path, "state": state, "losses": losses}


def close(a: Any, b: Any) -> None:
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5), a, b
    )


def test_a_local_phase_is_a_loop_of_optimizer_steps(
    params: Any, windows: jax.Array, inner: Any, plainly_trained: Any
) -> None:
    @jax.jit
    def phase(params: Any, windows: jax.Array) -> Any:
        return local_phase(
            bigram,
            inner,
            params,
            inner.init(params),
            windows,
            jnp.int32(0),
            jax.random.key(5),
        )

    trained, state, metrics = phase(params, windows)
    close(trained, plainly_trained["path"][-1])
    close(state, plainly_trained["state"])
    expected = np.mean(plainly_trained["losses"])
    assert float(metrics["loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["ce"]) == pytest.approx(expected, rel=1e-5)


def test_rounds_of_one_worker_under_sgd_one_are_plain_training(
    params: Any,
    windows: jax.Array,
    inner: Any,
    plainly_trained: Any,
    start: Callable[..., Any],
    go: Callable[..., Any],
) -> None:
    """The end-to-end reference is the engine with one worker: 2 rounds of 3 steps."""
    engine = Engine(partition.everything(), bigram, inner, optax.sgd(1.0), 1)
    state = start(engine, params)
    for round_ in range(2):
        own = windows[3 * round_ : 3 * round_ + 3]
        state, _ = go(engine, state, own[None, None])
        close(state.params, plainly_trained["path"][3 * round_ + 2])


def adamw_in_numpy(
    kernel: np.ndarray, gradients: list[np.ndarray], rates: list[float], decay: float
) -> np.ndarray:
    b1, b2, eps = 0.9, 0.95, 1e-8
    m = v = np.zeros_like(kernel)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        step = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
        kernel = kernel - rate * (step + decay * kernel)
    return kernel


def follow(optimizer: Any, params: Any, gradients: list[Any]) -> Any:
    @jax.jit
    def end(params: Any, gradients: list[Any]) -> Any:
        state = optimizer.init(params)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return params

    return end(params, gradients)


def test_the_inner_optimizer_is_adamw_with_decay_on_kernels_only() -> None:
    rng = np.random.default_rng(0)
    # Small gradients: the clip at norm 1 doesn't act.
    gradients = [0.1 * rng.standard_normal((3, 2)) for _ in range(3)]
    begun = rng.standard_normal((3, 2))
    params = {"dense": {"kernel": jnp.asarray(begun), "bias": jnp.asarray(begun)}}
    optimizer = inner_optimizer(0.1, 100, warmup_steps=4, weight_decay=0.5)
    got = follow(
        optimizer,
        params,
        [
            {"dense": dict.fromkeys(("kernel", "bias"), jnp.asarray(g))}
            for g in gradients
        ],
    )
    rates = [0.1 * (i + 1) / 5 for i in range(3)]  # a fifth of the peak at first
    for name, decay in (("kernel", 0.5), ("bias", 0.0)):
        expected = adamw_in_numpy(begun, gradients, rates, decay)
        np.testing.assert_allclose(got["dense"][name], expected, rtol=1e-5, atol=1e-6)


def test_weight_decay_shrinks_the_matrices_of_the_layers_and_nothing_else(
    real_params: Any,
) -> None:
    """Under a zero gradient only the decay moves a parameter."""
    optimizer = inner_optimizer(0.1, 10, weight_decay=0.5)
    nothing = jax.tree.map(jnp.zeros_like, real_params)
    after = follow(optimizer, real_params, [nothing])
    expected = {"qkv", "attention_out", "mlp_in", "mlp_out"}
    shrunk = set()
    for path, old in jax.tree_util.tree_leaves_with_path(real_params):
        names = [entry.key for entry in path]
        new = after
        for name in names:
            new = new[name]
        if not np.array_equal(old, new):
            assert names[0] == "layers"
            assert names[-1] == "kernel"
            shrunk.add(names[1])
            np.testing.assert_allclose(new, old * (1 - 0.1 * 0.5), rtol=1e-6)
    assert shrunk == expected


def test_what_decays_is_decided_by_name_and_not_by_rank(real_params: Any) -> None:
    mask = decays(real_params)
    # Stacked over layers a bias is a matrix, and the byte table always is one.
    assert real_params["layers"]["qkv"]["bias"].ndim == 2
    assert not mask["layers"]["qkv"]["bias"]
    assert not mask["interface"]["table"]
    assert not mask["interface"]["w_x"]
    assert mask["layers"]["qkv"]["kernel"]


def rates(steps: int, **settings: Any) -> np.ndarray:
    """Learning rate of every step, seen in how fast weight decay alone shrinks 1."""
    optimizer = inner_optimizer(weight_decay=1.0, **settings)
    params = {"kernel": jnp.ones(())}

    def step(state: Any, _: None) -> Any:
        updates, state = optimizer.update({"kernel": jnp.zeros(())}, state, params)
        return state, -updates["kernel"]

    _, seen = jax.lax.scan(step, optimizer.init(params), length=steps)
    return np.asarray(seen)


def test_the_learning_rate_warms_up_linearly_and_falls_on_a_cosine() -> None:
    seen = rates(
        13, learning_rate=0.1, total_steps=12, warmup_steps=4, final_lr_fraction=0.2
    )
    # A fifth of the peak at the first step; the peak after four.
    np.testing.assert_allclose(seen[:5], [0.02, 0.04, 0.06, 0.08, 0.1], rtol=1e-5)
    # Half-way down the cosine: the mean of peak and end.
    assert seen[8] == pytest.approx((0.1 + 0.02) / 2, rel=1e-5)
    assert seen[12] == pytest.approx(0.02, rel=1e-5)
    assert np.all(np.diff(seen[4:]) < 0)


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    seen = rates(5, learning_rate=0.1, total_steps=4, final_lr_fraction=0.0)
    assert seen[0] == pytest.approx(0.1, rel=1e-6)
    assert seen[4] == pytest.approx(0.0, abs=1e-8)


def test_a_run_shorter_than_its_warm_up_never_reaches_the_peak() -> None:
    seen = rates(3, learning_rate=0.1, total_steps=3, warmup_steps=9)
    np.testing.assert_allclose(seen, [0.01, 0.02, 0.03], rtol=1e-5)


def test_gradients_above_the_clip_count_by_their_direction() -> None:
    """AdamW forgets a constant scale: only a change of it shows whether it was cut."""
    params = {"kernel": jnp.zeros(2)}
    unit = jnp.array([0.6, 0.8])
    spike = [{"kernel": unit}, {"kernel": 100.0 * unit}]
    level = [{"kernel": unit}, {"kernel": unit}]

    def end(gradients: list[Any], clip: float) -> np.ndarray:
        optimizer = inner_optimizer(0.1, 10, weight_decay=0.0, clip=clip)
        return np.asarray(follow(optimizer, params, gradients)["kernel"])

    np.testing.assert_allclose(end(spike, 1.0), end(level, 1.0), rtol=1e-5)
    assert np.abs(end(spike, 0.0) - end(level, 0.0)).max() > 1e-3
    # The clip is on the norm of all leaves together, and off at zero.
    np.testing.assert_array_equal(end(level, 0.0), end(level, 5.0))


class TestRenewed:
    """A worker that forgets its moments but not how far its schedule is."""

    @staticmethod
    def trained(steps: int, params: Any, optimizer: Any) -> Any:
        state = optimizer.init(params)
        for _ in range(steps):
            _, state = optimizer.update(params, state, params)
        return state

    @pytest.mark.parametrize("adamw", [optax.adamw, adamw_8bit])
    def test_moments_and_their_count_are_fresh_and_the_schedule_is_not(
        self, adamw: Any
    ) -> None:
        params = {"kernel": jnp.ones((2, 128))}
        optimizer = inner_optimizer(0.1, 10, warmup_steps=4, adamw=adamw)
        old = self.trained(3, params, optimizer)
        new = renewed(optimizer, params, old)
        structures: list[Any] = [jax.tree.structure(tree) for tree in (new, old)]
        assert structures[0] == structures[1]
        fresh = jax.tree_util.tree_leaves_with_path(optimizer.init(params))
        kept = []
        for (path, begun), got, had in zip(
            fresh, jax.tree.leaves(new), jax.tree.leaves(old), strict=True
        ):
            assert got.dtype == had.dtype
            if not np.array_equal(got, begun):
                np.testing.assert_array_equal(got, had)
                kept.append((jax.tree_util.keystr(path), int(got)))
        assert [count for _, count in kept] == [3]
        # The next step has the schedule's fourth rate and the first step's moments.
        update, _ = optimizer.update(params, new, params)
        first, _ = optimizer.update(params, optimizer.init(params), params)
        np.testing.assert_allclose(
            update["kernel"], 4 * np.asarray(first["kernel"]), rtol=1e-5
        )

    def test_without_a_schedule_everything_is_fresh(self) -> None:
        params = {"kernel": jnp.ones(3)}
        optimizer = optax.adam(0.1)
        new = renewed(optimizer, params, self.trained(3, params, optimizer))
        jax.tree.map(np.testing.assert_array_equal, new, optimizer.init(params))
