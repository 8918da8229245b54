"""A process reads the windows of its own workers, and no other byte of the corpus."""

from typing import Any

import numpy as np
import pytest

from spheroid_jax.data import RoundIterator, round_batches, windows

SETTINGS: dict[str, Any] = {
    "seq_len": 8,
    "stride": 0,
    "batch": 3,
    "local_steps": 2,
    "blocks": 3,
    "replicas": 2,
    "seed": 0,
}
CORPUS = np.random.default_rng(0).integers(0, 256, 8 * 72 + 1, np.uint8)
SHARDINGS = ["replica", "worker", "shared"]
OWN = [(0, 1), (1, 0), (2, 1)]


class Recorder:
    """A view of the corpus that notes which windows are taken out of it."""

    def __init__(self, view: np.ndarray) -> None:
        self.view, self.starts = view, set()

    def __getitem__(self, starts: np.ndarray) -> np.ndarray:
        self.starts.update(np.ravel(starts).tolist())
        return self.view[starts]


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_rows_are_those_of_the_whole_round(sharding: str) -> None:
    whole = round_batches(CORPUS, sharding=sharding, **SETTINGS)
    own = round_batches(CORPUS, workers=OWN, sharding=sharding, **SETTINGS)
    for index in (0, 1, 17):
        expected = np.stack([whole[index][worker] for worker in OWN])
        np.testing.assert_array_equal(own[index], expected)


def test_no_window_of_another_worker_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    recorders = []
    sliding = np.lib.stride_tricks.sliding_window_view

    def recording(train: np.ndarray, length: int) -> Any:
        recorders.append(Recorder(sliding(train, length)))
        return recorders[-1]

    monkeypatch.setattr(windows.np.lib.stride_tricks, "sliding_window_view", recording)
    rows = RoundIterator(
        CORPUS, prefetch=0, workers=[(1, 0)], sharding="worker", **SETTINGS
    )
    for _ in range(4):  # two epochs: 72 windows for 6 workers, 6 a round
        next(rows)
    # Worker (1, 0) is the third of six: its are the windows 2, 8, 14, ...
    read = set().union(*(recorder.starts for recorder in recorders))
    assert read == set(range(2 * 8, 72 * 8, 6 * 8))


def test_the_position_does_not_depend_on_who_reads() -> None:
    own = RoundIterator(
        CORPUS, prefetch=0, workers=[(2, 1)], sharding="replica", **SETTINGS
    )
    next(own)
    alone = RoundIterator(CORPUS, prefetch=0, sharding="replica", **SETTINGS)
    alone.set_state(own.get_state())
    np.testing.assert_array_equal(next(alone)[2, 1], next(own)[0])


@pytest.mark.parametrize("workers", [[], [(3, 0)], [(0, 2)], [(-1, 0)]])
def test_workers_that_are_none_of_the_run_are_refused(
    workers: list[tuple[int, int]],
) -> None:
    with pytest.raises(ValueError, match="workers="):
        round_batches(CORPUS, workers=workers, sharding="replica", **SETTINGS)
