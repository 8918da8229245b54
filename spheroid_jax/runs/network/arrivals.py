"""The virtual network of a configuration: arguments of the compiled program."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from ml_collections import ConfigDict

from spheroid_jax.delivery.clock import Phase, Policy, Traffic
from spheroid_jax.delivery.profiles import Fleet, Profile, make_fleet, preset
from spheroid_jax.delivery.traces import phases, read_phases, read_profiles
from spheroid_jax.fields import ConfigError
from spheroid_jax.runs.methods import block_denoiser

Read = TypeVar("Read")


class Network(NamedTuple):
    """All that decides what arrives when, for one run.

    Attributes:
      fleet: the workers, leaves (B, K).
      policy: when rounds close, and what becomes of the late.
      phases: measured times, leaves (R, B, K); None where they are drawn.
      key: of the draws.
    """

    fleet: Fleet
    policy: Policy
    phases: Phase | None
    key: Array


def network_of(config: ConfigDict, seed: int) -> Network:
    """The network of one run; the same for all outer optimizers.

    Raises:
      ConfigError: if a file that it names can't be used.
    """
    n, blocks, replicas = config.network, config.model.blocks, config.train.replicas
    profiles = preset(n.preset)
    measured = None
    if n.profiles:
        profiles = _read("network.profiles", read_profiles, n.profiles)
    if n.trace:
        times = _read("network.trace", read_phases, n.trace)
        measured = phases(times, config.train.rounds, blocks, replicas)
        # Whoever is in the trace is there, from beginning to end.
        profiles = (Profile(),)
    return Network(
        make_fleet(profiles, blocks, replicas, seed),
        Policy(
            deadline=jnp.float32(n.deadline or math.inf),
            keep_late=jnp.bool_(n.late == "gate"),
            max_age=jnp.int32(oldest(config)),
            quorum=jnp.int32(n.quorum),
            grace=jnp.float32(n.grace),
        ),
        measured,
        jax.random.fold_in(jax.random.key(seed), 0x6E67),
    )


def oldest(config: ConfigDict) -> int:
    """The greatest age in rounds that an update can arrive with."""
    return config.network.max_age if config.network.late == "gate" else 0


def traffic_of(config: ConfigDict) -> Traffic:
    """Bytes and steps of a round."""
    size = part_bytes(config)
    return Traffic(size, size, config.train.local_steps)


def part_bytes(config: ConfigDict) -> int:
    """Bytes of what a worker is sent, and sends: its block and the interface."""
    init = block_denoiser(config).init
    shapes = jax.eval_shape(lambda key: init(key, 1), jax.random.key(0))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def _read(field: str, read: Callable[[str], Read], path: str) -> Read:
    try:
        return read(path)
    except OSError as error:
        raise ConfigError(
            f"{field}={path} can't be read ({error.strerror}): name a CSV file"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{field}: {error}") from None


def is_drawn(config: ConfigDict, field: str) -> bool:
    """Whether a field of the section ``network`` has a part in a run."""
    n = config.network
    unused: dict[str, Any] = {
        "network.preset": n.profiles or n.trace,
        "network.max_age": n.late == "drop",
        "network.grace": not n.quorum,
    }
    return not unused.get(field, False)
