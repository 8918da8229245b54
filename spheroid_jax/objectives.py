"""What a worker minimises: ``loss(params, batch, key) -> (loss, metrics)``.

``params`` is the part of the model that the worker holds, see
:mod:`spheroid_jax.partition`. Losses are in nats per byte.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import Array

from spheroid_jax.diffusion import NoiseLevels, precondition, sample_sigma
from spheroid_jax.models import BlockDenoiser

Metrics = dict[str, Array]
Objective = Callable[[Any, "Batch", Array], tuple[Array, Metrics]]


class LanguageModel(Protocol):
    """What predicts the next byte."""

    def logits(self, params: Any, x: Array) -> Array:
        """Logits (N, T, V) of the byte after each of x (N, T)."""


class Batch(NamedTuple):
    """What one local step sees.

    Attributes:
      windows: bytes, uint8 (N, T + 1); inputs are all but the last, targets all but
        the first.
      block: which block this worker holds, int32 scalar.
    """

    windows: Array
    block: Array


def split_windows(windows: Array) -> tuple[Array, Array]:
    """Inputs ``x_t = u_t`` and targets ``y_t = u_{t+1}``, int32 (N, T) each."""
    windows = windows.astype(jnp.int32)
    return windows[:, :-1], windows[:, 1:]


def cross_entropy(logits: Array, y: Array) -> Array:
    """Cross-entropy in nats at every position, (N, T)."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def next_byte(model: LanguageModel) -> Objective:
    """The references' objective: cross-entropy of the next byte."""

    def loss(params: Any, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        del key
        x, y = split_windows(batch.windows)
        ce = jnp.mean(cross_entropy(model.logits(params, x), y))
        return ce, {"ce": ce}

    return loss


def noisy_target(targets: Array, y: Array, sigma: Array, key: Array) -> Array:
    """``z = stop_gradient(Ehat[y]) + sigma eps``, (N, T, d), one sigma per sequence."""
    clean = jax.lax.stop_gradient(targets)[y]
    noise = jax.random.normal(key, clean.shape, clean.dtype)
    return clean + sigma[:, None, None] * noise


def block_denoising(
    model: BlockDenoiser, noise: NoiseLevels, sigma_ranges: Array
) -> Objective:
    """BlockTrain's local objective: DiffusionBlocks' (arXiv 2506.14202) on bytes.

    Per example the cross-entropy is weighted by ``w(sigma) sigma_data²``, which is 1
    for pure noise and grows where the target is easy to read out of z.

    Args:
      model: the block denoiser.
      noise: distribution of ln sigma.
      sigma_ranges: training range of every block, (B, 2).
    """
    sigma_data = model.interface.sigma_data

    def loss(params: Any, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        sigma_key, noise_key = jax.random.split(key)
        x, y = split_windows(batch.windows)
        own_range = sigma_ranges[batch.block]
        sigma = sample_sigma(noise, sigma_key, own_range, x.shape[:1])
        z = noisy_target(model.targets(params["interface"]), y, sigma, noise_key)
        logits = model.logits(params["block"], params["interface"], x, z, sigma)
        ce = jnp.mean(cross_entropy(logits, y), axis=-1)
        weight = precondition(sigma, sigma_data).weight * sigma_data**2
        return jnp.mean(weight * ce), {"ce": jnp.mean(ce)}

    return loss
