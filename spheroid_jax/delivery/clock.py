"""The virtual network's clock: rounds that open, wait and close, in simulated seconds.

What arrives when does not depend on what is learnt, only on bytes and seconds. So a
run's arrivals are known before it: they become the delays of the delay queue, and 10^5
workers can be simulated without training any.

Within a round times are counted from its opening, so that float32 is exact enough on
any day of a long run.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from spheroid_jax.delivery.profiles import Fleet

# How long a round takes in which nobody will be heard and no deadline ends it.
IDLE_SECONDS = 1.0


class Traffic(NamedTuple):
    """What a worker has to do in a round, scalars.

    Attributes:
      down: bytes to it.
      up: bytes from it.
      local_steps: H.
    """

    down: Array | float
    up: Array | float
    local_steps: Array | float


class Policy(NamedTuple):
    """When a round closes, and what becomes of late updates; scalars, may be traced.

    A round closes when all have arrived who were sent a model, at the latest at the
    deadline. With a quorum it closes ``grace`` seconds after every block has so many
    updates.

    Attributes:
      deadline: seconds after the opening; inf for none.
      keep_late: whether a late worker goes on and is heard in a later round (``gate``),
        or gives up when the round closes (``drop``, the paper's).
      max_age: rounds after which a late worker gives up all the same.
      quorum: updates that a block needs, int; 0 waits for all.
      grace: seconds.
    """

    deadline: Array | float
    keep_late: Array | bool = False
    max_age: Array | int = 0
    quorum: Array | int = 0
    grace: Array | float = 0.0


class Clock(NamedTuple):
    """The network between two rounds; arrays are (B, K).

    Attributes:
      time: seconds since the start, float32 scalar.
      round: int32 scalar.
      online: bool, in a session.
      busy: bool, working on an update.
      remaining: seconds until it arrives, from the opening of the next round.
      took: seconds from its beginning to its arrival.
      lost: bool, will never arrive.
      began: round in which it began, int32.
    """

    time: Array
    round: Array
    online: Array
    busy: Array
    remaining: Array
    took: Array
    lost: Array
    began: Array


class Events(NamedTuple):
    """What happened in a round; arrays are (B, K), sums are float32 scalars.

    Attributes:
      started: bool, was sent a model.
      arrived: bool, its update was accepted.
      age: rounds since that update began, int32; 0 where nothing arrived.
      lost: bool, was sent a model and will lose its update.
      seconds: how long the round took.
      time: when it closed, since the start.
      online: how many workers were there, int32.
      busy_seconds: that workers spent on updates.
      useful_seconds: that the updates accepted in this round have cost, in all.
    """

    started: Array
    arrived: Array
    age: Array
    lost: Array
    seconds: Array
    time: Array
    online: Array
    busy_seconds: Array
    useful_seconds: Array


class Phase(NamedTuple):
    """What a worker would need for an update begun now; arrays are (B, K).

    Attributes:
      seconds: from the opening of the round to its arrival.
      lost: bool, whether it is lost on the way.
    """

    seconds: Array
    lost: Array


def draw_phase(fleet: Fleet, traffic: Traffic, key: Array) -> Phase:
    """Draws a phase for every worker (BlockTrain, arXiv 2606.24722, arrival time)."""
    shape = fleet.dropout.shape
    keys = jax.random.split(key, 3)
    wobble = jnp.exp(fleet.step_spread * jax.random.normal(keys[0], shape))
    seconds = (
        traffic.local_steps * fleet.step_seconds * wobble
        + fleet.latency_seconds
        + traffic.down / fleet.down
        + traffic.up / fleet.up
        + fleet.jitter_seconds * jax.random.exponential(keys[1], shape)
    )
    return Phase(seconds, jax.random.uniform(keys[2], shape) < fleet.dropout)


def start_clock(fleet: Fleet, key: Array) -> Clock:
    """The network before the first round; sessions are as on any other day."""
    shape = fleet.dropout.shape
    here = fleet.session_seconds / (fleet.session_seconds + fleet.away_seconds)
    here = jnp.where(jnp.isinf(fleet.session_seconds), 1.0, here)
    zeros, no = jnp.zeros(shape, jnp.float32), jnp.zeros(shape, bool)
    return Clock(
        time=jnp.float32(0),
        round=jnp.int32(0),
        online=jax.random.uniform(key, shape) < here,
        busy=no,
        remaining=zeros,
        took=zeros,
        lost=no,
        began=jnp.zeros(shape, jnp.int32),
    )


def come_and_go(fleet: Fleet, clock: Clock, elapsed: Array, key: Array) -> Array:
    """Who is online after ``elapsed`` more seconds, bool (B, K).

    Sessions and absences are exponentially distributed; one that ends ends with the
    round.
    """
    leaves = 1 - jnp.exp(-elapsed / fleet.session_seconds)
    returns = 1 - jnp.exp(-elapsed / jnp.maximum(fleet.away_seconds, 1e-6))
    chance = jax.random.uniform(key, clock.online.shape)
    return jnp.where(clock.online, chance >= leaves, chance < returns)


def run_clock(
    clock: Clock, phase: Phase, present: Array, policy: Policy, *, quorums: bool = True
) -> tuple[Clock, Events]:
    """One round: free workers begin, the coordinator waits, what arrived is accepted.

    Args:
      clock: the network when the round opens.
      phase: of an update begun now.
      present: who is there, bool (B, K); one that left loses what it worked on.
      policy: when to close, and what becomes of the late.
      quorums: false promises that the policy has no quorum, and saves a sort.
    """
    kept = clock.busy & present
    started = present & ~kept
    busy = kept | started
    remaining = jnp.where(started, phase.seconds, clock.remaining)
    lost = jnp.where(started, phase.lost, clock.lost)
    took = jnp.where(started, phase.seconds, clock.took)
    began = jnp.where(started, clock.round, clock.began)

    due = jnp.where(busy & ~lost, remaining, jnp.inf)
    seconds = _closing(busy, due, policy, quorums)
    arrived = due <= seconds
    age = jnp.where(arrived, clock.round - began, 0)
    late = busy & ~arrived & ~lost
    patient = clock.round + 1 - began <= policy.max_age
    following = Clock(
        time=clock.time + seconds,
        round=clock.round + 1,
        online=clock.online,
        busy=late & policy.keep_late & patient,
        remaining=remaining - seconds,
        took=took,
        lost=lost,
        began=began,
    )
    working = jnp.where(busy, jnp.minimum(remaining, seconds), 0.0)
    events = Events(
        started=started,
        arrived=arrived,
        age=age,
        lost=started & phase.lost,
        seconds=seconds,
        time=following.time,
        online=jnp.sum(present, dtype=jnp.int32),
        busy_seconds=jnp.sum(working),
        useful_seconds=jnp.sum(jnp.where(arrived, took, 0.0)),
    )
    return following, events


def _closing(busy: Array, due: Array, policy: Policy, quorums: bool) -> Array:
    """Seconds after which the round closes, float32 scalar.

    Args:
      busy: whom the coordinator waits for.
      due: when they arrive, inf for never.
      policy: deadline, quorum and grace.
      quorums: whether there may be a quorum.
    """
    everyone = jnp.max(jnp.where(busy, due, 0.0))
    if quorums:
        in_order = jnp.sort(due, axis=1)
        needed = jnp.minimum(policy.quorum, jnp.sum(busy, axis=1))
        at = jnp.maximum(needed - 1, 0)[:, None]
        enough = jnp.take_along_axis(in_order, at, axis=1)[:, 0]
        enough = jnp.max(jnp.where(needed > 0, enough, 0.0)) + policy.grace
        everyone = jnp.where(
            jnp.asarray(policy.quorum) > 0, jnp.minimum(everyone, enough), everyone
        )
    # Without a deadline those who are lost are not waited for.
    last = jnp.max(jnp.where(jnp.isinf(due), 0.0, due))
    whole = jnp.where(jnp.isinf(policy.deadline), last, policy.deadline)
    idle = jnp.where(jnp.isinf(policy.deadline), IDLE_SECONDS, policy.deadline)
    closes = jnp.minimum(everyone, whole)
    # Nobody to be heard: the deadline, or a moment.
    return jnp.where(jnp.any(jnp.isfinite(due)), closes, idle).astype(jnp.float32)


class Network(NamedTuple):
    """Between two rounds of :func:`network_round`.

    Attributes:
      clock: see :class:`Clock`.
      elapsed: seconds that the last round took.
    """

    clock: Clock
    elapsed: Array


def open_network(fleet: Fleet, key: Array) -> Network:
    """The network before its first round."""
    return Network(start_clock(fleet, key), jnp.float32(0))


def network_round(
    network: Network,
    fleet: Fleet,
    traffic: Traffic,
    policy: Policy,
    key: Array,
    phase: Phase | None = None,
    *,
    quorums: bool = True,
) -> tuple[Network, Events]:
    """One round of :func:`simulate_network`, for those who bring a loop of their own.

    Args:
      network: where the last round left it.
      fleet: the workers.
      traffic: bytes and steps of a round.
      policy: see :class:`Policy`.
      key: of the whole run; each round folds its number in.
      phase: a measured one instead of a drawn one.
      quorums: see :func:`run_clock`.
    """
    clock = network.clock
    draws = jax.random.split(jax.random.fold_in(key, clock.round))
    clock = clock._replace(online=come_and_go(fleet, clock, network.elapsed, draws[0]))
    at_home = (fleet.join_seconds <= clock.time) & (clock.time < fleet.leave_seconds)
    if phase is None:
        phase = draw_phase(fleet, traffic, draws[1])
    # Who leaves for good before the update would arrive loses it.
    in_time = clock.time + phase.seconds <= fleet.leave_seconds
    phase = phase._replace(lost=phase.lost | ~in_time)
    clock, events = run_clock(
        clock, phase, clock.online & at_home, policy, quorums=quorums
    )
    return Network(clock, events.seconds), events


def simulate_network(
    fleet: Fleet,
    traffic: Traffic,
    policy: Policy,
    rounds: int,
    key: Array,
    *,
    phases: Phase | None = None,
    quorums: bool = True,
    keep: Callable[[Events], Any] = lambda events: events,
) -> Any:
    """A whole run's arrivals, in one scan.

    Args:
      fleet: the workers.
      traffic: bytes and steps of a round.
      policy: see :class:`Policy`.
      rounds: R.
      key: of every draw.
      phases: measured ones instead of drawn, leaves (R, B, K); see
        :func:`spheroid_jax.delivery.traces.phases`.
      quorums: see :func:`run_clock`.
      keep: what to keep of each round's :class:`Events`.

    Returns:
      What ``keep`` returned, stacked over rounds.
    """
    key, start = jax.random.split(key)

    def one(network: Network, phase: Phase | None) -> tuple[Network, Any]:
        network, events = network_round(
            network, fleet, traffic, policy, key, phase, quorums=quorums
        )
        return network, keep(events)

    return jax.lax.scan(one, open_network(fleet, start), phases, length=rounds)[1]
