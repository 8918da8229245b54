"""The report of a coordinator's run, from made-up figures."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from spheroid_jax.reports.exchange import coordinated as says
from spheroid_jax.reports.exchange.coordinated import (
    render_coordinated,
    rounds_table,
    write_coordinated,
)
from spheroid_jax.reports.exchange.coordinated_plot import coordinated_figure
from spheroid_jax.runs.exchange.ending import summary_of

CONFIG = {
    "kind": "exchange",
    "name": "wan",
    "size": "quick",
    "seed": 1,
    "model": {"blocks": 2},
    "train": {"rounds": 4, "replicas": 1, "local_steps": 3},
    "network": {"late": "gate", "deadline": 60.0},
    "exchange": {"encoding": "int8", "broadcast": "full", "zstd": 3},
}
FACTS = {
    "run": "ab" * 16,
    "seconds": 100.0,
    "round": 4,
    "members": {
        "ann": {
            "accepted": 4,
            "late": 1,
            "rejected": 0,
            "up": 70,
            "down": 300,
            "device": "cpu",
            "phases": {"train": 5.0, "fetch": 1.0, "send": 2.0, "wait": 9.0},
        }
    },
    "corpus": {
        "name": "mine",
        "source": "a file",
        "sha256": "ab",
        "notes": [],
        "train_bytes": 2_000,
        "valid_bytes": 1_000,
        "entropies": [3.0, 2.5, 2.0],
    },
    "environment": {"device": "cpu"},
    "command": "python -m experiments.coordinator --config=configs/wan.py",
}


def record(
    number: int, timely: int, late: int = 0, ce: float | None = None, **more: Any
) -> dict[str, Any]:
    """Two slots, 10 s a round, 20 B up and 80 B down."""
    losses = {} if ce is None else {"ce_chain": ce, "ce_ensemble": ce - 0.5}
    return {
        "method": "blocktrain",
        "round": number,
        "step": 3 * number,
        "seconds": 20.0 * number,
        "round_seconds": 10.0,
        "closing_seconds": 1.0,
        "heard": timely + late,
        "timely": timely,
        "expected": 2,
        "age": 0.0,
        "bytes_up": 20,
        "bytes_down": 80,
        "train_loss": 4.0 if timely else None,
        **losses,
        **more,
    }


@pytest.fixture
def records() -> list[dict[str, Any]]:
    return [
        record(1, 2, ce=5.0),
        record(2, 0),
        record(3, 1, 1, ce=3.0),
        record(4, 2, ce=3.25),
    ]


@pytest.fixture
def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    return summary_of(CONFIG, records, FACTS)


def test_figures_for_programs(summary: dict[str, Any]) -> None:
    assert summary["state"] == "finished"
    assert summary["rounds_done"] == summary["rounds"] == 4
    assert (summary["expected"], summary["timely"]) == (8, 5)
    assert (summary["late_updates"], summary["empty_rounds"]) == (1, 1)
    assert (summary["bytes_up"], summary["bytes_down"]) == (80, 320)
    assert summary["results"] == {"ce_chain": 3.25, "ce_ensemble": 2.75}
    at = [(p["round"], p["seconds"], p["bytes"]) for p in summary["ce"]]
    assert at == [(1, 20.0, 100), (3, 60.0, 300), (4, 80.0, 400)]
    assert summary["encoding"] == "int8 zstd 3"
    assert summary["broadcast"] == "whole float32 parts"


def test_sentences_say_what_the_figures_say(
    summary: dict[str, Any], records: list[dict[str, Any]]
) -> None:
    ce, came, took, moved = says.sentences(summary, records)
    assert "3.250 nats/byte after round 4, 5.000 after round 1" in ce
    assert "the lowest was 3.000 (round 3); CE_ensemble ends at 2.750" in ce
    assert f"{math.log(256):.3f} to a model that knows nothing, 2.500 to one" in ce
    assert came == (
        "Of 8 places in the rounds 5 had an update in time (62%), 1 more counted "
        "later; 1 of 4 rounds closed without any."
    )
    assert (
        "Of the 1m40s that the coordinator was up, the rounds took 40s, 10.0 s" in took
    )
    assert "10% of that for closing them" in took
    assert "400 B, 100 B a round: 320 B to the workers as whole float32 parts" in moved
    assert "80 B back as int8 zstd 3" in moved


def test_a_run_that_isnt_over_says_so(records: list[dict[str, Any]]) -> None:
    facts = {**FACTS, "round": 3}
    half = summary_of(CONFIG, records[:3], facts)
    assert half["state"] == "unfinished"
    text = render_coordinated(half, records[:3])
    assert "**Unfinished**: 3 of 4 rounds are done" in text
    assert "the same command goes on with the run" in text
    figure = coordinated_figure(half, records[:3])
    assert "unfinished: 3 of 4" in figure.get_suptitle()
    whole = render_coordinated(summary_of(CONFIG, records, FACTS), records)
    assert "Finished: all 4 rounds are done." in whole
    assert "nfinished" not in whole


def test_the_table_sums_rounds_up(records: list[dict[str, Any]]) -> None:
    rows = rounds_table(records).rows
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert rows[1][1:] == ["10.0", "0/2", "0", "20 B", "80 B", "-", "-", "-"]
    many = [record(n, 2, ce=float(n)) for n in range(1, 302)]
    rows = rounds_table(many).rows
    assert len(rows) <= says.ROWS
    assert rows[0] == [
        *("1-11", "110.0", "22/22", "0", "220 B", "880 B", "4.000"),
        *("11.000", "10.500"),
    ]
    assert rows[-1][0] == "298-301"


def test_numbers_that_arent_any_are_left_out(records: list[dict[str, Any]]) -> None:
    """A diverged run is reported, too."""
    for r in records:
        if "ce_chain" in r:
            r["ce_chain"] = r["ce_ensemble"] = None
    summary = summary_of(CONFIG, records, FACTS)
    assert says.ce_sentence(summary) == "No round has a CE that is a number."
    coordinated_figure(summary, records)
    assert "None" not in render_coordinated(summary, records)


def test_a_run_without_a_round_has_a_report(tmp_path: Path) -> None:
    summary = summary_of(CONFIG, [], {})
    write_coordinated(tmp_path, summary, [])
    text = (tmp_path / "report.md").read_text()
    assert "0 of 4 rounds" in text
    assert "No round was closed yet." in text
    for part in ("## Rounds", "## Workers", "Corpus", "None"):
        assert part not in text


def test_files(
    summary: dict[str, Any], records: list[dict[str, Any]], tmp_path: Path
) -> None:
    before = copy.deepcopy(summary)
    write_coordinated(tmp_path, summary, records)
    assert summary == before
    assert {path.name for path in tmp_path.iterdir()} == {
        *("summary.json", "report.md", "exchange.png")
    }
    assert json.loads((tmp_path / "summary.json").read_text())["ce"] == summary["ce"]
    text = (tmp_path / "report.md").read_text()
    for part in ("# wan:quick", "## Rounds", "## Workers", "| ann", "(exchange.png)"):
        assert part in text
    assert FACTS["command"] in text
    assert imread(tmp_path / "exchange.png").shape[2] == 4


def test_the_picture_holds_the_figures(
    summary: dict[str, Any], records: list[dict[str, Any]]
) -> None:
    rounds, seconds, moved, came = coordinated_figure(summary, records).axes
    for axes, xs in (
        (rounds, [1, 3, 4]),
        (seconds, [20.0, 60.0, 80.0]),
        (moved, [100, 300, 400]),
    ):
        line = next(x for x in axes.lines if x.get_label() == "BlockTrain CE_chain")
        assert [*np.asarray(line.get_xdata())] == xs
        assert [*np.asarray(line.get_ydata())] == [5.0, 3.0, 3.25]
    assert seconds.get_xlabel() == "seconds that the coordinator was up"
    heights = [bar.get_height() for bar in came.patches]  # type: ignore[attr-defined]
    assert heights == [1.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.5, 0.0]  # in time, then late


def test_a_long_run_is_drawn_in_hours(records: list[dict[str, Any]]) -> None:
    for r in records:
        r["seconds"] *= 3600
    seconds = coordinated_figure(summary_of(CONFIG, records, FACTS), records).axes[1]
    assert seconds.get_xlabel() == "hours that the coordinator was up"
    assert [*np.asarray(seconds.lines[0].get_xdata())] == [20.0, 60.0, 80.0]
