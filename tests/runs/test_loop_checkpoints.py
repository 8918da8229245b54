"""What the fields ``checkpoint.*`` do to a run."""

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax import config as configuration
from spheroid_jax import data, manifests
from spheroid_jax.checkpoints import CheckpointError, Checkpoints, blobs, retention
from spheroid_jax.commandline import overrides
from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.runs import loop
from spheroid_jax.runs.methods import build_method
from spheroid_jax.runs.settings import training_identity
from tests.checkpoints.states import run_python

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


@pytest.mark.parametrize(("wait", "behind"), [(True, 0), (False, 1)])
def test_with_wait_a_round_starts_when_the_one_before_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool, behind: int
) -> None:
    """Without, a slow disk is a round behind: a kill there costs two rounds."""
    complete, one_round = manifests.write, loop._Training.one_round
    lags, started = [], threading.Event()

    def slow(*args: Any) -> None:
        if wait:
            time.sleep(0.2)  # a round that didn't wait would start meanwhile
        else:
            assert started.wait(60)  # not complete before the next round runs
        complete(*args)

    def watched(self: Any, state: Any, batches: Any, round_: int, *rest: Any) -> Any:
        newest = max(retention.complete(tmp_path / "saved"), default=0)
        lags.append(round_ - 1 - newest)
        if round_ > 1:
            started.set()
        return one_round(self, state, batches, round_, *rest)

    monkeypatch.setattr(manifests, "write", slow)
    monkeypatch.setattr(loop._Training, "one_round", watched)
    train(tmp_path, f"checkpoint.wait={wait}")
    assert lags[:2] == [0, behind]
    assert not (wait and any(lags))


def test_the_digest_is_the_fields(tmp_path: Path) -> None:
    train(tmp_path, "checkpoint.digest=sha256")
    index = json.loads((tmp_path / "saved/4/params/index.0.json").read_text())
    assert all("sha256" in box for box in index["boxes"])
    manifest = json.loads((tmp_path / "saved/4/manifest.json").read_text())
    assert manifest["manifest"]["format"] == 2


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from absl import flags
    flags.FLAGS.mark_as_parsed()
    from spheroid_jax.checkpoints import blobs
    from tests.runs import test_loop_checkpoints as tests

    flush = blobs._start_flush

    def killed(*args):
        if Path(sys.argv[1], "saved", "2", "manifest.json").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        flush(*args)

    blobs._start_flush = killed
    tests.train(Path(sys.argv[1]), "")
    """


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_save_costs_the_round_in_progress(
    tmp_path: Path,
) -> None:
    """SIGKILL among the bytes of round 3: the log knows round 3, the disk round 2."""
    process = run_python(KILLED, tmp_path)
    assert process.wait(120) == -signal.SIGKILL
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line)["round"] for line in lines]
    assert max(logged) == 3
    assert max(retention.complete(tmp_path / "saved")) == 2
    train(tmp_path, "")  # goes on
    assert max(retention.complete(tmp_path / "saved")) == 4
