"""Training cost in closed form: matmul FLOPs, two per multiply-add.

Softmax, norms and other element-wise work are left out, as is usual; attention is
counted as computed, over the full square. Training costs three forward passes.
"""

from spheroid_jax.models.autoregressive import Autoregressive
from spheroid_jax.models.denoiser import BlockDenoiser
from spheroid_jax.models.interface import VOCABULARY
from spheroid_jax.models.llama import Llama
from spheroid_jax.models.transformer import TransformerShape

TRAINING_PASSES = 3


def layers_flops(shape: TransformerShape, layers: int, positions: int) -> float:
    """Forward FLOPs of ``layers`` layers on one sequence of ``positions``."""
    projections = 2 * (4 * shape.width**2 + 2 * shape.width * shape.mlp_width)
    attention = 4 * positions * shape.width
    return float(layers * positions * (projections + attention))


def denoiser_window_flops(model: BlockDenoiser) -> float:
    """Training FLOPs of one block on one window of T bytes."""
    length, width = model.interface.seq_len, model.interface.width
    positions = 2 * length if model.layout == "concat" else length
    interface = length * (4 * width**2 + 2 * width * VOCABULARY)
    layers = layers_flops(model.transformer, model.transformer.layers, positions)
    return TRAINING_PASSES * (layers + interface)


def autoregressive_window_flops(model: Autoregressive) -> float:
    """Training FLOPs of a reference on one window of T bytes."""
    length, width = model.interface.seq_len, model.interface.width
    interface = length * (2 * width**2 + 2 * width * VOCABULARY)
    layers = layers_flops(model.transformer, model.transformer.layers, length)
    return TRAINING_PASSES * (layers + interface)


def llama_window_flops(model: Llama, seq_len: int) -> float:
    """Training FLOPs of a decoder on one window of ``seq_len`` tokens."""
    shape = model.shape
    grouped = shape.kv_heads * shape.head_width
    projections = 2 * shape.width * (2 * shape.width + 2 * grouped)
    mlp = 2 * 3 * shape.width * shape.mlp_width
    attention = 4 * seq_len * shape.width
    head = 2 * shape.width * shape.vocabulary
    token = shape.layers * (projections + mlp + attention) + head
    return float(TRAINING_PASSES * seq_len * token)
