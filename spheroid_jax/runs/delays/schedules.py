"""What arrives when, of a configuration: arguments of the compiled program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict

from spheroid_jax import delivery
from spheroid_jax.delay_validation import synced_in_parts
from spheroid_jax.fields import ConfigError, leaves
from spheroid_jax.rounds.partial import Sync


def in_parts(config: ConfigDict) -> bool:
    """Whether fragments of the model are synced each by itself."""
    return synced_in_parts(leaves(config))


def schedule(config: ConfigDict, seed: int) -> Any:
    """The schedule of one run: (delays, active), or a ``Sync``, with leading axis R.

    Raises:
      ConfigError: if a trace can't be read or is longer than the run.
    """
    key = jax.random.fold_in(jax.random.key(seed), 0x5C4ED)
    delays = _delays(config, key)
    if config.delay.protocol == "snapshot":
        delays, active = delivery.started(delays, config.delay.start)
        return delays[:, None], active[:, None]
    # On the way, "skip" takes care of itself: at first nothing has arrived yet.
    if config.delay.start == "ramp":
        delays = delivery.ramp(delays)
    if in_parts(config):
        return _sync(config, delays[:, 0], key)
    return delays[:, None], jnp.ones_like(delays, bool)[:, None]


def largest_delay(config: ConfigDict) -> int:
    """The longest delay that a run of ``config`` can have, in rounds."""
    d = config.delay
    if d.kind == "per_worker":
        return max(d.per_worker)
    if d.kind == "trace":
        return int(_trace(d.trace).max())
    return d.tau


def _delays(config: ConfigDict, key: Array) -> Array:
    """Delays before any start-up, int32 (R, M)."""
    rounds, workers, d = config.train.rounds, config.train.replicas, config.delay
    if d.kind == "fixed":
        return delivery.fixed(rounds, workers, d.tau)
    if d.kind == "uniform":
        return delivery.uniform(jax.random.fold_in(key, 0), rounds, workers, d.tau)
    if d.kind == "per_worker":
        return delivery.per_worker(rounds, d.per_worker)
    return delivery.from_trace(_trace(d.trace), rounds, workers)


def _trace(path: str) -> np.ndarray:
    try:
        return delivery.read_trace(path)
    except OSError as error:
        raise ConfigError(
            f"delay.trace={path} can't be read ({error.strerror}): name a CSV file"
        ) from None
    except ValueError as error:
        raise ConfigError(f"delay.trace: {error}") from None


def _sync(config: ConfigDict, delays: Array, key: Array) -> Sync:
    rounds, workers, s = config.train.rounds, config.train.replicas, config.sync
    if s.schedule == "round_robin":
        synced = delivery.round_robin(rounds, s.fragments)
    elif s.schedule == "periods":
        synced = delivery.every(rounds, s.periods, s.offsets)
    else:
        synced = jnp.ones((rounds, s.fragments), bool)
    if s.drop:
        synced = delivery.dropped(jax.random.fold_in(key, 1), synced, s.drop)
    accepted = jnp.ones((rounds, workers), bool)
    if s.quorum:
        accepted = delivery.quorum(
            jax.random.fold_in(key, 2),
            rounds,
            workers,
            1.0,
            quorum=s.quorum,
            grace=s.grace,
        )
    return Sync(delays, synced, accepted)
