"""Several processes on this machine: one result, one writer, one fate."""

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from spheroid_jax import data
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.commandline import load, overrides
from spheroid_jax.reports.log import NoLog
from spheroid_jax.rounds import RoundState, init_state
from spheroid_jax.rounds.mesh import make_mesh, state_sharding
from spheroid_jax.runs.loop import train_method
from spheroid_jax.runs.settings import Keys, training_identity
from tests.end_to_end.process_worker import METHOD

ROOT = Path(__file__).parents[2]
CONFIG = "configs/b3_l4.py:quick"
TOY = "tests.end_to_end.process_worker"
METHODS = ("blocktrain ", "end_to_end ", "block_sized ")
ROUNDS, WINDOW = 4, 8
SMALL = (
    f"data.corpus=embedded data.sharding=worker data.seq_len={WINDOW} data.batch=2 "
    f"model.blocks=3 train.replicas=2 train.rounds={ROUNDS} train.local_steps=2 "
    "eval.curve_windows=2 eval.windows=2 eval.batch=2 checkpoint.every=1 "
    "checkpoint.keep=4 mesh.block=3 mesh.replica=2"
)
DEADLINE = 240  # seconds that any test waits for any process, on a busy machine
HEARTBEAT = 10  # seconds


@dataclasses.dataclass
class Ended:
    """How a process ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """Lines on stderr besides those of progress."""
        lines = self.err.splitlines()
        return [line for line in lines if not line.startswith(METHODS)]


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def start(
    processes: int,
    workdir: Path,
    *extra: str,
    module: str = TOY,
    settings: str = SMALL,
    own: dict[int, str] | None = None,
) -> list[subprocess.Popen[str]]:
    """Starts the processes of one run, which has six devices; ``own`` adds to one."""
    workdir.mkdir(exist_ok=True)
    flag = f"--xla_force_host_platform_device_count={6 // processes}"
    environment = {**os.environ, "XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"}
    command = [
        *(sys.executable, "-m", module, f"--config={CONFIG}"),
        *(f"--config.{item}" for item in settings.split()),
        *(f"--workdir={workdir}", f"--coordinator=127.0.0.1:{free_port()}"),
        *(f"--processes={processes}", f"--heartbeat-timeout={HEARTBEAT}", *extra),
    ]
    return [
        subprocess.Popen(
            [*command, f"--process={i}", *([own[i]] if own and i in own else [])],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]


def ends(processes: list[subprocess.Popen[str]], within: float = DEADLINE) -> Any:
    """Waits for all of them."""
    deadline = time.monotonic() + within
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=deadline - time.monotonic())
            found.append(Ended(process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return found


def succeed(
    processes: list[subprocess.Popen[str]], within: float = DEADLINE
) -> list[Ended]:
    found = ends(processes, within)
    for each in found:
        assert each.status == 0, each.err
        assert not each.errors
    return found


def config_of(settings: str = SMALL) -> Any:
    return overrides(load(str(ROOT / CONFIG)), settings)


def params_of(workdir: Path) -> dict[str, np.ndarray]:
    with np.load(workdir / "params.npz") as file:
        return dict(file)


def assert_close(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(
            got[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name
        )


def flat(params: Any) -> dict[str, np.ndarray]:
    return {
        "kernel": np.asarray(params["blocks"]["kernel"]),
        "bias": np.asarray(params["interface"]["bias"]),
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Any]:
    """The parameters after so many rounds in one process, on one device."""
    corpus = data.load_corpus("embedded")

    def train(rounds: int) -> dict[str, np.ndarray]:
        one_device = f" train.rounds={rounds} mesh.block=1 mesh.replica=1"
        config = config_of(SMALL + one_device)
        place = tmp_path_factory.mktemp("alone")
        return flat(train_method(METHOD, config, corpus, place, NoLog()).params)

    return train


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ended]]:
    """A finished run on two processes with three devices each."""
    workdir = tmp_path_factory.mktemp("runs") / "two"
    return workdir, succeed(start(2, workdir))


def restored(workdir: Path, round_: int, mesh: tuple[int, int, int]) -> RoundState:
    """The state of a checkpoint, on a mesh of this process."""
    config = config_of()
    keys = Keys(config.seed, METHOD.name)
    abstract = jax.eval_shape(
        lambda: init_state(METHOD.engine, METHOD.init(keys.init), keys.rounds)
    )
    shardings = state_sharding(make_mesh(*mesh), abstract)
    placed = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=place
        ),
        abstract,
        shardings,
    )
    identity = {"method": METHOD.name, **training_identity(config)}
    identity["train.rounds"] = json.loads(
        (workdir / "checkpoints" / str(round_) / "manifest.json").read_text()
    )["manifest"]["identity"]["train.rounds"]
    with Checkpoints(workdir / "checkpoints", keep=4, identity=identity) as files:
        return files.restore(placed, round_)[0]


def test_two_processes_give_the_result_of_one_device(two: Any, alone: Any) -> None:
    assert_close(params_of(two[0]), alone(ROUNDS))


def test_only_process_0_writes_and_speaks(two: Any) -> None:
    workdir, (zero, one) = two
    assert zero.out == "trained\n"
    assert f"round  {ROUNDS}/{ROUNDS}" in zero.err
    assert (one.out, one.err) == ("", "")
    records = [json.loads(x) for x in (workdir / "metrics.jsonl").open()]
    assert [r["round"] for r in records] == [2, 4]


def test_a_process_reads_the_windows_of_its_own_workers_alone(two: Any) -> None:
    """Worker (b, k) is number 2 b + k of six; its windows are every sixth."""
    for process, workers in ((0, {0, 1, 2}), (1, {3, 4, 5})):
        starts = json.loads((two[0] / f"read-{process}.json").read_text())
        assert {start // WINDOW % 6 for start in starts} == workers


@pytest.mark.parametrize("mesh", [(1, 1, 1), (1, 2, 2), (3, 2, 1)])
def test_what_two_processes_saved_one_process_restores_on_any_mesh(
    two: Any, mesh: tuple[int, int, int]
) -> None:
    state = restored(two[0], ROUNDS, mesh)
    assert int(state.round) == ROUNDS
    got, expected = flat(state.params), params_of(two[0])
    for name in expected:
        np.testing.assert_array_equal(got[name], expected[name])


def test_three_processes_go_on_with_what_two_saved(
    two: Any, alone: Any, tmp_path: Path
) -> None:
    workdir = tmp_path / "three"
    shutil.copytree(two[0], workdir)
    for round_ in (3, 4):
        shutil.rmtree(workdir / "checkpoints" / str(round_))
    (workdir / "params.npz").unlink()
    zero, *_ = succeed(start(3, workdir, "--resume"))
    assert "goes on after round 2" in zero.err
    assert_close(params_of(workdir), alone(ROUNDS))


def kill_in_the_middle(workdir: Path, victim: int, what: signal.Signals) -> Any:
    """Ends one of two processes of a long run; how the other ended, and how soon."""
    processes = start(2, workdir, "--config.train.rounds=100000")
    log, deadline = workdir / "metrics.jsonl", time.monotonic() + DEADLINE
    try:
        while not (log.exists() and '"round": 2,' in log.read_text()):
            assert time.monotonic() < deadline
            assert all(p.poll() is None for p in processes), ends(processes)
            time.sleep(0.02)
        processes[victim].send_signal(what)
        began = time.monotonic()
        survivor = processes[1 - victim]
        # The victim of a SIGSTOP is still there, and must not be waited for.
        out, err = survivor.communicate(timeout=DEADLINE)
        return Ended(survivor.returncode, out, err), time.monotonic() - began
    finally:
        ends_now(processes)


def ends_now(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("victim", "what", "said"),
    [
        (1, signal.SIGKILL, "process 0 of 2 "),
        pytest.param(*(0, signal.SIGKILL, "process 0 died"), marks=pytest.mark.slow),
        pytest.param(*(1, signal.SIGSTOP, "process 1 died"), marks=pytest.mark.slow),
        pytest.param(
            *(1, signal.SIGTERM, "process 1 was stopped"), marks=pytest.mark.slow
        ),
    ],
)
def test_a_process_that_dies_ends_the_other_with_one_line_and_loses_one_round(
    alone: Any, tmp_path: Path, victim: int, what: signal.Signals, said: str
) -> None:
    survivor, seconds = kill_in_the_middle(tmp_path, victim, what)
    assert survivor.status not in (0, None)
    assert len(survivor.errors) == 1, survivor.err
    assert survivor.errors[0].startswith("error: ")
    assert said in survivor.errors[0]
    assert "--resume" in survivor.errors[0]
    assert seconds < HEARTBEAT + 20  # the machine may be busy
    whole = [
        int(path.parent.name)
        for path in (tmp_path / "checkpoints").glob("*/manifest.json")
    ]
    assert max(whole) >= 1
    state = restored(tmp_path, max(whole), (1, 1, 1))
    assert_close(flat(state.params), alone(max(whole)))


def test_a_process_with_another_command_is_refused_by_name(tmp_path: Path) -> None:
    zero, one = ends(start(2, tmp_path, own={1: "--config.train.learning_rate=0.5"}))
    (line,) = one.errors
    assert "train.learning_rate is 0.5 here, 0.008 there" in line
    assert zero.errors == [line.replace("error:", "error: process 1 failed:")]
    assert (zero.status, one.status) == (1, 1)


def test_a_process_that_never_comes_ends_the_others_in_one_line(
    tmp_path: Path,
) -> None:
    processes = start(2, tmp_path, "--join-timeout=2")
    ends_now([processes.pop(1)])
    (zero,) = ends(processes)
    (line,) = zero.errors
    assert "not all 2 processes came together within 2 s" in line
    assert zero.status != 0


FULL = (
    "data.corpus=embedded data.seq_len=16 data.batch=6 model.blocks=3 model.layers=1 "
    "model.width=16 model.heads=2 train.replicas=2 train.rounds=2 train.local_steps=2 "
    "train.warmup_steps=2 eval.windows=4 eval.curve_windows=4 eval.batch=2 "
    "eval.mix_draws=2 mesh.block=3 mesh.replica=2"
)


@pytest.mark.slow
def test_block_training_and_its_references_on_three_processes(tmp_path: Path) -> None:
    """All of a run: every method, the final table, the report."""
    results = []
    for processes in (1, 3):
        workdir = tmp_path / str(processes)
        run = start(processes, workdir, module="experiments.run", settings=FULL)
        succeed(run, within=1200)  # cold, each compiles for minutes on a busy machine
        assert (workdir / "report.md").exists()
        summary = json.loads((workdir / "summary.json").read_text())
        results.append(summary["results"])
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=1e-4, err_msg=name)
