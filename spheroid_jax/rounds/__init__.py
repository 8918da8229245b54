"""Worker local steps and the round: one engine for every method."""

from spheroid_jax.rounds.outer_step import (
    Engine,
    init_outer,
    step_block,
    step_outer,
    step_shared,
)
from spheroid_jax.rounds.round import (
    RoundFunction,
    RoundState,
    init_state,
    make_round,
    mean_pseudo_gradient,
    worker_keys,
)
from spheroid_jax.rounds.worker import decays, inner_optimizer, local_phase, placed

__all__ = [
    "Engine",
    "RoundFunction",
    "RoundState",
    "decays",
    "init_outer",
    "init_state",
    "inner_optimizer",
    "local_phase",
    "make_round",
    "mean_pseudo_gradient",
    "placed",
    "step_block",
    "step_outer",
    "step_shared",
    "worker_keys",
]
