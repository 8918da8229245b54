"""Fits, sentences, tables and the picture of runs of kind bound."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.image import imread

from spheroid_jax.reports.bound import verdicts as says
from spheroid_jax.reports.bound.fits import Bound, Line, lost, ratio, slope
from spheroid_jax.reports.bound.plot import bound_figure
from spheroid_jax.reports.bound.report import (
    render,
    render_report,
    values_table,
    write_report,
)

TAUS = (0, 1, 2, 4, 8, 16, 32)
SEEDS = 4
SPREAD = np.exp(0.02 * np.array([-1.0, 1.0, 2.0, -2.0]))  # of the seeds
FLOOR = 0.5
Curve = Callable[[int], float]


def make_row(method: str, kind: str, tau: int, error: float, bias: float) -> Any:
    return {
        "function": "ripples",
        "method": method,
        "kind": kind if tau else "none",
        "tau_max": tau,
        "learning_rate": 0.1,
        "diverged": [False] * SEEDS,
        "error": (error * SPREAD).tolist(),
        "sup": (2 * error * SPREAD).tolist(),
        "bias": (bias * SPREAD).tolist(),
        "bias_blind": (bias * SPREAD).tolist(),
        "bias_sup": [0.1] * SEEDS,
        "step": [0.1] * SEEDS,
        "weight": [0.5] * SEEDS,
        "value": [0.1] * SEEDS,
        "start": [1.0] * SEEDS,
    }


def saturating(tau: int) -> float:
    return FLOOR + (0.1 * min(tau, 5) if tau else 0.0)


CURVES: dict[str, tuple[Curve, Curve]] = {
    "nesterov": (lambda t: FLOOR + 0.01 * t**2, lambda t: 0.01 * t**2),
    "adam": (lambda t: FLOOR + 0.05 * t, lambda t: 0.001 * t**2),
    "cgad": (saturating, lambda t: 0.01 * min(t, 5) ** 2),
}


@pytest.fixture
def summary() -> dict[str, Any]:
    rows = []
    for method, (error, bias) in CURVES.items():
        rows += [
            make_row(method, kind, tau, error(tau), bias(tau))
            for kind in ("fixed", "uniform")
            for tau in TAUS
            if tau or kind == "fixed"
        ]
    rows[0]["grid"] = [
        {"learning_rate": rate, "error": rate} for rate in (0.01, 0.1, 1.0)
    ]
    return {
        "format": 1,
        "kind": "bound",
        "name": "bound",
        "size": "quick",
        "seeds": SEEDS,
        "rounds": 100,
        "alpha": 0.2,
        "tau_cut": 64.0,
        "last": 0.25,
        "functions": {
            "ripples": {"formula": "a bowl", "lipschitz": 2.0, "noise": 0.1},
        },
        "inequality": [
            {
                "alpha": 0.2,
                "bound": 5 / math.e,
                "decay": 5 / math.e,
                "decay_at": 5.0,
                "gated": 1.74,
                "gated_at": 4.5,
            }
        ],
        "rows": rows,
        "command": "python -m experiments.run --config=configs/bound.py:quick",
        "seconds": 61.0,
    }


def line(summary: dict[str, Any], method: str) -> Line:
    return Bound(summary).line("ripples", "fixed", method)


def lose(summary: dict[str, Any], method: str, tau: int, kind: str = "fixed") -> None:
    for row in summary["rows"]:
        if (row["method"], row["tau_max"], row["kind"]) == (method, tau, kind):
            row["diverged"][1] = True
            row["error"][1] = None


# Fits.


def test_a_power_law_has_its_power(summary: dict[str, Any]) -> None:
    bias = slope(line(summary, "nesterov"), "bias")
    assert bias.value == pytest.approx(2.0)
    assert bias.error == pytest.approx(0.0, abs=1e-6)
    assert bias.taus == TAUS[1:]
    late = slope(line(summary, "cgad"), "bias", Bound(summary).late())
    assert late.value == pytest.approx(0.0, abs=1e-9)
    assert late.taus == (8, 16, 32)


def test_the_excess_is_free_of_the_floor(summary: dict[str, Any]) -> None:
    raw = slope(line(summary, "nesterov"), "error")
    excess = slope(line(summary, "nesterov"), "excess")
    assert raw.value < 1.5, "a floor makes a power look smaller"
    assert excess.value == pytest.approx(2.0, abs=1e-6)


def test_an_excess_that_noise_hides_is_not_fitted(summary: dict[str, Any]) -> None:
    rows = line(summary, "nesterov")
    rows[1]["error"][:] = [FLOOR + x for x in (0.3, -0.3, 0.31, -0.3)]
    assert slope(rows, "excess").taus == (2, 4, 8, 16, 32)
    assert slope(rows, "error").taus == TAUS[1:]


def test_the_standard_error_is_that_of_powers_which_differ_by_seed() -> None:
    """Seeds of powers 1 and 3 with small weights: the jackknife sees their spread."""
    powers = 2 + 0.01 * np.array([-1.0, 1.0, 1.0, -1.0])
    rows = {
        tau: {"error": (float(tau) ** powers).tolist(), "diverged": [False] * 4}
        for tau in (1, 2, 4)
    }
    found = slope(rows, "error")
    # To first order the fit is the mean of the seeds' powers, weighed by their size.
    assert found.value == pytest.approx(2.0, abs=0.001)
    assert found.error == pytest.approx(np.std(powers, ddof=1) / 2, rel=0.05)
    # Student's t with three degrees of freedom.
    assert found.high - found.value == pytest.approx(3.182 * found.error, rel=1e-3)


def test_what_diverged_is_in_no_slope(summary: dict[str, Any]) -> None:
    lose(summary, "nesterov", 32)
    rows = line(summary, "nesterov")
    assert lost(rows[32])
    found = slope(rows, "bias")
    assert found.taus == TAUS[1:-1]
    assert found.value == pytest.approx(2.0)
    assert not slope(rows, "bias", [16, 32, 8]).known, "two points are no slope"


def test_one_seed_has_a_slope_but_no_error() -> None:
    rows = {t: {"error": [float(t)], "diverged": [False]} for t in (1, 2, 4)}
    found = slope(rows, "error")
    assert found.value == pytest.approx(1.0)
    assert not found.known


def test_a_ratio_is_paired_by_seed() -> None:
    theirs = {"error": [1.0, 10.0, 100.0], "diverged": [False] * 3}
    ours = {"error": [0.5, 5.0, 50.0], "diverged": [False] * 3}
    found = ratio(ours, theirs)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert ratio(ours | {"diverged": [True, False, False]}, theirs) is None


# Sentences.


def test_growth_is_told_by_the_interval(summary: dict[str, Any]) -> None:
    bound = Bound(summary)
    text = says.growth_sentence(bound, "nesterov")
    assert "grows like it in 2 of 2 places" in text
    assert "None diverged." in text
    # Adam's excess is linear.
    assert "tau_max^2, grows slower in 2 of 2" in says.growth_sentence(bound, "adam")
    lose(summary, "nesterov", 32)
    text = says.growth_sentence(Bound(summary), "nesterov")
    assert "Diverged and left out: fixed ripples at 32." in text
    for row in summary["rows"]:
        row["error"] = [FLOOR + row["tau_max"] ** 3 * x for x in SPREAD]
    text = says.growth_sentence(Bound(summary), "cgad")
    assert (
        "delay, against tau_max^2, grows faster in 2 of 2 places, powers 3.00" in text
    )


def test_saturation_goes_both_ways(summary: dict[str, Any]) -> None:
    bound = Bound(summary)
    text = says.saturation_sentence(bound, "cgad")
    assert text.startswith("CGAD, from tau_max = 1 / alpha = 5 on: ")
    assert "weighted squared bias doesn't grow in 2 of 2 places" in text
    assert "the error doesn't grow in 2 of 2 places" in text
    text = says.saturation_sentence(bound, "adam")
    assert "weighted squared bias grows in 2 of 2 places, powers 2.00" in text
    assert "the error grows in 2 of 2 places" in text


def test_what_seeds_disagree_on_is_not_told(summary: dict[str, Any]) -> None:
    powers = np.array([0.0, 0.5, 0.0, 0.5])
    apart = np.array([0.5, 1.5, 0.7, 1.2])  # 0.89 in the geometric mean
    adam = {row["tau_max"]: row for row in line(summary, "adam").values()}
    for row in summary["rows"]:
        if row["method"] == "cgad" and row["kind"] == "fixed":
            row["error"] = ((row["tau_max"] / 8) ** powers).tolist()
        elif row["method"] == "cgad" and row["tau_max"]:
            row["error"] = (adam[row["tau_max"]]["error"] * apart).tolist()
    bound = Bound(summary)
    late = slope(bound.line("ripples", "fixed", "cgad"), "error", bound.late())
    assert late.low < 0.25 < late.high
    text = says.saturation_sentence(bound, "cgad")
    assert "the error can't be told in 1 (fixed ripples)" in text
    text = says.against_adam(bound, "cgad", "uniform")
    assert "lower in 0 of 6 cells, higher in 0, not told apart in 6" in text


def test_adam_is_compared_cell_by_cell(summary: dict[str, Any]) -> None:
    # 0.1 min(tau, 5) against 0.05 tau: lower at 16 and 32 alone.
    text = says.against_adam(Bound(summary), "cgad", "uniform")
    assert "lower in 2 of 6 cells, higher in 4, not told apart in 0" in text
    best = (FLOOR + 0.5) / (FLOOR + 1.6)
    assert f"its ratio is {best:.3g} (" in text
    assert "ripples, tau_max 32) at best" in text


def test_the_headline_counts_both_sides(summary: dict[str, Any]) -> None:
    text = says.headline(Bound(summary))
    assert "momentum SGD grows like tau_max to the power 2.00 to 2.00" in text
    assert "bias doesn't grow in 2 (CGAD) and 0 (Age-blind Adam) of 2 places" in text
    assert "lowest mean error is CGAD's in 2." in text
    wins = "in 1 and higher in 0 under fixed ages, in 1 and higher in 0 under uniform"
    assert (
        f"At tau_max 32 CGAD's error is lower than age-blind Adam's {wins}".lower()
        in (text.lower())
    )
    for row in summary["rows"]:
        if row["method"] == "adam" and row["kind"] == "fixed":
            row["error"] = (0.1 * SPREAD).tolist()
    text = says.headline(Bound(summary))
    assert "in 0 and higher in 1 under fixed ages, in 1 and higher in 0" in text


def test_a_bound_that_fails_is_shouted(summary: dict[str, Any]) -> None:
    assert "holds for alpha" in says.inequality_sentence(summary)
    summary["inequality"][0]["gated"] = 1.9
    assert "FAILS" in says.inequality_sentence(summary)
    # L x step / (e alpha) = 2 x 0.1 x 5 / e = 0.368; measured 0.1.
    (text,) = says.share_sentence(summary, Bound(summary))
    assert "stays within" in text
    assert f"uses {0.1 * math.e:.2f} of it" in text
    for row in summary["rows"]:
        row["bias_sup"] = [0.4] * SEEDS
    assert "EXCEEDS" in says.share_sentence(summary, Bound(summary))[0]
    summary["functions"]["ripples"]["lipschitz"] = None
    assert says.share_sentence(summary, Bound(summary)) == []


def test_a_shut_gate_and_an_end_of_the_grid_are_told(summary: dict[str, Any]) -> None:
    bound = Bound(summary)
    (text,) = says.price_sentence(summary, bound)
    assert "0.5 under fixed ages and 0.5 under uniform ages" in text
    assert "shut" not in text
    (text,) = says.price_sentence(summary | {"tau_cut": 16.0}, bound)
    assert "fixed age of 16 and 32 its gate (tau_cut = 16) is shut" in text
    assert says.edge_sentence(summary, bound) == []
    summary["rows"][0]["learning_rate"] = 1.0
    assert says.edge_sentence(summary, bound) == [
        "The rate is an end of the grid for Nesterov on ripples (1)."
    ]


# Tables, picture and files.


def test_cells_are_means_and_marks(summary: dict[str, Any]) -> None:
    lose(summary, "nesterov", 32)
    table = values_table(Bound(summary), "ripples", "fixed", "error")
    assert table.header == ["", "0", "1", "2", "4", "8", "16", "32"]
    assert [row[0] for row in table.rows] == ["Nesterov", "Age-blind Adam", "CGAD"]
    assert table.rows[0][-1] == "!inf"
    assert float(table.rows[2][-1]) == pytest.approx(1.0 * SPREAD.mean(), rel=5e-3)


def test_the_picture_has_all_methods_and_marks_what_diverged(
    summary: dict[str, Any],
) -> None:
    lose(summary, "nesterov", 32)
    lose(summary, "cgad", 32)
    figure = bound_figure(summary)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["ripples, fixed ages", "ripples, uniform ages"] * 2
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"Nesterov", "Age-blind Adam", "CGAD"} <= set(names)
    for axes, crosses in zip(figure.axes, (2, 0, 2, 0), strict=True):
        assert axes.get_xscale() == axes.get_yscale() == "log"
        marked = [x for x in axes.get_lines() if x.get_marker() == "x"]
        places = [(x, y) for line in marked for x, y in np.asarray(line.get_xydata())]
        assert len(set(places)) == len(places) == crosses
    bars = figure.axes[0].containers[2]
    assert isinstance(bars, ErrorbarContainer)
    drawn = bars.lines[0]
    np.testing.assert_allclose(
        np.asarray(drawn.get_ydata(), float),
        [saturating(tau) * SPREAD.mean() for tau in TAUS[:-1]],
    )


def test_files_are_written_and_can_be_redrawn(
    summary: dict[str, Any], tmp_path: Path
) -> None:
    lose(summary, "adam", 32)
    write_report(tmp_path, summary)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("bound.png", "report.md", "summary.json"),
    ]
    assert imread(tmp_path / "bound.png").shape[0] > 300
    stored = json.loads((tmp_path / "summary.json").read_text())
    assert render_report(stored) == (tmp_path / "report.md").read_text("utf-8")
    assert says.headline(Bound(summary)) in render_report(summary)


def test_the_screen_is_eighty_columns_wide(summary: dict[str, Any]) -> None:
    text = render(summary)
    assert max(map(len, text.splitlines())) <= 80
    assert "In short:" in text


@pytest.mark.parametrize("method", ["nesterov", "adam"])
def test_little_to_show_is_still_a_report(
    summary: dict[str, Any], tmp_path: Path, method: str
) -> None:
    for row in summary["rows"]:
        row["diverged"] = [True] * SEEDS
        row["error"] = [None] * SEEDS
    summary["rows"] = [row for row in summary["rows"] if row["method"] == method]
    write_report(tmp_path, summary)
    assert render(summary)
