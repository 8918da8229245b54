"""Tables, sentences and the picture of runs of kind fleet."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from spheroid_jax.reports.fleet import report, verdicts
from spheroid_jax.reports.fleet.plot import fleet_figure

G = 8


def row(policy: str, accepted: list[int], ages: list[int], reached: int | None) -> Any:
    begun, fresh = [1000, 1000], [n * ages[0] // sum(ages) for n in accepted]
    share = [min(1.0, 0.1 * n) if reached else 0.01 * n for n in range(1, G + 1)]

    def way(scale: int) -> dict[str, float]:
        return {
            "bytes": scale * 10**12,
            "mean_bits_per_second": scale * 1e9,
            "peak_bits_per_second": scale * 2e9,
        }

    return {
        "policy": policy,
        "rounds": 288,
        "hours": 24.0,
        "round_seconds": 300.0,
        "online_share": 0.25,
        "begun": 2000,
        "accepted": sum(accepted),
        "fresh": sum(fresh),
        "accepted_of_begun": sum(accepted) / 2000,
        "fresh_of_begun": sum(fresh) / 2000,
        "per_block": {"begun": begun, "accepted": accepted, "fresh": fresh},
        "per_kind": {"begun": [1500, 500], "accepted": [sum(accepted) - 10, 10]},
        "ages": ages,
        "mean_age": sum(a * n for a, n in enumerate(ages)) / sum(ages),
        "busy_share": 0.6,
        "useful_share": 0.3,
        "coordinator": {
            "out": way(5),
            "in": way(3),
            "lines_bits_per_second": None if policy == "drop" else 8e12,
        },
        "timely": {"share": share, "replicas": reached, "replicas_worst": None},
        "timely_fresh": {
            "share": [0.9 * x for x in share],
            "replicas": reached and reached + 1,
            "replicas_worst": None,
        },
        "simulated_in": {"seconds": 12.0, "cpu_seconds": 9.0},
    }


@pytest.fixture
def summary() -> dict[str, Any]:
    return {
        "format": 1,
        "kind": "fleet",
        "name": "fleet",
        "size": "small",
        "workers": 100_000,
        "kinds": {
            "home": {"profile": "share=3 step_seconds=1.1", "workers": 75_000},
            "edge": {"profile": "step_seconds=6", "workers": 25_000},
        },
        "rows": [
            row("drop", [500, 540], [1040, 0, 0], None),
            row("gate", [800, 760], [1170, 312, 78], 6),
        ],
        "environment": {"jax": "0", "device": "cpu"},
        "config": {
            "fleet": {
                "blocks": 2,
                "hours": 24.0,
                "part_bytes": 1000,
                "needed": 1,
                "timely": 0.85,
                "largest_group": G,
            },
            "network": {
                "deadline": 300.0,
                "max_age": 2,
                "quorum_share": 0.2,
                "grace": 30.0,
            },
        },
        "command": "python -m experiments.run --config=configs/fleet.py:small",
        "seconds": 25.0,
    }


# Sentences.


def test_replicas_are_told_or_that_they_were_not_found(summary: dict[str, Any]) -> None:
    assert verdicts.replicas_sentence(summary) == (
        "For an update in at least 85% of its rounds a block needs so many registered "
        "replicas of this mix: more than 8 with drop and 6 with gate (7 if late "
        "updates don't count)."
    )
    summary["config"]["fleet"]["needed"] = 3
    assert "For 3 updates in" in verdicts.replicas_sentence(summary)


def test_participation_is_of_what_was_begun(summary: dict[str, Any]) -> None:
    text = verdicts.participation_sentence(summary)
    assert "Of 100,000 workers 25.0% are there at a time" in text
    assert "52.0% with drop and 78.0% with gate (58.5% on time)" in text
    assert "differ by at most 4 points" in text


def test_policies_are_compared_with_drop(summary: dict[str, Any]) -> None:
    (text,) = verdicts.throughput_sentence(summary)
    assert f"{1560 / 1040:.2f} times as many with gate" in text
    summary["rows"] = summary["rows"][1:]
    assert verdicts.throughput_sentence(summary) == []


def test_staleness_and_lines_are_told(summary: dict[str, Any]) -> None:
    text = verdicts.staleness_sentence(summary)
    assert "drop 0.0%, mean age 0.00, oldest 0" in text
    assert "gate 25.0%, mean age 0.30, oldest 2" in text
    assert "gate 5 Gbit/s out and 3 Gbit/s in" in verdicts.line_sentence(summary)
    assert "100k workers over 24 hours were simulated in 12s" in (
        verdicts.cost_sentence(summary)
    )


def test_a_day_that_was_not_reached_is_told(summary: dict[str, Any]) -> None:
    assert verdicts.short_sentence(summary) == []
    summary["rows"][1]["hours"] = 3.25
    assert verdicts.short_sentence(summary) == [
        "Ended by the number of rounds: gate after 3.25 hours."
    ]


# Tables and the picture.


def test_tables_hold_the_numbers(summary: dict[str, Any]) -> None:
    blocks = report.block_table(summary)
    assert blocks.header == ["block", "drop", "gate"]
    assert blocks.rows[0] == ["0", "50.0% (50.0%)", "80.0% (60.0%)"]
    kinds = report.kind_table(summary)
    assert kinds.rows[1] == ["edge (25%)", "2.0% (1.0%)", "2.0% (0.6%)"]
    ages = report.age_table(summary)
    assert ages.rows[1] == ["1", "-", "20.00%"]
    lines = report.line_table(summary)
    assert lines.rows[0] == ["drop", "out", "5 TB", "5 Gbit/s", "10 Gbit/s", "-"]
    assert lines.rows[2][-1] == "8 Tbit/s"


def test_the_table_of_replicas_shows_the_step_that_decides(
    summary: dict[str, Any],
) -> None:
    table = report.timely_table(summary)
    # Powers of two, six and seven, and what is one less than these.
    assert [cells[0] for cells in table.rows] == ["1", "2", "4", "5", "6", "7", "8"]
    assert table.rows[4] == ["6", "6.0% (5.4%)", "60.0% (54.0%)"]
    narrow = report.policy_table(summary, narrow=True)
    assert [cells[-1] for cells in narrow.rows] == ["more than 8", "6"]


def test_the_picture_shows_every_policy(summary: dict[str, Any]) -> None:
    blocks, ages, timely = fleet_figure(summary).axes
    assert [bar.get_height() for bar in blocks.patches] == [0.5, 0.54, 0.8, 0.76]  # type: ignore[attr-defined]
    assert len(ages.patches) == 6
    labels = [text.get_text() for text in timely.get_legend().get_texts()]  # type: ignore[union-attr]
    assert labels == ["drop", "drop, on time", "gate", "gate, on time"]
    level = timely.get_lines()[-1]
    assert list(level.get_ydata()) == [0.85, 0.85]  # type: ignore[arg-type]


def test_files_are_written_and_can_be_redrawn(
    summary: dict[str, Any], tmp_path: Path
) -> None:
    report.write_report(tmp_path, summary)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("fleet.png", "report.md", "summary.json"),
    ]
    assert imread(tmp_path / "fleet.png").shape[0] > 300
    stored = json.loads((tmp_path / "summary.json").read_text())
    text = (tmp_path / "report.md").read_text("utf-8")
    assert report.render_report(stored) == text
    assert verdicts.replicas_sentence(summary) in text
    assert "`share=3 step_seconds=1.1`" in text
    assert "none is published at this scale" in text


def test_the_screen_is_eighty_columns_wide(summary: dict[str, Any]) -> None:
    summary["rows"].append(copy.deepcopy(summary["rows"][1]) | {"policy": "quorum"})
    text = report.render(summary)
    assert max(map(len, text.splitlines())) <= 80
    assert "quorum + grace" in text


def test_a_fleet_that_never_worked_is_still_a_report(
    summary: dict[str, Any], tmp_path: Path
) -> None:
    idle = row("drop", [0, 0], [1, 0, 0], None)
    idle |= {"ages": [0, 0, 0], "begun": 0, "accepted": 0, "fresh": 0}
    idle["per_block"] = {name: [0, 0] for name in ("begun", "accepted", "fresh")}
    idle["per_kind"] = {"begun": [0, 0], "accepted": [0, 0]}
    summary["rows"] = [idle]
    report.write_report(tmp_path, summary)
    assert report.kind_table(summary).rows[0][1] == "-"
