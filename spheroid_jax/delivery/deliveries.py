"""From the clock to the delay queue: what becomes of every update that is begun."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from spheroid_jax.delivery.clock import Events


class Deliveries(NamedTuple):
    """Arrivals as the delay queue wants them, leading axis R.

    Attributes:
      delays: rounds from the beginning of an update to its arrival, int32 (R, B, K);
        ``never`` where it doesn't arrive.
      trained: whether a worker trained an update begun in this round, bool (R, B, K).
    """

    delays: Array
    trained: Array


def deliveries(events: Events, never: int) -> Deliveries:
    """What becomes of the update that each worker begins in each round.

    Args:
      events: of a whole run, leaves (R, ...).
      never: the delay of what doesn't arrive before the run ends; one more than the
        queue has room for, which then refuses it.
    """
    rounds, blocks, replicas = events.arrived.shape
    began = jnp.arange(rounds)[:, None, None] - events.age
    # Beyond the end is nowhere: such a write is dropped.
    began = jnp.where(events.arrived, began, rounds)
    b, k = jnp.meshgrid(jnp.arange(blocks), jnp.arange(replicas), indexing="ij")
    delays = jnp.full(events.arrived.shape, never, jnp.int32)
    delays = delays.at[began, b[None], k[None]].set(events.age, mode="drop")
    return Deliveries(delays, events.started & ~events.lost)
