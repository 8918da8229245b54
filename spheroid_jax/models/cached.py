"""Transformer layers that keep keys and values, so that a position is computed once.

A cache has slots, one for each text that is being written. A call takes
positions of some texts: what it computes at a position equals what the whole sequence
at once would give there, since attention is causal.

Dimensions: N sequences of a call, S positions, T places, L layers, h heads of width w.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from spheroid_jax.models.transformer import (
    Params,
    TransformerLayer,
    TransformerShape,
    rotate,
)


class Cache(NamedTuple):
    """Keys, turned by their places, and values: (L, slots, T, h, w), compute dtype."""

    keys: Array
    values: Array


def init_cache(shape: TransformerShape, layers: int, slots: int, places: int) -> Cache:
    """An empty cache for ``slots`` texts of ``places`` positions."""
    size = (layers, slots, places, shape.heads, shape.width // shape.heads)
    # Two arrays: buffers that are donated must not be one.
    return Cache(*(jnp.zeros(size, shape.compute_dtype) for _ in range(2)))


def apply_layers_cached(
    layers: Params,
    shape: TransformerShape,
    h: Array,
    places: Array,
    cache: Cache,
    slots: Array,
) -> tuple[Array, Cache]:
    """Sends h (N, S, d) through the stacked layers; returns it and the new cache.

    What is computed at a position is written to its slot and place; then the position
    attends to what the slot holds at places up to its own. So a row's places must
    leave no hole behind what its text has written, and what is left at higher places
    by an earlier call doesn't count. Donate the cache: it is then changed in place.

    Args:
      layers: leaves (L, ...), as of ``apply_layers``.
      shape: of the layers.
      h: (N, S, d).
      places: int32 (N, S). A place of T or more is padding: nothing is written for it,
        and what comes back there means nothing.
      cache: L layers of it.
      slots: int32 (N,), different from each other. One out of range, negative ones
        too, marks a row of padding.
    """
    count, total = cache.keys.shape[1:3]
    real = (slots >= 0) & (slots < count)
    places = jnp.where(real[:, None], places, total)
    held = jnp.arange(total)[None] <= jnp.max(
        places, axis=1, keepdims=True, where=places < total, initial=-1
    )
    visible = (jnp.arange(total)[None, None] <= places[:, :, None]) & held[:, None]
    module = TransformerLayer(shape)

    def one(
        carry: tuple[Array, Cache], layer: tuple[Params, Array]
    ) -> tuple[tuple[Array, Cache], None]:
        (h, cache), (leaves, index) = carry, layer

        def attend(q: Array, k: Array, v: Array) -> tuple[Array, Cache]:
            if shape.rotary:
                q, k = rotate(q, places), rotate(k, places)
            here = index, jnp.where(real, slots, count)[:, None], places
            new = Cache(
                cache.keys.at[here].set(k, mode="drop"),
                cache.values.at[here].set(v, mode="drop"),
            )
            rows = index, jnp.clip(slots, 0, count - 1)
            # A hidden value weighs nothing, but zero times one that isn't finite, such
            # as a text that broke has left, is NaN.
            values = jnp.where(held[:, :, None, None], new.values[rows], 0)
            attended = jax.nn.dot_product_attention(
                q,
                new.keys[rows],
                values,
                mask=visible[:, None],
                implementation="xla",
            )
            return attended, new

        return module.apply({"params": leaves}, h, attend, method="around"), None

    # The cache goes along, rather than one layer of it at a time, so that no turn
    # copies it.
    begin = h.astype(shape.compute_dtype), cache
    (h, cache), _ = jax.lax.scan(one, begin, (layers, jnp.arange(cache.keys.shape[0])))
    return h, cache
