"""Every field of an experiment, once, with its unit and its default.

A file under ``configs/`` starts from one of ``KINDS``, changes what its experiment is
about, and returns the result: :func:`default` for block training beside its references,
:func:`delayed` for outer optimizers under delay, :func:`bound` for the delay bound on
functions whose gradient is known, :func:`network` for block training over a virtual
network, :func:`exchange` for one between processes over a real network,
:func:`encodings` for what its updates may be written as, :func:`memory`
for what a worker has to hold, :func:`fleet` for a day of many workers without training.
Whether the whole makes sense is decided by :func:`spheroid_jax.validation.validate`,
before anything is compiled.

Fields avoid ``None`` and lists, because ml_collections cannot override either from
the command line; "not set" is an empty string or zero, and says so in its comment.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from spheroid_jax.config.block_fields import METHODS, default
from spheroid_jax.config.bound_fields import BOUND_FUNCTIONS, BOUND_METHODS, bound
from spheroid_jax.config.delay_fields import RECIPES, delay_cells, delayed
from spheroid_jax.config.exchange_fields import encodings, exchange
from spheroid_jax.config.fleet_fields import FLEET_KINDS, FLEET_POLICIES, fleet
from spheroid_jax.config.memory_fields import memory
from spheroid_jax.config.network_fields import NETWORK_RECIPES, network

__all__ = [
    "ADDED",
    "BOUND_FUNCTIONS",
    "BOUND_METHODS",
    "FLEET_KINDS",
    "FLEET_POLICIES",
    "KINDS",
    "METHODS",
    "NETWORK_RECIPES",
    "RECIPES",
    "bound",
    "default",
    "delay_cells",
    "delayed",
    "encodings",
    "exchange",
    "fleet",
    "memory",
    "network",
]

# Fields that came later, with what they were before: older runs can be resumed.
ADDED: Mapping[str, Any] = {"train.context_mask": 0.0, "train.context_fill": "true"}

KINDS: Mapping[str, Callable[[], ConfigDict]] = {
    "blocks": default,
    "delays": delayed,
    "network": network,
    "exchange": exchange,
    "encodings": encodings,
    "bound": bound,
    "memory": memory,
    "fleet": fleet,
}
