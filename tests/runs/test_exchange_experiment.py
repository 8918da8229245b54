"""A coordinator and workers that one command starts, and the simulator beside them."""

import json
import math
import stat
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict

from spheroid_jax import config, data
from spheroid_jax.fields import ConfigError
from spheroid_jax.reports.log import read_metrics
from spheroid_jax.runs.exchange import experiment, lockstep, setup, started
from spheroid_jax.runs.exchange.fleet import FleetError
from spheroid_jax.runs.loop import TrainingError
from spheroid_jax.runs.workdir import WorkdirError, open_workdir
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.tokens import digest
from spheroid_jax.validation import problems
from tests.runs.exchange_configs import toy

COMMAND = "python -m experiments.run --config=mine.py"


def of(folder: Path, **changes: Any) -> ConfigDict:
    c = toy(config.exchange(), folder, **changes)
    c.exchange.encoding = changes.get("exchange__encoding", "float32")
    c.exchange.lease, c.exchange.heartbeat = 120.0, 1.0
    return c


def running(workdir: Path) -> list[int]:
    """Processes whose command line names the run directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(workdir).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def settled(workdir: Path, count: int) -> bool:
    """Whether there are so many such processes, within ten seconds."""
    until = time.monotonic() + 10
    while len(running(workdir)) != count and time.monotonic() < until:
        time.sleep(0.05)
    return len(running(workdir)) == count


# Without processes.


ROUND = {"heard": 2, "timely": 2, "expected": 2}


def compared(
    c: ConfigDict, *, off: float = 0.0, rounds: Any = (ROUND, ROUND)
) -> dict[str, Any]:
    """Two rounds, and a run whose last CE_ensemble is ``off`` by so much."""
    ce = [{"round": r, "ce_chain": 3.0 - r, "ce_ensemble": 2.5 - r} for r in range(3)]
    params = {"a": np.array([3.0, 4.0]), "b": np.float32(0)}
    other = {"a": np.array([3.0, 4.0 + off]), "b": np.float32(0)}
    found = [dict(point) for point in ce[1:]]
    found[-1]["ce_ensemble"] += off
    simulated = lockstep.Simulated(ce, params, 1.0)
    return lockstep.comparison(c, simulated, found, other, rounds)


def test_what_is_equal_is_no_problem(tmp_path: Path) -> None:
    found = compared(of(tmp_path))
    assert (found["unequal"], found["problem"]) == ("", "")
    assert found["ce_difference"] == found["params_difference"] == 0.0
    assert found["tolerance"] == 1e-4


def test_coarse_products_are_allowed_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coarse = of(tmp_path, model__compute_dtype="bfloat16")
    assert lockstep.tolerance_of(coarse) == 2e-2
    monkeypatch.setattr(lockstep, "on_cpu", lambda: False)
    assert lockstep.tolerance_of(of(tmp_path)) == 2e-2


def test_a_difference_beyond_the_tolerance_is_told(tmp_path: Path) -> None:
    found = compared(of(tmp_path), off=0.5)
    assert found["ce_round"] == 2
    assert found["ce_difference"] == pytest.approx(0.5)
    assert found["params_difference"] == pytest.approx(0.5)
    assert found["params_relative"] == pytest.approx(0.5 / 5.0)
    assert "CE of round 2 differs by 0.5 nats" in found["problem"]
    assert "\n" not in found["problem"]
    assert compared(of(tmp_path), off=1e-5)["problem"] == ""


@pytest.mark.parametrize(
    ("changes", "rounds", "why"),
    [
        ({"exchange__encoding": "int8"}, (ROUND,), "updates are sent as int8"),
        (
            {},
            (ROUND, {"heard": 2, "timely": 1, "expected": 2}),
            "1 of 4 updates weren't in time (1 of them came later)",
        ),
        ({"exchange__broadcast": "int8"}, (ROUND,), "what changed goes down as int8"),
        ({"exchange__rule": "median"}, (ROUND,), "replicas become one by median"),
    ],
)
def test_what_neednt_be_equal_is_no_problem(
    tmp_path: Path, changes: dict[str, Any], rounds: Any, why: str
) -> None:
    found = compared(of(tmp_path, **changes), off=0.5, rounds=rounds)
    assert (found["unequal"], found["problem"]) == (why, "")


def test_a_loss_that_is_no_number_or_missing_is_a_problem(tmp_path: Path) -> None:
    found = compared(of(tmp_path), off=math.nan)
    assert "differs by nan nats" in found["problem"]
    simulated = lockstep.Simulated(
        [{"round": r, "ce_chain": 1.0, "ce_ensemble": 1.0} for r in (0, 1)], {}, 1.0
    )
    found = lockstep.comparison(of(tmp_path), simulated, [], {}, (ROUND,))
    assert "CE of round 1 differs by inf nats" in found["problem"]


def test_rounded_is_the_next_number_by_turns_and_zero_stays() -> None:
    found = lockstep.rounded({"a": np.float32([1.0, 1.0, -3.0, 0.0]).reshape(2, 2)})
    ulp = 2.0**-23
    wanted = [[1 + ulp, 1 - ulp / 2], [-3 + 2 * ulp, 0.0]]
    np.testing.assert_array_equal(found["a"], np.float32(wanted))


@pytest.mark.parametrize(
    ("apart", "alone", "first"),
    [
        # No more than ten times what rounding alone had made by then.
        ((0.0, 9e-4, 0.012), (0.0, 1e-4, 0.005), None),
        # Less than the tolerance is no matter, whatever rounding makes.
        ((9e-5, 9e-5, 9e-5), (0.0, 0.0, 0.0), None),
        # Rounding that was large once may be small again by chance.
        ((0.0, 0.0, 0.04), (0.0, 0.005, 1e-9), None),
        # But it explains nothing of what was there before it grew.
        ((2e-3, 0.0, 0.0), (1e-8, 0.02, 0.03), 1),
        ((0.0, 0.0, 0.06), (0.0, 0.005, 0.001), 3),
        ((0.0, math.nan, 0.0), (0.0, 1.0, 1.0), 2),
    ],
)
def test_rounding_explains_what_it_makes_of_a_run_and_no_more(
    tmp_path: Path, apart: Any, alone: Any, first: int | None
) -> None:
    def losses(off: Any) -> list[dict[str, float]]:
        start = {"round": 0, "ce_chain": 5.0, "ce_ensemble": 5.0}
        points = enumerate(off, start=1)
        later = [
            {"round": r, "ce_chain": 2.0, "ce_ensemble": 2.0 + x} for r, x in points
        ]
        return [start, *later]

    params = {"a": np.array([3.0, 4.0])}
    simulated = lockstep.Simulated(losses((0.0, 0.0, 0.0)), params, 1.0)
    beside = lockstep.Simulated(losses(alone), {"a": np.array([3.0, 4.5])}, 2.0)
    run = losses(apart)[1:]
    rounds = (ROUND,) * 3
    found = lockstep.comparison(of(tmp_path), simulated, run, params, rounds)
    found = lockstep.explained(found, simulated, beside, run)
    if first is None:
        assert found["problem"] == ""
    else:
        assert f"CE of round {first} differs by" in found["problem"]
        assert "\n" not in found["problem"]
    assert found["rounding"]["ce_difference"] == pytest.approx(max(alone))
    assert found["rounding"]["params_relative"] == pytest.approx(0.1)


def test_links_need_hosts_that_have_them(tmp_path: Path) -> None:
    c = of(tmp_path)
    c.hosts.rate_bits = 20e6
    (line,) = problems(c, 1)
    assert line.startswith("hosts.rate_bits=2e+07 shapes a link")
    c.hosts.kind = "proxy"
    assert problems(c, 1) == []
    c.hosts.delay_seconds, c.hosts.loss = 0.04, 0.01
    shape = started.shape_of(c)
    assert (shape.delay_seconds, shape.rate_bytes, shape.loss) == (0.04, 2.5e6, 0.01)


def test_who_is_started(tmp_path: Path) -> None:
    names = started.workers_of(of(tmp_path, train__replicas=3))
    assert names == [f"worker-{n}" for n in range(1, 7)]
    commands = started.commands(tmp_path, names, shaped=False)
    assert list(commands) == ["coordinator", *names]
    assert "--insecure" not in commands["coordinator"]
    assert "--insecure" in started.commands(tmp_path, [], shaped=True)["coordinator"]
    assert len({*map(tuple, commands.values())}) == 7


def test_tokens_are_the_ledgers_and_nobody_elses(tmp_path: Path) -> None:
    started._give_tokens(tmp_path, ["worker-1", "worker-2"])
    path = started._token_file(tmp_path, "worker-2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.read_text()
    started._give_tokens(tmp_path, ["worker-2"])  # the run goes on
    assert path.read_text() != first
    with Ledger.open(started.ledger_of(tmp_path)) as ledger:
        row = ledger.tokens()["worker-2"]
        assert row.sha256 == digest(path.read_text().strip())


def test_cores_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started, "_cores", lambda: 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = started.environment(7)
    assert found["NPROC"] == "2"
    assert "OMP_NUM_THREADS" not in found  # the user's own
    assert started.environment(100)["NPROC"] == "1"


def test_a_run_directory_holds_its_configuration(tmp_path: Path) -> None:
    c = of(tmp_path)
    workdir = tmp_path / "run"
    open_workdir(workdir, c, resume=False)
    found = setup.stored_config(workdir / "config.json")
    assert found.to_dict() == c.to_dict()
    with pytest.raises(ConfigError, match=r"none\.json is no configuration"):
        setup.stored_config(workdir / "none.json")


# With processes that only look like a coordinator and workers.


def stand_ins(**codes: str) -> Any:
    def commands(workdir: Path, names: Any, *, shaped: bool) -> dict[str, list[str]]:
        del shaped
        return {
            name: [sys.executable, "-c", f"#{workdir}\n{codes[name.split('-')[0]]}"]
            for name in ("coordinator", *names)
        }

    return commands


READY = "print('waiting: 1 of 2 workers are there', flush=True)\n"
STAYS = "import time\ntime.sleep(600)"


def test_a_stop_ends_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"{READY}print('round 1/3', flush=True)\n{STAYS}"
    monkeypatch.setattr(started, "commands", stand_ins(coordinator=code, worker=STAYS))

    def say(line: str) -> None:
        if "round 1/3" in line:
            assert settled(tmp_path, 3)
            raise KeyboardInterrupt

    original = started._wait_for_compiled

    def all_there(fleet: Any, said: Any) -> None:
        monkeypatch.setattr(said, "_say", lambda line: None)
        original(fleet, said)
        monkeypatch.setattr(said, "_say", say)
        said._told = 0

    monkeypatch.setattr(started, "_wait_for_compiled", all_there)
    with pytest.raises(KeyboardInterrupt):
        started.run_processes(of(tmp_path / "text"), tmp_path, say)
    assert settled(tmp_path, 0)


@pytest.mark.parametrize("who", ["coordinator", "worker"])
def test_a_process_that_fails_ends_the_run_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    codes = {"coordinator": READY + STAYS, "worker": STAYS}
    codes[who] = "raise SystemExit('the dog has eaten it')"
    monkeypatch.setattr(started, "commands", stand_ins(**codes))
    with pytest.raises(FleetError, match=rf"^{who}\S* ended .*the dog has eaten it"):
        started.run_processes(of(tmp_path / "text"), tmp_path, lambda line: None)
    assert settled(tmp_path, 0)


def test_lines_of_the_coordinator_are_passed_on_whole(tmp_path: Path) -> None:
    log, lines = tmp_path / "log", list[str]()
    followed = started._Followed(log, lines.append)
    log.write_text("one\ntw")
    followed.more()
    assert lines == ["  one"]
    log.write_text("one\ntwo\nthree\n")
    followed.more()
    assert lines == ["  one", "  two", "  three"]


def test_rounds_that_are_all_done_start_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(started.ledger_of(tmp_path)) as ledger:
        ledger.note("round", 3)
        ledger.note("fleet", {"network": "a hall", "seconds": 7.0})
    monkeypatch.setattr(started, "start", lambda *given, **named: pytest.fail("no"))
    watched = started.run_processes(of(tmp_path / "text"), tmp_path, print)
    assert watched == ("a hall", 7.0)


# The whole, with real processes.


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, list[str]]:
    folder = tmp_path_factory.mktemp("exchange")
    lines: list[str] = []
    summary = experiment.run_exchange(
        of(folder), folder / "run", resume=False, command=COMMAND, say=lines.append
    )
    return folder / "run", summary, lines


@pytest.mark.slow
def test_the_network_changes_nothing(finished: tuple[Path, Any, list[str]]) -> None:
    workdir, summary, lines = finished
    assert [point["round"] for point in summary["ce"]] == [0, 1, 2, 3]
    assert summary["lockstep"]["ce_difference"] < 1e-5
    assert summary["lockstep"]["params_difference"] < 1e-5
    assert summary["lockstep"]["unequal"] == summary["lockstep"]["problem"] == ""
    assert [r["timely"] for r in summary["rounds_log"]] == [2, 2, 2]
    # A part each way, for both workers, in three rounds; messages come on top.
    moved = sum(m["up"] + m["down"] for m in summary["members"].values())
    parts = 2 * 2 * 3 * 4 * summary["part_params"]
    assert parts < moved < 1.5 * parts + 200_000
    for member in summary["members"].values():
        assert member["accepted"] == 3
        assert min(member["phases"][p] for p in ("train", "fetch", "send")) > 0
    assert any("round 3/3: 2 updates" in line for line in lines)
    assert settled(workdir, 0)


@pytest.mark.slow
def test_the_files_of_a_run(finished: tuple[Path, Any, list[str]]) -> None:
    workdir, summary, _ = finished
    written = json.loads((workdir / "summary.json").read_text())
    assert written["ce"] == summary["ce"]
    assert "# wan:quick" in (workdir / "report.md").read_text()
    assert (workdir / "exchange.png").stat().st_size > 10_000
    assert {p.name for p in (workdir / "logs").iterdir()} == {
        *("coordinator.log", "worker-1.log", "worker-2.log")
    }
    assert not (workdir / "exchange" / "tokens").exists()
    assert not (workdir / "workers").exists()
    by_method: dict[str, list[Any]] = {}
    for r in read_metrics(workdir / "metrics.jsonl"):
        by_method.setdefault(r["method"], []).append(r)
    assert [r["round"] for r in by_method["lockstep"]] == [0, 1, 2, 3]
    assert [r["round"] for r in by_method["blocktrain"]] == [1, 2, 3]


@pytest.mark.slow
def test_a_finished_run_is_not_run_again_and_another_config_is_refused(
    finished: tuple[Path, Any, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir, summary, _ = finished
    monkeypatch.setattr(experiment, "run_processes", lambda *given: pytest.fail("no"))
    c = of(workdir.parent)
    again = experiment.run_exchange(c, workdir, resume=True, command="x", say=print)
    assert again["ce"] == summary["ce"]
    with pytest.raises(WorkdirError, match="isn't empty"):
        experiment.run_exchange(c, workdir, resume=False, command="x", say=print)
    c.train.rounds = 9
    with pytest.raises(WorkdirError, match=r"train\.rounds was 3, now 9"):
        experiment.run_exchange(c, workdir, resume=True, command="x", say=print)


@pytest.mark.slow
def test_a_stopped_run_goes_on_through_the_proxy_to_the_same_end(
    tmp_path: Path, finished: tuple[Path, Any, list[str]]
) -> None:
    workdir = tmp_path / "run"
    c = of(tmp_path, hosts__kind="proxy", hosts__delay_seconds=0.01)

    def stop(line: str) -> None:
        if "round 1/3" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run_exchange(c, workdir, resume=False, command=COMMAND, say=stop)
    assert settled(workdir, 0)
    assert not (workdir / "summary.json").exists()
    summary = experiment.run_exchange(
        c, workdir, resume=True, command=COMMAND, say=print
    )
    assert [r["round"] for r in summary["rounds_log"]] == [1, 2, 3]
    assert summary["hosts"]["network"] == "loopback addresses"
    assert summary["lockstep"]["unequal"] == ""  # leases outlast the way back
    assert summary["lockstep"]["ce_difference"] < 1e-5
    ends = [s["ce"][-1]["ce_chain"] for s in (summary, finished[1])]
    assert ends[0] == pytest.approx(ends[1], abs=1e-5)


@pytest.mark.slow
def test_mathematics_that_changed_fails_the_run_with_a_report(
    finished: tuple[Path, Any, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator of another seed stands in for a network that changes something."""
    workdir = finished[0]
    other = of(workdir.parent, seed=1)
    corpus = data.load_corpus(other.data.corpus)
    wrong = lockstep.simulate(other, corpus, print)
    (workdir / "summary.json").unlink()
    monkeypatch.setattr(experiment, "simulate", lambda *given, **named: wrong)
    with pytest.raises(TrainingError, match="the network changed the mathematics"):
        experiment.run_exchange(
            of(workdir.parent), workdir, resume=True, command=COMMAND, say=print
        )
    assert "NOT EQUAL" in (workdir / "report.md").read_text()
    assert (workdir / "exchange.png").exists()
