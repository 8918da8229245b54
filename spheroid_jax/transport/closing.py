"""When a round closes, and what becomes of an update: rules that hold no clock.

The rules are those of the virtual network (:mod:`spheroid_jax.delivery.clock`). That
one knows who will never be heard; here a worker that is gone is one that isn't expected
any more.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from spheroid_jax.transport.assignment import Slot


class Policy(NamedTuple):
    """When a round closes, and what becomes of late updates.

    A round closes when all who are expected were heard, at the latest at the deadline.
    With a quorum it closes ``grace`` seconds after every block has so many updates.

    Attributes:
      deadline: seconds after the opening; inf for none.
      late: ``drop`` refuses updates of a closed round, ``gate`` takes them into the
        open one.
      quorum: updates that a block needs; 0 waits for all.
      grace: seconds.
      max_age: rounds after which even ``gate`` refuses.
    """

    deadline: float
    late: str
    quorum: int
    grace: float
    max_age: int


class Standing(NamedTuple):
    """A round as it stands; times are of one monotonic clock, in seconds.

    Attributes:
      opened: when it was.
      expected: slots of the workers that are there and have, or may get, a part in it.
      heard: when each slot was; also of workers that have left since.
    """

    opened: float
    expected: frozenset[Slot]
    heard: Mapping[Slot, float]


class Fate(NamedTuple):
    """What becomes of an update; see :class:`spheroid_jax.transport.protocol.Verdict`.

    Attributes:
      verdict: ``accepted``, ``late``, ``stale`` or ``rejected``.
      why: for a reader; empty if accepted.
      age: rounds between the model that it started from and the one it changes.
      applies_in: the round that it is aggregated in; meaningless unless accepted.
    """

    verdict: Literal["accepted", "late", "stale", "rejected"]
    why: str = ""
    age: int = 0
    applies_in: int = 0


def closes_at(policy: Policy, standing: Standing, blocks: int) -> float:
    """When the round closes if nothing more happens; inf if that is open yet.

    A time that is over means now: what had been waited for is gone.

    Without a deadline a round that nobody is expected in never closes: there is no
    sense in rounds without workers.

    Args:
      policy: see :class:`Policy`.
      standing: see :class:`Standing`.
      blocks: B; one that nobody is expected in isn't waited for.
    """
    opened = standing.opened
    latest = opened + policy.deadline
    slots = standing.expected | standing.heard.keys()
    beyond = [slot for slot in slots if not 0 <= slot.block < blocks]
    if beyond:
        raise ValueError(f"{min(beyond)} isn't of one of the {blocks} blocks")
    if not slots:
        return latest
    # What came for this round before it was opened, was heard at its opening.
    due = {slot: max(standing.heard.get(slot, math.inf), opened) for slot in slots}
    everyone = max(due.values())
    if policy.quorum > 0:
        enough = max(_enough(policy, due, block) for block in {s.block for s in slots})
        everyone = min(everyone, enough + policy.grace)
    return min(everyone, latest)


def _enough(policy: Policy, due: Mapping[Slot, float], block: int) -> float:
    """When a block had its quorum, or all of it where that is fewer."""
    times = sorted(time for slot, time in due.items() if slot.block == block)
    return times[min(policy.quorum, len(times)) - 1]


def fate(
    policy: Policy,
    update_round: int,
    open_round: int,
    closing: bool,
    rounds: int | None = None,
) -> Fate:
    """What becomes of an update that comes now.

    Args:
      policy: see :class:`Policy`.
      update_round: whose model it started from.
      open_round: the round that is open, or closing.
      closing: whether that one takes nothing any more, being aggregated.
      rounds: R, of the run; its last round has none after it. None: it has no end.
    """
    if update_round > open_round:
        why = f"round {update_round + 1} isn't open yet: round {open_round + 1} is"
        return Fate("rejected", why)
    applies_in = open_round + 1 if closing else open_round
    age = applies_in - update_round
    if age > 0 and policy.late != "gate":
        return Fate("late", f"round {update_round + 1} is closed", age)
    if age > 0 and age > policy.max_age:
        why = f"{age} rounds old where at most {policy.max_age} are taken"
        return Fate("stale", why, age)
    if rounds is not None and applies_in >= rounds:
        return Fate("late", f"the last of {rounds} rounds is closed", age)
    return Fate("accepted", age=age, applies_in=applies_in)
