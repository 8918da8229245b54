"""Which rounds stay: newest and best."""

import math
from pathlib import Path

import jax.numpy as jnp
import pytest

from spheroid_jax.checkpoints import CheckpointError, retention
from tests.checkpoints.states import open_


def test_newest_and_best_overlap_or_not() -> None:
    metrics = {1: 0.5, 2: 0.1, 3: 0.9, 4: None, 5: math.nan, 6: 0.3}
    assert retention.kept(metrics, keep=2, keep_best=0) == {5, 6}
    assert retention.kept(metrics, keep=1, keep_best=1) == {2, 6}
    assert retention.kept(metrics, keep=1, keep_best=2) == {2, 6}
    assert retention.kept(metrics, keep=2, keep_best=3) == {1, 2, 5, 6}
    assert retention.kept(metrics, keep=1, keep_best=99) == {1, 2, 3, 6}


def test_of_equals_the_newer_is_better() -> None:
    assert retention.best({1: 0.5, 2: 0.5, 3: 0.7}, 1) == [2]


def test_the_best_is_never_pruned(tmp_path: Path) -> None:
    metrics = {1: 3.0, 2: 1.0, 3: 2.0, 4: None, 5: 1.5}
    with open_(tmp_path, keep=1, keep_best=1) as store:
        assert store.best() is None
        for round_, metric in metrics.items():
            store.save(round_, {"x": jnp.float32(round_)}, {}, metric=metric)
            assert store.latest() == round_
            on_disk = {int(path.name) for path in tmp_path.iterdir()}
            assert on_disk == {round_} | ({1} if round_ == 1 else {2})
        assert store.best() == 2
        assert store.restore({"x": jnp.float32(0)}, store.best())[0]["x"] == 2


def test_without_keep_best_the_best_goes(tmp_path: Path) -> None:
    with open_(tmp_path, keep=1) as store:
        for round_, metric in ((1, 0.0), (2, 9.0)):
            store.save(round_, {"x": jnp.float32(round_)}, {}, metric=metric)
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_bad_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="keep_best must be at least 0, not -1"):
        open_(tmp_path, keep_best=-1)
    with pytest.raises(CheckpointError, match="timeout must be above 0 seconds, not 0"):
        open_(tmp_path, timeout=0)
