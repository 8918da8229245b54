"""Cells, verdicts and picture of a comparison of encodings, from made-up figures."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from spheroid_jax.reports.encodings import verdicts as says
from spheroid_jax.reports.encodings.cells import cells, seed_spread
from spheroid_jax.reports.encodings.plot import encodings_figure
from spheroid_jax.reports.encodings.report import (
    render,
    render_report,
    table,
    write_report,
)

Summary = dict[str, Any]
BASE = [2.0, 2.2, 2.4]  # float32, by seed: a spread of 0.2
# Bytes of an update, plain and compressed, and CE less float32's.
ENCODINGS = {
    "float32": (4000, 3800, 0.0),
    "int8": (1020, 900, 0.01),
    "int4": (520, 480, 0.03),
}
BOTH = 0.02  # more CE if what goes down is int4, too
UPDATES = 5 * 6  # rounds x slots


def run(encoding: str, seed: int, both: bool = False) -> dict[str, Any]:
    plain, squeezed, loss = ENCODINGS[encoding]
    ce = BASE[seed] + loss + BOTH * both
    down = 1200 if both else 4000
    points = [
        {"round": 0, "ce_chain": 5.0, "ce_ensemble": 5.0},
        {
            "round": 5,
            "bytes": plain * UPDATES,
            "bytes_zstd": squeezed * UPDATES,
            "bytes_down": down * UPDATES,
            "ce_chain": ce,
            "ce_ensemble": ce - 0.5,
        },
    ]
    facts = {"encoding": encoding, "both_ways": both, "seed": seed}
    return {**facts, "points": points}


@pytest.fixture
def summary() -> Summary:
    return {
        "format": 1,
        "kind": "encodings",
        "name": "update_encodings",
        "size": "quick",
        "environment": {"device": "cpu"},
        "command": "python -m experiments.run --config=configs/update_encodings.py",
        "seconds": 60.0,
        "corpus": {
            "name": "mine",
            "source": "a file",
            "sha256": "ab",
            "notes": [],
            "train_bytes": 2_000,
            "valid_bytes": 1_000,
            "entropies": [5.0],
        },
        "config": {
            "encodings": list(ENCODINGS),
            "zstd": 3,
            "seeds": 3,
            "train": {"rounds": 5},
        },
        "params": 3000,
        "part_params": 1000,
        "slots": 6,
        "runs": [
            *(run(e, s) for s in range(3) for e in ENCODINGS),
            *(run("int4", s, both=True) for s in range(3)),
        ],
    }


def test_cells_are_means_of_seeds_and_pairs_of_the_same_seed(summary: Summary) -> None:
    found = cells(summary)
    assert [c.name for c in found] == [
        *("float32", "float32 zstd 3", "int8", "int8 zstd 3", "int4", "int4 zstd 3"),
        "int4 zstd 3 both ways",
    ]
    int4, both = found[-2:]
    assert (int4.up, int4.down, both.up, both.down) == (480, 4000, 480, 1200)
    assert int4.fewer == pytest.approx(8000 / 4480)
    assert both.fewer == pytest.approx(8000 / 1680)
    assert both.differences == pytest.approx([0.05] * 3)
    assert int4.smaller == pytest.approx(4000 / 480)
    assert int4.ce == pytest.approx([2.03, 2.23, 2.43])
    assert int4.differences == pytest.approx([0.03] * 3)
    assert seed_spread(found) == pytest.approx(statistics.stdev(BASE))


def test_the_target_is_met_within_the_seed_spread(summary: Summary) -> None:
    text = says.target_sentence(cells(summary))
    assert "int4 zstd 3 is 8.33 times smaller, CE_chain 0.030 above" in text
    assert "Target met" in text
    assert "int8" not in text


def test_the_target_is_missed_beyond_it(summary: Summary) -> None:
    for one in summary["runs"]:
        if one["encoding"] == "int4" and not one["both_ways"]:
            one["points"][-1]["ce_chain"] += 0.2
    found = cells(summary)
    assert "Target NOT met" in says.target_sentence(found)
    lines = says.loss_sentences(found)
    assert lines[0].endswith("mean +0.0100, within the seed spread.")
    assert lines[1].endswith("mean +0.2300, BEYOND the seed spread.")
    assert lines[2].startswith("int4 both ways: CE_chain less float32's")
    assert lines[2].endswith("mean +0.0500, within the seed spread.")


def test_the_target_is_missed_where_nothing_is_small_enough(summary: Summary) -> None:
    summary["runs"] = [r for r in summary["runs"] if r["encoding"] != "int4"]
    text = says.target_sentence(cells(summary))
    assert "no encoding is 8 times smaller" in text
    assert "int8 zstd 3, 4.44 times" in text


def test_one_seed_has_no_spread(summary: Summary) -> None:
    summary["runs"] = [r for r in summary["runs"] if r["seed"] == 0]
    found = cells(summary)
    assert seed_spread(found) is None
    assert "no spread" in says.target_sentence(found)
    assert all("within" not in line for line in says.loss_sentences(found))
    assert table(summary).rows[5][5:7] == ["2.030", "+0.0300"]


def test_nothing_is_above_or_below_by_nothing(summary: Summary) -> None:
    for one in summary["runs"]:
        if one["encoding"] == "int4" and not one["both_ways"]:
            one["points"][-1]["ce_chain"] -= 0.03001
    found = cells(summary)
    assert "int4 zstd 3 is 8.33 times smaller, CE_chain level" in says.target_sentence(
        found
    )
    assert "is 0.0000, 0.0000, 0.0000; mean 0.0000" in says.loss_sentences(found)[1]


def test_the_way_down_is_said(summary: Summary) -> None:
    # A part of 4000 bytes down; (4000 + 4000) / (4000 + 480).
    text = says.traffic_sentence(cells(summary))
    assert "A part goes down as float32, 4 kB" in text
    assert "int4 zstd 3 moves 1.79 times fewer" in text
    assert "int4 zstd 3 both ways 4.76 times fewer, CE_chain 0.050 above." in text
    summary["runs"] = [r for r in summary["runs"] if not r["both_ways"]]
    assert "encoded" not in says.traffic_sentence(cells(summary))


def test_the_table(summary: Summary) -> None:
    rows = table(summary).rows
    assert rows[0] == [
        *("float32", "4 kB", "1.00", "4 kB", "1.00", "2.200 ± 0.200"),
        *("0.0000 ± 0.0000", "1.700 ± 0.200"),
    ]
    assert rows[6][:5] == ["int4 zstd 3 both ways", "480 B", "8.33", "1.2 kB", "4.76"]


def test_files_and_screen(summary: Summary, tmp_path: Path) -> None:
    write_report(tmp_path, summary)
    assert {p.name for p in tmp_path.iterdir()} == {
        *("summary.json", "report.md", "encodings.png")
    }
    assert json.loads((tmp_path / "summary.json").read_text())["slots"] == 6
    text = render_report(summary)
    assert text == (tmp_path / "report.md").read_text()
    assert "Target met" in text
    assert "In one process and without a network" in text
    assert imread(tmp_path / "encodings.png").shape[2] == 4
    assert max(map(len, render(summary).splitlines())) <= 80


def test_the_picture_has_a_point_a_cell_and_a_course_an_encoding(
    summary: Summary,
) -> None:
    left, right = encodings_figure(summary).axes
    assert len(left.containers) == 7
    courses = {
        line.get_label(): [*np.asarray(line.get_xdata())] for line in right.lines
    }
    assert courses["int4 zstd 3"] == [480 * UPDATES]
