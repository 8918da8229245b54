"""Rounds close as the virtual network's do, and as the rules say."""

import math
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.delivery import clock
from spheroid_jax.delivery.profiles import Profile, make_fleet
from spheroid_jax.transport.assignment import Slot
from spheroid_jax.transport.closing import Fate, Policy, Standing, closes_at, fate

ROUNDS, BLOCKS, REPLICAS = 10, 2, 3
SHAPE = (BLOCKS, REPLICAS)
# All times are eighths of a second, so that every sum is exact.
eighths = st.integers(0, 64).map(lambda n: n / 8)


class Case(NamedTuple):
    policy: Policy
    standing: Standing
    blocks: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    blocks = draw(st.integers(1, 3))
    policy = Policy(
        deadline=draw(eighths | st.just(math.inf)),
        late="drop",
        quorum=draw(st.integers(0, 4)),
        grace=draw(eighths),
        max_age=0,
    )
    slots = [Slot(b, k) for b in range(blocks) for k in range(3)]
    expected = draw(st.frozensets(st.sampled_from(slots)))
    heard = draw(st.dictionaries(st.sampled_from(slots), eighths))
    opened = draw(eighths)
    heard = {slot: opened + time for slot, time in heard.items()}
    return Case(policy, Standing(opened, expected, heard), blocks)


def closed(case: Case, now: float) -> bool:
    """Whether a round is over at a moment: the rules, as they are written."""
    policy, standing = case.policy, case.standing
    if now >= standing.opened + policy.deadline:
        return True
    part = standing.expected | set(standing.heard)
    if not part:
        return False

    def heard(block: int, until: float) -> int:
        return sum(s.block == block and t <= until for s, t in standing.heard.items())

    sizes = {block: sum(s.block == block for s in part) for block in range(case.blocks)}
    if all(heard(block, now) == size for block, size in sizes.items()):
        return True
    return policy.quorum > 0 and all(
        heard(block, now - policy.grace) >= min(policy.quorum, size)
        for block, size in sizes.items()
    )


def event_list(case: Case) -> float:
    """The first of all moments at which anything happens that the round is over."""
    policy, standing = case.policy, case.standing
    moments = {standing.opened, standing.opened + policy.deadline}
    for time in standing.heard.values():
        moments |= {time, time + policy.grace}
    return min((t for t in moments if closed(case, t)), default=math.inf)


@settings(deadline=None, max_examples=400)
@given(cases())
def test_it_closes_at_the_first_moment_that_a_rule_holds(case: Case) -> None:
    assert closes_at(*case) == event_list(case)


@settings(deadline=None, max_examples=150)
@given(cases())
def test_who_knows_only_the_past_closes_at_the_same_moment(case: Case) -> None:
    """A coordinator hears one after another, and looks again whenever it does."""
    policy, standing, blocks = case
    # Who leaves without a word isn't known to from the beginning.
    everyone = standing._replace(expected=standing.expected | standing.heard.keys())
    whole = closes_at(policy, everyone, blocks)
    heard: dict[Slot, float] = {}
    for slot, time in sorted(standing.heard.items(), key=lambda item: item[1]):
        now = closes_at(policy, everyone._replace(heard=heard), blocks)
        assert now >= whole
        if now < time:
            assert now == whole
            return
        heard[slot] = time
    assert closes_at(policy, everyone._replace(heard=heard), blocks) == whole


def test_a_worker_that_is_gone_is_not_waited_for() -> None:
    policy = Policy(math.inf, "drop", 0, 0.0, 0)
    a, b = Slot(0, 0), Slot(1, 0)
    waiting = Standing(10.0, frozenset({a, b}), {a: 12.0})
    assert closes_at(policy, waiting, 2) == math.inf
    # It closes at once: its time is over.
    assert closes_at(policy, waiting._replace(expected=frozenset({a})), 2) == 12.0
    # One that was heard before it went counts.
    gone = waiting._replace(expected=frozenset({b}), heard={a: 12.0, b: 15.0})
    assert closes_at(policy, gone, 2) == 15.0


def test_a_round_without_workers_ends_at_its_deadline_or_never() -> None:
    nobody = Standing(10.0, frozenset(), {})
    assert closes_at(Policy(5.0, "drop", 1, 1.0, 0), nobody, 2) == 15.0
    assert closes_at(Policy(math.inf, "drop", 1, 1.0, 0), nobody, 2) == math.inf


def test_what_came_before_the_opening_was_heard_at_it() -> None:
    a = Slot(0, 0)
    early = Standing(10.0, frozenset({a}), {a: 9.0})
    assert closes_at(Policy(5.0, "gate", 0, 0.0, 3), early, 1) == 10.0
    both = early._replace(expected=frozenset({a, Slot(0, 1)}))
    assert closes_at(Policy(5.0, "gate", 1, 2.0, 3), both, 1) == 12.0


def test_a_slot_of_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="2 blocks"):
        closes_at(
            Policy(5.0, "drop", 0, 0.0, 0),
            Standing(0.0, frozenset({Slot(2, 0)}), {}),
            2,
        )


# What becomes of updates.

DROP = Policy(5.0, "drop", 0, 0.0, 9)
GATE = Policy(5.0, "gate", 0, 0.0, 2)


@pytest.mark.parametrize(
    ("policy", "of", "open_round", "closing", "expected"),
    [
        (DROP, 4, 4, False, ("accepted", 0, 4)),
        (DROP, 4, 4, True, ("late", 1, 0)),
        (DROP, 3, 4, False, ("late", 1, 0)),
        (DROP, 5, 4, False, ("rejected", 0, 0)),
        (GATE, 4, 4, False, ("accepted", 0, 4)),
        (GATE, 4, 4, True, ("accepted", 1, 5)),
        (GATE, 3, 4, False, ("accepted", 1, 4)),
        (GATE, 2, 4, False, ("accepted", 2, 4)),
        (GATE, 2, 4, True, ("stale", 3, 0)),
        (GATE, 1, 4, False, ("stale", 3, 0)),
        (GATE, 5, 4, True, ("rejected", 0, 0)),
        (GATE._replace(max_age=0), 4, 4, False, ("accepted", 0, 4)),
        (GATE._replace(max_age=0), 3, 4, False, ("stale", 1, 0)),
    ],
)
def test_fates(
    policy: Policy,
    of: int,
    open_round: int,
    closing: bool,
    expected: tuple[str, int, int],
) -> None:
    found = fate(policy, of, open_round, closing)
    assert (found.verdict, found.age, found.applies_in) == expected
    assert (found.why == "") == (found.verdict == "accepted")
    assert "\n" not in found.why


def test_nothing_is_accepted_into_a_round_that_never_comes() -> None:
    assert fate(GATE, 7, 7, False, rounds=8) == Fate("accepted", applies_in=7)
    assert fate(GATE, 7, 7, True, rounds=8).verdict == "late"
    assert fate(GATE, 7, 7, True, rounds=9).verdict == "accepted"


# Beside the virtual network.

FLEET = make_fleet([Profile()], BLOCKS, REPLICAS, 0)


@jax.jit
def virtual(
    phases: clock.Phase, present: jax.Array, policy: clock.Policy
) -> clock.Events:
    def one(
        now: clock.Clock, x: tuple[clock.Phase, jax.Array]
    ) -> tuple[clock.Clock, clock.Events]:
        return clock.run_clock(now, x[0], x[1], policy)

    begin = clock.start_clock(FLEET, jax.random.key(0))
    found: clock.Events = jax.lax.scan(one, begin, (phases, present))[1]
    return found


class Job(NamedTuple):
    began: int
    due: float  # of the clock that runs through all rounds
    lost: bool


def real(
    seconds: np.ndarray, lost: np.ndarray, present: np.ndarray, policy: Policy
) -> dict[str, list[np.ndarray]]:
    """The same network by the rules of :mod:`closing`: what every round saw."""
    jobs: dict[Slot, Job] = {}
    now = 0.0
    rows: dict[str, list[np.ndarray]] = {"seconds": [], "arrived": [], "age": []}
    for number in range(ROUNDS):
        arrived, ages = np.zeros(SHAPE, bool), np.zeros(SHAPE, int)
        for slot in map(Slot._make, np.ndindex(SHAPE)):
            if not present[number][slot]:
                jobs.pop(slot, None)
            elif slot not in jobs:
                due = now + float(seconds[number][slot])
                jobs[slot] = Job(number, due, bool(lost[number][slot]))
        # Without a deadline a round lasts until those who are lost are known to be.
        endless = math.isinf(policy.deadline)
        expected = frozenset(s for s, job in jobs.items() if not (job.lost and endless))
        heard = {s: job.due for s, job in jobs.items() if not job.lost}
        close = closes_at(policy, Standing(now, expected, heard), BLOCKS)
        if math.isinf(close):
            assert not expected
            close = now + clock.IDLE_SECONDS
        for slot, job in list(jobs.items()):
            if not job.lost and job.due <= close:
                found = fate(policy, job.began, number, False)
                assert found.verdict == "accepted"
                arrived[slot], ages[slot] = True, found.age
            elif not job.lost and (
                fate(policy, job.began, number + 1, False).verdict == "accepted"
            ):
                continue
            del jobs[slot]
        for name, value in (("seconds", close - now), ("arrived", arrived)):
            rows[name].append(np.asarray(value))
        rows["age"].append(ages)
        now = close
    return rows


POLICIES = {
    "drop": Policy(4.0, "drop", 0, 0.0, 0),
    "gate": Policy(2.0, "gate", 0, 0.0, 3),
    "no patience": Policy(2.0, "gate", 0, 0.0, 0),
    "quorum": Policy(6.0, "drop", 2, 0.5, 0),
    "quorum of all": Policy(6.0, "drop", 3, 1.0, 0),
    "quorum and gate": Policy(5.0, "gate", 1, 0.25, 4),
    "endless": Policy(math.inf, "drop", 0, 0.0, 0),
    "endless quorum": Policy(math.inf, "gate", 2, 0.5, 9),
    "at once": Policy(0.0, "drop", 0, 0.0, 0),
}


@pytest.mark.parametrize("name", POLICIES)
def test_it_is_the_virtual_network(name: str) -> None:
    policy = POLICIES[name]
    typed = clock.Policy(
        np.float32(policy.deadline),
        np.bool_(policy.late == "gate"),
        np.int32(policy.max_age),
        np.int32(policy.quorum),
        np.float32(policy.grace),
    )
    arrivals = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        seconds = rng.integers(0, 40, (ROUNDS, *SHAPE)) / 8
        lost = rng.random(seconds.shape) < rng.choice([0.0, 0.2, 0.7])
        if math.isinf(policy.deadline) and policy.quorum:
            # Who will never count for a quorum is known to the virtual network only.
            lost[:] = False
        present = rng.random(seconds.shape) < rng.choice([0.6, 1.0])
        phase = clock.Phase(seconds.astype(np.float32), lost)
        expected = virtual(phase, present, typed)
        found = real(seconds, lost, present, policy)
        for field, values in found.items():
            np.testing.assert_array_equal(
                np.stack(values), np.asarray(getattr(expected, field)), err_msg=field
            )
        arrivals += int(np.sum(np.stack(found["arrived"])))
    assert arrivals > 0
