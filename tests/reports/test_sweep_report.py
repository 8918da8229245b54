import json
from pathlib import Path
from typing import Any

from spheroid_jax.reports.sweep_report import (
    lowest,
    render_sweep,
    render_sweep_report,
    write_sweep_report,
)

Summary = dict[str, Any]

SCREEN = """\
layers  blocks  CE_chain  CE_ensemble  End-to-end    time
---------------------------------------------------------
     1      12     2.728        2.500       2.100   1m40s
     4       3     2.196        2.100           -   6m40s
    12       1     2.250        2.050       2.110  20m00s

nats per byte of validation text; lower is better.
Lowest along model.layers: BlockTrain CE_chain 2.196 at 4; BlockTrain
CE_ensemble 2.050 at 12, an end of the range; End-to-end reference 2.100 at 1.
From blocks=12-layers=1 to blocks=3-layers=4 the published CE falls by 0.532
(2.728 to 2.196), our CE_chain falls by 0.532 (2.728 to 2.196): the same way.
Not the same scale: corpus wikitext-2-raw, 10.8 MB to train on here, WikiText,
bytes there. Compare differences within a column, never numbers across."""


def test_the_screen_shows_one_table_and_what_it_says(sweep_summary: Summary) -> None:
    assert render_sweep(sweep_summary) == SCREEN


def test_the_three_files_of_a_sweep(sweep_summary: Summary, tmp_path: Path) -> None:
    summary = sweep_summary
    write_sweep_report(tmp_path, summary)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report.md",
        "summary.json",
        "sweep.png",
    ]
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    text = (tmp_path / "report.md").read_text()
    for part in (
        "# depth_sweep:quick\n\nLowest along model.layers: BlockTrain CE_chain 2.196",
        "**wikitext-2-raw**",
        "|      4 |      3 |    2.196 |       2.100 |          - |  6m40s |",
        "](sweep.png)",
        "## Beside the paper",
        "- [blocks=3-layers=4](cells/blocks=3-layers=4/report.md)",
        f"```\n{summary['command']}\n```",
        "It took 1h02m here.",
    ):
        assert part in text, part


def test_without_series_every_known_result_is_shown(sweep_summary: Summary) -> None:
    summary = sweep_summary
    del summary["series"]
    header = render_sweep(summary).splitlines()[0].split()
    assert header == [
        "layers",
        "blocks",
        "End-to-end",
        "CE_chain",
        "CE_ensemble",
        "time",
    ]


def test_settings_that_go_together_share_a_column(sweep_summary: Summary) -> None:
    summary = sweep_summary | {"x": "train.learning_rate"}
    for rate, each in zip((1e-3, 2e-3, 4e-3), summary["cells"], strict=True):
        each["settings"] = {
            "train.learning_rate_end_to_end": rate,
            "train.learning_rate": rate,
            "train.rounds": 8,
        }
    lines = render_sweep(summary).splitlines()
    assert lines[0].split()[:3] == ["learning_rate", "rounds", "CE_chain"]
    assert lines[2].split()[:2] == ["0.001", "8"]
    assert "train.learning_rate_end_to_end: as train.learning_rate." in lines


def test_a_result_of_every_block_stays_in_one_cell(sweep_summary: Summary) -> None:
    summary = sweep_summary | {"series": ["local_ce", "ce_chain"]}
    assert "|      1 |     12 | 1.000 2.000 |    2.728 |" in render_sweep_report(
        summary
    )
    assert "Local CE" not in lowest(summary)


def test_lowest_leaves_out_what_it_can_not_compare(sweep_summary: Summary) -> None:
    cells = sweep_summary["cells"]
    for each, chain in zip(cells, (2.0, 1.9, 2.1), strict=True):
        each["results"] = {"ce_chain": chain, "ce_ensemble": float("nan")}
    cells[1]["results"] |= {"ce_ensemble": 1.0, "end_to_end": 1.0}
    cells[2]["settings"] = {}
    summary = sweep_summary
    # Two points have no inside, so being at an end says nothing.
    assert (
        lowest(summary) == "Lowest along model.layers: BlockTrain CE_chain 1.900 at 4."
    )
    assert "as configured" in render_sweep(summary)
    assert lowest(summary | {"cells": cells[:1]}) == ""
