"""The block denoiser, its autoregressive references, and a Llama-style decoder."""

from spheroid_jax.models.attention import ATTENTIONS
from spheroid_jax.models.autoregressive import Autoregressive
from spheroid_jax.models.denoiser import LAYOUTS, BlockDenoiser, concat_mask
from spheroid_jax.models.interface import HEADS, VOCABULARY, InterfaceShape
from spheroid_jax.models.llama import (
    SIZES,
    Llama,
    LlamaShape,
    abstract_params,
    llama,
    parameter_count,
)
from spheroid_jax.models.transformer import REMAT_POLICIES, Params, TransformerShape

__all__ = [
    "ATTENTIONS",
    "HEADS",
    "LAYOUTS",
    "REMAT_POLICIES",
    "SIZES",
    "VOCABULARY",
    "Autoregressive",
    "BlockDenoiser",
    "InterfaceShape",
    "Llama",
    "LlamaShape",
    "Params",
    "TransformerShape",
    "abstract_params",
    "concat_mask",
    "llama",
    "parameter_count",
]
