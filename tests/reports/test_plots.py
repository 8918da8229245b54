import itertools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D

from spheroid_jax.reports.plots import (
    curves_figure,
    plot_curves,
    plot_sweep,
    sweep_figure,
)

LEVELS = {"uniform guess": math.log(256), "order-2 entropy": 2.0}


def record(method: str, round_: int, bytes_seen: int, **metrics: Any) -> dict[str, Any]:
    return {"method": method, "round": round_, "bytes_seen": bytes_seen} | metrics


RECORDS = [
    record("blocktrain", 1, 300, ce_chain=4.0, ce_ensemble=3.9, ce_first=3.8),
    record("blocktrain", 2, 600, ce_chain=None, ce_ensemble=2.9, ce_first=2.8),
    record("blocktrain", 3, 900, ce_chain=2.0, ce_ensemble=1.9, ce_first=1.8),
    record("end_to_end", 1, 100, ce=4.5),
    record("end_to_end", 3, 300, ce=1.5),
]


def curves(axes: Axes) -> dict[str, Line2D]:
    """Lines that stand in the legend."""
    handles, names = axes.get_legend_handles_labels()
    return {n: h for n, h in zip(names, handles, strict=True) if isinstance(h, Line2D)}


def points(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_curves_stand_against_rounds_and_against_bytes() -> None:
    figure = curves_figure(RECORDS, levels=LEVELS, title="")
    left, right = figure.axes
    assert legend(figure) == [
        "End-to-end reference  1.500",
        "BlockTrain CE_chain  2.000",
        "BlockTrain CE_ensemble  1.900",
        "BlockTrain CE_first  1.800",
    ]
    name = "End-to-end reference  1.500"
    assert points(curves(left)[name]) == [(1, 4.5), (3, 1.5)]
    assert points(curves(right)[name]) == [(100, 4.5), (300, 1.5)]
    chain = "BlockTrain CE_chain  2.000"
    assert points(curves(left)[chain]) == [(1, 4.0), (3, 2.0)]  # the null is left out


def test_levels_are_drawn_and_named_in_view() -> None:
    figure = curves_figure(RECORDS, levels=LEVELS, title="")
    left, right = figure.axes
    for axes in (left, right):
        heights = [{y for _, y in points(line)} for line in axes.lines]
        flat = {h.pop() for h in heights if len(h) == 1}
        assert flat == set(LEVELS.values())
        low, high = axes.get_ylim()
        assert low < 1.5 < math.log(256) < high
    assert {text.get_text() for text in right.texts} == {
        "uniform guess  5.545",
        "order-2 entropy  2.000",
    }


def test_every_curve_looks_different() -> None:
    left = curves_figure(RECORDS, levels={}, title="").axes[0]
    looks = [(h.get_color(), h.get_linestyle()) for h in curves(left).values()]
    assert len({color for color, _ in looks}) == len(set(looks)) == 4


def test_a_collapsed_chain_stays_in_view() -> None:
    records = [record("blocktrain", r, r, ce_chain=5.0 * r) for r in (1, 2, 3)]
    axes = curves_figure(records, levels=LEVELS, title="").axes[0]
    assert axes.get_ylim()[1] > 15


@pytest.mark.parametrize(
    ("low", "high"), [(1.45, 5.5), (1.9, 2.1), (0.02, 15), (3, 40)]
)
def test_the_scale_has_labels_that_do_not_touch(low: float, high: float) -> None:
    records = [record("end_to_end", 1, 1, ce=low), record("end_to_end", 2, 2, ce=high)]
    figure = curves_figure(records, levels={}, title="")
    axes = figure.axes[0]
    figure.draw_without_rendering()
    shown = [
        text.get_window_extent()
        for text, at in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
        if low / 1.06 <= at <= high * 1.06
    ]
    assert len(shown) >= 2
    tops = sorted((box.y0, box.y1) for box in shown)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(tops))


def test_nothing_to_draw_is_still_a_picture(tmp_path: Path) -> None:
    plot_curves([], tmp_path / "a.png", levels={})
    plot_curves([], tmp_path / "b.png", levels=LEVELS, title="no methods")
    plot_sweep([], tmp_path / "c.png", x="a", series=["ce_chain"], x_label="a")
    for name in ("a", "b", "c"):
        assert imread(tmp_path / f"{name}.png").shape[2] == 4


def test_pictures_leave_pyplot_alone(tmp_path: Path) -> None:
    plot_curves(RECORDS, tmp_path / "curves.png", levels=LEVELS)
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []


def row(value: Any, **results: Any) -> dict[str, Any]:
    return {"settings": {"x": value}, "results": results}


def sweep(rows: list[dict[str, Any]], *series: str, log_x: bool = False) -> Figure:
    return sweep_figure(rows, x="x", series=series, x_label="layers", log_x=log_x)


def test_a_sweep_is_drawn_in_order_of_its_axis() -> None:
    rows = [row(12, ce_chain=1.0), row(1, ce_chain=3.0), row(4, ce_chain=2.0)]
    axes = sweep(rows, "ce_chain", log_x=True).axes[0]
    line = curves(axes)["BlockTrain CE_chain"]
    assert points(line) == [(1, 3.0), (4, 2.0), (12, 1.0)]
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "4", "12"]
    assert axes.get_xlabel() == "layers"


def test_a_missing_result_is_a_gap_and_an_empty_series_is_left_out() -> None:
    rows = [row(1, ce_chain=3.0, end_to_end=None), row(2), row(3, ce_chain=1.0)]
    figure = sweep(rows, "ce_chain", "end_to_end", "ce_mix")
    assert legend(figure) == ["BlockTrain CE_chain"]
    ys = [y for _, y in points(curves(figure.axes[0])["BlockTrain CE_chain"])]
    assert ys[0] == 3.0
    assert math.isnan(ys[1])
    assert ys[2] == 1.0


def test_a_result_with_a_number_for_each_block_is_a_line_for_each() -> None:
    rows = [row(1, local_ce=[1.0, 2.0]), row(2, local_ce=[3.0])]
    lines = curves(sweep(rows, "local_ce").axes[0])
    assert points(lines["Local CE, block 0"]) == [(1, 1.0), (2, 3.0)]
    assert points(lines["Local CE, block 1"])[0] == (1, 2.0)
    assert math.isnan(points(lines["Local CE, block 1"])[1][1])
    assert len({line.get_color() for line in lines.values()}) == 2


def test_names_on_the_axis_are_not_joined_by_lines() -> None:
    rows = [row("tied", ce_chain=1.0, ce_mix=1.0), row([0.1, 2], ce_chain=2.0)]
    axes = sweep(rows, "ce_chain", "ce_mix").axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["tied", "0.1, 2"]
    lines = curves(axes)
    assert {line.get_linestyle() for line in lines.values()} == {"None"}
    first = [points(line)[0] for line in lines.values()]
    assert len(set(first)) == 2  # equal values don't hide one another


def test_a_cell_without_the_setting_is_as_configured() -> None:
    rows = [row(1, ce_chain=1.0), {"settings": {}, "results": {"ce_chain": 2.0}}]
    labels = sweep(rows, "ce_chain").axes[0].get_xticklabels()
    assert [text.get_text() for text in labels] == ["1", "as configured"]
