"""The interface phi: what every worker shares (BlockTrain, section "architecture").

Byte table, input projections, positions, sigma embedding, final norm and head. The
references use the same interface without its noisy half, so that nothing but the
objective differs between the methods.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from spheroid_jax.diffusion.preconditioning import precondition

VOCABULARY = 256
HEADS = ("untied", "tied")
# Cycles of the sigma embedding over one unit of c_noise = ln(sigma) / 4: the slowest
# is monotone over [1, 10], the fastest still smooth between neighbouring levels.
_FREQUENCIES = tuple(0.25 * 2.0 ** (i / 3.0) for i in range(16))


# Initial root mean square of byte embeddings and positions. At 0.02 the branches of
# the first layers drown the input, and training stalls at bigram statistics.
_SCALE = 0.3


def _sinusoids(key: Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> Array:
    """Initial positions (T, d): learnt from there on.

    From random ones a model this small takes most of its training to find the byte
    before the last; between sinusoids a shift is a rotation from the first step on.
    """
    del key
    length, width = shape
    frequency = 10_000.0 ** (-jnp.arange((width + 1) // 2) / (width / 2))
    angle = jnp.arange(length)[:, None] * frequency[None]
    waves = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
    return (_SCALE * jnp.sqrt(2.0) * waves[:, :width]).astype(dtype)


@dataclasses.dataclass(frozen=True)
class InterfaceShape:
    """Static shape of the interface.

    Attributes:
      width: d.
      seq_len: T, number of learnt positions.
      noisy: whether there are a noisy input and a sigma embedding (false for the
        autoregressive references).
      head: ``untied`` or ``tied`` to the target embeddings.
      target_radius: R, norm of a target embedding.
      sigma_data: EDM's data scale.
      noisy_input_std: initial deviation of W_z in units of ``1/sqrt(d)``.
    """

    width: int
    seq_len: int
    noisy: bool = True
    head: str = "untied"
    target_radius: float = 0.45
    sigma_data: float = 0.5
    noisy_input_std: float = 0.0


class Interface(nn.Module):
    """Byte table, projections, positions, norm and head as one Flax module."""

    shape: InterfaceShape

    def setup(self) -> None:
        shape = self.shape
        d, normal = shape.width, nn.initializers.normal
        self.table = self.param("table", normal(_SCALE), (VOCABULARY, d))
        self.positions = self.param("positions", _sinusoids, (shape.seq_len, d))
        self.w_x = self.param("w_x", normal(d**-0.5), (d, d))
        # A block's output is multiplied by c_out, about sigma_data: from this scale on
        # it reaches the head as large as a reference's, and learns as fast.
        self.norm = nn.LayerNorm(
            scale_init=nn.initializers.constant(
                1.0 / shape.sigma_data if shape.noisy else 1.0
            )
        )
        if shape.noisy:
            # Zero by default: at high noise z says almost nothing, and a random
            # projection would only feed noise into the residual stream. Kept in units
            # of 1/sqrt(d): Adam walks at its own pace however small the gradient, and
            # would otherwise bring a zero W_z to random size within the run.
            self.w_z = self.param("w_z", normal(shape.noisy_input_std), (d, d))
            features = 2 * len(_FREQUENCIES)
            self.sigma_embedding = self.param(
                "sigma_embedding", normal(0.02), (features, d)
            )
        if shape.head == "tied":
            # Rows of norm R give logits too flat for 256 classes without a scale. At
            # this one the evidence in c_skip z, about (sigma_data / sigma)² z, weighs
            # what Bayes' rule gives it: z Ehat / sigma².
            initial = nn.initializers.constant(shape.sigma_data**-2)
            self.head_scale = self.param("head_scale", initial, ())
        else:
            self.head = self.param("head", normal(0.02), (d, VOCABULARY))
        self.head_bias = self.param(
            "head_bias", nn.initializers.zeros_init(), (VOCABULARY,)
        )

    def __call__(self, x: Array) -> Array:
        """Touches every parameter once; used for initialisation only."""
        h = self.enter(x)
        return self.head_logits(self.norm(h))

    def enter(
        self,
        x: Array,
        present: Array | None = None,
        guess: Array | None = None,
        places: Array | None = None,
    ) -> Array:
        """Clean input ``W_x e(x) + pos``: bytes (N, T) to (N, T, d).

        Where ``present`` (N, T) is false the byte isn't known: its embedding is
        ``guess`` (N, T, d) or else zero, and its place stays. Places are 0, 1, ... or
        ``places`` (N, T), of which those out of range are taken as the last.
        """
        embedded = self.table[x]
        if present is not None:
            other = jnp.zeros_like(embedded) if guess is None else guess
            embedded = jnp.where(present[..., None], embedded, other)
        if places is None:
            placed = self.positions[: x.shape[-1]][None]
        else:
            placed = self.positions.at[places].get(mode="clip")
        return embedded @ self.w_x + placed

    def expected(self, logits: Array) -> Array:
        """Mean byte embedding ``softmax(logits) E``: (N, T, V) to (N, T, d)."""
        return jax.nn.softmax(logits) @ self.table

    def enter_noisy(self, z: Array, sigma: Array) -> Array:
        """Noisy input ``W_z (c_in z) + g(c_noise)``: z (N, T, d), sigma (N,)."""
        c = precondition(sigma, self.shape.sigma_data)
        angle = 2.0 * jnp.pi * c.c_noise[:, None] * jnp.array(_FREQUENCIES)[None]
        features = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
        embedded = features @ self.sigma_embedding
        projected = (c.c_in[:, None, None] * z) @ (self.w_z * self.shape.width**-0.5)
        return projected + embedded[:, None, :]

    def place(self, h: Array) -> Array:
        """Adds the positions to h (N, T, d): the noisy half of the concat layout."""
        return h + self.positions[: h.shape[-2]][None]

    def leave(self, h: Array) -> Array:
        """Logits ``head(LN(h))`` of the references, float32 (N, T, V)."""
        return self.head_logits(self.norm(h.astype(jnp.float32)))

    def leave_noisy(self, h: Array, z: Array, sigma: Array) -> Array:
        """Logits ``head(c_out LN(h) + c_skip z)`` of a block, float32 (N, T, V)."""
        c = precondition(sigma, self.shape.sigma_data)
        out = c.c_out[:, None, None] * self.norm(h.astype(jnp.float32))
        return self.head_logits(out + c.c_skip[:, None, None] * z)

    def targets(self) -> Array:
        """Target embeddings ``Ehat = R E / ||E||`` by row, (V, d)."""
        square = jnp.sum(self.table**2, axis=-1, keepdims=True)
        return self.shape.target_radius * self.table * jax.lax.rsqrt(square + 1e-12)

    def head_logits(self, out: Array) -> Array:
        """Head on (N, T, d): logits (N, T, V)."""
        if self.shape.head == "tied":
            logits = self.head_scale * (out @ self.targets().T)
        else:
            logits = out @ self.head
        return logits + self.head_bias[None, None]
