"""Which leaves of the model a worker holds.

A partition takes the parameters apart into B parts, one for each group of replicas,
and puts parts together again. Parts are stacked: every leaf has leading axis B.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

Params = Any
Parts = Any


@dataclasses.dataclass(frozen=True)
class Partition:
    """How parameters become parts and pseudo-gradients of parts become one tree.

    Attributes:
      count: B, number of different parts.
      take: parameters to stacked parts; what several parts hold is repeated.
      put: ``(parts, present) -> tree like the parameters``; leaves that several parts
        hold become the mean over the parts whose ``present`` (B,) is true, or zero
        when there are none.
      separate: whether the outer optimizer steps each part by itself, and none that
        nothing arrived for; see :func:`spheroid_jax.optim.by_block`.
    """

    count: int
    take: Callable[[Params], Parts]
    put: Callable[[Parts, Array], Params]
    separate: bool = False


def difference(sent: Array, returned: Array) -> Array:
    """A pseudo-gradient, ``sent - returned``, in float32 at least.

    In half precision the difference of nearby numbers would be rounded once more.
    """
    wide = jnp.promote_types(sent.dtype, jnp.float32)
    return sent.astype(wide) - returned.astype(wide)


def masked_mean(values: Any, mask: Array) -> Any:
    """Mean over the leading axis of the entries where ``mask`` is true, else zero.

    Entries left out may hold anything, NaN included: they are selected away, not
    multiplied by zero.
    """
    count = jnp.maximum(jnp.sum(mask), 1)

    def mean(leaf: Array) -> Array:
        chosen = mask.reshape(mask.shape + (1,) * (leaf.ndim - 1))
        total = jnp.sum(jnp.where(chosen, leaf, jnp.zeros_like(leaf)), axis=0)
        return total / count.astype(leaf.dtype)

    return jax.tree.map(mean, values)


def blocks(count: int) -> Partition:
    """One block and the whole interface to each worker (BlockTrain).

    Parameters are ``{"blocks": leaves (B, ...), "interface": ...}``, a part is
    ``{"block": ..., "interface": ...}``. The interface becomes the mean over blocks,
    so that a block with many replicas doesn't outweigh one with few.
    """

    def take(params: Params) -> Parts:
        interface = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)),
            params["interface"],
        )
        return {"block": params["blocks"], "interface": interface}

    def put(parts: Parts, present: Array) -> Params:
        interface = masked_mean(parts["interface"], present)
        return {"blocks": parts["block"], "interface": interface}

    return Partition(count, take, put, separate=True)


def everything(dtype: DTypeLike | None = None) -> Partition:
    """The whole model to each worker (end-to-end reference, DiLoCo).

    Args:
      dtype: of the parameters at a worker; by default that of the model itself.
    """

    def take(params: Params) -> Parts:
        return jax.tree.map(
            lambda leaf: leaf[None].astype(leaf.dtype if dtype is None else dtype),
            params,
        )

    def put(parts: Parts, present: Array) -> Params:
        return masked_mean(parts, present)

    return Partition(1, take, put)
