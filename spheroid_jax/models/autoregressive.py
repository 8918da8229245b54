"""The autoregressive references: the same layers and interface, without noise."""

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


@dataclasses.dataclass(frozen=True)
class Autoregressive:
    """A causal byte model: ``{"layers": leaves (L, ...), "interface": ...}``."""

    transformer: TransformerShape
    interface: InterfaceShape

    def init(self, key: Array) -> Params:
        """Parameters, float32."""
        layer_key, interface_key = jax.random.split(key)
        layers = init_layers(layer_key, self.transformer, self.transformer.layers)
        probe = jnp.zeros((1, 1), jnp.int32)
        interface = Interface(self.interface).init(interface_key, probe)["params"]
        return {"layers": layers, "interface": interface}

    def logits(self, params: Params, x: Array) -> Array:
        """Logits of the next byte, float32 (N, T, V), for bytes x (N, T)."""
        module, phi = Interface(self.interface), {"params": params["interface"]}
        h = module.apply(phi, x, method="enter")
        h = apply_layers(params["layers"], self.transformer, h)
        return module.apply(phi, h, method="leave")
