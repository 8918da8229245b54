import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D

from spheroid_jax.reports.delays.plots import curves_figure, styles, sweep_figure
from spheroid_jax.reports.delays.report import (
    picture,
    render,
    render_report,
    write_report,
)
from spheroid_jax.reports.delays.summary import read
from spheroid_jax.reports.published import PUBLISHED, load_published

CHANCE = math.log(256)
NESTEROV = {0: [2.0, 2.2], 4: [6.0, 6.0], 16: [300.0, None]}
CGAD = {0: [2.0, 2.1], 4: [2.1, 2.3], 16: [2.15, 2.2]}
ADAM = {0: [2.0, 2.1], 4: [2.05, 2.15], 16: [2.3, 2.4]}


def rows(kind: str, **losses: dict[int, Any]) -> list[dict[str, Any]]:
    return [
        {
            "method": method,
            "settings": {"delay.tau": tau, "delay.kind": kind},
            "seconds": 30.0,
            "final": final,
            "diverged": [x is None or x > CHANCE for x in final],
            "applied": [100 - tau, 100 - tau],
            "mean_age": 0.5 * tau,
            "curve": {"round": [5, 10], "loss": [[4.0, 5.0], final]},
        }
        for method, cells in losses.items()
        for tau, final in cells.items()
    ]


@pytest.fixture
def summary() -> dict[str, Any]:
    """Two panels, the second without Nesterov."""
    return {
        "format": 1,
        "kind": "delays",
        "name": "delay_sweep",
        "size": "quick",
        "command": "python -m experiments.sweep --config=configs/delay_sweep.py:quick",
        "seconds": 512.3,
        "corpus": {"name": "wikitext-2-raw"},
        "chance": CHANCE,
        "model": {"params": 123_456, "layers": 2, "width": 64},
        "workers": 4,
        "local_steps": 8,
        "rounds": 100,
        "seeds": 2,
        "x": "delay.tau",
        "panel": "delay.kind",
        "log_x": False,
        "methods": ["nesterov", "adam", "cgad"],
        "recipes": {"nesterov": "name=nesterov learning_rate=0.7 momentum=0.9"},
        "rows": rows("fixed", nesterov=NESTEROV, cgad=CGAD, adam=ADAM)
        + rows("uniform", cgad=CGAD, adam=ADAM),
    }


def cells_of(text: str, start: str) -> list[str]:
    """Cells of the first row of a Markdown table that starts so."""
    line = next(one for one in text.splitlines() if one.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


# Tables.


def test_methods_stand_down_and_delays_across(summary: dict[str, Any]) -> None:
    text = render_report(summary)
    fixed, uniform = text.split("### Fixed ages")[1].split("### Uniform ages")
    assert cells_of(fixed, "tau =") == ["tau =", "0", "4", "16"]
    assert cells_of(fixed, "Nesterov") == [
        "Nesterov 0.7/0.9",
        "2.100 ± 0.141",
        "6.000 ± 0.000 (> chance)",
        "300 (1 of 2 NaN, > chance)",
    ]
    # The lowest of a column is bold, and equal ones share it.
    assert cells_of(fixed, "CGAD") == [
        *("CGAD", "**2.050 ± 0.071**", "2.200 ± 0.141", "**2.175 ± 0.035**"),
    ]
    assert cells_of(fixed, "Age-blind Adam") == [
        *("Age-blind Adam", "**2.050 ± 0.071**", "**2.100 ± 0.071**"),
        "2.350 ± 0.071",
    ]
    assert "| Nesterov" not in uniform.split("## Set-up")[0]


def test_missing_cells_and_lost_seeds_are_plain(summary: dict[str, Any]) -> None:
    lost = {0: [None, None], 16: [2.0, 7.0]}
    text = render_report(summary | {"rows": rows("fixed", nesterov=lost, cgad=CGAD)})
    assert cells_of(text, "Nesterov") == [
        *("Nesterov 0.7/0.9", "NaN", "-", "4.500 ± 3.536 (1 of 2 > chance)"),
    ]


def test_a_lost_seed_is_never_the_best_of_a_column(summary: dict[str, Any]) -> None:
    made = rows("fixed", nesterov={0: [1.0, None]}, cgad={0: [2.0, 2.0]})
    text = render_report(summary | {"rows": made})
    assert cells_of(text, "CGAD")[1].startswith("**2.000")
    assert cells_of(text, "Nesterov")[1] == "1.000 (1 of 2 NaN)"


def test_a_method_alone_is_not_the_best(summary: dict[str, Any]) -> None:
    text = render_report(summary | {"rows": rows("fixed", cgad=CGAD)})
    assert cells_of(text, "CGAD")[1] == "2.050 ± 0.071"


def test_one_seed_has_no_deviation(summary: dict[str, Any]) -> None:
    made = rows("fixed", cgad={0: [2.0]}, adam={0: [2.5]})
    text = render_report(summary | {"rows": made})
    assert cells_of(text, "CGAD")[1] == "**2.000**"
    assert "At most 1 seed a cell" in text


def test_the_screen_has_tables_and_sentences(summary: dict[str, Any]) -> None:
    text = render(summary)
    assert "fixed ages\n" in text
    assert "uniform ages\n" in text
    assert "**" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "CGAD ends at 2.050 at tau = 0" in " ".join(text.split())
    flat = " ".join(text.split())
    assert "Reproduced at this scale: Nesterov 0.7/0.9 diverges at tau >= 8" in flat


def test_a_wide_table_shrinks_to_the_screen(summary: dict[str, Any]) -> None:
    many = {tau: [2.04, 2.06] for tau in (0, 1, 2, 4, 8)} | {16: [6.0, 7.0], 32: [None]}
    text = render(summary | {"rows": rows("fixed", cgad=many)})
    (line,) = [one for one in text.splitlines() if one.startswith("cgad ")]
    assert line.split() == ["cgad", *["2.05±.01"] * 5, "6.50±.71!", "NaN"]
    assert "! above chance, ln V = 5.545" in text


def test_the_report_tells_the_set_up(summary: dict[str, Any]) -> None:
    text = render_report(summary)
    assert text.startswith("# delay_sweep:quick\n")
    assert "Corpus: **wikitext-2-raw**." in text
    assert "123k parameters, 2 layers, 64 width, 4 workers" in text
    assert "100 rounds, 2 seeds." in text
    assert "`name=nesterov learning_rate=0.7 momentum=0.9`" in text
    assert cells_of(text, "Nesterov 0.7/0.9 | nesterov")[-1] == "1m30s"
    assert cells_of(text, "fixed ages   |   4")[2:] == ["2.00", "96"]
    assert f"```\n{summary['command']}\n```" in text
    assert "It took 8m32s here." in text
    described = summary | {"corpus": {"description": "two books"}}
    assert "Corpus: two books" in render_report(described)


def test_a_whole_corpus_is_told_as_elsewhere(
    summary: dict[str, Any], run_summary: dict[str, Any]
) -> None:
    text = render_report(summary | {"corpus": run_summary["corpus"]})
    assert "10,780,437 bytes to train on" in text


def test_seed_variance_has_its_own_table(summary: dict[str, Any]) -> None:
    made = rows("fixed", cgad={8: [2.0, 3.0, None, 7.0]})
    text = render_report(summary | {"name": "seed_variance", "rows": made})
    assert cells_of(text, "kind ") == [
        *("kind", "tau", "method", "mean", "std", "mean + std", "diverged"),
    ]
    assert cells_of(text, "fixed | 8 ") == [
        *("fixed", "8", "CGAD", "4.000", "2.646", "6.646", "2 of 4"),
    ]


def test_tuned_nesterov_has_its_best_pairs(summary: dict[str, Any]) -> None:
    losses: dict[str, dict[int, Any]] = {
        "nesterov 0.7/0": {0: [2.2, 2.2], 8: [2.5, 2.5]},
        "nesterov 0.3/0.9": {0: [2.1, 2.1], 8: [9.0, None]},
        "cgad": {8: [2.4, 2.4]},
    }
    text = render_report(
        summary | {"name": "tuned_nesterov", "rows": rows("fixed", **losses)}
    )
    screen = render(
        summary | {"name": "tuned_nesterov", "rows": rows("fixed", **losses)}
    )
    assert max(map(len, screen.splitlines())) <= 80
    table = text.split("| tau | best rate")[1]
    assert cells_of(table, "  0 ") == [
        *("0", "0.3", "0.9", "2.100 ± 0.000", "-", "-", "-"),
    ]
    assert cells_of(table, "  8 ") == [
        *("8", "0.7", "0", "2.500 ± 0.000", "2.400 ± 0.000", "-", "-0.100"),
    ]


# Published numbers.


def test_published_numbers_of_cgad_stand_beside_ours(summary: dict[str, Any]) -> None:
    text = render_report(summary)
    assert "not comparable" in text
    assert "arXiv 2605.09126" in text
    assert cells_of(text, "1 B, tau = 16, CGAD")[1:] == [
        *("loss 7.44 nats/token", "S", "2.175 ± 0.035"),
    ]
    assert cells_of(text, "1 B, tau = 16, Nesterov")[1:] == [
        *("loss 319 nats/token", "S", "300 (1 of 2 NaN, > chance)"),
    ]
    assert cells_of(text, "1 B, tau >= 8, Nesterov")[1:] == ["-", "S", ""]


def test_published_means_and_deviations_add_up() -> None:
    """Guards against typing errors in the table."""
    numbers = load_published(PUBLISHED.with_name("published_cgad.json"))
    assert numbers is not None
    assert {entry.tag for entry in numbers.entries} == set(numbers.tags)
    values = [entry.value for entry in numbers.entries]
    for std, risk, mean in ((1.89, 13.19, 11.3), (0.38, 11.28, 10.9)):
        found = f"std {std:g} nats/token, mean + std {risk:g} nats/token"
        assert values[values.index(found) + 1] == f"loss {mean:g} nats/token"
        assert mean + std == pytest.approx(risk)
    assert f"loss {math.log(50257):.2f} nats/token".replace("10.82", "10.83") in values


# Pictures.


def lines(axes: Axes) -> dict[str, ErrorbarContainer]:
    """What stands in the legend, without chance."""
    handles, names = axes.get_legend_handles_labels()
    pairs = zip(names, handles, strict=True)
    return {n: h for n, h in pairs if isinstance(h, ErrorbarContainer)}


def data(container: ErrorbarContainer) -> tuple[list[float], list[float]]:
    line: Line2D = container.lines[0]
    xs, ys = np.asarray(line.get_xydata()).T.tolist()
    return xs, ys


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_panels_stand_side_by_side_with_all_methods(summary: dict[str, Any]) -> None:
    figure = sweep_figure(read(summary))
    fixed, uniform = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["fixed ages", "uniform ages"]
    assert list(lines(fixed)) == ["Nesterov 0.7/0.9", "Age-blind Adam", "CGAD"]
    assert list(lines(uniform)) == ["Age-blind Adam", "CGAD"]
    assert legend(figure)[0] == "chance, ln V = 5.545"
    assert set(legend(figure)[1:]) == set(lines(fixed))
    assert [t.get_text() for t in fixed.get_xticklabels()] == ["0", "4", "16"]
    assert fixed.get_xlabel() == "tau"


def test_means_and_bars_are_those_of_the_seeds(summary: dict[str, Any]) -> None:
    axes = sweep_figure(read(summary)).axes[0]
    cgad = lines(axes)["CGAD"]
    assert data(cgad)[1] == pytest.approx([2.05, 2.2, 2.175])
    segments = np.array(cgad.lines[2][0].get_segments())[:, :, 1]
    half = np.diff(segments, axis=1)[:, 0] / 2
    expected = [np.std(CGAD[tau], ddof=1) for tau in (0, 4, 16)]
    np.testing.assert_allclose(half, expected)
    one = rows("fixed", cgad={0: [2.0]}, adam={0: [2.1]})
    axes = sweep_figure(read(summary | {"rows": one})).axes[0]
    assert not lines(axes)["CGAD"].has_yerr


def test_chance_is_a_line_from_end_to_end(summary: dict[str, Any]) -> None:
    for axes in sweep_figure(read(summary)).axes:
        (line,) = [x for x in axes.get_lines() if "chance" in str(x.get_label())]
        assert set(map(float, np.asarray(line.get_ydata()))) == {CHANCE}
        assert list(map(float, np.asarray(line.get_xdata()))) == [0.0, 1.0]
        low, high = axes.get_ylim()
        assert low < CHANCE < high


def test_what_diverged_stands_at_the_edge_with_its_number(
    summary: dict[str, Any],
) -> None:
    gone = {0: [2.0, 2.1], 4: [300.0, 310.0], 16: [2.0, None]}
    made = rows("fixed", nesterov=gone, cgad=CGAD)
    axes = sweep_figure(read(summary | {"rows": made})).axes[0]
    low, high = axes.get_ylim()
    assert high < 8
    xs, ys = data(lines(axes)["Nesterov 0.7/0.9"])
    assert low < ys[0] < CHANCE < ys[1] == ys[2] < high
    told = {t.get_text(): t.xy for t in axes.texts if hasattr(t, "xy")}
    assert told == {"305": (xs[1], ys[1]), "NaN": (xs[2], ys[2])}


def test_good_methods_stay_apart_beside_a_diverged_one(
    summary: dict[str, Any],
) -> None:
    made = rows("fixed", nesterov={0: [3e5]}, cgad={0: [2.0]}, adam={0: [2.1]})
    axes = sweep_figure(read(summary | {"rows": made})).axes[0]
    place = axes.transAxes.inverted().transform
    heights = [place(axes.transData.transform((0, y)))[1] for y in (2.0, 2.1, CHANCE)]
    assert 0 < heights[0] < heights[1] - 0.05 < heights[2] < 1


def test_a_missing_cell_leaves_a_gap_in_the_points(summary: dict[str, Any]) -> None:
    made = rows("fixed", cgad={0: [2.0], 16: [2.2]}, adam=ADAM)
    axes = sweep_figure(read(summary | {"rows": made})).axes[0]
    xs, ys = data(lines(axes)["CGAD"])
    assert np.round(xs).tolist() == [0, 2]
    assert ys == [2.0, 2.2]


def test_no_two_methods_look_alike_and_adam_is_black() -> None:
    known = ["nesterov", "sgd", "adam", "adam_decay", "cgad", "pa_cgad", "cgad_post"]
    many = [*known, *[f"nesterov {rate}/0.5" for rate in range(18)]]
    found = styles(many)
    looks = {(s["color"], s["linestyle"], s["marker"]) for s in found.values()}
    assert len(looks) == len(many)
    assert [m for m, s in found.items() if s["color"] == "#000000"] == ["adam"]
    first = {s["color"] for m, s in found.items() if m in known[:6]}
    assert len(first) == 6, "methods that most pictures show differ in colour"
    assert styles(["cgad"])["cgad"] == found["cgad"], "one style in all pictures"


def test_a_single_run_has_curves_over_rounds(summary: dict[str, Any]) -> None:
    made = rows("fixed", cgad={8: [2.0, 3.0]}, nesterov={8: [None, 9.0]})
    figure = curves_figure(read(summary | {"rows": made}))
    (axes,) = figure.axes
    handles, names = axes.get_legend_handles_labels()
    found = dict(zip(names, handles, strict=True))
    assert found["CGAD"].get_xdata().tolist() == [5.0, 10.0]
    assert found["CGAD"].get_ydata().tolist() == [4.5, 2.5]
    assert math.isnan(found["Nesterov 0.7/0.9"].get_ydata()[1])
    assert "chance, ln V = 5.545" in found
    assert axes.get_xlabel() == "rounds"


# Files.


def test_a_sweep_leaves_three_files(summary: dict[str, Any], tmp_path: Path) -> None:
    write_report(tmp_path, summary)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("report.md", "summary.json", "sweep.png"),
    ]
    assert picture(summary) == "sweep.png"
    assert "(sweep.png)" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(
        json.dumps(summary)
    )
    assert imread(tmp_path / "sweep.png").shape[0] > 300


def test_a_single_run_leaves_curves(summary: dict[str, Any], tmp_path: Path) -> None:
    made = rows("fixed", cgad={8: [2.0, 3.0]}, adam={8: [2.0, 2.5]})
    one = summary | {"name": "delayed", "x": "", "panel": "", "rows": made}
    write_report(tmp_path, one)
    assert picture(one) == "curves.png"
    assert imread(tmp_path / "curves.png").shape[0] > 300
    assert "(curves.png)" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("x", ["", "delay.tau", "outer.alpha"])
@pytest.mark.parametrize(
    "losses",
    [
        {},
        {"cgad": {8: [None]}},
        {"sgd": {0: [9.0, 8.0], 8: [None, None]}, "cgad": {16: [7.0]}},
    ],
)
def test_little_to_show_is_still_a_report(
    summary: dict[str, Any], tmp_path: Path, x: str, losses: dict[str, Any]
) -> None:
    bare = {"name": "delay_sweep", "size": "quick", "chance": CHANCE, "x": x}
    bare["rows"] = [r | {"curve": None} for r in rows("fixed", **losses)]
    write_report(tmp_path, bare)
    assert (tmp_path / picture(bare)).is_file()
    assert render(bare)
    write_report(tmp_path, summary | {"rows": bare["rows"], "x": x})
