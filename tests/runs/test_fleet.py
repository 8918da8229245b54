"""Runs of kind fleet: configuration, measures, and the whole run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict

from spheroid_jax import memory as sizes
from spheroid_jax.config import fleet
from spheroid_jax.config import memory as memory_config
from spheroid_jax.delivery.fleet import Tally, parse_profile
from spheroid_jax.delivery.profiles import Profile
from spheroid_jax.fields import ConfigError
from spheroid_jax.runs.fleet import experiment
from spheroid_jax.runs.fleet.experiment import policy_of, told, worker_kinds
from spheroid_jax.runs.fleet.measures import coordinator, measures
from spheroid_jax.runs.memory.step import method_at, part_shapes
from spheroid_jax.validation import problems


def tiny() -> ConfigDict:
    config = fleet()
    config.fleet.blocks, config.fleet.replicas = 2, 40
    config.fleet.hours, config.fleet.largest_group = 4.0, 6
    config.network.max_age, config.network.quorum_share = 3, 0.1
    return config


# Configuration.


def test_a_part_is_a_block_of_the_papers_size_and_its_interface() -> None:
    method = method_at(memory_config(), 512, "blocktrain")
    assert fleet().fleet.part_bytes == 4 * sizes.size(part_shapes(method))


def test_policies_are_those_of_their_names() -> None:
    config = fleet()
    drop, gate, quorum = (policy_of(config, name) for name in config.policies)
    assert (drop.deadline, drop.keep_late, drop.quorum) == (300.0, False, 0)
    assert (gate.keep_late, gate.max_age, gate.quorum) == (True, 8, 0)
    assert quorum == gate._replace(quorum=2500)
    config.fleet.replicas, config.network.quorum_share = 7, 0.2
    assert policy_of(config, "quorum").quorum == 2, "a share is rounded up"


def test_kinds_are_of_the_config_or_of_a_file(tmp_path: Path) -> None:
    config = fleet()
    kinds = worker_kinds(config)
    assert list(kinds) == ["datacentre", "workstation", "home", "laptop", "edge"]
    assert sum(kind.share for kind in kinds.values()) == 100
    assert kinds["home"].down == 12.5e6
    for name, text in config.kinds.items():
        assert parse_profile(told(kinds[name])) == parse_profile(text)
    file = tmp_path / "kinds.csv"
    file.write_text("share,step_seconds\n1,0.5\n2,0.25\n")
    config.network.profiles = str(file)
    assert worker_kinds(config) == {
        "row 1": Profile(share=1, step_seconds=0.5),
        "row 2": Profile(share=2, step_seconds=0.25),
    }
    file.write_text("share\n0\n")
    with pytest.raises(ConfigError, match=r"profiles: .*csv, line 2: share must be"):
        worker_kinds(config)
    config.network.profiles = str(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match=r"none\.csv can't be read: No such file"):
        experiment.run_fleet(config, tmp_path / "run", resume=False, command="")
    assert not (tmp_path / "run").exists()
    config.network.profiles = ""
    config.kinds = ConfigDict()
    with pytest.raises(ConfigError, match="kinds is empty"):
        worker_kinds(config)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("kinds.home", "speed=1", "kinds.home=speed=1 can't be used: 'speed=1' sets"),
        ("kinds.home", "up=0", "kinds.home=up=0 can't be used: up must be > 0"),
        ("policies", ("drop", "keep"), "'keep', which is unknown: use drop or gate"),
        ("fleet.needed", 7, "fleet.needed=7 updates never come from fleet.largest_g"),
        ("fleet.replicas", 5, "fleet.largest_group=6 is more than fleet.replicas=5"),
        ("fleet.timely", 1.5, "fleet.timely=1.5 must be above 0 and at most 1"),
        ("fleet.hours", 0.0, "fleet.hours=0.0 must be above 0"),
        ("network.deadline", 0.0, "network.deadline=0.0 must be above 0"),
        ("network.max_age", 0, "network.max_age=0 must be at least 1"),
        ("network.quorum_share", 0.0, "network.quorum_share=0.0 must be above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(field: str, value: Any, complaint: str) -> None:
    config = tiny()
    assert problems(config, 1) == []
    config.update_from_flattened_dict({field: value})
    (line,) = problems(config, 1)
    assert complaint in line


def test_it_is_no_sweep() -> None:
    config = tiny()
    config.sweep = ConfigDict({"axis": "fleet.needed", "cells": ("fleet.needed=1",)})
    (line,) = problems(config, 1)
    assert "sweep.axis=fleet.needed is for no run of kind=fleet" in line


# Measures.


def made_up() -> Tally:
    """Three rounds of two blocks of 40, two kinds, groups up to 6, ages up to 3."""
    one = np.ones(3, np.int32)
    by_block = one[:, None] * np.array([[20, 30]], np.int32)
    return Tally(
        seconds=np.array([100.0, 200.0, 300.0], np.float32),
        online=np.array([60, 70, 80], np.int32),
        started=by_block,
        arrived=by_block // 2,
        fresh=by_block // 5,
        kind_started=by_block,
        kind_arrived=by_block // 2,
        ages=one[:, None] * np.array([[10, 9, 0, 6]], np.int32),
        timely=one[:, None, None]
        * np.array([[[10, 15, 13, 9, 8, 6], [10, 19, 13, 10, 8, 6]]], np.int32),
        timely_fresh=np.zeros((3, 2, 6), np.int32),
        busy_seconds=np.array([3000.0, 4000.0, 5000.0], np.float32),
        useful_seconds=np.array([1000.0, 2000.0, 3000.0], np.float32),
        lines=np.array([1e9, 3e9, 2e9], np.float32),
    )  # type: ignore[arg-type]


def test_measures_are_those_of_the_definition() -> None:
    found = measures(tiny(), made_up())
    assert (found["rounds"], found["round_seconds"]) == (3, 200.0)
    assert found["hours"] == pytest.approx(600 / 3600)
    present = 60 * 100 + 70 * 200 + 80 * 300
    assert found["online_share"] == pytest.approx(present / (600 * 80))
    assert (found["begun"], found["accepted"], found["fresh"]) == (150, 75, 30)
    assert found["accepted_of_begun"] == 0.5
    assert found["fresh_of_begun"] == 0.2
    assert found["per_block"]["accepted"] == [30, 45]
    assert found["ages"] == [30, 27, 0, 18]
    assert found["mean_age"] == pytest.approx((27 + 3 * 18) / 75)
    assert found["busy_share"] == pytest.approx(12_000 / present)
    assert found["useful_share"] == pytest.approx(6000 / present)


def test_replicas_are_the_smallest_group_that_is_timely() -> None:
    found = measures(tiny(), made_up())["timely"]
    # Groups of 1 ... 6 in a block of 40: 40, 20, 13, 10, 8 and 6.
    np.testing.assert_allclose(
        found["share"], [0.25, 34 / 40, 1.0, 19 / 20, 1.0, 1.0], rtol=1e-12
    )
    assert found["groups"] == [80, 40, 26, 20, 16, 12]
    assert found["replicas"] == 2
    assert found["replicas_worst"] == 3, "15 of 20 in the first block are too few"
    late = measures(tiny(), made_up())["timely_fresh"]
    assert (late["replicas"], late["replicas_worst"]) == (None, None)


def test_bytes_are_exact_whole_numbers() -> None:
    config = tiny()
    config.fleet.part_bytes = 2**53 + 1  # which no float64 holds
    found = coordinator(config, made_up())
    assert found["out"]["bytes"] == 150 * (2**53 + 1)
    assert found["in"]["bytes"] == 75 * (2**53 + 1)
    config.fleet.part_bytes = 1000
    found = coordinator(config, made_up())
    assert found["out"]["mean_bits_per_second"] == 8 * 1000 * 150 / 600
    assert found["out"]["peak_bits_per_second"] == 8 * 1000 * 50 / 100
    assert found["lines_bits_per_second"] == 8 * 3e9
    endless = made_up()._replace(lines=np.full(3, np.inf, np.float32))  # type: ignore[arg-type]
    assert coordinator(config, endless)["lines_bits_per_second"] is None


# The whole run.


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    workdir = tmp_path_factory.mktemp("fleet") / "run"
    lines: list[str] = []
    summary = experiment.run_fleet(
        tiny(), workdir, resume=False, command="again", say=lines.append
    )
    assert any(line.startswith("  gate: 48 rounds, ") for line in lines)
    return workdir, summary


def test_every_policy_has_its_day(finished: tuple[Path, dict[str, Any]]) -> None:
    workdir, summary = finished
    assert {path.name for path in workdir.iterdir()} == {
        *("config.json", "summary.json", "report.md", "fleet.png"),
    }
    rows = {row["policy"]: row for row in summary["rows"]}
    assert list(rows) == ["drop", "gate", "quorum"]
    drop, gate, quorum = rows.values()
    assert drop["rounds"] == gate["rounds"] == 48, "four hours of five minutes"
    assert drop["ages"][1:] == [0, 0, 0]
    assert drop["accepted"] == drop["fresh"]
    assert gate["accepted_of_begun"] > drop["accepted_of_begun"]
    assert gate["ages"][1] > 0
    assert quorum["round_seconds"] < 300
    assert quorum["rounds"] > 48
    for row in rows.values():
        assert sum(row["ages"]) == row["accepted"] == sum(row["per_block"]["accepted"])
        assert row["accepted"] == sum(row["per_kind"]["accepted"])
        part = 53_654_532
        assert row["coordinator"]["out"]["bytes"] == row["begun"] * part
        assert row["coordinator"]["in"]["bytes"] == row["accepted"] * part
        assert row["hours"] >= 4.0
        assert 0 < row["useful_share"] < row["busy_share"] <= 1
        assert np.all(np.diff(row["timely"]["share"]) > -0.1)
    stored = json.loads((workdir / "summary.json").read_text())
    assert stored["rows"] == json.loads(json.dumps(summary["rows"]))


def test_a_finished_run_is_not_run_again(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir, summary = finished

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it was run again")

    monkeypatch.setattr(experiment, "simulate_day", never)
    lines: list[str] = []
    again = experiment.run_fleet(
        tiny(), workdir, resume=True, command="again", say=lines.append
    )
    assert again["rows"] == json.loads(json.dumps(summary["rows"]))
    assert lines == [f"fleet in {workdir} finished before, not run again"]


def test_another_policy_meets_the_same_fleet(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, summary = finished
    config = tiny()
    config.policies = ("gate",)
    alone = experiment.run_fleet(
        config, tmp_path / "run", resume=False, command="", say=lambda _: None
    )
    (row,) = alone["rows"]
    before = summary["rows"][1]
    assert {k: v for k, v in row.items() if k != "simulated_in"} == {
        k: v for k, v in before.items() if k != "simulated_in"
    }
    config.seed = 1
    other = experiment.run_fleet(
        config, tmp_path / "other", resume=False, command="", say=lambda _: None
    )
    assert other["rows"][0]["accepted"] != row["accepted"]
