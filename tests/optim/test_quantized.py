"""8-bit moments: error bounds, the direction of rounding, and AdamW beside float32."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from spheroid_jax.optim.quantized import (
    Quantized,
    adamw_8bit,
    dequantize,
    quantize,
    scale_by_adam_8bit,
)

RNG = np.random.default_rng(11)


def spread(shape: tuple[int, ...], decades: float) -> np.ndarray:
    """Random signs, magnitudes spread evenly over decades."""
    signs = RNG.choice([-1.0, 1.0], size=shape)
    return (signs * 10 ** -RNG.uniform(0, decades, size=shape)).astype(np.float32)


def round_trip(x: np.ndarray, signed: bool, draws: Any = 0.5) -> np.ndarray:
    return np.asarray(_round_trip(x, signed, jnp.broadcast_to(draws, x.shape)))


@partial(jax.jit, static_argnums=1)
def _round_trip(x: jax.Array, signed: bool, draws: jax.Array) -> jax.Array:
    return dequantize(quantize(x, 64, signed, draws), 64)


def test_first_moments_are_within_a_gap_of_their_value() -> None:
    x = spread((8, 256), 8)
    scale = np.abs(x).reshape(8, 4, 64).max(-1).repeat(64, axis=-1)
    # The law's own gap at c is 3 c^2 / 127^3 and a little: bounded by that of c + 1.
    c = np.floor(127 * np.cbrt(np.abs(x) / scale))
    gap = scale * ((c + 1) ** 3 - c**3) / 127**3
    for draws in (0.0, 0.5, 0.999):
        assert (np.abs(round_trip(x, True, draws) - x) <= 1.001 * gap).all()
    # Within 3 % of the largest of a block at its top, 12 % at a hundredth of it.
    near = np.abs(x) > 0.5 * scale
    assert near.sum() > 50
    error = np.abs(round_trip(x, True) / x - 1)
    assert error[near].max() < 0.03
    assert error[np.abs(x) > 0.01 * scale].max() < 0.12


def test_roots_of_second_moments_are_as_close() -> None:
    v = spread((8, 256), 8) ** 2
    scale = v.reshape(8, 4, 64).max(-1).repeat(64, axis=-1)
    for draws in (0.0, 0.5, 0.999):
        error = np.abs(np.sqrt(round_trip(v, False, draws) / v) - 1)
        assert error[np.sqrt(v) > 0.5 * np.sqrt(scale)].max() < 0.016
        assert error[np.sqrt(v) > 0.01 * np.sqrt(scale)].max() < 0.06
        assert error[np.sqrt(v) > 1e-4 * np.sqrt(scale)].max() < 0.3


@pytest.mark.parametrize("signed", [True, False])
def test_zero_the_largest_and_every_code_are_exact(signed: bool) -> None:
    assert not round_trip(np.zeros((2, 64), np.float32), signed).any()
    top, power = (127, 3) if signed else (255, 6)
    codes = np.arange(-top if signed else 0, top + 1)
    law = np.sign(codes) * (np.abs(codes) / top) ** power
    x = np.zeros((len(codes), 64), np.float32)
    x[:, 0], x[:, 1] = 0.37, 0.37 * law
    np.testing.assert_allclose(round_trip(x, signed), x, rtol=1e-6)


def test_a_positive_second_moment_is_never_rounded_to_zero() -> None:
    v = np.full((1, 64), 1e-30, np.float32)
    v[0, 0], v[0, 1] = 1.0, 0.0
    got = round_trip(v, False, 0.999)
    # Up, to the least value: the safe side, as it is in the denominator.
    np.testing.assert_allclose(got[0, 2:], (1 / 255) ** 6, rtol=1e-5)
    assert got[0, 1] == 0.0


@pytest.mark.parametrize("signed", [True, False])
def test_rounding_is_right_on_average(signed: bool) -> None:
    x = np.abs(spread((1, 64), 4))
    draws = (np.arange(1000) + 0.5) / 1000
    stack = np.broadcast_to(x, (1000, 64))
    mean = round_trip(stack, signed, draws[:, None]).mean(axis=0)
    # Rounded to the nearest, each would be off by up to half of a gap.
    np.testing.assert_allclose(mean, x[0], rtol=2e-3)


@pytest.mark.parametrize(("n", "blocks"), [(64, 1), (65, 2), (200, 4)])
def test_the_last_block_may_be_short(n: int, blocks: int) -> None:
    x = spread((3, n), 2)
    packed = jax.jit(quantize, static_argnums=(1, 2))
    q = packed(jnp.asarray(x), 64, True, jnp.full(x.shape, 0.5))
    assert (q.codes.shape, q.scales.shape) == ((3, n), (3, blocks))
    expected = [np.abs(x[:, i : i + 64]).max(axis=1) for i in range(0, n, 64)]
    np.testing.assert_array_equal(q.scales, np.stack(expected, axis=1))


def second_moments(gradients: np.ndarray, b2: float) -> np.ndarray:
    """What is stored after these gradients (steps, n); the first leaf's, decoded."""
    transformation = scale_by_adam_8bit(b2=b2, min_size=1)

    def body(state: Any, g: jax.Array) -> Any:
        return transformation.update(g, state)[1], None

    state = transformation.init(jnp.zeros(gradients.shape[1]))
    state, _ = jax.lax.scan(body, state, jnp.asarray(gradients))
    return np.asarray(dequantize(state.nu, 256))


def test_second_moments_follow_gradients_that_shrink() -> None:
    # One element keeps its gradient, and with it the block its scale; the others go
    # from 0.5 to 0. Rounded to the nearest they would stay at 0.25 for ever, as 0.1 %
    # is less than half of a gap.
    gradients = np.zeros((4000, 64), np.float32)
    gradients[:, 0] = 1.0
    gradients[:2000, 1:] = 0.5
    v = second_moments(gradients, 0.999)
    plateau = 0.25 * (1 - 0.999**2000)
    np.testing.assert_allclose(v[1:].mean(), plateau * 0.999**2000, rtol=0.15)
    np.testing.assert_allclose(v[0], 1 - 0.999**4000, rtol=1e-3)


def test_a_whole_block_decays_by_exactly_its_rate() -> None:
    gradients = np.zeros((2001, 64), np.float32)
    gradients[0] = spread((64,), 1)
    v = second_moments(gradients, 0.999)
    expected = 0.001 * gradients[0] ** 2 * 0.999**2000
    largest = np.argmax(expected)
    np.testing.assert_allclose(v[largest], expected[largest], rtol=1e-3)
    assert 0 < v.min() < v.max() < 1e-3


@pytest.mark.parametrize(("b1", "b2"), [(0.9, 0.999), (0.9, 0.95)])
def test_no_step_is_larger_than_adam_can_take(b1: float, b2: float) -> None:
    # Spikes, silence and wide ranges within a block: what breaks a linear code.
    steps = 300
    gradients = spread((steps, 256), 9) * (RNG.random((steps, 256)) < 0.1)
    gradients[100:150] = 0.0
    transformation = scale_by_adam_8bit(b1, b2, eps=1e-30, min_size=1)

    def body(state: Any, g: jax.Array) -> Any:
        u, state = transformation.update(g, state)
        return state, u

    state = transformation.init(jnp.zeros(256))
    _, u = jax.lax.scan(body, state, jnp.asarray(gradients, jnp.float32))
    # |m| <= r sqrt(v), and bias correction multiplies by what follows.
    r = (1 - b1) / np.sqrt((1 - b2) * (1 - b1**2 / b2))
    t = np.arange(1, steps + 1)
    bound = r * np.sqrt(1 - b2**t) / (1 - b1**t)
    assert np.isfinite(u).all()
    assert (np.abs(u).max(axis=1) <= 1.001 * bound).all()


# --- beside float32 AdamW -----------------------------------------------------------

FEATURES, CLASSES = 32, 128
X = (RNG.normal(size=(256, FEATURES)) * 10 ** RNG.uniform(-2, 0, FEATURES)).astype("f4")
Y = np.argmax(X @ RNG.normal(size=(FEATURES, CLASSES)), axis=1)


def loss(params: Any, rows: jax.Array) -> jax.Array:
    x = jnp.asarray(X)[rows].astype(params["w"].dtype)
    logits = (x @ params["w"] + params["b"][None]).astype(jnp.float32)
    labels = jnp.asarray(Y)[rows]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@pytest.fixture(scope="module")
def train() -> Callable[[Any, Any], tuple[float, Any]]:
    """Logistic regression, 200 steps: the loss on everything, and the state."""

    def run(optimizer: Any, dtype: Any) -> tuple[float, Any]:
        params = {
            "w": jnp.zeros((FEATURES, CLASSES), dtype),
            "b": jnp.zeros(CLASSES, dtype),
        }

        def body(carry: Any, step: jax.Array) -> Any:
            params, state = carry
            key = jax.random.fold_in(jax.random.key(0), step)
            rows = jax.random.randint(key, (32,), 0, len(X))
            grads = jax.grad(loss)(params, rows)
            u, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, u), state), None

        carry = (params, optimizer.init(params))
        (params, state), _ = jax.lax.scan(body, carry, jnp.arange(200))
        assert params["w"].dtype == dtype
        return float(loss(params, jnp.arange(len(X)))), state

    return run


@pytest.mark.parametrize("b2", [0.95, 0.999])
def test_loss_beside_float32_adamw(train: Any, b2: float) -> None:
    settings: dict[str, Any] = {"b2": b2, "weight_decay": 1e-2}
    reference, _ = train(optax.adamw(0.05, **settings), jnp.float32)
    ours, _ = train(adamw_8bit(0.05, **settings, min_size=1024), jnp.float32)
    assert reference < 0.5 * np.log(CLASSES)
    np.testing.assert_allclose(ours, reference, rtol=0.03)


def test_loss_with_bfloat16_parameters(train: Any) -> None:
    reference, _ = train(optax.adamw(0.05), jnp.float32)
    ours, state = train(adamw_8bit(0.05, min_size=1024), jnp.bfloat16)
    assert ours < 1.1 * reference
    dtypes = [x.dtype.name for x in jax.tree.leaves(state[0])]
    # Count; first moments of b and w; second moments.
    assert sorted(dtypes) == ["float32"] * 4 + ["int32", "int8", "uint8"]


def test_state_takes_two_bytes_an_element_and_scales() -> None:
    params = {"big": jnp.zeros((64, 512)), "small": jnp.zeros(100)}
    state = scale_by_adam_8bit(block_size=256).init(params)
    big = [state.mu["big"], state.nu["big"]]
    assert [x.codes.shape for x in big] == [(64, 512)] * 2
    total = sum(x.nbytes for x in jax.tree.leaves(big))
    assert total == 2 * 64 * 512 + 2 * 4 * 64 * 2  # 26 % of 8 bytes an element
    assert state.mu["small"].dtype == jnp.float32


def test_small_leaves_and_short_rows_are_plain_adam() -> None:
    params = {"few": jnp.ones(4095), "thin": jnp.ones((1024, 8)), "none": None}
    ours, adam = scale_by_adam_8bit(), optax.scale_by_adam()
    g = jax.tree.map(lambda p: jnp.linspace(-1, 1, p.size).reshape(p.shape), params)
    state, reference = ours.init(params), adam.init(params)
    for _ in range(3):
        u, state = ours.update(g, state, age=4)
        expected, reference = adam.update(g, reference)
        for name in ("few", "thin"):
            np.testing.assert_allclose(u[name], expected[name], rtol=1e-4)
    assert u["none"] is None


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_zero_gradients_move_nothing(dtype: Any) -> None:
    transformation = scale_by_adam_8bit(min_size=1)
    zeros = jnp.zeros((2, 64), dtype)
    update, state = jax.jit(transformation.update), transformation.init(zeros)
    for _ in range(3):
        u, state = update(zeros, state)
        assert u.dtype == dtype
        assert not u.any()
    assert not state.mu.codes.any()
    assert not state.nu.codes.any()


def test_tiny_gradients_take_the_steps_of_float32_adam() -> None:
    # 2e-5 squared, times 0.001, is 4e-13: zero in float16 and in a linear 8-bit code
    # beside a 1. A constant gradient moves by 1 a step whatever its size.
    g = jnp.full((1, 64), 2e-5).at[0, 0].set(1.0)
    transformation = scale_by_adam_8bit(eps=1e-12, min_size=1)
    update, state = jax.jit(transformation.update), transformation.init(g)
    for _ in range(20):
        u, state = update(g, state)
        np.testing.assert_allclose(u, np.ones((1, 64)), atol=0.5)


def test_codes_and_scales_are_sharded_like_the_parameter() -> None:
    mesh = jax.make_mesh((8,), ("fsdp",))
    rows = NamedSharding(mesh, PartitionSpec("fsdp", None))
    params = jax.device_put(jnp.ones((8, 512)), rows)
    transformation = scale_by_adam_8bit(min_size=1)
    state = transformation.init(params)
    update = jax.jit(transformation.update)
    _, after = update(params, state)
    for moments in (state.mu, state.nu, after.mu, after.nu):
        for x in moments:
            assert x.sharding.is_equivalent_to(rows, 2)
    # Blocks lie within rows, so that nothing has to travel.
    program = update.lower(params, state).compile().as_text()
    assert program is not None
    assert "all-" not in program


def test_under_vmap_over_workers_each_is_by_itself() -> None:
    transformation = scale_by_adam_8bit(min_size=64)
    g = jnp.asarray(spread((3, 2, 64), 3))
    state = jax.vmap(transformation.init)(g)
    assert isinstance(state.mu, Quantized)
    assert state.mu.codes.dtype == jnp.int8
    update = jax.jit(transformation.update)
    u, after = jax.jit(jax.vmap(lambda g, s: transformation.update(g, s)))(g, state)
    for k in range(3):
        alone, expected = update(g[k], transformation.init(g[k]))
        np.testing.assert_allclose(u[k], alone, rtol=1e-6)
        np.testing.assert_array_equal(after.mu.codes[k], expected.mu.codes)


def test_weight_decay_mask_and_dtype_are_those_of_adamw() -> None:
    params = {"w": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(3, jnp.bfloat16)}
    optimizer = adamw_8bit(
        jnp.float32(0.5), weight_decay=0.25, mask={"w": True, "b": False}
    )
    zeros = jax.tree.map(jnp.zeros_like, params)
    u, _ = optimizer.update(zeros, optimizer.init(params), params)
    assert u["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(u["w"].astype(jnp.float32), [-0.125] * 3)
    np.testing.assert_array_equal(u["b"].astype(jnp.float32), [0.0] * 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"block_size": 0}, "block_size must be a whole number >= 1, got 0"),
        ({"min_size": 1.5}, "min_size must be a whole number >= 1, got 1.5"),
        ({"b2": 1.0}, "b2 must be .* got 1.0"),
    ],
)
def test_bad_numbers_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adamw_8bit(0.1, **arguments)
