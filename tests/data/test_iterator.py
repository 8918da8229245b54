"""A resumed run sees the windows it would have seen, or is told why it can't."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from spheroid_jax.data import DataStateError, RoundIterator, round_batches

SETTINGS: dict[str, Any] = {
    "seq_len": 8,
    "stride": 0,
    "batch": 3,
    "local_steps": 2,
    "blocks": 2,
    "replicas": 1,
    "sharding": "replica",
    "seed": 0,
}
CORPUS = np.random.default_rng(0).integers(0, 256, 8 * 24 + 1, np.uint8)
TWO_EPOCHS = 8  # rounds: 24 windows a worker, 6 a round


def iterator(prefetch: int = 2, **changes: Any) -> RoundIterator:
    return RoundIterator(CORPUS, prefetch=prefetch, **{**SETTINGS, **changes})


def test_yields_the_rounds_in_order() -> None:
    rounds = round_batches(CORPUS, **SETTINGS)
    for prefetch in (0, 3):
        rows = iterator(prefetch)
        for index in range(TWO_EPOCHS):
            np.testing.assert_array_equal(next(rows), rounds[index])
        rows.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_resume_at_every_offset_of_two_epochs(prefetch: int) -> None:
    uninterrupted = iterator(prefetch)
    expected, states = [], []
    for _ in range(TWO_EPOCHS + 2):
        states.append(json.dumps(uninterrupted.get_state()))
        expected.append(next(uninterrupted))
    for offset, state in enumerate(states[:TWO_EPOCHS]):
        resumed = iterator(prefetch)
        next(resumed)  # a restored position must win over one already moved
        resumed.set_state(json.loads(state))
        for index in range(offset, TWO_EPOCHS + 2):
            np.testing.assert_array_equal(next(resumed), expected[index])
        # Positions saved after a resume go on from there.
        assert resumed.get_state()["next_round"] == TWO_EPOCHS + 2
        resumed.close()


def test_the_position_counts_what_was_taken_not_what_was_read_ahead() -> None:
    rows = iterator(prefetch=4)
    assert rows.get_state()["next_round"] == 0
    next(rows)
    assert rows.get_state()["next_round"] == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seq_len", 9),
        ("stride", 7),
        ("batch", 4),
        ("local_steps", 3),
        ("blocks", 3),
        ("replicas", 2),
        ("sharding", "shared"),
        ("seed", 1),
    ],
)
def test_another_setting_is_refused_by_name(field: str, value: Any) -> None:
    state = iterator().get_state()
    saved = state["fingerprint"][field]
    with pytest.raises(DataStateError) as caught:
        iterator(**{field: value}).set_state(state)
    assert f"{field} was {saved!r}, is {value!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_difference_is_named() -> None:
    state = iterator().get_state()
    other = RoundIterator(CORPUS[:-8], **{**SETTINGS, "batch": 5, "seed": 3})
    with pytest.raises(DataStateError) as caught:
        other.set_state(state)
    for field in ("sha256", "train_bytes", "batch", "seed"):
        assert f"{field} was " in str(caught.value)
    for field in ("seq_len", "blocks", "sharding"):
        assert f"{field} was " not in str(caught.value)


def test_another_grain_is_named() -> None:
    state = iterator().get_state()
    state["fingerprint"]["order"] = "shuffled by another version"
    with pytest.raises(DataStateError, match=r"grain \d+\.\d+.* shuffles unlike"):
        iterator().set_state(state)


def test_a_setting_of_a_later_version_is_refused() -> None:
    state = iterator().get_state()
    state["fingerprint"]["augmentation"] = "mirror"
    with pytest.raises(DataStateError, match="augmentation was 'mirror', is None"):
        iterator().set_state(state)


@pytest.mark.parametrize(
    "change",
    [
        {"next_round": None},
        {"next_round": -1},
        {"next_round": "3"},
        {"fingerprint": None},
        {"fingerprint": "abc"},
    ],
)
def test_a_damaged_state_is_refused(change: dict) -> None:
    with pytest.raises(DataStateError, match="damaged"):
        iterator().set_state({**iterator().get_state(), **change})
    with pytest.raises(DataStateError, match="damaged"):
        iterator().set_state({})


def test_a_refusal_leaves_the_iterator_where_it_was() -> None:
    rows = iterator()
    next(rows)
    with pytest.raises(DataStateError):
        rows.set_state({**rows.get_state(), "next_round": -1})
    np.testing.assert_array_equal(next(rows), round_batches(CORPUS, **SETTINGS)[1])


def test_a_program_that_forgets_to_close_still_ends_quietly() -> None:
    program = (
        "import numpy as np\n"
        "from spheroid_jax.data import RoundIterator\n"
        f"rows = RoundIterator(np.arange(200, dtype=np.uint8), **{SETTINGS!r})\n"
        "print(next(rows).shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "(2, 1, 2, 3, 9)")
    assert done.stderr == ""
