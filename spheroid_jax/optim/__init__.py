"""Outer optimizers: what turns mean pseudo-gradients into the next parameters."""

from spheroid_jax.optim.blockwise import by_block
from spheroid_jax.optim.cgad import (
    CLOSED,
    GATES,
    ScaleByCgadState,
    adam_decay,
    cgad,
    scale_by_cgad,
)
from spheroid_jax.optim.fadas import FadasState, fadas
from spheroid_jax.optim.nesterov import (
    DelayedNesterovState,
    StalenessNesterovState,
    delayed_nesterov,
    polynomial_nesterov,
    staleness_nesterov,
)
from spheroid_jax.optim.nonfinite import SkipNonfiniteState, finite_mean, skip_nonfinite
from spheroid_jax.optim.outer import OUTER_OPTIMIZERS, outer_optimizer
from spheroid_jax.optim.pa_cgad import PaCgadState, fragment_names, pa_cgad
from spheroid_jax.optim.quantized import (
    ScaleByAdam8bitState,
    adamw_8bit,
    scale_by_adam_8bit,
)
from spheroid_jax.optim.staleness import (
    polynomial_weight,
    scale_by_staleness,
    staleness_weight,
)

__all__ = [
    "CLOSED",
    "GATES",
    "OUTER_OPTIMIZERS",
    "DelayedNesterovState",
    "FadasState",
    "PaCgadState",
    "ScaleByAdam8bitState",
    "ScaleByCgadState",
    "SkipNonfiniteState",
    "StalenessNesterovState",
    "adam_decay",
    "adamw_8bit",
    "by_block",
    "cgad",
    "delayed_nesterov",
    "fadas",
    "finite_mean",
    "fragment_names",
    "outer_optimizer",
    "pa_cgad",
    "polynomial_nesterov",
    "polynomial_weight",
    "scale_by_adam_8bit",
    "scale_by_cgad",
    "scale_by_staleness",
    "skip_nonfinite",
    "staleness_nesterov",
    "staleness_weight",
]
