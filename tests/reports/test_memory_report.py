"""Tables, sentences and picture of active states, from made-up rows."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from spheroid_jax.reports.memory import verdicts as says
from spheroid_jax.reports.memory.plot import memory_figure
from spheroid_jax.reports.memory.report import (
    published_table,
    render,
    render_report,
    step_table,
    write_report,
)
from spheroid_jax.reports.published import load_published

GIB = 2**30
Summary = dict[str, Any]


def half(params: int, total: float | None, why: str = "") -> Any:
    """A worker's or the full stack's; weights and moments are its arguments."""
    held = None
    if total is not None:
        state = 12 * params
        held = {
            "arguments": state,
            "outputs": state,
            "aliased": state,
            "temporaries": int(total * GIB) - state,
            "total": int(total * GIB),
        }
    return {
        "layers": 12,
        "params": params,
        "adamw_gib": params * 16 / GIB,
        "compiled": held,
        "why": why,
    }


def row(width: int, worker: Any, full: Any) -> Any:
    interface = {"params": worker["params"] // 10}
    return {"width": width, "worker": worker, "full": full, "interface": interface}


@pytest.fixture
def summary() -> Summary:
    """Widths 512 and 1024; 2**24 parameters are 0.25 GiB of AdamW's state."""
    above = "above compile.up_to=512"
    return {
        "format": 1,
        "kind": "memory",
        "name": "memory",
        "size": "quick",
        "rows": [
            row(512, half(2**24, 1.0), half(2**25, 1.5)),
            row(1024, half(2**26, None, above), half(2**27, None, above)),
        ],
        "full_params_of_width": [128.0, 0.0, 0.0],
        "environment": {"jax": "0.10.2", "backend": "cpu"},
        "config": {
            "model": {
                "blocks": 3,
                "layers": 4,
                "compute_dtype": "float32",
                "remat": "dots",
            },
            "data": {"batch": 64, "seq_len": 256},
            "train": {"local_steps": 200},
        },
        "command": "python -m experiments.run --config=configs/memory.py:quick",
        "seconds": 61.0,
    }


def test_ratios_are_the_full_stack_over_one_worker(summary: Summary) -> None:
    first = summary["rows"][0]
    assert says.state_ratio(first) == 2.0
    assert says.step_ratio(first) == 1.5
    assert says.state_sentence(summary) == (
        "AdamW's state of the full stack is 2.00 times that of a worker, B = 3, at d = "
        "512 to 1024; the interface, which every worker holds, is 10.0% of a worker's. "
        "At d = 1024 that is 1.00 GiB of 2.00 GiB."
    )


def test_a_step_is_told_beside_its_state(summary: Summary) -> None:
    given, whole = says.step_sentences(summary)
    assert "1.000 times the 12 bytes a parameter" in given
    assert "with the activations of 64 windows, takes 1.50 times as much" in whole
    # A quarter of a GiB of one GiB.
    assert "AdamW's state is 25% at d = 512: the state alone" in whole


def test_arguments_that_are_not_the_state_show(summary: Summary) -> None:
    summary["rows"][0]["worker"]["compiled"]["arguments"] *= 2
    assert "1.000 to 2.000 times" in says.step_sentences(summary)[0]


def test_which_rows_are_arithmetic_and_why(summary: Summary) -> None:
    assert says.coverage_sentence(summary) == (
        "Compiled: d = 512; arithmetic only: d = 1024 (above compile.up_to=512)."
    )
    summary["rows"][0]["full"] = half(2**25, None, "does not compile here (too large)")
    assert says.coverage_sentence(summary) == (
        "No width was compiled; arithmetic only: d = 512 (does not compile here (too "
        "large)); arithmetic only: d = 1024 (above compile.up_to=512)."
    )
    assert says.step_sentences(summary) == []


def test_the_published_full_stack_is_another_model(summary: Summary) -> None:
    """100.54 GiB are 6.747 G parameters: 128 d² have so many at d = 7260."""
    numbers = load_published()
    worker, full = says.published_sentences(summary, numbers)
    assert worker == (
        "At d = 512 a worker's state is 0.250 GiB, +26.3% against the published 0.198."
    )
    # 100.54 over our 0.5; half of it is a worker's, 100.54 / 0.198 is what was claimed.
    for part in (
        "can't be that model's: ours is 0.500 GiB at the same width, 201 times less",
        "6.75G parameters, which 12 layers have at d = 7260",
        "would hold about 50 GiB",
        "ratio of 508 compares two models",
    ):
        assert part in full, part
    table = published_table(summary, numbers)
    assert table is not None
    assert [(r[1], r[3]) for r in table.rows] == [
        ("0.198", "0.250"),
        ("100.54", "0.500"),
    ]


def test_the_width_is_the_root_of_the_polynomial(summary: Summary) -> None:
    summary["full_params_of_width"] = [2.0, 3.0, 5.0]
    assert says.width_of(summary, 2 * 70**2 + 3 * 70 + 5) == pytest.approx(70.0)


@pytest.mark.parametrize(("field", "value"), [("blocks", 2), ("layers", 12)])
def test_another_model_has_no_published_row(
    summary: Summary, field: str, value: int
) -> None:
    summary["config"]["model"][field] = value
    numbers = load_published()
    assert says.published_sentences(summary, numbers) == []
    assert published_table(summary, numbers) is None
    assert "Of another model" in render_report(summary, numbers)


def test_without_the_source_tree_the_paper_is_missing(summary: Summary) -> None:
    text = render_report(summary, None)
    assert "Not available: third_party/" in text
    assert "100.54" not in text


def test_steps_are_listed_with_all_their_parts(summary: Summary) -> None:
    rows = step_table(summary).rows
    assert rows[0] == ["512", "one worker", *["0.188"] * 3, "0.812", "1.00", ""]
    assert rows[1] == ["512", "full stack", *["0.375"] * 3, "1.12", "1.50", "1.50"]
    assert rows[3] == ["1024", "full stack", *["-"] * 6]


def test_the_files_and_the_screen(summary: Summary, tmp_path: Path) -> None:
    write_report(tmp_path, summary)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert imread(tmp_path / "memory.png").shape[1] > 1000
    text = (tmp_path / "report.md").read_text()
    for part in (
        "# memory:quick",
        "](memory.png)",
        "| arithmetic only |",
        "| active AdamW state of one worker, B=3 L=4 |          0.198 |",
        f"```\n{summary['command']}\n```",
    ):
        assert part in text, part
    screen = render(summary)
    assert max(map(len, screen.splitlines())) <= 80
    assert "1024    1.00   2.00   2.00            -          -      -" in screen


def test_the_picture_has_both_curves_and_the_papers_crosses(summary: Summary) -> None:
    figure = memory_figure(summary, load_published())
    left, right = figure.axes
    assert (left.get_xscale(), left.get_yscale()) == ("log", "log")
    lines = {line.get_label(): line for line in left.get_lines()}
    assert list(lines["one worker, AdamW state"].get_ydata()) == [0.25, 1.0]
    assert list(lines["full stack, compiled step"].get_xdata()) == [512]
    assert list(lines["full stack, compiled step"].get_ydata()) == [1.5]
    assert list(lines["full stack, published"].get_ydata()) == [100.54]
    ratios = {line.get_label(): line for line in right.get_lines()}
    assert list(ratios["state"].get_ydata()) == [2.0, 2.0]
    assert list(ratios["compiled step"].get_ydata()) == [1.5]
    bare = memory_figure(summary, None).axes[0].get_lines()
    assert not [x for x in bare if "published" in str(x.get_label())]
