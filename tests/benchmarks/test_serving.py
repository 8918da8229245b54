"""The serving benchmark: its arithmetic, and (slow) all of it at a tiny size."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _serving_clients as clients
from benchmarks import _serving_steps as steps
from benchmarks import serving
from benchmarks._serving_clients import Answer
from spheroid_jax.serving.planner import (
    Cluster,
    Host,
    Load,
    ModelSize,
    place,
    step_seconds,
)

SETTING = serving.Setting(0.04, 16, 1, 1.0, (1,))
HOST = Host("a", 64.0, bandwidth=10.0, flops=0.05, overhead=0.003)


@pytest.mark.parametrize("read", [0.0, 2e7])
def test_a_host_is_found_again_from_the_steps_that_it_takes(read: float) -> None:
    """With and without a short step that waits for memory, as long ones never do."""
    work = [1e6, 4e9]
    points = [steps.Point(f, read, HOST.seconds(f, read)) for f in work]
    found = steps.fit_host("b", points, bandwidth=10.0)
    assert found.overhead == pytest.approx(0.003, rel=1e-3)
    assert found.flops == pytest.approx(0.05, rel=1e-3)
    assert found.bandwidth == 10.0


def test_what_a_draft_costs_besides_is_found_again() -> None:
    size, host = (
        ModelSize(64, 12, 3, 2, 256, 64),
        dataclasses.replace(HOST, launch=4e-4),
    )
    alone = ModelSize(64, 4, 1, 2, 256, 64)  # its one block is the first
    (part,) = place(alone, Cluster.even([host], 0.0), Load())
    seconds = step_seconds(alone, part, 1, 40, drafts=39)
    assert steps.fit_launch(HOST, size, 40, seconds) == pytest.approx(4e-4)


def test_a_rate_counts_what_falls_into_the_time_in_which_all_were_at_work() -> None:
    """Two answers of 10 bytes and 4 s: one wholly inside, one by a quarter."""
    answers = [(105.0, Answer(4.0, 10, 1, 0.0)), (109.0, Answer(4.0, 10, 1, 0.0))]
    assert clients.busy_rate(answers, 100.0, 106.0) == pytest.approx(12.5 / 6.0)


def test_percentiles_and_bytes_a_trip_are_of_all_answers() -> None:
    found = clients.Load(
        tuple(Answer(s, 12, t, 0.0) for s, t in ((1.0, 1), (2.0, 2), (3.0, 3))), (), 0.0
    )
    assert found.latency(50) == 2.0
    assert found.bytes_per_trip == 6.0


def test_the_ideal_is_a_trip_that_costs_nothing_but_network_and_compute() -> None:
    """64 token trips of 0.1 s; a sweep has 80 ms of network and 20 of compute."""
    found = {
        ("blocktrain", serving.SWEEP, 64): [Answer(0.125, 64, 1, 0.5)],
        ("near", serving.SWEEP, 64): [Answer(0.06, 64, 1, 0.02)],
        ("autoregressive", "token", 64): [Answer(6.4, 64, 64, 0.5)],
        ("blocktrain", "token", 64): [Answer(8.0, 64, 64, 0.5)],
    }
    (row,) = serving.sweep_rows("x", found, [64], SETTING)
    assert row["ideal"] == 64.0
    assert row["ratio"] == pytest.approx(51.2)
    assert row["of ideal"] == pytest.approx(0.8)
    assert (row["baseline bytes/s"], row["own token bytes/s"]) == (10.0, 8.0)


def test_an_error_is_what_the_prediction_is_too_fast_by() -> None:
    size = ModelSize(16, 3, 3, 1, 64, 256, kind="autoregressive")
    hosts = [Host(name, 64.0, 1e9, 1e9, 0.005) for name in "abc"]
    cluster = Cluster.even(hosts, 0.04)
    # A byte takes four ways of 20 ms and three steps of 5.
    answer = Answer(4 * 0.095 * 1.25, 4, 4, 0.0)
    found = {("autoregressive", "token", 4): [answer], ("near", "token", 4): [answer]}
    (row,) = serving.plan_rows(
        "x", found, {"autoregressive": cluster}, {"autoregressive": size}, SETTING
    )
    assert row["predicted bytes/s"] == pytest.approx(1 / 0.095, abs=0.01)
    assert row["error"] == pytest.approx(0.25, abs=0.001)


def test_what_is_compiled_before_is_what_trips_need() -> None:
    shapes = serving.warm_shapes(("token", serving.SWEEP), 16, (64, 128), 256)
    assert set(shapes.split(",")) == {
        *("1", "1:given", "16:given", "128:expected", "256:expected")
    }
    drafts = serving.warm_shapes(("speculative=8",), 16, (64,), 256).split(",")
    assert {"8:drafted", "32:drafted"} <= set(drafts)


def test_a_verdict_is_of_the_worst() -> None:
    tables: dict[str, list[dict[str, Any]]] = {
        "sweeps": [{"of ideal": 0.9}, {"of ideal": 0.79}],
        "plans": [{"error": 0.1}, {"error": -0.3}],
        "loads": [{"errors": 0}],
    }
    sweep, plan, _ = serving.verdicts(tables)
    assert "0.79" in sweep
    assert sweep.endswith("missed")
    assert "30%" in plan
    assert plan.endswith("missed")


@pytest.mark.slow
def test_all_tables_are_made_at_a_tiny_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tables.json"
    options = ["--quick", "--rtt=0.01", f"--json={file}", f"--directory={tmp_path}"]
    assert serving.main(options) == 0
    found = json.loads(file.read_text())
    (row,) = found["sweeps"]
    assert row["ratio"] > 1
    assert {(r["model"], r["method"], r["clients"]) for r in found["loads"]} == {
        *(("blocktrain", serving.SWEEP, n) for n in (1, 2)),
        *(("autoregressive", "token", n) for n in (1, 2)),
    }
    for row in found["loads"]:
        assert row["bytes a trip"] == (8 if row["method"] == serving.SWEEP else 1)
        assert row["requests"] >= 2 * row["clients"]
    assert len(found["plans"]) == 3
    assert "One sweep over the baseline" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [file]  # nothing else is left behind
