"""Fused attention is taken where it can work and nowhere else."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.models import TransformerShape
from spheroid_jax.models import attention as module
from spheroid_jax.models.attention import (
    attention,
    choose_attention,
    has_fused_attention,
    unfused,
)
from spheroid_jax.models.transformer import apply_layers, init_layers


@pytest.mark.parametrize(
    ("width", "dtype", "gpu", "why"),
    [
        (64, "bfloat16", True, ""),
        (128, "float16", True, ""),
        (8, "bfloat16", True, ""),
        (64, "bfloat16", False, "there is no NVIDIA GPU"),
        (64, "float32", True, "not float32"),
        (136, "bfloat16", True, "at most 128, and are 136"),
        (20, "bfloat16", True, "multiples of 8 wide and at most 128, and are 20"),
    ],
)
def test_where_the_kernel_can_work(width: int, dtype: str, gpu: bool, why: str) -> None:
    found = unfused(width, dtype, gpu=gpu)
    assert why in found
    assert bool(why) == bool(found)
    automatic = choose_attention("auto", width, dtype, masked=False, gpu=gpu)
    assert automatic == ("xla" if why else "cudnn")
    assert choose_attention("xla", width, dtype, masked=False, gpu=gpu) == "xla"
    if why:
        with pytest.raises(ValueError, match=r"attention is 'cudnn', but .*; use auto"):
            choose_attention("cudnn", width, dtype, masked=False, gpu=gpu)
    else:
        chosen = choose_attention("cudnn", width, dtype, masked=True, gpu=gpu)
        assert chosen == "cudnn"


def test_a_mask_of_its_own_is_not_worth_the_kernel() -> None:
    assert choose_attention("auto", 64, "bfloat16", masked=True, gpu=True) == "xla"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="'flash'; use one of auto, xla, cudnn"):
        choose_attention("flash", 64, "bfloat16", masked=False, gpu=True)


@pytest.mark.parametrize(
    ("backend", "capability", "expected"),
    [
        ("gpu", "9.0", True),
        ("gpu", "8.0", True),
        ("gpu", "12.0", True),
        ("gpu", "7.5", False),
        ("gpu", "gfx90a", False),
        ("cpu", "9.0", False),
        ("tpu", "", False),
    ],
)
def test_devices(
    backend: str, capability: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = type("Device", (), {"compute_capability": capability})()
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert has_fused_attention() is expected


@pytest.fixture(scope="module")
def qkv() -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = ((2, 6, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8))
    q, k, v = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes)
    return q, k, v


@pytest.mark.parametrize("masked", [False, True])
def test_values_are_those_of_the_definition(qkv: Any, masked: bool) -> None:
    q, k, v = (np.asarray(x, np.float64) for x in qkv)
    mask = np.tril(np.ones((6, 6), bool))
    if masked:
        mask[3, 1] = False
    k, v = (np.repeat(x, 2, axis=2) for x in (k, v))
    scores = np.einsum("nshw,nthw->nhst", q, k) / np.sqrt(8)
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("nhst,nthw->nshw", weights, v)
    given = jnp.asarray(mask) if masked else None
    query, key, value = qkv
    got = attention(query, key, value, given, implementation="auto")
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_ask_for_what_their_shape_says(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if on a GPU: half precision takes the kernel, and everything else doesn't."""
    asked = []

    def spy(q: Any, *_: Any, implementation: str = "", **__: Any) -> Any:
        asked.append((implementation, q.dtype.name))
        return q

    monkeypatch.setattr(module, "has_fused_attention", lambda: True)
    monkeypatch.setattr(jax.nn, "dot_product_attention", spy)
    for attention_ in ("auto", "xla"):
        shape = TransformerShape(
            16, 2, 16, 1, compute_dtype=dtype, attention=attention_
        )
        params = jax.eval_shape(lambda s=shape: init_layers(jax.random.key(0), s, 1))
        asked.clear()
        h = jnp.zeros((1, 4, 16))
        jax.eval_shape(lambda p, s=shape, h=h: apply_layers(p, s, h), params)
        fused = dtype == "bfloat16" and attention_ == "auto"
        assert asked == [("cudnn" if fused else "xla", dtype)]


def test_master_weights_and_gradients_stay_float32_under_bfloat16() -> None:
    shape = TransformerShape(16, 2, 16, 1, compute_dtype="bfloat16")

    def loss(params: Any, h: jax.Array) -> jax.Array:
        out = apply_layers(params, shape, h)
        assert out.dtype == jnp.bfloat16
        return jnp.sum(out.astype(jnp.float32))

    params = jax.eval_shape(lambda: init_layers(jax.random.key(0), shape, 1))
    grads = jax.eval_shape(jax.grad(loss), params, jnp.zeros((1, 4, 16)))
    for leaf in jax.tree.leaves((params, grads)):
        assert leaf.dtype == jnp.float32
