"""What the fields ``checkpoint.*`` do to a run."""

import threading
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax import config as configuration
from spheroid_jax import data
from spheroid_jax.checkpoints import CheckpointError, Checkpoints, blobs
from spheroid_jax.commandline import overrides
from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.runs import loop
from spheroid_jax.runs.methods import build_method
from spheroid_jax.runs.settings import training_identity

TINY = (
    "model.blocks=2 model.layers=1 model.width=16 model.heads=2 data.seq_len=16 "
    "data.batch=2 train.rounds=4 train.local_steps=2 train.warmup_steps=2 "
    "eval.every=1 eval.windows=4 "
    "eval.curve_windows=4 eval.batch=2 eval.mix_draws=2 checkpoint.every=1 "
    "checkpoint.keep=1"
)
METHOD = "block_sized"


def train(workdir: Path, extra: str) -> Any:
    settings = overrides(configuration.default(), f"{TINY} {extra}")
    with MetricsLog(workdir) as log:
        corpus = data.load_corpus("embedded")
        method = build_method(settings, METHOD)
        loop.train_method(method, settings, corpus, workdir / "saved", log)
    return settings


def test_keep_best_keeps_the_round_of_the_lowest_ce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = iter([3.0, 1.0, 2.0, 1.5])
    monkeypatch.setattr(
        loop._Training, "evaluate_curve", lambda *_: {"ce": next(measured)}
    )
    settings = train(tmp_path, "checkpoint.keep_best=1")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"2", "4"}
    identity = {"method": METHOD, **training_identity(settings)}
    with Checkpoints(tmp_path / "saved", keep=1, identity=identity) as store:
        assert store.best() == 2
        assert [store.metadata(r)["metric"] for r in (2, 4)] == [1.0, 1.5]


def test_the_timeout_of_a_save_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, original = threading.Event(), blobs.write

    def write(*args: Any) -> None:
        stuck.wait(60)
        original(*args)

    monkeypatch.setattr(blobs, "write", write)
    with pytest.raises(CheckpointError, match=r"round 1 not saved in .* within 0\.5 s"):
        train(tmp_path, "checkpoint.timeout=0.5")
    stuck.set()
