"""Noise levels, preconditioning and the sampler chain: pure functions on arrays."""

from spheroid_jax.diffusion.chain import (
    GRIDS,
    ChainOutput,
    chain_grid,
    euler_step,
    run_chain,
)
from spheroid_jax.diffusion.noise import (
    NoiseLevels,
    block_ranges,
    boundaries,
    owned_ranges,
    sample_sigma,
    sigma_to_block,
)
from spheroid_jax.diffusion.preconditioning import Preconditioning, precondition

__all__ = [
    "GRIDS",
    "ChainOutput",
    "NoiseLevels",
    "Preconditioning",
    "block_ranges",
    "boundaries",
    "chain_grid",
    "euler_step",
    "owned_ranges",
    "precondition",
    "run_chain",
    "sample_sigma",
    "sigma_to_block",
]
