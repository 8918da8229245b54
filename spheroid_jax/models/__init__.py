"""Byte-level transformers: the block denoiser and its autoregressive references."""

from spheroid_jax.models.autoregressive import Autoregressive
from spheroid_jax.models.denoiser import LAYOUTS, BlockDenoiser, concat_mask
from spheroid_jax.models.interface import HEADS, VOCABULARY, InterfaceShape
from spheroid_jax.models.transformer import REMAT_POLICIES, Params, TransformerShape

__all__ = [
    "HEADS",
    "LAYOUTS",
    "REMAT_POLICIES",
    "VOCABULARY",
    "Autoregressive",
    "BlockDenoiser",
    "InterfaceShape",
    "Params",
    "TransformerShape",
    "concat_mask",
]
