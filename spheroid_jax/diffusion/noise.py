"""Which noise levels a block owns (DiffusionBlocks, section "block-wise training").

``ln sigma`` is normal with mean ``p_mean`` and deviation ``p_std``, truncated to
``[sigma_min, sigma_max]``. Blocks cut that range into pieces of equal probability;
block 0, the first layers, owns the *highest* noise. Everything that needs the order
goes through this module: ports that reversed it in one place lost whole runs.

The arithmetic on boundaries is NumPy float64, since it happens once; sampling is JAX.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtri
from scipy.special import ndtr
from scipy.special import ndtri as ndtri64


class NoiseLevels(NamedTuple):
    """A truncated log-normal over noise levels; sigma in units of the embedding."""

    sigma_min: float = 1.0
    sigma_max: float = 10.0
    p_mean: float = -1.2
    p_std: float = 1.2

    def cdf(self, sigma: np.ndarray | float) -> np.ndarray:
        """Probability below ``sigma`` before truncation: F(s)."""
        return ndtr((np.log(sigma) - self.p_mean) / self.p_std)

    def quantile(self, probability: np.ndarray | float) -> np.ndarray:
        """Inverse of :meth:`cdf`, clamped to the range.

        Without the clamp the end quantiles of a wide range are 0 and infinity.
        """
        sigma = np.exp(self.p_mean + self.p_std * ndtri64(probability))
        return np.clip(sigma, self.sigma_min, self.sigma_max)

    def levels(self, count: int) -> np.ndarray:
        """``count`` levels equally spaced in probability, ascending, ends included."""
        ends = self.cdf(np.array([self.sigma_min, self.sigma_max]))
        sigma = self.quantile(np.linspace(ends[0], ends[1], count))
        sigma[0], sigma[-1] = self.sigma_min, self.sigma_max
        return sigma


def boundaries(noise: NoiseLevels, blocks: int) -> np.ndarray:
    """The ``blocks + 1`` ascending edges of equal probability, float64."""
    return noise.levels(blocks + 1)


def owned_ranges(noise: NoiseLevels, blocks: int) -> np.ndarray:
    """Range ``[lo, hi]`` that each block owns, float64 (blocks, 2), block 0 noisiest.

    The order of the blocks is decided here, for training, the chain and reports alike.
    """
    edges = boundaries(noise, blocks)[::-1]
    return np.stack([edges[1:], edges[:-1]], axis=-1)


def sigma_to_block(noise: NoiseLevels, blocks: int, sigma: np.ndarray) -> np.ndarray:
    """The block that owns each level; an inner edge belongs to the noisier block.

    Raises:
      ValueError: if a level lies outside ``[sigma_min, sigma_max]``.
    """
    sigma = np.asarray(sigma)
    if np.any((sigma < noise.sigma_min) | (sigma > noise.sigma_max)):
        raise ValueError(
            f"sigma must lie in [{noise.sigma_min}, {noise.sigma_max}], got {sigma}"
        )
    low = owned_ranges(noise, blocks)[:, 0]
    return np.argmax(sigma[..., None] >= low, axis=-1)


def block_ranges(noise: NoiseLevels, blocks: int, overlap: float = 0.0) -> np.ndarray:
    """Training range ``[lo, hi]`` of every block, shape (blocks, 2), block 0 noisiest.

    ``overlap`` (gamma) widens a range to ``[lo (lo/hi)^gamma, hi (hi/lo)^gamma]``,
    clipped to the whole range, so that neighbours meet levels of each other.
    """
    low, high = owned_ranges(noise, blocks).T
    ratio = (high / low) ** overlap
    widened = np.stack([low / ratio, high * ratio], axis=-1)
    return np.clip(widened, noise.sigma_min, noise.sigma_max)


def sample_sigma(
    noise: NoiseLevels, key: Array, sigma_range: Array, shape: tuple[int, ...]
) -> Array:
    """Levels of ``shape``, float32, log-normal truncated to ``sigma_range`` (2,)."""
    low, high = jax.scipy.stats.norm.cdf(
        (jnp.log(sigma_range) - noise.p_mean) / noise.p_std
    )
    probability = jax.random.uniform(key, shape, minval=low, maxval=high)
    sigma = jnp.exp(noise.p_mean + noise.p_std * ndtri(probability))
    # float32 rounds F near 1: keep every draw inside the range it was asked for.
    return jnp.clip(sigma, sigma_range[0], sigma_range[1])
