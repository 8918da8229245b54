"""The last global parameters, for workers that start from an older version.

Inside a scan the ring is updated in place as long as what is read before a record
leads to what is recorded, as in training; any other reading belongs after it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from spheroid_jax.delivery import checks


class History(NamedTuple):
    """A ring of the last versions of the parameters, by version mod capacity.

    Attributes:
      snapshots: tree like the parameters, leaves (capacity, ...).
    """

    snapshots: Any


def history(params: Any, max_delay: int) -> History:
    """Returns a history that knows version 0 only.

    Args:
      params: version 0.
      max_delay: age in rounds of the oldest version that will be asked for; the ring
        has ``max_delay + 1`` slots.

    Raises:
      ValueError: if ``max_delay`` isn't a whole number >= 0.
    """
    checks.whole("max_delay", max_delay)

    def repeat(leaf: ArrayLike) -> Array:
        array = jnp.asarray(leaf)
        return jnp.broadcast_to(array[None], (int(max_delay) + 1, *array.shape))

    return History(jax.tree.map(repeat, params))


def record(history: History, params: Any, now: ArrayLike) -> History:
    """Keeps ``params`` as version ``now``, in place of version ``now - capacity``.

    Args:
      history: the history.
      params: tree like version 0; cast to its dtypes.
      now: the version, int; may be traced.
    """

    def write(ring: Array, leaf: ArrayLike) -> Array:
        slot = jnp.asarray(now, jnp.int32) % ring.shape[0]
        value = jnp.asarray(leaf).astype(ring.dtype)
        return jax.lax.dynamic_update_index_in_dim(ring, value, slot, 0)

    return History(jax.tree.map(write, history.snapshots, params))


def snapshot(history: History, version: ArrayLike) -> Any:
    """Returns the parameters of one version.

    Args:
      history: the history.
      version: scalar int; may be traced. Below 0 it means version 0, which is what a
        worker gets in the first rounds. It must be one of the last ``max_delay + 1``
        recorded: of an older one the ring holds a later version in its place.
    """

    def read(ring: Array) -> Array:
        slot = jnp.maximum(jnp.asarray(version, jnp.int32), 0) % ring.shape[0]
        return jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False)

    return jax.tree.map(read, history.snapshots)


def snapshots(history: History, versions: ArrayLike) -> Any:
    """Returns the parameters of M versions, leaves (M, ...).

    Args:
      history: the history.
      versions: int (M,); see :func:`snapshot`.
    """

    def read(ring: Array) -> Array:
        slots = jnp.maximum(jnp.asarray(versions, jnp.int32), 0) % ring.shape[0]
        return jnp.take(ring, slots, axis=0, mode="clip")

    return jax.tree.map(read, history.snapshots)
