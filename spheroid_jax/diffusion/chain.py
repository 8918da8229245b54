"""The sampler: one pass of one block per noise level, from pure noise to bytes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from spheroid_jax.diffusion.noise import NoiseLevels, owned_ranges

GRIDS = ("upper_edges", "official")


class ChainOutput(NamedTuple):
    """What a traversal leaves behind.

    Attributes:
      z: state after the last block, (N, T, d).
      logits: of every block on the way, (B, N, T, V); the last are the answer.
    """

    z: Array
    logits: Array


def chain_grid(noise: NoiseLevels, blocks: int, kind: str) -> np.ndarray:
    """One descending noise level per block, float64 of shape (blocks,).

    ``official`` spaces them equally in probability with both ends of the range
    included, as DiffusionBlocks does. ``upper_edges`` starts each block at the upper
    edge of the range that it owns, so that the last level is above ``sigma_min`` and
    the noise left in z tells the last block less that isn't so.
    """
    if kind == "upper_edges":
        return owned_ranges(noise, blocks)[:, 1]
    if kind == "official":
        # One level: linspace would return the lower end, but a chain starts in noise.
        return noise.levels(blocks)[::-1] if blocks > 1 else np.array([noise.sigma_max])
    raise ValueError(f"grid must be one of {GRIDS}, got {kind!r}")


def euler_step(z: Array, prediction: Array, ratio: Array) -> Array:
    """``r z + (1 - r) yhat``, ``r = sigma_next / sigma`` (the probability-flow ODE).

    The printed equation of BlockTrain has the sign of the drift flipped.
    """
    return ratio * z + (1.0 - ratio) * prediction


def run_chain(
    denoise: Callable[[Any, Array, Array], Array],
    stack: Any,
    z: Array,
    grid: Array,
    targets: Array,
) -> ChainOutput:
    """Sends z once through the block stack.

    Args:
      denoise: ``(block, z, sigma) -> logits``: z (N, T, d), sigma (N,), logits
        (N, T, V).
      stack: parameters of the blocks, every leaf with leading axis B, block 0 first.
      z: pure noise at ``grid[0]``, (N, T, d).
      grid: descending levels, (B,).
      targets: target embeddings Ehat of the vocabulary, (V, d).
    """
    # The last block's logits are the output, so its step leads nowhere: ratio one.
    ratios = jnp.concatenate([grid[1:] / grid[:-1], jnp.ones(1, grid.dtype)])

    def visit(z: Array, step: tuple[Any, Array, Array]) -> tuple[Array, Array]:
        block, sigma, ratio = step
        logits = denoise(block, z, jnp.full(z.shape[:1], sigma))
        prediction = jax.nn.softmax(logits) @ targets
        return euler_step(z, prediction, ratio), logits

    z, logits = jax.lax.scan(visit, z, (stack, grid, ratios))
    return ChainOutput(z, logits)
