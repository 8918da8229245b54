"""The autoregressive references: the same layers and interface, without noise."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.models import Autoregressive, BlockDenoiser

LENGTH, VOCABULARY = 8, 256


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model: Autoregressive, params: Any, x: jax.Array) -> jax.Array:
    return model.logits(params, x)


@pytest.fixture(scope="module")
def x() -> jax.Array:
    return jax.random.randint(jax.random.key(3), (LENGTH, LENGTH), 0, VOCABULARY)


def test_logits_equal_the_equations_in_plain_numpy(
    autoregressive: Callable[..., Autoregressive],
    randomised: Callable[..., Any],
    oracle: Any,
    as_float64: Callable[[Any], Any],
    x: jax.Array,
) -> None:
    model = autoregressive()
    params = randomised(model)
    p = as_float64(params["interface"])
    h = p["table"][np.asarray(x)] @ p["w_x"] + p["positions"]
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    h = oracle.layers(as_float64(params["layers"]), h, causal, np.arange(LENGTH))
    normed = oracle.layer_norm(h, p["norm"]["scale"], p["norm"]["bias"])
    expected = normed @ p["head"] + p["head_bias"]
    got = logits_of(model, params, x)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_a_position_knows_its_past_and_present_and_nothing_else(
    autoregressive: Callable[..., Autoregressive],
    randomised: Callable[..., Any],
    x: jax.Array,
) -> None:
    model = autoregressive()
    params = randomised(model)
    same = jnp.tile(x[:1], (LENGTH, 1))
    changed = jnp.where(jnp.eye(LENGTH, dtype=bool), (same + 77) % VOCABULARY, same)
    before, after = (logits_of(model, params, a) for a in (same, changed))
    moved = jnp.max(jnp.abs(after - before), axis=-1)
    expected = np.triu(np.ones((LENGTH, LENGTH), bool))
    np.testing.assert_array_equal(moved > 1e-6, expected)


def test_an_untrained_reference_knows_nothing(
    autoregressive: Callable[..., Autoregressive],
    fresh: Callable[..., Any],
    randomised: Callable[..., Any],
    x: jax.Array,
) -> None:
    model = autoregressive()
    params = {**randomised(model), "interface": fresh(model)}
    log_p = jax.nn.log_softmax(logits_of(model, params, x))
    assert float(-jnp.mean(log_p)) == pytest.approx(np.log(VOCABULARY), abs=0.02)


def test_reference_and_block_of_equal_layers_differ_by_the_noisy_input_only(
    autoregressive: Callable[..., Autoregressive],
    denoiser: Callable[..., BlockDenoiser],
    randomised: Callable[..., Any],
) -> None:
    """What makes the comparison fair: one block is the block-sized reference."""
    block, reference = randomised(denoiser()), randomised(autoregressive())
    one = jax.tree.map(lambda leaf: leaf.shape[1:], block["blocks"])
    assert one == jax.tree.map(lambda leaf: leaf.shape, reference["layers"])
    noisy, clean = set(block["interface"]), set(reference["interface"])
    assert noisy - clean == {"w_z", "sigma_embedding"}
    assert clean <= noisy


def test_without_noise_or_its_level_a_block_is_the_reference_itself(
    autoregressive: Callable[..., Autoregressive],
    denoiser: Callable[..., BlockDenoiser],
    randomised: Callable[..., Any],
    x: jax.Array,
) -> None:
    """At g = 0, z = 0 and no bias only c_out stands between the two."""
    model, reference = denoiser(), autoregressive()
    params = randomised(model)
    phi = {
        **params["interface"],
        "sigma_embedding": jnp.zeros_like(params["interface"]["sigma_embedding"]),
        "head_bias": jnp.zeros(VOCABULARY),
    }
    block = jax.tree.map(lambda leaf: leaf[0], params["blocks"])
    shared = {k: v for k, v in phi.items() if k not in ("w_z", "sigma_embedding")}
    nothing, sigma = jnp.zeros((LENGTH, LENGTH, 16)), jnp.full(LENGTH, 2.0)
    got = jax.jit(model.logits)(block, phi, x, nothing, sigma)
    plain = logits_of(reference, {"layers": block, "interface": shared}, x)
    np.testing.assert_allclose(got, plain / np.sqrt(4.25), rtol=1e-4, atol=1e-5)
