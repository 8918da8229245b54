"""A fleet over a day: counts against NumPy, and the text of a kind of worker."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.delivery import fleet as fleets
from spheroid_jax.delivery.clock import (
    Events,
    Policy,
    Traffic,
    draw_phase,
    simulate_network,
)
from spheroid_jax.delivery.fleet import (
    Counting,
    Tally,
    groups,
    parse_profile,
    simulate_day,
    smallest_group,
    timely_groups,
)
from spheroid_jax.delivery.profiles import Profile, kinds_of, make_fleet

BLOCKS, REPLICAS = 2, 9
COUNTING = Counting(needed=2, largest_group=5, kinds=2, oldest=3)
KINDS = (
    Profile(share=2, step_seconds=1.0, step_spread=0.3, dropout=0.1),
    Profile(share=1, step_seconds=2.5, step_spread=0.4, session_seconds=50.0),
)
TRAFFIC = Traffic(down=0.0, up=0.0, local_steps=1.0)
GATE = Policy(1.5, keep_late=True, max_age=3)
KEY = jax.random.key(2)


def day(policy: Policy, seconds: float) -> Tally:
    return simulate_day(
        make_fleet(KINDS, BLOCKS, REPLICAS, 4),
        kinds_of(KINDS, BLOCKS, REPLICAS, 4),
        TRAFFIC,
        policy,
        COUNTING,
        seconds=seconds,
        key=KEY,
    )


@pytest.fixture(scope="module")
def found() -> Tally:
    return day(GATE, 90.0)


@pytest.fixture(scope="module")
def events() -> Events:
    """The same rounds, with nothing reduced."""
    every: Events = jax.jit(
        lambda fleet: simulate_network(fleet, TRAFFIC, GATE, 60, KEY, quorums=False)
    )(make_fleet(KINDS, BLOCKS, REPLICAS, 4))
    return jax.tree.map(np.asarray, every)


def test_a_day_is_the_rounds_of_the_network_counted(
    found: Tally, events: Events
) -> None:
    rounds = len(found.seconds)
    assert rounds == 60, "of 1.5 seconds each, in ninety seconds"
    np.testing.assert_array_equal(found.seconds, events.seconds)
    np.testing.assert_array_equal(found.online, events.online)
    np.testing.assert_array_equal(found.started, events.started.sum(axis=2))
    np.testing.assert_array_equal(found.arrived, events.arrived.sum(axis=2))
    fresh = events.arrived & (events.age == 0)
    np.testing.assert_array_equal(found.fresh, fresh.sum(axis=2))
    kinds = kinds_of(KINDS, BLOCKS, REPLICAS, 4)
    for number in range(2):
        mine = (kinds == number)[None]
        for name in ("started", "arrived"):
            expected = (np.asarray(getattr(events, name)) & mine).sum(axis=(1, 2))
            column = np.asarray(getattr(found, f"kind_{name}"))[:, number]
            np.testing.assert_array_equal(column, expected)
    ages = [(events.arrived & (events.age == age)).sum() for age in range(4)]
    np.testing.assert_array_equal(np.sum(found.ages, axis=0), ages)
    assert min(ages) > 0, "every age occurs"
    assert sum(ages) == events.arrived.sum()
    for name, mask in (("timely", events.arrived), ("timely_fresh", fresh)):
        np.testing.assert_array_equal(getattr(found, name), by_hand(mask))
    np.testing.assert_allclose(found.busy_seconds, events.busy_seconds, rtol=1e-5)


def by_hand(arrived: Any) -> np.ndarray:
    """Timely groups of 1 ... G, by slices: (..., G)."""
    sizes = []
    for size in range(1, COUNTING.largest_group + 1):
        whole = arrived.shape[-1] // size
        parts = [arrived[..., n * size : (n + 1) * size] for n in range(whole)]
        got = np.stack([part.sum(axis=-1) for part in parts], axis=-1)
        sizes.append((got >= COUNTING.needed).sum(axis=-1))
    return np.stack(sizes, axis=-1)


def test_a_rest_fills_no_group() -> None:
    arrived = jnp.array([1, 1, 0, 1, 0, 0, 1, 1, 1], bool)
    expected = [0, 2, 2, 2, 1]  # pairs 11 01 00 11, and a rest of 1
    np.testing.assert_array_equal(timely_groups(arrived, COUNTING), expected)
    np.testing.assert_array_equal(groups(9, COUNTING), [9, 4, 3, 2, 1])


def test_a_shorter_day_is_the_beginning_of_a_longer(found: Tally) -> None:
    short = day(GATE, 30.1)
    assert len(short.seconds) == 21, "the round that opens at 30 is in it"
    for name, value in short._asdict().items():
        np.testing.assert_array_equal(value, getattr(found, name)[:21], err_msg=name)


def test_policies_without_a_quorum_are_one_program(found: Tally) -> None:
    before = fleets._stretch._cache_size()
    day(Policy(2.5), 10.0)
    day(Policy(0.7, keep_late=True, max_age=1), 10.0)
    assert fleets._stretch._cache_size() == before
    quick = day(Policy(2.5, quorum=3, grace=0.1), 30.0)
    assert fleets._stretch._cache_size() == before + 1
    assert np.mean(quick.seconds) < 2.0
    assert len(quick.seconds) > 12


def test_a_day_of_tiny_rounds_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "MOST_ROUNDS", 2 * fleets.STRETCH)
    assert len(day(Policy(1e-3), 1e6).seconds) == 2 * fleets.STRETCH


def test_sums_of_many_seconds_are_as_good_as_float32() -> None:
    """10^5 workers at 300 s each: a float32 that adds one by one would lose."""
    profile = Profile(step_seconds=200.0, step_spread=0.5)
    fleet = make_fleet([profile], 8, 12_500, 0)
    policy = Policy(300.0)
    events = simulate_network(fleet, TRAFFIC, policy, 1, KEY, quorums=False)
    key, _ = jax.random.split(KEY)
    draws = jax.random.split(jax.random.fold_in(key, 0))
    phase = draw_phase(fleet, TRAFFIC, draws[1])
    exact = np.minimum(np.asarray(phase.seconds, np.float64), 300.0).sum()
    assert float(events.busy_seconds[0]) == pytest.approx(exact, rel=1e-5)


def test_the_smallest_group_is_exact() -> None:
    assert smallest_group(np.array([0.5, 0.8499, 0.85, 0.9]), 0.85) == 3
    assert smallest_group(np.array([0.9]), 0.85) == 1
    assert smallest_group(np.array([0.1, 0.2]), 0.85) is None


# Independent replicas: the share of timely groups is a binomial's.


def test_replicas_needed_are_those_of_a_binomial() -> None:
    profile = Profile(step_seconds=1.0, dropout=0.7)
    counting = Counting(needed=1, largest_group=8, kinds=1, oldest=0)
    one = simulate_day(
        make_fleet([profile], 2, 2000, 0),
        np.zeros((2, 2000), int),
        TRAFFIC,
        Policy(2.0),
        counting,
        seconds=96.0,
        key=KEY,
    )
    tried = len(one.seconds) * 2 * groups(2000, counting)
    shares = np.sum(one.timely, axis=(0, 1)) / tried
    expected = 1 - 0.7 ** np.arange(1, 9)
    np.testing.assert_allclose(shares, expected, atol=0.01)
    # 1 - 0.7^5 = 0.832, 1 - 0.7^6 = 0.882.
    assert smallest_group(shares, 0.85) == 6


# Text.


def test_a_kind_is_words() -> None:
    text = "share=2 step_seconds=0.5  down=1e6 session_seconds=inf"
    assert parse_profile(text) == Profile(share=2, step_seconds=0.5, down=1e6)
    assert parse_profile("") == Profile()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("speed=1", "'speed=1' sets no field: use share, step_seconds"),
        ("share", "'share' sets no field"),
        ("share=fast", "'share=fast' is not a number: write share=1"),
        ("up=1 up=2", "up is set twice"),
        ("dropout=2", r"dropout must be in \[0, 1\], got 2.0"),
        ("share=nan", "share must be > 0, got nan"),
    ],
)
def test_text_that_is_no_kind_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_profile(text)
