"""The block denoiser: an L-layer language model that also reads a noisy target.

Position t sees the clean bytes ``x_0..x_t`` and the noisy ``z_0..z_t``, where z_t is a
noisy embedding of ``y_t = x_{t+1}``. That leaks nothing: z_s for s < t is a noisy copy
of a byte already in the context.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from spheroid_jax.models.interface import Interface, InterfaceShape
from spheroid_jax.models.transformer import (
    Params,
    TransformerShape,
    apply_layers,
    init_layers,
)

LAYOUTS = ("aligned", "concat")


def concat_mask(length: int) -> Array:
    """Allowed attention of the [clean | noisy] layout, bool (2T, 2T).

    Clean is causal; a noisy position sees itself and the clean bytes up to the one
    whose successor it must name, and no other noisy position (DiffusionBlocks, text).
    """
    causal = jnp.tril(jnp.ones((length, length), bool))
    clean = jnp.concatenate([causal, jnp.zeros_like(causal)], axis=1)
    noisy = jnp.concatenate([causal, jnp.eye(length, dtype=bool)], axis=1)
    return jnp.concatenate([clean, noisy])


@dataclasses.dataclass(frozen=True)
class BlockDenoiser:
    """Pure functions of one block's parameters and the interface.

    A model is ``{"blocks": leaves (B, L, ...), "interface": ...}``.
    """

    transformer: TransformerShape
    interface: InterfaceShape
    layout: str = "aligned"

    def init(self, key: Array, blocks: int) -> Params:
        """Parameters of ``blocks`` blocks and one interface, float32."""
        block_key, interface_key = jax.random.split(key)
        stack = jax.vmap(
            lambda k: init_layers(k, self.transformer, self.transformer.layers)
        )(jax.random.split(block_key, blocks))
        probe = jnp.zeros((1, 1), jnp.int32)
        interface = Interface(self.interface).init(interface_key, probe)["params"]
        return {"blocks": stack, "interface": interface}

    def targets(self, interface: Params) -> Array:
        """Target embeddings Ehat, (V, d)."""
        return self._call(interface, "targets")

    def expected(self, interface: Params, logits: Array) -> Array:
        """Mean byte embedding under logits (N, T, V), as a ``guess`` (N, T, d)."""
        return self._call(interface, "expected", logits)

    def logits(
        self,
        block: Params,
        interface: Params,
        x: Array,
        z: Array,
        sigma: Array,
        present: Array | None = None,
        guess: Array | None = None,
    ) -> Array:
        """Logits of y, float32 (N, T, V).

        Args:
          block: one block's layers, leaves (L, ...).
          interface: the shared interface.
          x: clean bytes, integers (N, T).
          z: noisy target embeddings, (N, T, d).
          sigma: noise level of each sequence, (N,).
          present: which bytes of x are known, bool (N, T); by default all.
          guess: embeddings (N, T, d) for those that aren't; by default zero.
        """
        clean = self._call(interface, "enter", x, present, guess)
        noisy = self._call(interface, "enter_noisy", z, sigma)
        if self.layout == "aligned":
            h = apply_layers(block, self.transformer, clean + noisy)
        else:
            length = x.shape[1]
            placed = self._call(interface, "place", noisy)
            both = jnp.concatenate([clean, placed], axis=1)
            places = jnp.tile(jnp.arange(length), 2)
            mask = concat_mask(length)
            h = apply_layers(block, self.transformer, both, places, mask)
            h = h[:, length:]
        return self._call(interface, "leave_noisy", h, z, sigma)

    def _call(self, interface: Params, method: str, *args: Array | None) -> Array:
        module = Interface(self.interface)
        return module.apply({"params": interface}, *args, method=method)
