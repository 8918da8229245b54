"""A whole fleet over a day: only arrivals, reduced round by round to counts.

Nothing is trained, so that 10^5 workers take seconds. Counts are int32 and exact;
bytes are multiplied on the host, in Python's integers.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from spheroid_jax.delivery.clock import (
    Events,
    Network,
    Policy,
    Traffic,
    network_round,
    open_network,
)
from spheroid_jax.delivery.profiles import Fleet, Profile

# Rounds of one call, and those after which even a day of tiny rounds is ended.
STRETCH, MOST_ROUNDS = 48, 20_000


class Tally(NamedTuple):
    """What is kept of a round, or with a leading axis R of many.

    Attributes:
      seconds: how long it took, float32.
      online: workers that were there, int32.
      started: were sent a model, int32 (B,).
      arrived: updates accepted, int32 (B,).
      fresh: those of them that began in this round, int32 (B,).
      kind_started: int32 (P,), by kind of worker.
      kind_arrived: int32 (P,).
      ages: accepted updates by age, int32 (A + 1,).
      timely: groups of n = 1 ... G replicas with enough accepted updates,
        int32 (B, G).
      timely_fresh: the same of fresh ones alone.
      busy_seconds: that workers spent on updates, float32.
      useful_seconds: that the accepted updates have cost, float32.
      lines: bytes per second of the lines down to all that were sent a model, float32.
    """

    seconds: Array
    online: Array
    started: Array
    arrived: Array
    fresh: Array
    kind_started: Array
    kind_arrived: Array
    ages: Array
    timely: Array
    timely_fresh: Array
    busy_seconds: Array
    useful_seconds: Array
    lines: Array


@dataclasses.dataclass(frozen=True)
class Counting:
    """How rounds are counted.

    Attributes:
      needed: accepted updates that make a group timely.
      largest_group: G; all groups of 1 ... G replicas are tried.
      kinds: P, kinds of workers.
      oldest: A, the largest age.
    """

    needed: int
    largest_group: int
    kinds: int
    oldest: int


def tally(events: Events, fleet: Fleet, kinds: Array, counting: Counting) -> Tally:
    """Reduces a round to counts.

    Args:
      events: of one round.
      fleet: whose ``down`` is used.
      kinds: of each worker, int (B, K).
      counting: what to count.
    """
    arrived, fresh = events.arrived, events.arrived & (events.age == 0)
    of_kind = [kinds == number for number in range(counting.kinds)]
    of_age = [arrived & (events.age == age) for age in range(counting.oldest + 1)]
    timely = timely_groups(jnp.stack([arrived, fresh]), counting)
    return Tally(
        seconds=events.seconds,
        online=events.online,
        started=_count(events.started),
        arrived=_count(arrived),
        fresh=_count(fresh),
        kind_started=jnp.stack([jnp.sum(_count(events.started & x)) for x in of_kind]),
        kind_arrived=jnp.stack([jnp.sum(_count(arrived & x)) for x in of_kind]),
        ages=jnp.stack([jnp.sum(_count(x)) for x in of_age]),
        timely=timely[0],
        timely_fresh=timely[1],
        busy_seconds=events.busy_seconds,
        useful_seconds=events.useful_seconds,
        lines=jnp.sum(jnp.where(events.started, fleet.down, 0.0)),
    )


def timely_groups(arrived: Array, counting: Counting) -> Array:
    """How many groups of replicas got enough updates, for every size of a group.

    Replicas are grouped in their order; a rest that fills no group is left out.

    Args:
      arrived: bool (..., K).
      counting: ``needed`` and ``largest_group`` are used.

    Returns:
      int32 (..., G), groups of 1 ... G.
    """
    # Sums up to every border of every size, in one array: a loop over sizes would take
    # longer to compile than a day takes to run.
    counts = groups(arrived.shape[-1], counting)
    sizes = np.arange(1, counting.largest_group + 1)
    firsts = np.concatenate(
        [np.arange(n) * size for n, size in zip(counts, sizes, strict=True)]
    )
    lasts = firsts + np.repeat(sizes, counts)
    sums = _cumulative(arrived)
    enough = sums[..., lasts] - sums[..., firsts] >= counting.needed
    return jnp.diff(_cumulative(enough)[..., np.cumsum([0, *counts])])


def _cumulative(mask: Array) -> Array:
    """How many are true before each place and in all, int32 (..., K + 1)."""
    sums = jnp.cumsum(mask, axis=-1, dtype=jnp.int32)
    return jnp.pad(sums, [(0, 0)] * (mask.ndim - 1) + [(1, 0)])


def groups(replicas: int, counting: Counting) -> np.ndarray:
    """How many groups of 1 ... G there are in a block, int (G,)."""
    return replicas // np.arange(1, counting.largest_group + 1)


def simulate_day(
    fleet: Fleet,
    kinds: np.ndarray,
    traffic: Traffic,
    policy: Policy,
    counting: Counting,
    *,
    seconds: float,
    key: Array,
) -> Tally:
    """All rounds that open within ``seconds``.

    Rounds are run some at a time, so that memory doesn't grow with the fleet times the
    rounds. Policies with and without a quorum are two programs; numbers are traced.

    Args:
      fleet: the workers, (B, K).
      kinds: of each worker, int (B, K).
      traffic: bytes and steps of a round.
      policy: when rounds close; its numbers must be concrete.
      counting: what to count.
      seconds: how long the day is, simulated.
      key: of every draw.

    Returns:
      NumPy arrays, leading axis R.
    """
    # One type each, so that another policy is no other program.
    traffic = Traffic(*(jnp.float32(x) for x in traffic))
    numbers = Policy(
        jnp.float32(policy.deadline),
        jnp.asarray(policy.keep_late, bool),
        jnp.int32(policy.max_age),
        jnp.int32(policy.quorum),
        jnp.float32(policy.grace),
    )
    quorums = bool(numbers.quorum)
    key, start = jax.random.split(key)
    network, dealt = open_network(fleet, start), jnp.asarray(kinds, jnp.int8)
    parts: list[Tally] = []
    time, rounds = 0.0, 0
    while time < seconds and rounds < MOST_ROUNDS:
        network, part = _stretch(
            network, fleet, dealt, traffic, numbers, key, counting, quorums
        )
        parts.append(jax.tree.map(np.asarray, part))
        time += float(np.sum(parts[-1].seconds, dtype=np.float64))
        rounds += STRETCH
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    lasted = np.asarray(whole.seconds, np.float64)
    opened = np.cumsum(lasted) - lasted
    within = int(np.sum(opened < seconds))
    day: Tally = jax.tree.map(lambda leaf: leaf[:within], whole)
    return day


@functools.partial(jax.jit, static_argnames=("counting", "quorums"))
def _stretch(
    network: Network,
    fleet: Fleet,
    kinds: Array,
    traffic: Traffic,
    policy: Policy,
    key: Array,
    counting: Counting,
    quorums: bool,
) -> tuple[Network, Tally]:
    def one(network: Network, _: None) -> tuple[Network, Tally]:
        network, events = network_round(
            network, fleet, traffic, policy, key, quorums=quorums
        )
        return network, tally(events, fleet, kinds, counting)

    return jax.lax.scan(one, network, length=STRETCH)


def smallest_group(shares: np.ndarray, least: float) -> int | None:
    """The smallest group that is timely in at least so many rounds, or None.

    Args:
      shares: of groups of 1 ... G, (G,).
      least: the share wanted.
    """
    enough = np.flatnonzero(shares >= least)
    return int(enough[0]) + 1 if enough.size else None


def parse_profile(text: str) -> Profile:
    """A kind of worker from text such as ``"step_seconds=0.5 down=1e6"``.

    Raises:
      ValueError: one line, if a word is not ``field=number`` of :class:`Profile`, or
        if the numbers make no sense.
    """
    names = [field.name for field in dataclasses.fields(Profile)]
    values: dict[str, float] = {}
    for word in text.split():
        name, equals, number = word.partition("=")
        if not equals or name not in names:
            raise ValueError(f"{word!r} sets no field: use {', '.join(names)}")
        if name in values:
            raise ValueError(f"{name} is set twice: leave one out")
        try:
            values[name] = float(number)
        except ValueError:
            raise ValueError(f"{word!r} is not a number: write {name}=1") from None
    return Profile(**values)


def _count(mask: Array) -> Array:
    """True replicas, int32 (...,)."""
    return jnp.sum(mask, axis=-1, dtype=jnp.int32)
