"""Tables, sentences and picture of a run between processes, from made-up figures."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from spheroid_jax.reports.exchange import facts
from spheroid_jax.reports.exchange import verdicts as says
from spheroid_jax.reports.exchange.plot import exchange_figure
from spheroid_jax.reports.exchange.report import render, render_report, write_report
from spheroid_jax.reports.exchange.tables import (
    phases_table,
    published_table,
    rounds_table,
    workers_table,
)
from spheroid_jax.reports.published import load_published

Summary = dict[str, Any]


def member(seconds: float, up: int, down: int) -> dict[str, Any]:
    return {
        "accepted": 2,
        "late": 0,
        "rejected": 0,
        "age_sum": 0,
        "up": up,
        "down": down,
        "device": "cpu",
        "phases": {
            "train": 4 * seconds,
            "fetch": seconds,
            "send": seconds,
            "wait": 99.0,
        },
    }


def record(number: int, seconds: float, closing: float) -> dict[str, Any]:
    return {
        "round": number,
        "seconds": seconds,
        "closing_seconds": closing,
        "heard": 2,
        "timely": 2,
        "expected": 2,
        "age": 0.0,
        "loss": 1.0,
        "bytes_up": 4_100,
        "bytes_down": 4_300,
    }


def point(round_: int, ce: float) -> dict[str, float]:
    return {"round": round_, "ce_chain": ce, "ce_ensemble": ce - 0.1, "ce_first": ce}


@pytest.fixture
def summary() -> Summary:
    """Two workers, two rounds, parts of 500 parameters: 8000 bytes a round."""
    ce = [point(0, 5.5), point(1, 4.0), point(2, 3.0)]
    return {
        "format": 1,
        "kind": "exchange",
        "name": "same_node",
        "size": "quick",
        "environment": {"device": "cpu"},
        "command": "python -m experiments.run --config=configs/same_node.py:quick",
        "seconds": 60.0,
        "corpus": {
            "name": "mine",
            "source": "a file",
            "sha256": "ab",
            "notes": [],
            "train_bytes": 2_000_000,
            "valid_bytes": 1_000,
            "entropies": [5.0],
        },
        "config": {
            "model": {"width": 16, "layers": 2},
            "exchange": {"encoding": "float32"},
        },
        "hosts": {
            "kind": "loopback",
            "delay_seconds": 0.0,
            "rate_bits": 0.0,
            "loss": 0.0,
            "network": "one host, loopback",
            "connection_bytes": None,
        },
        "blocks": 2,
        "replicas": 1,
        "workers": 2,
        "rounds": 2,
        "local_steps": 3,
        "params": 900,
        "part_params": 500,
        "encoding": "float32",
        "broadcast": "whole float32 parts",
        "ce": ce,
        "rounds_log": [record(1, 12.0, 2.0), record(2, 8.0, 2.0)],
        "members": {
            "worker-1": member(2.0, 4_000, 4_200),
            "worker-2": member(1.0, 4_000, 4_200),
        },
        "fleet_seconds": 50.0,
        "lockstep": {
            "ce": [dict(p) for p in ce],
            "ce_difference": 2e-6,
            "ce_round": 2,
            "params_difference": 1e-5,
            "params_relative": 3e-7,
            "tolerance": 1e-3,
            "seconds": 5.0,
            "unequal": "",
            "problem": "",
        },
    }


def over_the_internet(summary: Summary) -> Summary:
    shaped = {"delay_seconds": 0.04, "rate_bits": 20e6, "loss": 0.01}
    summary["name"] = "public_ip"
    summary["hosts"] = {"kind": "namespaces", **shaped, "network": "network namespaces"}
    summary["hosts"]["connection_bytes"] = 222_650.0
    return summary


def test_phases_of_all_rounds_add_up(summary: Summary) -> None:
    p = facts.phases(summary)
    assert (p.train, p.fetch, p.send, p.closing) == (6.0, 1.5, 1.5, 4.0)
    assert p.rounds == 20.0
    assert p.train + p.fetch + p.send + p.closing + p.wait == p.rounds
    cells = {row[0]: row[1:] for row in phases_table(summary).rows}
    assert cells["compute: local steps"] == ["6.0", "3.00", "30%"]
    assert cells["all rounds"] == ["20.0", "10.00", "100%"]


def test_waiting_is_never_negative(summary: Summary) -> None:
    for m in summary["members"].values():
        m["phases"]["train"] = 30.0  # updates of a round may be trained in another
    assert facts.phases(summary).wait == 0.0


def test_time_is_told_in_shares_and_what_is_outside_of_rounds(
    summary: Summary,
) -> None:
    text = says.time_sentence(summary)
    assert "took 20s: a worker computes 30% of it, fetches and sends 15%" in text
    assert "waits 35%, and closing takes 20%" in text
    assert "took 30s besides" in text
    summary["rounds_log"] = []
    assert says.time_sentence(summary) == "No round was closed."


def test_bytes_are_held_against_the_arithmetic(summary: Summary) -> None:
    # 2 workers x 2 rounds x 2 ways x 500 parameters x 4 bytes = 16 000.
    text = says.bytes_sentence(summary)
    assert "Moved: 16.4 kB, 8.4 kB to the workers as whole float32 parts and" in text
    assert " and 8 kB back as float32, 8.2 kB a round;" in text
    assert "1.025 times the 16 kB of float32 parts" in text


def test_the_published_bytes_are_whole_float32_parts_both_ways() -> None:
    numbers = load_published()
    assert numbers is not None
    for name, set_up in facts.PUBLISHED.items():
        (entry,) = numbers.of(name).values()
        assert set_up.moved / 1e9 == pytest.approx(entry.numbers["moved"], abs=0.005)
        assert str(set_up.width) in entry.scale["width"]
        assert str(set_up.rounds) in entry.scale["rounds"]


def test_full_participation_and_less(summary: Summary) -> None:
    text = says.loss_sentence(summary)
    assert "from 5.500 to 3.000 nats/byte in 2 rounds of 2 workers" in text
    assert "CE_ensemble ends at 2.900" in text
    assert "full participation: all 4 updates were in time" in text
    summary["rounds_log"][1] |= {"timely": 0, "heard": 1}
    assert "2 of 4 updates were in time, 1 more counted later" in says.loss_sentence(
        summary
    )


def test_equal_unequal_and_excused(summary: Summary) -> None:
    text = says.lockstep_sentence(summary)
    assert "largest difference of a CE over the rounds is 2e-06 nats (round 2)" in text
    assert "of a parameter at the end 1e-05, 3.0e-07 of the parameters' norm" in text
    assert "the network changed delivery, not the mathematics" in text
    summary["lockstep"]["problem"] = "CE differs"
    assert "NOT EQUAL: CE differs." in says.lockstep_sentence(summary)
    summary["lockstep"]["unequal"] = "updates are sent as int8"
    text = says.lockstep_sentence(summary)
    assert "needn't be equal: updates are sent as int8." in text
    assert "changed delivery" not in text
    summary["lockstep"]["ce_difference"] = None  # of a summary that was read again
    assert "is not a number (round 2)" in says.lockstep_sentence(summary)


def test_what_rounding_makes_stands_beside_what_was_found(summary: Summary) -> None:
    found = summary["lockstep"]
    found["ce_difference"] = 0.013
    points = [dict(point) for point in found["ce"]]
    points[2]["ce_chain"] += 0.002
    found["rounding"] = {
        "ce": points,
        "ce_difference": 0.004,
        "ce_round": 2,
        "params_relative": 0.5,
        "times": 10.0,
        "seconds": 3.0,
    }
    text = says.lockstep_sentence(summary)
    assert "0.013 nats (round 2)" in text
    assert "ends 0.004 nats (round 2) and 5.0e-01 of the norm from itself" in text
    assert "no evaluation was this run further off than 10 times" in text
    table = rounds_table(summary)
    assert table.header[-1] == "by rounding"
    assert [row[-1] for row in table.rows] == ["", "0.0e+00", "2.0e-03"]
    narrow = rounds_table(summary, narrow=True)
    assert max(map(len, narrow.text().splitlines())) <= 80
    found["problem"] = "CE differs"
    assert "NOT EQUAL: CE differs." in says.lockstep_sentence(summary)


def test_rounds_stand_beside_the_simulators(summary: Summary) -> None:
    summary["lockstep"]["ce"][2]["ce_chain"] = 3.002
    rows = rounds_table(summary).rows
    assert rows[0] == ["0", *[""] * 6, "5.500", "5.400", "5.500", ""]
    assert rows[2][:7] == ["2", "8.0", "2.0", "2/2", "0", "4.1 kB", "4.3 kB"]
    assert rows[2][7:] == ["3.000", "2.900", "3.002", "2.0e-03"]
    narrow = rounds_table(summary, narrow=True)
    assert len(narrow.header) == len(narrow.rows[0]) == 8
    assert max(map(len, narrow.text().splitlines())) <= 80


def test_a_round_without_an_evaluation_has_its_line(summary: Summary) -> None:
    del summary["ce"][1]
    row = rounds_table(summary).rows[1]
    assert row[0] == "1"
    assert row[3] == "2/2"
    assert row[7] == row[10] == "-"


def test_workers_have_a_line_each(summary: Summary) -> None:
    rows = workers_table(summary).rows
    assert rows[0] == [
        *("worker-1", "2", "0", "0", "8.0", "2.0", "2.0", "4 kB", "4.2 kB", "cpu")
    ]
    assert len(rows) == 2


def test_hosts_that_are_make_believe_are_called_so(summary: Summary) -> None:
    text = says.hosts_sentence(summary)
    assert text.startswith("All 3 processes ran on one machine (one host, loopback)")
    assert "no delay" in text
    text = says.hosts_sentence(over_the_internet(summary))
    assert "(network namespaces), each worker behind a proxy of its own" in text
    assert "40 ms each way, 20 Mbit/s, 1.0% loss, so that one connection" in text
    assert "carries 223 kB/s at most" in text


@pytest.mark.parametrize("name", ["same_node", "public_ip"])
def test_the_paper_stands_beside_with_the_difference_in_scale(
    summary: Summary, name: str
) -> None:
    if name == "public_ip":
        over_the_internet(summary)
    numbers = load_published()
    table = published_table(summary, numbers)
    assert table is not None
    cells = {row[0]: row[1:] for row in table.rows}
    published = {
        "same_node": ("CE 1.576 nats/byte, moved 10.23 GB", "10.23 GB"),
        "public_ip": ("CE 5.58 to 1.811 nats/byte, moved 15.22 GB", "15.22 GB"),
    }[name]
    assert cells["result"] == [published[0], "CE_chain 5.500 to 3.000 nats/byte"]
    assert cells["bytes moved"] == [published[1], "16.4 kB"]
    assert cells["participation"] == ["full", "100%"]
    assert cells["width d"][1] == "16"
    said = " ".join(says.published_sentences(summary, numbers))
    assert "Not the same scale" in said
    assert "can't be compared" in said


def test_runs_that_the_paper_has_not_have_no_such_section(summary: Summary) -> None:
    summary["name"] = "wan"
    numbers = load_published()
    assert published_table(summary, numbers) is None
    assert "Beside the paper" not in render_report(summary, numbers)
    summary["name"] = "same_node"
    assert "Beside the paper" in render_report(summary, numbers)
    assert "Beside the paper" not in render_report(summary, None)


def test_files_and_screen(summary: Summary, tmp_path: Path) -> None:
    write_report(tmp_path, summary)
    assert {p.name for p in tmp_path.iterdir()} == {
        *("summary.json", "report.md", "exchange.png")
    }
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] == 2
    text = (tmp_path / "report.md").read_text()
    for part in ("# same_node:quick", "## Rounds", "## Time", "## Workers"):
        assert part in text
    assert summary["command"] in text
    assert imread(tmp_path / "exchange.png").shape[2] == 4
    screen = render(summary)
    assert max(map(len, screen.splitlines())) <= 80
    assert "5.500" in screen


def test_the_picture_holds_both_runs_and_each_workers_time(summary: Summary) -> None:
    left, right = exchange_figure(summary).axes
    curves = {line.get_label(): [*np.asarray(line.get_ydata())] for line in left.lines}
    assert curves["BlockTrain CE_chain"] == [5.5, 4.0, 3.0]
    assert curves["BlockTrain CE_chain, lockstep simulator"] == [5.5, 4.0, 3.0]
    widths = [bar.get_width() for bar in right.patches if isinstance(bar, Rectangle)]
    assert sum(widths) == pytest.approx(2 * 20.0)


def test_a_summary_is_only_read(summary: Summary) -> None:
    before = copy.deepcopy(summary)
    render(summary)
    render_report(summary, load_published())
    assert summary == before
