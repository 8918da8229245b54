"""Outer optimizers: what turns mean pseudo-gradients into the next parameters."""

from spheroid_jax.optim.outer import OUTER_OPTIMIZERS, outer_optimizer

__all__ = ["OUTER_OPTIMIZERS", "outer_optimizer"]
