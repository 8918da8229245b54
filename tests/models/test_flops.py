"""Closed-form training FLOPs against those that XLA counts in a compiled step.

XLA counts the body of a loop once, so the compiled models have one layer, whose loop
runs once; that cost grows linearly with layers is checked on its own.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from spheroid_jax.models import Autoregressive, BlockDenoiser, TransformerShape
from spheroid_jax.models.flops import (
    autoregressive_window_flops,
    denoiser_window_flops,
    layers_flops,
)
from spheroid_jax.models.transformer import TransformerLayer, init_layers

# Long and narrow, so that attention is a good part of the cost.
WIDTH, LENGTH, BATCH = 64, 256, 1
LAYERS = {"width": WIDTH, "mlp_width": 4 * WIDTH, "layers": 1}


def counted(function: Callable[..., Any], *args: Any) -> float:
    cost = jax.jit(function).lower(*args).compile().cost_analysis()
    return float(cost["flops"])


@pytest.mark.parametrize("layout", ["aligned", "concat"])
def test_denoiser_formula_is_what_xla_counts(
    layout: str, denoiser: Callable[..., BlockDenoiser]
) -> None:
    model = denoiser(layout, layers=LAYERS, width=WIDTH, seq_len=LENGTH)
    params = jax.eval_shape(lambda k: model.init(k, 1), jax.random.key(0))

    def loss(params: Any, x: jax.Array, z: jax.Array, sigma: jax.Array) -> jax.Array:
        block = jax.tree.map(lambda leaf: leaf[0], params["blocks"])
        return jnp.sum(model.logits(block, params["interface"], x, z, sigma) ** 2)

    got = counted(
        jax.grad(loss),
        params,
        jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32),
        jax.ShapeDtypeStruct((BATCH, LENGTH, WIDTH), jnp.float32),
        jax.ShapeDtypeStruct((BATCH,), jnp.float32),
    )
    assert BATCH * denoiser_window_flops(model) == pytest.approx(got, rel=0.15)


def test_reference_formula_is_what_xla_counts(
    autoregressive: Callable[..., Autoregressive],
) -> None:
    model = autoregressive(layers=LAYERS, width=WIDTH, seq_len=LENGTH)
    params = jax.eval_shape(model.init, jax.random.key(0))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(model.logits(params, x) ** 2)

    got = counted(
        jax.grad(loss), params, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    )
    assert BATCH * autoregressive_window_flops(model) == pytest.approx(got, rel=0.15)


def test_layers_cost_alike_in_an_unrolled_stack() -> None:
    shape = TransformerShape(WIDTH, 2, 4 * WIDTH, 3)
    stack = jax.eval_shape(lambda k: init_layers(k, shape, 3), jax.random.key(0))

    def unrolled(stack: Any, h: jax.Array) -> jax.Array:
        for i in range(3):
            layer = jax.tree.map(lambda leaf, i=i: leaf[i], stack)
            h = TransformerLayer(shape).apply(
                {"params": layer}, h, jnp.arange(LENGTH), None
            )
        return h

    h = jax.ShapeDtypeStruct((1, LENGTH, WIDTH), jnp.float32)
    got = counted(unrolled, stack, h)
    assert layers_flops(shape, 3, LENGTH) == pytest.approx(got, rel=0.15)


def test_all_blocks_together_cost_what_the_end_to_end_reference_costs(
    denoiser: Callable[..., BlockDenoiser],
    autoregressive: Callable[..., Autoregressive],
) -> None:
    """Equal training FLOPs at equal updates, at the paper's size: within 10 %."""
    wide = {"width": 512, "mlp_width": 2048}
    block = denoiser(layers={**wide, "layers": 4}, width=512, seq_len=256)
    whole = autoregressive(layers={**wide, "layers": 12}, width=512, seq_len=256)
    blocks = 3 * denoiser_window_flops(block)
    assert blocks == pytest.approx(autoregressive_window_flops(whole), rel=0.10)


def test_the_concatenated_layout_costs_about_twice_the_aligned_one(
    denoiser: Callable[..., BlockDenoiser],
) -> None:
    wide = {"width": 512, "mlp_width": 2048, "layers": 4}
    aligned, concat = (
        denoiser_window_flops(denoiser(layout, layers=wide, width=512, seq_len=256))
        for layout in ("aligned", "concat")
    )
    assert 1.9 < concat / aligned < 2.2
