"""A delayed sweep as an operator meets it: stopped, killed, resumed; real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "data.corpus=embedded data.seq_len=16 data.batch=2 model.layers=1 model.width=16 "
    "model.heads=2 model.kv_heads=2 model.mlp_width=16 train.local_steps=2 "
    "eval.windows=2 eval.batch=2 methods=sgd,adam train.rounds=20 "
    "sweep.cells=('delay.tau=0','delay.tau=2') sweep.threads=1 sweep.panel="
)


def command(workdir: Path, *extra: str) -> list[str]:
    settings = [f"--config.{setting}" for setting in SETTINGS.split()]
    program = [sys.executable, "-m", "experiments.sweep"]
    config = "--config=configs/delay_sweep.py:quick"
    return [*program, config, *settings, f"--workdir={workdir}", *extra]


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
    }


def start(workdir: Path, *extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(workdir, *extra),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_results(process: subprocess.Popen[str], workdir: Path, count: int) -> None:
    deadline = time.monotonic() + 240
    file = workdir / "cells.jsonl"
    while time.monotonic() < deadline:
        if file.exists() and file.read_text().count("\n") >= count:
            return
        if process.poll() is not None:
            pytest.fail(f"the sweep ended early: {process.communicate()}")
        time.sleep(0.01)
    pytest.fail(f"no {count} results within the deadline")


@pytest.mark.parametrize(
    "stop", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_a_stopped_sweep_goes_on(tmp_path: Path, stop: signal.Signals) -> None:
    workdir = tmp_path / "sweep"
    process = start(workdir)
    wait_for_results(process, workdir, 1)
    process.send_signal(stop)
    # Whatever computes at that moment isn't waited for.
    _, complaint = process.communicate(timeout=60)
    if stop == signal.SIGINT:
        assert process.returncode == 130
        assert "what was saved is kept" in complaint
        assert "--resume" in complaint
        assert "Traceback" not in complaint
    before = (workdir / "cells.jsonl").read_text().splitlines()

    said, complaint = start(workdir, "--resume").communicate(timeout=300)
    assert "of 4 finished before, not run again" in said, complaint
    after = (workdir / "cells.jsonl").read_text().splitlines()
    assert len(after) == 4
    assert [json.loads(line) for line in after[: len(before)]] == [
        json.loads(line) for line in before
    ]
    assert (workdir / "report.md").exists()
    assert "Age-blind Adam" in said


def test_a_wrong_recipe_is_one_line(tmp_path: Path) -> None:
    process = start(tmp_path / "x", "--config.recipes.adam=adam momentum=0.9")
    said, complaint = process.communicate(timeout=120)
    assert process.returncode == 2
    assert not said
    (line,) = complaint.splitlines()
    assert line.startswith("error: recipes.adam=adam momentum=0.9 can't be used")
    assert "adam has no momentum" in line
    assert not (tmp_path / "x").exists()
