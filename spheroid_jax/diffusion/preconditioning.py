"""EDM preconditioning of the denoiser (arXiv 2206.00364, table 1)."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Preconditioning(NamedTuple):
    """Coefficients at one noise level; each has the shape of ``sigma``."""

    c_skip: Array
    c_out: Array
    c_in: Array
    c_noise: Array
    weight: Array


def precondition(sigma: Array, sigma_data: float = 0.5) -> Preconditioning:
    """Coefficients for ``D = c_skip z + c_out F(c_in z, c_noise)`` and the loss weight.

    Args:
      sigma: noise levels, any shape, greater than zero. At exactly zero the weight is
        infinite by definition; ``c_noise`` is kept finite.
      sigma_data: standard deviation that EDM assumes for clean data.
    """
    total = sigma**2 + sigma_data**2
    tiny = jnp.finfo(jnp.result_type(sigma, float)).tiny
    return Preconditioning(
        c_skip=sigma_data**2 / total,
        c_out=sigma * sigma_data / jnp.sqrt(total),
        c_in=1.0 / jnp.sqrt(total),
        c_noise=jnp.log(jnp.maximum(sigma, tiny)) / 4.0,
        weight=total / (sigma * sigma_data) ** 2,
    )
