"""Outer optimizers: what turns mean pseudo-gradients into the next parameters."""

from spheroid_jax.optim.cgad import (
    GATES,
    ScaleByCgadState,
    adam_decay,
    cgad,
    scale_by_cgad,
)
from spheroid_jax.optim.outer import OUTER_OPTIMIZERS, outer_optimizer
from spheroid_jax.optim.pa_cgad import PaCgadState, fragment_names, pa_cgad
from spheroid_jax.optim.staleness import (
    polynomial_weight,
    scale_by_staleness,
    staleness_weight,
)

__all__ = [
    "GATES",
    "OUTER_OPTIMIZERS",
    "PaCgadState",
    "ScaleByCgadState",
    "adam_decay",
    "cgad",
    "fragment_names",
    "outer_optimizer",
    "pa_cgad",
    "polynomial_weight",
    "scale_by_cgad",
    "scale_by_staleness",
    "staleness_weight",
]
