"""A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, grouped queries.

As in Llama (arXiv 2302.13971) and, for the grouped queries, Llama 2 (2307.09288);
input and output embeddings are tied. Dimensions: N sequences, T tokens, d width, L
layers, V vocabulary.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.sharding import NamedSharding

from spheroid_jax.models.attention import ATTENTIONS, attention
from spheroid_jax.models.transformer import (
    REMAT_POLICIES,
    Params,
    Rotation,
    rematerialised,
    rotation,
    turn,
)

# Rows of the embedding start at this deviation. They enter the stream at unit size, so
# that the first layers don't drown them, and leave it through logits that are scaled
# by 1/d: with tied embeddings a token's own logit is d * _SCALE, far beyond ln V in a
# wide model. So scaled it starts at _OWN_LOGIT at most, whatever the width.
_SCALE = 0.02
_OWN_LOGIT = 4.0
_UNROLLED = 4  # up to so many layers are compiled one after the other
_FLAT = nn.initializers.lecun_normal()
_DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class LlamaShape:
    """Static shape of a decoder.

    Attributes:
      width: d, the residual stream.
      layers: L.
      heads: query heads; divides ``width`` into heads of an even number of channels.
      kv_heads: key and value heads; divides ``heads``, each serves a group of queries.
      mlp_width: hidden width of the gated MLP.
      vocabulary: V, number of tokens.
      rope_theta: base of the rotary wavelengths.
      norm_eps: added to the mean square in every norm.
      compute_dtype: dtype of activations. Norms, rotations, softmax and logits are
        float32 inside.
      param_dtype: dtype of all parameters.
      remat: ``none``, ``dots`` (keep matmul results) or ``full``.
      attention: one of ``ATTENTIONS``; ``auto`` takes a fused kernel where one works.

    Raises:
      ValueError: a field is out of range.
    """

    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp_width: int
    vocabulary: int = 256
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    compute_dtype: str = "float32"
    param_dtype: str = "float32"
    remat: str = "none"
    attention: str = "auto"

    def __post_init__(self) -> None:
        counts = ("width", "layers", "heads", "kv_heads", "mlp_width", "vocabulary")
        for name in (*counts, "rope_theta", "norm_eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"heads is {self.heads}, which does not cut width {self.width} into "
                "heads of an even number of channels; rotary positions turn pairs"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads is {self.kv_heads}; it must divide heads, {self.heads}"
            )
        known = {
            "compute_dtype": _DTYPES,
            "param_dtype": _DTYPES,
            "remat": REMAT_POLICIES,
            "attention": ATTENTIONS,
        }
        for name, allowed in known.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; use one of "
                    f"{', '.join(allowed)}"
                )

    @property
    def head_width(self) -> int:
        """Channels of one head."""
        return self.width // self.heads


class LlamaLayer(nn.Module):
    """One pre-norm layer: causal attention with grouped queries, then SwiGLU."""

    shape: LlamaShape

    @nn.compact
    def __call__(self, h: Array, places: Rotation) -> Array:
        """Maps h (N, T, d); ``places`` turn queries and keys, see ``rotation``."""
        shape = self.shape
        # Residual branches start small, so that depth doesn't grow the stream.
        branch = nn.initializers.variance_scaling(
            0.5 / shape.layers, "fan_in", "truncated_normal"
        )

        def dense(name: str, width: int, x: Array, init: Any) -> Array:
            return nn.Dense(
                width,
                use_bias=False,
                dtype=shape.compute_dtype,
                param_dtype=shape.param_dtype,
                kernel_init=init,
                name=name,
            )(x)

        def heads(name: str, count: int) -> Array:
            out = dense(name, count * shape.head_width, x, _FLAT)
            return out.reshape(*x.shape[:-1], count, shape.head_width)

        x = _norm(shape, "attention_norm", shape.compute_dtype)(h)
        attended = attention(
            turn(heads("query", shape.heads), places),
            turn(heads("key", shape.kv_heads), places),
            heads("value", shape.kv_heads),
            implementation=shape.attention,
        ).reshape(h.shape)
        h = h + dense("attention_out", shape.width, attended, branch)

        x = _norm(shape, "mlp_norm", shape.compute_dtype)(h)
        gate = jax.nn.silu(dense("gate", shape.mlp_width, x, _FLAT))
        gated = gate * dense("up", shape.mlp_width, x, _FLAT)
        return h + dense("down", shape.width, gated, branch)


def _norm(shape: LlamaShape, name: str | None, dtype: str) -> nn.RMSNorm:
    return nn.RMSNorm(
        epsilon=shape.norm_eps, dtype=dtype, param_dtype=shape.param_dtype, name=name
    )


@dataclasses.dataclass(frozen=True)
class Llama:
    """The decoder as pure functions of string-keyed parameters.

    ``{"layers": leaves (L, ...), "embedding": {"table": (V, d)}, "final_norm":
    {"scale": (d,)}}``; the leaves of the layers' matrices are named ``kernel``.

    Attributes:
      shape: its static shape.
      activations: sharding of activations (N, T, ...) when parameters are sharded too,
        usually over sequences. Without it the compiler may rather move activations of
        the whole batch than gather a layer's weights.
    """

    shape: LlamaShape
    activations: NamedSharding | None = None

    def init(self, key: Array) -> Params:
        """Parameters in ``param_dtype``; their untrained loss is about ln V."""
        shape = self.shape
        dtype = jnp.dtype(shape.param_dtype)
        layer_key, table_key = jax.random.split(key)
        layer, probe = LlamaLayer(shape), jnp.zeros((1, 1, shape.width))
        places = rotation(jnp.zeros(1, jnp.int32), shape.head_width)
        layers = jax.vmap(lambda k: layer.init(k, probe, places)["params"])(
            jax.random.split(layer_key, shape.layers)
        )
        table = jax.random.normal(table_key, (shape.vocabulary, shape.width), dtype)
        return {
            "layers": layers,
            "embedding": {"table": _SCALE * table},
            "final_norm": {"scale": jnp.ones(shape.width, dtype)},
        }

    def logits(self, params: Params, x: Array) -> Array:
        """Logits of the next token, float32 (N, T, V), for tokens x, int32 (N, T)."""
        shape = self.shape
        dtype = jnp.dtype(shape.compute_dtype)
        # The same for every layer, hence outside the scan.
        places = rotation(
            jnp.arange(x.shape[-1]), shape.head_width, theta=shape.rope_theta
        )
        layer = LlamaLayer(shape)

        def one(h: Array, leaves: Params) -> tuple[Array, None]:
            return self._pinned(layer.apply({"params": leaves}, h, places)), None

        table = params["embedding"]["table"]
        h = self._pinned(table[x].astype(dtype) / _SCALE)
        # A loop of few turns costs a CPU more than it saves in compiling.
        unroll = shape.layers if shape.layers <= _UNROLLED else 1
        h, _ = jax.lax.scan(
            rematerialised(one, shape.remat), h, params["layers"], unroll=unroll
        )
        out = _norm(shape, None, "float32").apply(
            {"params": params["final_norm"]}, h.astype(jnp.float32)
        )
        out = out * (_OWN_LOGIT / (_SCALE * shape.width))
        logits = jnp.einsum(
            "ntd,vd->ntv",
            out.astype(dtype),
            table.astype(dtype),
            preferred_element_type=jnp.float32,
        )
        return self._pinned(logits)

    def _pinned(self, h: Array) -> Array:
        if self.activations is None:
            return h
        return jax.lax.with_sharding_constraint(h, self.activations)


# Vocabularies of GPT-2's byte pairs (50 257, ln V = 10.825) where CGAD's losses start.
SIZES = {
    # 0.98 M, bytes: for CPUs.
    "tiny": LlamaShape(width=128, layers=5, heads=4, kv_heads=4, mlp_width=320),
    # 25.8 M, the smallest size of CGAD (arXiv 2605.09126), whose shape isn't published:
    # this one has the SwiGLU width 8 d / 3 to the nearest multiple of 64.
    "25m": LlamaShape(
        width=320, layers=8, heads=5, kv_heads=5, mlp_width=832, vocabulary=50_257
    ),
    # 1.08 B: Llama 3.2 1B with GPT-2's vocabulary.
    "1b": LlamaShape(
        width=2048,
        layers=16,
        heads=32,
        kv_heads=8,
        mlp_width=8192,
        vocabulary=50_257,
        rope_theta=500_000.0,
    ),
    # 6.68 B: Llama 2 7B with GPT-2's vocabulary and tied embeddings.
    "7b": LlamaShape(
        width=4096,
        layers=32,
        heads=32,
        kv_heads=32,
        mlp_width=11_008,
        vocabulary=50_257,
    ),
}


def llama(size: str, **overrides: Any) -> Llama:
    """A decoder of one of ``SIZES``, with the fields in ``overrides`` changed.

    Raises:
      ValueError: there is no such size, or a field is out of range.
    """
    if size not in SIZES:
        raise ValueError(f"size is {size!r}; use one of {', '.join(SIZES)}")
    return Llama(dataclasses.replace(SIZES[size], **overrides))


def abstract_params(model: Llama) -> Params:
    """Shapes and dtypes of the parameters; allocates nothing."""
    return jax.eval_shape(model.init, jax.random.key(0))


def parameter_count(model: Llama) -> int:
    """Number of parameters, the tied embedding counted once."""
    return sum(
        math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_params(model))
    )
