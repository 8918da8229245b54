"""A round: send parts, train them, accept what arrived, let the outer optimizer step.

One engine for every method: BlockTrain, DiLoCo and plain training differ in the
partition, the objective, the delivery and the outer optimizer alone. A whole round is
one compiled call; workers are vmapped axes (B, K), local steps are a scan.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from spheroid_jax.objectives import Metrics
from spheroid_jax.partition import (
    Params,
    Partition,
    Parts,
    difference,
    masked_mean,
)
from spheroid_jax.rounds.outer_step import Engine, init_outer, step_outer
from spheroid_jax.rounds.worker import local_phase, renewed


class RoundState(NamedTuple):
    """All that a run is between two rounds.

    Attributes:
      params: the assembled model.
      outer: state of the outer optimizer.
      workers: optimizer states of the workers, leaves (B, K, ...).
      round: rounds done, int32 scalar.
      key: the run's random key; round r uses ``fold_in(key, r)``.
    """

    params: Params
    outer: optax.OptState
    workers: optax.OptState
    round: Array
    key: Array


RoundFunction = Callable[[RoundState, Array, Array], tuple[RoundState, Metrics]]


def init_state(engine: Engine, params: Params, key: Array) -> RoundState:
    """State before the first round; workers start with fresh optimizer states."""
    parts = engine.partition.take(params)
    replicated = jax.tree.map(
        lambda leaf: jnp.broadcast_to(
            leaf[:, None], (leaf.shape[0], engine.replicas, *leaf.shape[1:])
        ),
        parts,
    )
    workers = jax.vmap(jax.vmap(engine.inner.init))(replicated)
    return RoundState(params, init_outer(engine, params), workers, jnp.int32(0), key)


def worker_keys(key: Array, blocks: int, replicas: int) -> Array:
    """A key for each worker, (B, K), from its place and not from its device.

    Replica k has the same key however many there are.
    """
    place = jnp.arange(replicas * blocks).reshape(replicas, blocks).T
    return jax.vmap(jax.vmap(lambda i: jax.random.fold_in(key, i)))(place)


def train_workers(
    engine: Engine,
    parts: Parts,
    workers: Any,
    windows: Array,
    key: Array,
    *,
    own: bool = False,
) -> tuple[Parts, Any, Metrics]:
    """Local phases of all workers; results have leading axes (B, K).

    ``parts`` have leading axis (B,), or (B, K) where every worker has its ``own``.
    """
    blocks = jnp.arange(engine.partition.count, dtype=jnp.int32)
    keys = worker_keys(key, engine.partition.count, engine.replicas)

    def one(part: Any, state: Any, windows: Array, block: Array, key: Array) -> Any:
        if not engine.keep_inner:
            state = renewed(engine.inner, part, state)
        return local_phase(
            engine.objective, engine.inner, part, state, windows, block, key
        )

    replicas = jax.vmap(one, in_axes=(0 if own else None, 0, 0, None, 0))
    return jax.vmap(replicas)(parts, workers, windows, blocks, keys)


def mean_pseudo_gradient(
    partition: Partition, sent: Parts, returned: Parts, accepted: Array
) -> Params:
    """Mean over accepted replicas of (sent - returned), put together over blocks.

    A block without an accepted update gets exactly zero.

    Args:
      partition: how parts make a model.
      sent: parts as sent, leaves (B, ...).
      returned: parts as trained, leaves (B, K, ...).
      accepted: which updates arrived in time, bool (B, K).
    """
    delta = jax.tree.map(lambda s, r: difference(s[:, None], r), sent, returned)
    by_block = jax.vmap(masked_mean)(delta, accepted)
    return partition.put(by_block, jnp.any(accepted, axis=1))


def make_round(engine: Engine) -> RoundFunction:
    """The round as a pure function, not yet compiled.

    It maps ``(state, windows (B, K, H, N, T+1), accepted (B, K))`` to the next state
    and metrics with leading axes (B, K). A block without an accepted update stays as it
    is, bit for bit, whatever the outer optimizer's momentum holds.
    """

    def run_round(
        state: RoundState, windows: Array, accepted: Array
    ) -> tuple[RoundState, Metrics]:
        sent = engine.partition.take(state.params)
        key = jax.random.fold_in(state.key, state.round)
        returned, workers, metrics = train_workers(
            engine, sent, state.workers, windows, key
        )
        gradient = mean_pseudo_gradient(engine.partition, sent, returned, accepted)
        present = jnp.any(accepted, axis=1)
        params, outer, _ = step_outer(
            engine, gradient, state.outer, state.params, present
        )
        return RoundState(params, outer, workers, state.round + 1, state.key), metrics

    return run_round
