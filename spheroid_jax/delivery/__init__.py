"""What arrives when: the virtual network."""

from spheroid_jax.delivery.clock import Events, Policy, Traffic, simulate_network
from spheroid_jax.delivery.delays import (
    fixed,
    from_trace,
    per_worker,
    ramp,
    read_trace,
    started,
    uniform,
)
from spheroid_jax.delivery.deliveries import Deliveries, deliveries
from spheroid_jax.delivery.fragments import (
    dropped,
    every,
    fragment_labels,
    quorum,
    restack_layers,
    round_robin,
    strided,
    unstack_layers,
)
from spheroid_jax.delivery.history import (
    History,
    history,
    record,
    snapshot,
    snapshots,
)
from spheroid_jax.delivery.lockstep import lockstep
from spheroid_jax.delivery.profiles import (
    PRESETS,
    Fleet,
    Profile,
    make_fleet,
    preset,
)
from spheroid_jax.delivery.queue import (
    Arrivals,
    DelayQueue,
    delay_queue,
    pop_due,
    push,
    push_many,
)

__all__ = [
    "PRESETS",
    "Arrivals",
    "DelayQueue",
    "Deliveries",
    "Events",
    "Fleet",
    "History",
    "Policy",
    "Profile",
    "Traffic",
    "delay_queue",
    "deliveries",
    "dropped",
    "every",
    "fixed",
    "fragment_labels",
    "from_trace",
    "history",
    "lockstep",
    "make_fleet",
    "per_worker",
    "pop_due",
    "preset",
    "push",
    "push_many",
    "quorum",
    "ramp",
    "read_trace",
    "record",
    "restack_layers",
    "round_robin",
    "simulate_network",
    "snapshot",
    "snapshots",
    "started",
    "strided",
    "uniform",
    "unstack_layers",
]
