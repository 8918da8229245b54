"""Pre-LN transformer layers, stacked and scanned.

Flax is known only inside this package: elsewhere parameters are plain string-keyed
trees, and models are pure functions of them. Dimensions: N sequences, S positions
(T, or 2T in the concatenated layout), d width, L layers.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from spheroid_jax.models.attention import attention
from spheroid_jax.models.sharding import divided, gathered

REMAT_POLICIES = ("none", "dots", "full")
Params = Any
Rotation = tuple[Array, Array]
Attend = Callable[[Array, Array, Array], tuple[Array, Any]]
LayerBody = Callable[[Array, Params], tuple[Array, None]]


@dataclasses.dataclass(frozen=True)
class TransformerShape:
    """Static shape of a stack of layers.

    Attributes:
      width: d, the residual stream.
      heads: attention heads; divides ``width``.
      mlp_width: hidden width of the MLP.
      layers: layers that one forward pass crosses; sets the initial scale of what
        each adds to the residual stream.
      compute_dtype: dtype of activations; parameters are always float32.
      remat: ``none``, ``dots`` (keep matmul results) or ``full``.
      rotary: whether attention also rotates queries and keys by position (RoFormer,
        arXiv 2104.09864), on top of the positions that the interface adds.
      attention: one of ``ATTENTIONS``; ``auto`` takes a fused kernel where one works.
    """

    width: int
    heads: int
    mlp_width: int
    layers: int
    compute_dtype: str = "float32"
    remat: str = "none"
    rotary: bool = True
    attention: str = "auto"


def rotation(positions: Array, width: int, theta: float = 10_000.0) -> Rotation:
    """Cosines and sines (S, width // 2) that turn heads of ``width`` channels.

    Pair i of the place ``positions`` (S,) is turned by ``position theta^(-i / half)``
    (RoFormer, arXiv 2104.09864, section 3.2). Where sequences differ in their places,
    ``positions`` are (N, S) and so are the leading axes of what comes back.
    """
    half = width // 2
    frequency = theta ** (-jnp.arange(half) / max(half, 1))
    frequency = frequency.reshape(*(1,) * positions.ndim, half)
    angle = positions[..., None].astype(jnp.float32) * frequency
    return jnp.cos(angle), jnp.sin(angle)


def turn(x: Array, by: Rotation) -> Array:
    """Turns x (N, S, heads, head width) by a :func:`rotation`, float32 inside.

    Pairs are (i, i + half); an odd last channel is left as it is.
    """
    half = x.shape[-1] // 2
    cos, sin = (part if part.ndim == 3 else part[None] for part in by)
    cos, sin = cos[:, :, None], sin[:, :, None]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = [first * cos - second * sin, first * sin + second * cos]
    return jnp.concatenate([*turned, x[..., 2 * half :]], axis=-1).astype(x.dtype)


def rotate(x: Array, positions: Array) -> Array:
    """Rotary position embedding of x (N, S, heads, head width), float32 inside.

    ``positions`` are (S,) or (N, S). Pairs are (i, i + half); an odd last channel is
    left as it is.
    """
    return turn(x, rotation(positions, x.shape[-1]))


def rematerialised(layer: LayerBody, policy: str) -> LayerBody:
    """The body of a scan over layers, which keeps what ``policy`` says.

    ``policy`` is one of ``REMAT_POLICIES``, see :class:`TransformerShape`.
    """
    if policy == "none":
        return layer
    policies = {
        "dots": jax.checkpoint_policies.dots_saveable,
        "full": jax.checkpoint_policies.nothing_saveable,
    }
    # Inside a scan the compiler cannot merge the recomputation away.
    return jax.checkpoint(layer, policy=policies[policy], prevent_cse=False)


class TransformerLayer(nn.Module):
    """One pre-LN layer: causal attention, then a GELU MLP; 12 d² + 13 d parameters."""

    shape: TransformerShape

    def __call__(self, h: Array, positions: Array, mask: Array | None) -> Array:
        """Maps h (N, S, d) whose places are ``positions`` (S,).

        ``mask`` (S, S) is true where attention is allowed; without one attention is
        plainly causal, which fused kernels know.
        """

        def attend(q: Array, k: Array, v: Array) -> tuple[Array, None]:
            if self.shape.rotary:
                q, k = rotate(q, positions), rotate(k, positions)
            return attention(q, k, v, mask, implementation=self.shape.attention), None

        return self.around(h, attend)[0]

    @nn.compact
    def around(self, h: Array, attend: Attend) -> tuple[Array, Any]:
        """Maps h (N, S, d) by all of a layer but attention itself.

        ``attend`` takes queries, keys and values (N, S, heads, head width), not turned
        yet, and returns what is attended, of the same shape, and whatever else it has
        to say, which is returned beside h.
        """
        shape = self.shape
        dtype = jnp.dtype(shape.compute_dtype)
        dense = {"dtype": dtype, "kernel_init": nn.initializers.lecun_normal()}
        # Residual branches start small, so that depth doesn't grow the stream.
        branch = nn.initializers.variance_scaling(
            0.5 / shape.layers, "fan_in", "truncated_normal"
        )

        x = nn.LayerNorm(dtype=dtype, name="attention_norm")(h)
        qkv = nn.Dense(3 * shape.width, name="qkv", **dense)(x)
        heads = (shape.heads, shape.width // shape.heads)
        q, k, v = (
            part.reshape(*part.shape[:-1], *heads)
            for part in jnp.split(qkv, 3, axis=-1)
        )
        attended, besides = attend(q, k, v)
        attended = attended.reshape(x.shape)
        h = h + nn.Dense(
            shape.width, name="attention_out", dtype=dtype, kernel_init=branch
        )(attended)

        x = nn.LayerNorm(dtype=dtype, name="mlp_norm")(h)
        x = jax.nn.gelu(nn.Dense(shape.mlp_width, name="mlp_in", **dense)(x))
        h = h + nn.Dense(shape.width, name="mlp_out", dtype=dtype, kernel_init=branch)(
            x
        )
        return h, besides


def init_layers(key: Array, shape: TransformerShape, count: int) -> Params:
    """Parameters of ``count`` layers, every leaf with leading axis ``count``."""
    layer = TransformerLayer(shape)
    probe, place = jnp.zeros((1, 1, shape.width)), jnp.zeros(1, jnp.int32)
    return jax.vmap(lambda k: layer.init(k, probe, place, None)["params"])(
        jax.random.split(key, count)
    )


def apply_layers(
    layers: Params,
    shape: TransformerShape,
    h: Array,
    positions: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """Sends h (N, S, d) through the stacked layers under one ``lax.scan``.

    ``positions`` (S,) are 0, 1, ... by default; see :class:`TransformerLayer`.
    """
    module = TransformerLayer(shape)
    if positions is None:
        positions = jnp.arange(h.shape[1])

    def one(h: Array, layer: Params) -> tuple[Array, None]:
        whole = gathered(layer)
        return module.apply({"params": whole}, divided(h), positions, mask), None

    body = rematerialised(one, shape.remat)
    h, _ = jax.lax.scan(body, h.astype(shape.compute_dtype), layers)
    return h
