import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.lines import Line2D

from configs import participation_sweep
from spheroid_jax.reports.delays.summary import Cell
from spheroid_jax.reports.network.answers import (
    contests,
    gate_helps,
    quorum_helps,
    recoveries,
    recovery,
    weights_help,
)
from spheroid_jax.reports.network.plots import figure
from spheroid_jax.reports.network.report import (
    picture,
    render,
    render_report,
    write_report,
)
from spheroid_jax.reports.network.summary import Setting, at_times, read
from spheroid_jax.reports.network.verdicts import verdicts
from spheroid_jax.reports.tables import NOTHING
from spheroid_jax.runs.dispatch import RUNS, SWEEPS
from spheroid_jax.runs.network.experiment import run_network

CHANCE = math.log(256)
WAN_DROP, WAN_GATE = Setting("wan", "drop"), Setting("wan", "gate")
QUORUM = {"network.quorum": 2, "network.grace": 0.5, "train.rounds": 40}
# Of a round: simulated seconds, share in time, counts by age.
NETWORKS: dict[tuple[str, str], tuple[float, float, list[int]]] = {
    ("lockstep", "drop"): (0.5, 1.0, [240]),
    ("mild", "drop"): (2.0, 0.9, [216]),
    ("mild", "gate"): (2.0, 0.85, [204, 12]),
    ("wan", "drop"): (2.0, 0.4, [96]),
    ("wan", "gate"): (2.0, 0.3, [72, 48, 24]),
    ("bad_edge", "drop"): (2.0, 0.0, [0]),
    ("bad_edge", "gate"): (2.0, 0.0, [0, 30, 10]),
}


def row(
    preset: str,
    late: str,
    method: str,
    final: list[float | None],
    seconds: float = 0.0,
    **more: Any,
) -> dict[str, Any]:
    """A cell whose curve falls in a line from 6 at its start to ``final``."""
    given, share, ages = NETWORKS[preset, late]
    seconds, fields = seconds or given, more.get("more", {})
    rounds = fields.get("train.rounds", 20)
    points = list(range(5, rounds + 1, 5))

    def at(point: int, loss: float | None) -> float | None:
        return None if loss is None else 6 + (loss - 6) * point / rounds

    loss = [[at(point, value) for value in final] for point in points]
    seeds = len(final)
    return {
        "method": method,
        "settings": {"network.preset": preset, "network.late": late, **fields},
        "seconds": 30.0,
        "final": final,
        "diverged": [x is None or x > CHANCE for x in final],
        "curve": {
            "round": points,
            "loss": loss,
            "ensemble": [[x if x is None else x - 0.25 for x in p] for p in loss],
        },
        "participation": [share] * seeds,
        "received": [sum(ages) / 240] * seeds,
        "timely_blocks": [min(1.0, 2 * share)] * seeds,
        "by_age": ages,
        "bytes_down": [120_000_000] * seeds,
        "bytes_up": [int(5e5 * sum(ages))] * seeds,
        "round_seconds": [seconds] * seeds,
        "busy": [0.75] * seeds,
        "useful": [0.25] * seeds,
        "time": [[seconds * point] * seeds for point in points],
    }


def made(rows: list[dict[str, Any]], **other: Any) -> dict[str, Any]:
    methods = list(dict.fromkeys(one["method"] for one in rows))
    return {
        "format": 1,
        "kind": "network",
        "name": "async_regimes",
        "size": "small",
        "command": "python -m experiments.sweep --config=configs/async_regimes.py",
        "seconds": 100.0,
        "corpus": {"name": "wikitext-2", "train_bytes": 10_000_000},
        "chance": CHANCE,
        "model": {"params": 400_000, "layers": 2, "width": 64},
        "blocks": 3,
        "workers": 4,
        "local_steps": 8,
        "rounds": 20,
        "seeds": max((len(one["participation"]) for one in rows), default=0),
        "x": "network.preset",
        "panel": "network.late",
        "methods": methods,
        "recipes": {method: f"name={method}" for method in methods},
        "rows": rows,
        "environment": {"device": "cpu"},
        "config": {
            "network": {"preset": "wan", "late": "drop", "deadline": 2.0},
            "eval": {"last": 1},
            "data": {"batch": 4, "seq_len": 64},
        },
    } | other


@pytest.fixture
def summary() -> dict[str, Any]:
    """Lockstep at 2; wan loses 1, and wins back 50 % blind and 75 % by age."""
    return made(
        [
            row("lockstep", "drop", "mean", [2.0, 2.1, 1.9]),
            row("mild", "drop", "mean", [2.0, 2.11, 1.89]),
            row("mild", "gate", "mean", [2.01, 2.1, 1.9]),
            row("mild", "gate", "mean_weighted", [2.0, 2.1, 1.91]),
            row("wan", "drop", "mean", [3.0, 3.1, 2.9]),
            row("wan", "gate", "mean", [2.5, 2.5, 2.5]),
            row("wan", "gate", "mean_weighted", [2.25, 2.35, 2.15]),
            row("bad_edge", "drop", "mean", [5.6, 5.6, 5.6]),
            row("bad_edge", "gate", "mean", [3.8, 3.8, 3.8]),
            row("bad_edge", "gate", "mean_weighted", [3.8, 3.7, 3.9]),
        ]
    )


def cells_of(text: str, start: str) -> list[str]:
    """Cells of the first row of a Markdown table that starts so."""
    line = next(one for one in text.splitlines() if one.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def xs(line: Line2D) -> list[float]:
    found: list[float] = np.asarray(line.get_xdata(), float).tolist()
    return found


def after(text: str, title: str) -> str:
    return text.split(f"## {title}")[1]


def said(summary: dict[str, Any], start: str) -> str:
    found = [line for line in verdicts(summary) if line.startswith(start)]
    assert len(found) == 1, (start, verdicts(summary))
    return found[0]


# At the same simulated time.


@pytest.mark.parametrize(("then", "value"), [(5.0, 4.0), (7.5, 3.5), (10.0, 3.0)])
def test_a_loss_lies_between_two_points_of_the_curve(then: float, value: float) -> None:
    curve = {"round": [5, 10], "loss": [[4.0], [3.0]]}
    cell = Cell((3.0,), (False,), {"curve": curve, "time": [[5.0], [10.0]]})
    sweep = read(made([]))
    assert at_times(sweep, cell, [then]).final == pytest.approx((value,))


@pytest.mark.parametrize("then", [4.9, 10.1])
def test_there_is_no_loss_before_the_first_point_or_after_the_last(then: float) -> None:
    curve = {"round": [5, 10], "loss": [[4.0], [3.0]]}
    cell = Cell((3.0,), (False,), {"curve": curve, "time": [[5.0], [10.0]]})
    assert math.isnan(at_times(read(made([])), cell, [then]).final[0])


def test_a_loss_at_a_time_is_a_mean_of_as_many_points_as_a_final_one() -> None:
    curve = {"round": [5, 10, 15], "loss": [[8.0], [4.0], [2.0]]}
    cell = Cell((3.0,), (False,), {"curve": curve, "time": [[5.0], [10.0], [15.0]]})
    sweep = read(made([], config={"eval": {"last": 2}}))
    assert at_times(sweep, cell, [15.0]).final == (3.0,)  # (4 + 2) / 2, the final one
    assert at_times(sweep, cell, [12.5]).final == (4.5,)  # between (8 + 4) / 2 and 3


def test_every_seed_has_a_time_of_its_own() -> None:
    curve = {"round": [5, 10], "loss": [[4.0, 4.0], [3.0, 3.0]]}
    times = [[5.0, 10.0], [10.0, 20.0]]
    cell = Cell((3.0, 3.0), (False,) * 2, {"curve": curve, "time": times})
    assert at_times(read(made([])), cell, [10.0, 10.0]).final == (3.0, 4.0)


# What is won back.


def test_the_share_won_back_is_paired_by_seed(summary: dict[str, Any]) -> None:
    one = recovery(read(summary), WAN_GATE, "mean")
    assert one is not None
    # 0.5 of 1, 0.6 of 1 and 0.4 of 1.
    assert one.shares == pytest.approx([0.5, 0.6, 0.4])
    assert str(one) == "50 % (40 to 60)"
    assert one.seconds == 40.0


def test_weighed_methods_are_compared_with_their_own_drop(
    summary: dict[str, Any],
) -> None:
    one = recovery(read(summary), WAN_GATE, "mean_weighted")
    assert one is not None
    assert str(one) == "75 % (75 to 75)"


def test_a_weighed_method_needs_not_run_with_drop_nor_be_listed_there() -> None:
    rows = [
        row("lockstep", "drop", "adam", [2.0, 2.0]),
        row("wan", "drop", "adam", [3.0, 3.0]),
        row("wan", "gate", "cgad", [2.2, 2.2]),
    ]
    assert [str(one) for one in recoveries(read(made(rows)))] == ["80 % (80 to 80)"]


def test_nothing_lost_is_no_share(summary: dict[str, Any]) -> None:
    table = after(render_report(summary), "What is won back")
    assert cells_of(table, "mild, gate")[1:] == ["nothing lost", "nothing lost"]
    text = said(summary, "mild, gate:")
    assert "nothing to win back" in text
    assert "%" not in text


def test_both_stand_at_the_earlier_end() -> None:
    # Gate's rounds take 4 s: at 40 s, the end of drop, it is half way from 6 to 1,
    # at 3.5; drop lost 2 of which that is 0.5.
    rows = [
        row("lockstep", "drop", "mean", [2.0]),
        row("wan", "drop", "mean", [4.0]),
        row("wan", "gate", "mean", [1.0], seconds=4.0),
    ]
    (slower,) = recoveries(read(made(rows)))
    assert slower.seconds == 40.0
    assert slower.shares == pytest.approx([0.25])
    # A gate that ends at 20 s: there drop is half way, at 5, and lost 3 of which gate
    # at 3.5 wins back 1.5.
    rows[2] = row("wan", "gate", "mean", [3.5], seconds=1.0)
    (quicker,) = recoveries(read(made(rows)))
    assert quicker.seconds == 20.0
    assert quicker.shares == pytest.approx([0.5])


def test_a_quorum_is_compared_with_the_fixed_deadline_at_the_same_time() -> None:
    # 40 rounds of 1 s end with drop's 20 rounds of 2 s.
    rows = [
        row("lockstep", "drop", "mean", [2.0, 2.0]),
        row("wan", "drop", "mean", [3.0, 3.02]),
        row("wan", "gate", "mean", [2.5, 2.5]),
        row("wan", "gate", "mean", [2.25, 2.26], seconds=1.0, more=QUORUM),
    ]
    summary = made(rows)
    plain, quorum = recoveries(read(summary))
    assert (plain.setting.has_quorum, quorum.setting.has_quorum) == (False, True)
    assert quorum.shares == pytest.approx([0.75, 0.76 / 1.02])
    (duel,) = quorum_helps(read(summary))
    assert duel.difference is not None
    assert duel.difference.mean == pytest.approx(-0.245)
    assert duel.outcome == "better"
    text = said(summary, "wan, gate, quorum 2, grace 0.5 s, rounds 40, against")
    assert "Lower with Mean (-0.245)" in text
    assert "wan gate q2" in render(summary)


def test_lockstep_must_have_as_many_rounds() -> None:
    rows = [
        row("lockstep", "drop", "mean", [1.0], more={"train.rounds": 40}),
        row("lockstep", "drop", "mean", [2.0]),
        row("wan", "drop", "mean", [3.0]),
        row("wan", "gate", "mean", [2.5]),
    ]
    (one,) = recoveries(read(made(rows)))
    assert one.lockstep.final == (2.0,)
    del rows[1]
    assert recoveries(read(made(rows))) == []


def test_a_network_where_nothing_is_in_time(summary: dict[str, Any]) -> None:
    text = said(summary, "bad_edge, gate:")
    assert "nothing is in time and nothing learnt (CE 5.600, chance is 5.545)" in text
    # 1.8 of 3.6, 3.5 and 3.7, and by age 1.8, 1.9 and 1.7 of them.
    assert "50 % (49 to 51) with Mean" in text
    assert "40 % in time, costs 1.000" in said(summary, "wan, gate:")
    loss = after(render_report(summary), "Loss")
    assert cells_of(loss, "bad_edge, drop")[1] == "5.600 ± 0.000 (> chance)"


def test_a_lost_seed_gives_no_share_and_is_told() -> None:
    rows = [
        row("lockstep", "drop", "mean", [2.0, 2.0]),
        row("wan", "drop", "mean", [3.0, 3.1]),
        row("wan", "gate", "mean", [2.5, None]),
    ]
    summary = made(rows)
    (one,) = recoveries(read(summary))
    assert (str(one), math.isnan(one.share)) == ("NaN 1/2", True)
    assert "no share can be told. NaN in some seed: Mean." in said(summary, "wan, gate")
    assert [duel.outcome for duel in gate_helps(read(summary))] == ["worse"]
    assert "2.500 (1 of 2 NaN)" in render_report(summary)


def test_what_drop_loses_entirely_has_no_share() -> None:
    rows = [
        row("lockstep", "drop", "mean", [2.0]),
        row("wan", "drop", "mean", [None]),
        row("wan", "gate", "mean", [2.5]),
    ]
    (one,) = recoveries(read(made(rows)))
    assert str(one) == NOTHING
    assert [duel.outcome for duel in gate_helps(read(made(rows)))] == ["better"]


def test_one_seed_is_told_and_judges_nothing() -> None:
    rows = [
        row("lockstep", "drop", "mean", [2.0]),
        row("mild", "drop", "mean", [2.04]),
        row("mild", "gate", "mean", [2.0]),
        row("wan", "drop", "mean", [3.0]),
        row("wan", "gate", "mean", [2.4]),
        row("wan", "gate", "mean_weighted", [2.3]),
    ]
    summary = made(rows)
    shares = {one.setting.label: str(one) for one in recoveries(read(summary))[:2]}
    assert shares == {"mild, gate": "nothing lost", "wan, gate": "60 %"}
    assert verdicts(summary)[0].startswith("One seed")
    assert "one seed can't tell" in said(summary, "wan: lowest")
    assert "use" not in " ".join(verdicts(summary)).split()
    assert "±" not in after(render_report(summary), "Loss").split("Loss in nats")[0]


# Which to use when.


def test_the_best_and_its_margin_in_seed_noise() -> None:
    rows = [
        row("wan", "drop", "mean", [3.0, 3.0, 3.0]),
        row("wan", "gate", "mean", [2.5, 2.6, 2.7]),
        row("wan", "gate", "mean_weighted", [2.4, 2.48, 2.6]),
    ]
    (best,) = contests(read(made(rows)))
    assert (best.setting, best.method) == (WAN_GATE, "mean_weighted")
    assert best.second == (WAN_GATE, "mean")
    # Differences -0.10, -0.12, -0.10: mean -0.10667, sample deviation 0.011547.
    assert best.margin is not None
    assert best.margin.mean == pytest.approx(-0.32 / 3)
    assert best.noise == pytest.approx(0.32 / 3 / 0.011547, rel=1e-4)
    assert best.clear
    assert said(made(rows), "wan: use").startswith(
        "wan: use Mean, weighed by age with `gate` (2.493; -0.107 to the runner-up, "
        "Mean with `gate`, 9.2 times"
    )


def test_a_margin_within_the_noise_is_no_advice() -> None:
    rows = [
        row("wan", "gate", "mean", [2.5, 2.6, 2.7]),
        row("wan", "gate", "adam", [2.6, 2.5, 2.69]),
    ]
    (best,) = contests(read(made(rows)))
    assert not best.clear
    assert "not told apart" in said(made(rows), "wan: lowest is Adam")


def test_weights_and_the_gate_are_judged(summary: dict[str, Any]) -> None:
    outcomes = {d.setting.preset: d.outcome for d in weights_help(read(summary))}
    # In bad_edge the seeds differ by 0, -0.1 and +0.1.
    assert outcomes == {"mild": "same", "wan": "better", "bad_edge": "same"}
    text = said(summary, "Mean, weighed by age against Mean")
    assert "Lower in wan, gate (-0.250)." in text
    assert "lower in 4 of 6 comparisons" in said(summary, "Keeping late updates")


def test_a_gate_that_does_harm_is_named() -> None:
    rows = [
        row("wan", "drop", "mean", [3.0, 3.1]),
        row("wan", "gate", "mean", [3.5, 3.6]),
    ]
    text = said(made(rows), "Keeping late updates")
    assert "higher in 1 of 1 comparisons (+0.500), namely Mean in wan" in text


# Tables.


def test_where_nothing_is_late_the_weighed_method_is_the_other(
    summary: dict[str, Any],
) -> None:
    text = render_report(summary)
    loss = after(text, "Loss")
    assert cells_of(loss, "wan, drop") == ["wan, drop", *_twice("3.000 ± 0.100")]
    assert cells_of(loss, "lockstep")[2] == "2.000 ± 0.100 ="
    assert cells_of(loss, "wan, gate") == [
        *("wan, gate", "2.500 ± 0.000", "**2.250 ± 0.100**"),
    ]
    assert "= as without weights by age: nothing is late" in text
    ensemble = loss.split("CE_ensemble")[1]
    assert cells_of(ensemble, "wan, gate")[2] == "**2.000 ± 0.100**"


def _twice(text: str) -> list[str]:
    return [text, f"{text} ="]


def test_no_footnote_without_a_borrowed_cell() -> None:
    summary = made([row("wan", "gate", "mean_weighted", [2.5, 2.6])])
    assert "as without weights by age" not in render_report(summary) + render(summary)


def test_late_cells_are_never_borrowed() -> None:
    rows = [row("wan", "gate", "adam", [2.5]), row("mild", "gate", "cgad", [2.5])]
    sweep = read(made(rows))
    assert sweep.cell("cgad", WAN_GATE) is None
    assert cells_of(after(render_report(made(rows)), "Loss"), "wan, gate")[2] == NOTHING


def test_the_network_is_accounted_for(summary: dict[str, Any]) -> None:
    text = after(render_report(summary), "The network")
    # Mean age (48 + 2 x 24) / 144; 20 rounds of 2 s; 144 updates of 0.5 MB.
    assert cells_of(text, "wan, gate")[1:] == [
        *("30 %", "60 %", "60 %", "0.67", "2.00", "40s"),
        *("75 %", "25 %", "120 MB", "72 MB"),
    ]
    assert cells_of(text, "bad_edge, drop")[2:5] == ["0 %", "0 %", NOTHING]
    ages = text.split("Ages of what was received")[1]
    assert cells_of(ages, "wan, gate") == ["wan, gate", "50 %", "33 %", "17 %"]
    assert cells_of(ages, "mild, gate") == ["mild, gate", "94 %", "6 %", NOTHING]


def test_the_papers_rows_stand_beside_the_mean_with_drop(
    summary: dict[str, Any],
) -> None:
    text = after(render_report(summary), "Beside the paper")
    rows = [line for line in text.splitlines() if line.startswith("| participation")]
    found = [re.findall(r"CE (\S+)|, mean \((\d+) %|(\d\.\d{3}) \|$", r) for r in rows]
    flat = [["".join(groups) for groups in one] for one in found]
    assert flat == [
        ["2.151", "90", "2.000"],
        ["2.595", "40", "3.000"],
        ["5.638", "0", "5.600"],
    ]
    assert "d 64 here, not published there" in text
    # 20 rounds x 8 steps x 3 x 4 workers x 4 windows x 64 bytes.
    assert "bytes seen 492 kB here" in text
    assert "rises by 3.487 (2.151 to 5.638), our CE_chain rises by 3.600" in text
    assert "The paper's CE: 2.151 there" in " ".join(render(summary).split())


def test_the_screen_is_80_columns_wide() -> None:
    every = [
        *("mean", "mean_weighted", "nesterov", "nesterov_weighted", "adam", "cgad")
    ]
    rows = [
        row("bad_edge", "gate", method, [6.123 + 0.1 * n, 5.9, 5.8])
        for n, method in enumerate(every)
    ]
    text = render(made(rows))
    assert max(map(len, text.splitlines())) <= 80
    assert "! above chance" in text


# Other shapes.


def deadlines() -> dict[str, Any]:
    """A sweep over deadlines: what a row doesn't set is in the config."""
    rows = []
    for deadline, share, loss in ((0.75, 0.0, 5.6), (2.0, 0.4, 3.0), (4.0, 0.93, 2.1)):
        for late, method, gain in (
            ("drop", "mean", 0.0),
            ("gate", "mean_weighted", 0.5 * (loss - 2)),
        ):
            final = [loss - gain, loss - gain + 0.02]
            fields = {"network.deadline": deadline}
            one = row("wan", late, method, [*final], deadline, more=fields)
            del one["settings"]["network.preset"]
            timely = share if late == "drop" else 0.8 * share
            one["participation"] = [timely, timely]
            rows.append(one)
    lockstep = row("lockstep", "drop", "mean", [2.0, 2.02])
    lockstep["settings"]["network.deadline"] = 4.0
    return made([*rows, lockstep], x="network.deadline", name="participation_sweep")


def test_a_sweep_over_deadlines() -> None:
    summary = deadlines()
    shares = {
        one.setting.field("network.deadline"): one.share
        for one in recoveries(read(summary))
    }
    assert shares == pytest.approx({0.75: 0.5, 2.0: 0.5, 4.0: 0.5})
    text = render_report(summary)
    beside = after(text, "Beside the paper")
    assert "wan, drop, deadline 4 s, mean (93 % in time)" in beside
    assert "wan, drop, deadline 0.75 s, mean (0 % in time)" in beside
    assert "wan gate 0.75s" in render(summary)


def test_participation_is_that_of_drop_at_the_same_deadline() -> None:
    left, right = figure(deadlines()).axes
    drawn = [line for line in left.lines if line.get_linestyle() in ("--", "-")]
    places = [xs(line) for line in drawn if len(xs(line)) > 2]
    assert places == [pytest.approx([0, 40, 93, 100]), pytest.approx([0, 40, 93])]
    assert list(map(float, np.asarray(right.lines[0].get_ydata()))) == [
        5.638,
        2.595,
        2.151,
    ]  # the paper's
    assert "another scale" in right.get_title()


def test_the_config_of_the_sweep_has_both_policies_at_all_deadlines() -> None:
    cells = participation_sweep.get_config("small").sweep.cells
    gated = [cell for cell in cells if "late=gate" in cell]
    assert len(gated) == len(participation_sweep.DEADLINES) == 7
    assert sum("preset=lockstep" in cell for cell in cells) == 1


def test_curves_of_wan_over_simulated_time(summary: dict[str, Any]) -> None:
    left, right = figure(summary).axes
    ends = [(line.get_linestyle(), max(xs(line))) for line in left.lines[:-1]]
    assert ends == [(":", 10.0), ("--", 40.0), ("-", 40.0), ("-", 40.0)]
    names = [label.get_text().replace("\n", " ") for label in right.get_xticklabels()]
    assert names == [setting.short for setting in read(summary).settings]


def test_what_is_not_finite_leaves_the_picture_but_for_its_place() -> None:
    rows = [
        row("wan", "drop", "mean", [2.5, None]),
        row("wan", "drop", "adam", [2.5, 2.4]),
    ]
    left, right = figure(made(rows)).axes
    assert [xs(line) for line in left.lines[:-1]] == [[10, 20, 30, 40]]
    assert [text.get_text() for text in right.texts] == ["NaN"]


def test_a_single_run(tmp_path: Path) -> None:
    summary = made([row("wan", "gate", "mean", [2.5, None])], x="", panel="")
    write_report(tmp_path, summary)
    assert picture(summary) == "curves.png"
    assert imread(tmp_path / "curves.png").std() > 0
    assert "wan gate" in render(summary)
    assert "won back" not in (tmp_path / "report.md").read_text()


def test_an_unfinished_sweep_renders(tmp_path: Path) -> None:
    empty = row("wan", "drop", "mean", [2.5])
    del empty["final"]
    for rows in ([], [empty]):
        summary = made(rows)
        write_report(tmp_path, summary)
        assert "No cell has finished" in render(summary)


def test_the_files_are_those_of_the_summary(
    tmp_path: Path, summary: dict[str, Any]
) -> None:
    write_report(tmp_path, summary)
    again = json.loads((tmp_path / "summary.json").read_text())
    assert render_report(again) == (tmp_path / "report.md").read_text()
    assert (tmp_path / picture(summary)).is_file()
    assert picture(summary) == "sweep.png"


def test_runs_and_sweeps_of_the_kind_are_dispatched() -> None:
    for kinds in (RUNS, SWEEPS):
        assert kinds["network"].run is run_network
        assert kinds["network"].render is render
        assert kinds["network"].picture is picture
