"""Kinds of workers, and the presets that are named by their participation."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest

from spheroid_jax.delivery.clock import Policy, Traffic, simulate_network
from spheroid_jax.delivery.profiles import (
    PRESETS,
    REFERENCE,
    Fleet,
    Profile,
    make_fleet,
    preset,
)

ROUNDS = 1000
NAMED = {"lockstep": 100, "mild": 90, "wan": 42, "bad_edge": 0}  # per cent


@jax.jit
def share_in_time(fleet: Fleet, part_bytes: float, seed: int) -> jax.Array:
    traffic = Traffic(part_bytes, part_bytes, REFERENCE.local_steps)
    policy = Policy(REFERENCE.deadline_seconds)
    key = jax.random.key(seed)
    arrived = simulate_network(
        fleet,
        traffic,
        policy,
        ROUNDS,
        key,
        quorums=False,
        keep=lambda events: events.arrived.mean(),
    )
    return arrived.mean()


def percent(name: str, part_bytes: int, seed: int) -> float:
    fleet = make_fleet(preset(name), 3, 8, seed)
    return 100 * float(share_in_time(fleet, float(part_bytes), seed))


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("seed", range(4))
def test_participation_is_that_of_the_name(name: str, seed: int) -> None:
    found = percent(name, REFERENCE.part_bytes, seed)
    assert found == pytest.approx(NAMED[name], abs=3)
    if NAMED[name] in (0, 100):
        assert found == pytest.approx(NAMED[name], abs=0.1)


def test_there_is_a_name_for_every_preset() -> None:
    assert set(NAMED) == set(PRESETS)


@pytest.mark.parametrize("name", ["mild", "wan"])
def test_a_bigger_model_participates_less(name: str) -> None:
    shares = [percent(name, REFERENCE.part_bytes * n, 0) for n in (1, 2, 4, 16)]
    assert all(a > b for a, b in itertools.pairwise(shares)), shares
    assert percent(name, REFERENCE.part_bytes // 4, 0) > shares[0]


def test_size_is_nothing_to_a_perfect_line() -> None:
    assert percent("lockstep", 10**12, 0) == 100.0


# Fleets.


def test_profiles_are_dealt_by_their_shares() -> None:
    kinds = [Profile(share=5, step_seconds=1.0), Profile(share=3, step_seconds=2.0)]
    kinds.append(Profile(share=2, step_seconds=4.0))
    fleet = make_fleet(kinds, 3, 7, 0)
    assert fleet.step_seconds.shape == (3, 7)
    counts = [int((fleet.step_seconds == s).sum()) for s in (1.0, 2.0, 4.0)]
    assert sum(counts) == 21
    for count, share in zip(counts, (5, 3, 2), strict=True):
        assert abs(count - 21 * share / 10) < 1
    columns = {tuple(row) for row in np.asarray(fleet.step_seconds)}
    assert len(columns) == 3, "blocks aren't dealt alike"


def test_a_seed_is_a_fleet() -> None:
    wan = preset("wan")
    one, same, other = (make_fleet(wan, 3, 8, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.step_seconds, same.step_seconds)
    assert not np.array_equal(one.step_seconds, other.step_seconds)


def test_spreads_are_of_the_logarithm_and_lines_keep_their_ratio() -> None:
    profile = Profile(
        step_seconds=2.0, speed_spread=0.5, down=100.0, up=10.0, link_spread=0.3
    )
    fleet = make_fleet([profile], 4, 250, 0)
    speed, down = np.log(fleet.step_seconds), np.log(fleet.down)
    assert speed.std() == pytest.approx(0.5, rel=0.02)
    assert speed.mean() == pytest.approx(math.log(2.0), abs=1e-3)
    assert down.std() == pytest.approx(0.3, rel=0.02)
    np.testing.assert_allclose(fleet.down / fleet.up, 10.0, rtol=1e-5)
    assert abs(np.corrcoef(speed.ravel(), down.ravel())[0, 1]) < 0.1


def test_six_workers_are_as_mixed_as_six_can_be() -> None:
    fleet = make_fleet([Profile(speed_spread=1.0)], 3, 2, 0)
    ranks = np.sort(np.log(np.asarray(fleet.step_seconds) / 0.05).ravel())
    assert ranks.mean() == pytest.approx(0.0, abs=1e-5)
    # The middles of six equal parts of a normal distribution, from a table.
    np.testing.assert_allclose(ranks[3:], [0.2104, 0.6745, 1.3830], atol=2e-4)


# What is refused.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("share", 0.0), ("step_seconds", 0.0), ("down", 0.0), ("up", -1.0)),
        *(("session_seconds", 0.0), ("dropout", 1.1), ("dropout", -0.1)),
        *(("step_spread", -0.1), ("latency_seconds", -1.0), ("jitter_seconds", -1.0)),
        *(("away_seconds", -1.0), ("join_seconds", -1.0), ("leave_seconds", 0.0)),
        *((field.name, math.nan) for field in dataclasses.fields(Profile)),
        # Infinity times a draw that may be zero is no time.
        *(("share", math.inf), ("step_spread", math.inf), ("speed_spread", math.inf)),
        *(("jitter_seconds", math.inf), ("link_spread", math.inf)),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{field}(=| must be ).*{value}"):
        Profile(**{field: value})


def test_no_network_and_no_profile_are_refused() -> None:
    with pytest.raises(ValueError, match="no network 'wlan': use one of lockstep, "):
        preset("wlan")
    with pytest.raises(ValueError, match="profiles is empty"):
        make_fleet([], 3, 2, 0)
