"""The first command, as a newcomer and a killed machine meet it: real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.commandline import load, overrides
from spheroid_jax.rounds import init_state
from spheroid_jax.runs.methods import build_method
from spheroid_jax.runs.settings import Keys, training_identity

ROOT = Path(__file__).parents[2]
METHODS = ("blocktrain", "end_to_end", "block_sized")
TINY = (
    "data.corpus=embedded model.blocks=2 model.layers=1 model.width=16 model.heads=2 "
    "data.seq_len=16 data.batch=2 train.rounds=12 train.local_steps=2 "
    "train.warmup_steps=2 eval.windows=4 eval.curve_windows=4 eval.batch=2 "
    "eval.mix_draws=2 eval.every=1 checkpoint.every=1"
)
CONFIG = "configs/b3_l4.py:quick"


def command(workdir: Path, *extra: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "experiments.run",
        f"--config={CONFIG}",
        *(f"--config.{item}" for item in TINY.split()),
        f"--workdir={workdir}",
        *extra,
    ]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(
        tmp_path_factory.mktemp("xla")
    )
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }


def run(
    workdir: Path, environment: dict[str, str], *extra: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(workdir, *extra),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """An uninterrupted run, which the interrupted ones must equal."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    result = run(workdir, environment)
    assert result.returncode == 0, result.stderr
    return workdir, result


def records(workdir: Path) -> list[dict[str, object]]:
    try:
        lines = (workdir / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}")]


def wait_for_round(
    process: subprocess.Popen[str], workdir: Path, method: str, round_: int
) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        done = [r["round"] for r in records(workdir) if r["method"] == method]
        if done and max(done) >= round_:
            return
        if process.poll() is not None:
            pytest.fail(f"the run ended early: {process.communicate()}")
        time.sleep(0.002)
    pytest.fail(f"no round {round_} of {method} within the deadline")


def start(workdir: Path, environment: dict[str, str], *extra: str) -> subprocess.Popen:
    return subprocess.Popen(
        command(workdir, *extra),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def final_params(workdir: Path, method: str) -> dict[str, np.ndarray]:
    """The parameters of a method's last checkpoint, by path."""
    config = overrides(load(str(ROOT / CONFIG)), TINY)
    built = build_method(config, method)
    keys = Keys(config.seed, method)
    abstract = jax.eval_shape(
        lambda: init_state(built.engine, built.init(keys.init), keys.rounds)
    )
    identity = {"method": method, **training_identity(config)}
    with Checkpoints(
        workdir / "checkpoints" / method, keep=2, identity=identity
    ) as checkpoints:
        assert checkpoints.latest() == config.train.rounds
        state, _ = checkpoints.restore(abstract)
    leaves, _ = jax.tree_util.tree_flatten_with_path(state.params)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def assert_same_run(left: Path, right: Path) -> None:
    for method in METHODS:
        a, b = final_params(left, method), final_params(right, method)
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    results = [
        json.loads((w / "summary.json").read_text())["results"] for w in (left, right)
    ]
    assert results[0] == results[1]
    # No round twice, none missing.
    rounds = [[(r["method"], r["round"]) for r in records(w)] for w in (left, right)]
    assert rounds[0] == rounds[1]


def test_the_run_directory_holds_everything(finished) -> None:
    workdir, result = finished
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["name"] == "b3_l4"
    assert summary["size"] == "quick"
    assert "experiments.run" in summary["command"]
    assert summary["corpus"].keys() >= {"name", "sha256", "train_bytes", "valid_bytes"}
    assert summary["params"] > 0
    assert summary["train_flops"] > 0
    assert summary["seconds"] > 0
    expected = {"ce_chain", "ce_ensemble", "ce_first", "ce_mix"}
    assert summary["results"].keys() >= {*expected, "end_to_end", "block_sized"}
    for name in (*expected, "end_to_end", "block_sized"):
        # An untrained or barely trained model is near ln 256.
        assert 2.0 < summary["results"][name] < 8.0
    assert (workdir / "curves.png").read_bytes().startswith(b"\x89PNG")
    report = (workdir / "report.md").read_text()
    assert summary["corpus"]["name"] in report
    assert summary["corpus"]["sha256"][:12] in report
    assert list((workdir / "tensorboard").rglob("events.*"))
    assert {r["method"] for r in records(workdir)} == set(METHODS)
    # The screen alone tells the story: corpus, methods, and the table at the end.
    assert "embedded" in result.stdout
    assert f"{summary['results']['ce_chain']:.3f}"[:5] in result.stdout
    assert "report.md" in result.stdout


@pytest.mark.parametrize(
    ("method", "round_"),
    [
        pytest.param("blocktrain", 3, marks=pytest.mark.slow),
        pytest.param("blocktrain", 12, marks=pytest.mark.slow),
        ("end_to_end", 6),
    ],
)
def test_a_killed_run_resumes_to_the_same_bits(
    finished, environment, tmp_path, method, round_
) -> None:
    workdir = tmp_path / "killed"
    process = start(workdir, environment)
    wait_for_round(process, workdir, method, round_)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (workdir / "summary.json").exists()
    resumed = run(workdir, environment, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert_same_run(finished[0], workdir)


def test_ctrl_c_says_how_to_go_on_and_that_works(
    finished, environment, tmp_path
) -> None:
    workdir = tmp_path / "stopped"
    process = start(workdir, environment)
    wait_for_round(process, workdir, "blocktrain", 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err
    assert run(workdir, environment, "--resume").returncode == 0
    assert_same_run(finished[0], workdir)


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def test_a_finished_run_is_not_overwritten(finished, environment) -> None:
    workdir, _ = finished
    before = (workdir / "summary.json").read_bytes()
    result = run(workdir, environment)
    assert result.returncode == 1
    assert "--resume" in one_line(result)
    assert (workdir / "summary.json").read_bytes() == before


def test_resuming_under_another_configuration_names_the_field(
    finished, environment
) -> None:
    result = run(finished[0], environment, "--resume", "--config.model.mlp_ratio=2")
    assert result.returncode == 1
    line = one_line(result)
    assert "model.mlp_ratio" in line
    assert "4" in line
    assert "2" in line


def test_resuming_nothing_says_so(environment, tmp_path) -> None:
    result = run(tmp_path / "absent", environment, "--resume")
    assert result.returncode == 1
    assert "nothing to resume" in one_line(result)


def test_a_corpus_that_is_missing_is_named(environment, tmp_path) -> None:
    path = tmp_path / "no-such-file.txt"
    result = run(tmp_path / "run", environment, f"--config.data.corpus=file:{path}")
    assert result.returncode == 1
    assert "no-such-file.txt" in one_line(result)
    # The folder is still free for the command with the right path.
    assert not (tmp_path / "run").exists()


def test_a_corpus_of_ten_bytes_is_one_line_that_says_how_many(
    environment, tmp_path
) -> None:
    text = tmp_path / "tiny.txt"
    text.write_text("ten bytes\n")
    result = run(tmp_path / "run", environment, f"--config.data.corpus=file:{text}")
    assert result.returncode == 1
    # Four windows of sixteen bytes, and the byte before the first of them.
    assert "needs 65 bytes" in one_line(result)
    assert not (tmp_path / "run").exists()


def test_a_diverging_run_ends_in_one_line_that_names_the_rate(
    environment, tmp_path
) -> None:
    result = run(
        tmp_path / "run",
        environment,
        "--config.train.learning_rate=1e30",
        "--config.train.clip=0.0",
    )
    assert result.returncode == 1
    assert "train.learning_rate" in result.stderr.strip().splitlines()[-1]
    assert "Traceback" not in result.stderr
