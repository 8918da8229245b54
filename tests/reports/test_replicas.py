"""Averaged replicas against one: verdicts made from made-up numbers."""

from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.reports import replicas, sweep_report
from spheroid_jax.reports.beside import pairs
from spheroid_jax.reports.published import load_published
from spheroid_jax.reports.sweep_report import lowest, render_sweep

K1, K2, K1_LONG, K2_HALF = range(4)


def cell(k: int, rounds: int, batch: int, chain: float, whole: float) -> Any:
    label = f"replicas={k}-rounds={rounds}-batch={batch}"
    settings = {"train.replicas": k, "train.rounds": rounds, "data.batch": batch}
    return {
        "label": label,
        "settings": settings,
        "results": {"ce_chain": chain, "end_to_end": whole},
        "scale": {
            "blocks": 3,
            "layers": 4,
            "width": 96,
            "local_steps": 10,
            "replicas": k,
            "rounds": rounds,
            "batch": batch,
            "bytes_seen": 3 * k * rounds * 10 * batch * 100,
        },
        "seconds": 60.0,
        "summary": f"cells/{label}/summary.json",
    }


@pytest.fixture
def summary(sweep_summary: dict[str, Any]) -> dict[str, Any]:
    return sweep_summary | {
        "name": "six_workers",
        "x": "train.replicas",
        "series": ["ce_chain", "end_to_end"],
        "cells": [
            cell(1, 80, 8, 1.80, 1.75),
            cell(2, 80, 8, 1.75, 1.73),
            cell(1, 160, 8, 1.60, 1.55),
            cell(2, 80, 4, 1.85, 1.76),
        ],
    }


def test_only_cells_with_something_equal_are_compared(summary: dict[str, Any]) -> None:
    cells = summary["cells"]
    found = [
        (cells.index(d.many), cells.index(d.one), d.data, d.rounds)
        for d in replicas.duels(summary)
    ]
    assert found == [
        (1, 0, False, True),
        (1, 2, True, False),
        (3, 0, True, True),
    ]
    cells[0]["scale"]["local_steps"] = 20
    assert len(replicas.duels(summary)) == 1


def test_the_verdict_is_made_from_the_numbers(summary: dict[str, Any]) -> None:
    """At equal rounds 0.05 are won of the 0.20 that twice the rounds bring."""
    said = replicas.verdicts(summary, pairs(summary, load_published()))
    assert said[0] == (
        "2 averaged replicas a block train one better model: at equal rounds, with 2 "
        "times the data, CE_chain is 0.050 below that of one replica; against one "
        "replica that sees the same bytes in 2 times the rounds it is +0.150, 25% of "
        "what the rounds bring. One run each, with one seed."
    )
    assert said[1] == (
        "At equal rounds, K = 2 (80 rounds, batch 8, 3.84 MB) against K = 1 (80 "
        "rounds, batch 8, 1.92 MB): End-to-end reference 1.730 against 1.750 (-0.020); "
        "BlockTrain CE_chain 1.750 against 1.800 (-0.050)."
    )
    assert said[2].startswith("At equal data, K = 2 (80 rounds, batch 8, 3.84 MB)")
    assert "CE_chain 1.750 against 1.600 (+0.150)" in said[2]
    assert said[3].startswith("At equal data and equal rounds, K = 2 (80 rounds, batch")
    assert said[4].startswith("The paper's difference is +0.026 (1.385 against 1.359)")


@pytest.mark.parametrize(
    ("chain", "head", "how"),
    [
        (1.81, "Averaging 2 replicas a block does NOT help here", "is 0.010 above"),
        (1.8003, "Averaging 2 replicas a block changes nothing here", "is level with"),
    ],
)
def test_a_failure_is_called_one(
    summary: dict[str, Any], chain: float, head: str, how: str
) -> None:
    summary["cells"][K2]["results"]["ce_chain"] = chain
    (verdict,) = replicas.verdict_sentence(replicas.duels(summary))
    assert verdict.startswith(head)
    assert how in verdict


def test_what_is_not_finite_is_in_no_sentence(summary: dict[str, Any]) -> None:
    summary["cells"][K2]["results"]["ce_chain"] = float("nan")
    said = replicas.verdicts(summary)
    assert not [line for line in said if "nan" in line]
    assert said[0].startswith("At equal rounds")
    assert "CE_chain" not in said[0]


def test_a_sweep_of_one_k_says_nothing_of_replicas(summary: dict[str, Any]) -> None:
    summary["cells"] = summary["cells"][K1_LONG:K2_HALF]
    assert replicas.verdicts(summary, pairs(summary, load_published())) == []


def test_the_screen_has_the_verdict_and_no_lowest_place(
    summary: dict[str, Any],
) -> None:
    """Two cells stand at K = 2: the axis doesn't tell them apart."""
    assert lowest(summary) == ""
    text = " ".join(render_sweep(summary).split())
    assert "2 averaged replicas a block train one better model" in text
    assert "The paper's difference is +0.026" in text
    assert "Not the same scale: d 96 here, 512 (derived) / not published there" in text


def test_cells_at_one_place_stand_side_by_side_in_the_picture(
    summary: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        sweep_report, "plot_sweep", lambda rows, *_, **__: drawn.append(rows)
    )
    sweep_report.write_sweep_report(tmp_path, summary)
    places = [row["settings"]["train.replicas"] for row in drawn[0]]
    assert places[K2] == "replicas=2\nrounds=80\nbatch=8"
    assert len(set(places)) == 4
    # Where K tells the cells apart it is the axis itself.
    summary["cells"] = summary["cells"][K2 : K1_LONG + 1]
    sweep_report.write_sweep_report(tmp_path, summary)
    assert [row["settings"]["train.replicas"] for row in drawn[1]] == [2, 1]
