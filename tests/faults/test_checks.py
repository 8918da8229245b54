"""What the checks are worth: runs with planted faults don't pass them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from spheroid_jax.transport.closing import Policy
from spheroid_jax.transport.coordinator.model import Arrival, Model
from spheroid_jax.transport.ledger import AcceptedUpdate, Ledger
from spheroid_jax.transport.updates import Encoding
from tests.faults import counting
from tests.faults.run import Failure, check, play, wrong_sums
from tests.faults.schedules import Schedule, Strike

LOCKSTEP = Policy(deadline=math.inf, late="drop", quorum=0, grace=0.0, max_age=1)
CALM = Schedule(0, 1, 3, ("w0", "w1"), LOCKSTEP, Encoding(), (), {}, (), (), 0.0)


def update(round_: int, block: int, replica: int, applies_in: int) -> AcceptedUpdate:
    name = f"{round_}-{block}-{replica}"
    return AcceptedUpdate(name, name, block, replica, round_, applies_in, 1, 1.0, 0.0)


def test_the_expected_places_by_hand() -> None:
    own, shared = counting.expected(
        [update(0, 0, 0, 0), update(0, 0, 1, 0), update(0, 1, 0, 1), update(1, 1, 0, 1)]
    )
    places = counting.MOST_REPLICAS
    assert own[0, :2].tolist() == [0.5, 0.5]  # the mean of two
    assert own[1, 0] == 0.25  # one of two, and a round late
    assert own[1, places] == 0.5
    # Round 0 has one block, so that both blocks' places are as large as its own.
    first = counting.BLOCKS * places
    assert shared[[0, 1, places, first + places]].tolist() == [0.5, 0.5, 0.25, 0.5]
    assert (own.sum(), shared.sum()) == (1.75, 1.75)


def test_a_lost_and_a_repeated_update_show() -> None:
    updates = [update(0, 0, 0, 0), update(0, 1, 0, 0)]
    own, shared = counting.expected(updates)
    assert wrong_sums(updates, own, shared) == []
    assert len(wrong_sums(updates[:1], own, shared)) == 2
    assert len(wrong_sums(updates, 2 * own, shared)) == 1
    assert wrong_sums([*updates, updates[0]], own, shared)
    assert "isn't finite" in wrong_sums(updates, own * np.nan, shared)[0]


def test_a_calm_run_is_fine(tmp_path: Path) -> None:
    over = play(CALM, tmp_path)
    check(over)
    assert over.happened["verdict accepted"] == 6
    assert over.rounds["the coordinator"] == [0, 3]
    assert set(over.rounds["the status"]) <= {0, 1, 2, 3}
    assert len(over.rounds["the status"]) > 1


def test_an_update_that_isn_t_written_down_is_noticed(tmp_path: Path) -> None:
    with mock.patch.object(Ledger, "accept", return_value=None):
        over = play(CALM, tmp_path)
    with pytest.raises(Failure, match="is accepted; it is lost"):
        check(over)


def test_updates_that_are_applied_twice_are_noticed(tmp_path: Path) -> None:
    step = Model.step

    def twice(model: Model, arrivals: Sequence[Arrival]) -> Any:
        step(model, arrivals)
        model._state = model._state._replace(round=model._state.round - 1)
        return step(model, arrivals)

    with mock.patch.object(Model, "step", twice):
        over = play(CALM, tmp_path)
    with pytest.raises(Failure, match="applied otherwise than accepted"):
        check(over)


def test_a_round_that_is_done_again_after_a_restart_is_noticed(tmp_path: Path) -> None:
    """A coordinator that forgot its checkpoint would take its round back."""
    over = play(
        CALM._replace(coordinator=(Strike("round.after", 2, "kill"),)), tmp_path
    )
    check(over)
    seen = over.rounds["the coordinator"]
    assert seen == [0, 2, 3]
    with pytest.raises(Failure, match="the coordinator saw rounds go back"):
        check(over._replace(rounds={"the coordinator": [*seen, 1]}))


def test_no_worker_ends_as_its_coordinator_is_restarted_again_and_again(
    tmp_path: Path,
) -> None:
    strikes = tuple(Strike("serve announce.before", nth, "kill") for nth in (1, 2, 2))
    over = play(CALM._replace(coordinator=strikes, workers=("w0",)), tmp_path)
    check(over)
    assert over.ended == {"w0.0": "finished"}


def test_a_worker_that_is_gone_is_done_without(tmp_path: Path) -> None:
    gone = {"w1": (Strike("ask commit.before", 2, "gone"),)}
    over = play(CALM._replace(strikes=gone), tmp_path)
    check(over)
    assert over.ended == {"w0.0": "finished", "w1.0": "died"}
