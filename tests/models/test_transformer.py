"""Transformer layers against plain NumPy, and the ways to run a stack of them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.models import TransformerShape
from spheroid_jax.models.transformer import (
    TransformerLayer,
    apply_layers,
    init_layers,
    rotate,
)

SHAPE = TransformerShape(width=16, heads=2, mlp_width=64, layers=3)
LENGTH = 8
run = jax.jit(apply_layers, static_argnums=1)


@pytest.fixture(scope="module")
def stack(filled: Callable[[Any], Any]) -> Any:
    return filled(
        jax.eval_shape(lambda k: init_layers(k, SHAPE, SHAPE.layers), jax.random.key(0))
    )


@pytest.fixture(scope="module")
def stream() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (2, LENGTH, SHAPE.width))


@pytest.mark.parametrize("rotary", [True, False])
def test_causal_layers_equal_plain_numpy(
    rotary: bool,
    stack: Any,
    stream: jax.Array,
    oracle: Any,
    as_float64: Callable[[Any], Any],
) -> None:
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    expected = oracle.layers(
        as_float64(stack),
        as_float64(stream),
        causal,
        np.arange(LENGTH) if rotary else None,
    )
    got = run(stack, dataclasses.replace(SHAPE, rotary=rotary), stream)
    np.testing.assert_allclose(got, expected, rtol=5e-5, atol=5e-5)


def test_masked_layers_at_given_positions_equal_plain_numpy(
    stack: Any, stream: jax.Array, oracle: Any, as_float64: Callable[[Any], Any]
) -> None:
    allowed = np.random.default_rng(0).random((LENGTH, LENGTH)) < 0.5
    np.fill_diagonal(allowed, True)
    positions = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    expected = oracle.layers(as_float64(stack), as_float64(stream), allowed, positions)
    got = run(stack, SHAPE, stream, jnp.asarray(positions), jnp.asarray(allowed))
    np.testing.assert_allclose(got, expected, rtol=5e-5, atol=5e-5)


def test_rotary_attention_depends_on_distance_and_not_on_place(
    stack: Any, stream: jax.Array
) -> None:
    here = run(stack, SHAPE, stream, jnp.arange(LENGTH))
    moved = run(stack, SHAPE, stream, jnp.arange(LENGTH) + 100)
    spread = run(stack, SHAPE, stream, 2 * jnp.arange(LENGTH))
    np.testing.assert_allclose(here, moved, rtol=1e-3, atol=1e-3)
    assert float(jnp.max(jnp.abs(here - spread))) > 0.05


def test_an_odd_head_keeps_its_last_channel_unrotated() -> None:
    x = jax.random.normal(jax.random.key(0), (1, 3, 2, 5))
    turned = rotate(x, jnp.arange(3))
    np.testing.assert_array_equal(turned[..., 4], x[..., 4])
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])
    np.testing.assert_allclose(
        jnp.linalg.norm(turned, axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5
    )


def test_layers_under_a_scan_equal_a_loop_over_layers(
    stack: Any, stream: jax.Array
) -> None:
    @jax.jit
    def one(layer: Any, h: jax.Array) -> jax.Array:
        return TransformerLayer(SHAPE).apply(
            {"params": layer}, h, jnp.arange(LENGTH), None
        )

    looped = stream
    for i in range(SHAPE.layers):
        looped = one(jax.tree.map(lambda leaf, i=i: leaf[i], stack), looped)
    scanned = run(stack, SHAPE, stream)
    np.testing.assert_allclose(scanned, looped, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [16, 24])
def test_a_layer_has_twelve_square_and_thirteen_parameters(width: int) -> None:
    shape = TransformerShape(width=width, heads=2, mlp_width=4 * width, layers=1)
    layers = jax.eval_shape(lambda k: init_layers(k, shape, 5), jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(layers))
    assert size == 5 * (12 * width**2 + 13 * width)


@pytest.fixture(scope="module")
def deep() -> TransformerShape:
    return dataclasses.replace(SHAPE, layers=24)


@pytest.fixture(scope="module")
def fresh_stack(deep: TransformerShape) -> Any:
    return jax.jit(lambda key: init_layers(key, deep, 24))(jax.random.key(0))


def test_layers_start_different_from_each_other(fresh_stack: Any) -> None:
    for name in ("qkv", "attention_out", "mlp_in", "mlp_out"):
        kernel = np.asarray(fresh_stack[name]["kernel"])
        assert not np.any(kernel[0] == kernel[1])


def test_a_deep_fresh_stack_adds_little_to_the_stream(
    fresh_stack: Any, deep: TransformerShape, stream: jax.Array
) -> None:
    grown = jnp.std(run(fresh_stack, deep, stream)) / jnp.std(stream)
    assert 1.0 < float(grown) < 1.7


def test_gradients_do_not_depend_on_what_is_recomputed(
    stack: Any, stream: jax.Array
) -> None:
    @functools.partial(jax.jit, static_argnums=0)
    def gradient(shape: TransformerShape, stack: Any) -> Any:
        return jax.grad(lambda p: jnp.mean(apply_layers(p, shape, stream) ** 2))(stack)

    expected = gradient(dataclasses.replace(SHAPE, remat="none"), stack)
    for policy in ("dots", "full"):
        got = gradient(dataclasses.replace(SHAPE, remat=policy), stack)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
            expected,
            got,
        )


def test_what_is_recomputed_is_not_kept(stack: Any) -> None:
    """The function that jax.vjp returns carries what was kept for it as leaves."""
    h = jax.ShapeDtypeStruct((4, 64, 16), jnp.float32)

    def kept(policy: str) -> int:
        shape = dataclasses.replace(SHAPE, remat=policy)
        _, backward = jax.eval_shape(
            lambda p, h: jax.vjp(lambda p: apply_layers(p, shape, h), p), stack, h
        )
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    assert kept("full") < kept("dots") < kept("none")


def test_bfloat16_computes_close_by_and_keeps_float32_parameters(
    stack: Any, stream: jax.Array
) -> None:
    half = dataclasses.replace(SHAPE, compute_dtype="bfloat16")
    begun = jax.eval_shape(lambda k: init_layers(k, half, 3), jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(begun)} == {jnp.dtype("float32")}

    exact, got = run(stack, SHAPE, stream), run(stack, half, stream)
    assert got.dtype == jnp.bfloat16
    error = jnp.linalg.norm(got - exact) / jnp.linalg.norm(exact)
    assert 1e-4 < float(error) < 0.02  # not the same arithmetic, but near

    gradient = jax.eval_shape(
        jax.grad(lambda p: jnp.sum(apply_layers(p, half, stream).astype(jnp.float32))),
        stack,
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
