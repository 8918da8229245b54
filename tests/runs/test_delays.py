"""Delayed runs and sweeps: what is run, what is kept, and what is not run again."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict

from spheroid_jax import config
from spheroid_jax.fields import ConfigError, assign
from spheroid_jax.runs.delays.experiment import FAMILY, run_delayed
from spheroid_jax.runs.delays.schedules import schedule
from spheroid_jax.runs.grid.execute import CHANCE, chunks
from spheroid_jax.runs.grid.jobs import Cell, plan, room
from spheroid_jax.runs.grid.results import CELLS, Results, ResultsError

TINY = {
    "name": "delay_sweep",
    "seeds": 2,
    "methods": ("sgd", "adam"),
    "data.corpus": "embedded",
    "data.seq_len": 16,
    "data.batch": 2,
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.kv_heads": 1,
    "model.mlp_width": 16,
    "train.replicas": 2,
    "train.rounds": 4,
    "train.local_steps": 2,
    "train.warmup_steps": 1,
    "eval.every": 2,
    "eval.windows": 2,
    "eval.batch": 2,
    "eval.last": 1,
}
CELLS_OF_SWEEP = (
    "delay.tau=0 delay.kind=fixed",
    "delay.tau=2 delay.kind=fixed",
    "delay.tau=2 delay.kind=uniform methods=adam",
)


def tiny(*assignments: str, cells: tuple[str, ...] = ()) -> ConfigDict:
    c = config.delayed()
    c.update_from_flattened_dict(TINY)
    for assignment in assignments:
        field, _, value = assignment.partition("=")
        assign(c, field, value)
    if cells:
        c.sweep = config.delay_cells("delay.tau", cells, panel="delay.kind")
    return c


def run(c: ConfigDict, workdir: Path, resume: bool = False) -> tuple[Any, list[str]]:
    said: list[str] = []
    summary = run_delayed(c, workdir, resume=resume, command="again", say=said.append)
    return summary, said


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, list[str]]:
    workdir = tmp_path_factory.mktemp("sweep") / "run"
    return workdir, *run(tiny(cells=CELLS_OF_SWEEP), workdir)


class TestSweep:
    def test_has_a_row_for_each_method_and_cell(self, swept: Any) -> None:
        _, summary, _ = swept
        places = [
            (r["method"], r["settings"]["delay.kind"], r["settings"]["delay.tau"])
            for r in summary["rows"]
        ]
        assert places == [
            ("sgd", "fixed", 0),
            ("adam", "fixed", 0),
            ("sgd", "fixed", 2),
            ("adam", "fixed", 2),
            ("adam", "uniform", 2),
        ]
        assert summary["chance"] == math.log(256) == CHANCE

    def test_each_row_has_a_number_for_each_seed(self, swept: Any) -> None:
        for row in swept[1]["rows"]:
            first, second = row["final"]
            assert first != second
            assert row["curve"]["round"] == [2, 4]
            assert row["curve"]["loss"][-1] == row["final"]
            assert row["applied"] == [4, 4]

    def test_ages_are_those_of_the_ramp(self, swept: Any) -> None:
        ages = {
            (r["method"], r["settings"]["delay.kind"], r["settings"]["delay.tau"]): r[
                "mean_age"
            ]
            for r in swept[1]["rows"]
        }
        assert ages["sgd", "fixed", 0] == 0
        # Ages 0, 1, 2, 2 in four rounds.
        assert ages["adam", "fixed", 2] == pytest.approx(5 / 4)
        assert 0 < ages["adam", "uniform", 2] < 5 / 4

    def test_leaves_table_picture_and_summary(self, swept: Any) -> None:
        workdir, summary, _ = swept
        assert (
            json.loads((workdir / "summary.json").read_text())["name"]
            == (summary["name"])
        )
        assert (workdir / "sweep.png").stat().st_size > 10_000
        text = (workdir / "report.md").read_text()
        assert "Age-blind Adam" in text
        assert "again" in text

    def test_says_how_far_it_is(self, swept: Any) -> None:
        said = swept[2]
        assert any("5 runs of 2 seeds, 2 programs to compile" in line for line in said)
        assert sum("5/5" in line for line in said) == 1

    def test_nothing_is_run_again(self, swept: Any) -> None:
        workdir, summary, _ = swept
        again, said = run(tiny(cells=CELLS_OF_SWEEP), workdir, resume=True)
        assert again["rows"] == summary["rows"]
        assert any("5 of 5 finished before" in line for line in said)

    def test_what_a_killed_sweep_lacks_is_run(self, swept: Any, tmp_path: Path) -> None:
        workdir, summary, _ = swept
        half = tmp_path / "half"
        half.mkdir()
        (half / "config.json").write_bytes((workdir / "config.json").read_bytes())
        lines = (workdir / CELLS).read_text().splitlines(keepends=True)
        # Killed while it wrote the last line.
        (half / CELLS).write_text("".join(lines[:-1]) + lines[-1][:40])
        again, said = run(tiny(cells=CELLS_OF_SWEEP), half, resume=True)
        assert any("4 of 5 finished before" in line for line in said)
        for row, before in zip(again["rows"], summary["rows"], strict=True):
            np.testing.assert_allclose(row["final"], before["final"], rtol=1e-5)

    @pytest.mark.slow
    def test_cells_at_once_give_the_same(self, swept: Any, tmp_path: Path) -> None:
        c = tiny(cells=CELLS_OF_SWEEP)
        c.sweep.cells_at_once, c.sweep.threads = 3, 1
        together, _ = run(c, tmp_path / "run")
        for row, alone in zip(together["rows"], swept[1]["rows"], strict=True):
            np.testing.assert_allclose(row["final"], alone["final"], rtol=1e-3)


def test_a_run_has_one_cell_and_its_curves(tmp_path: Path) -> None:
    summary, _ = run(tiny("delay.tau=2"), tmp_path / "run")
    assert [row["method"] for row in summary["rows"]] == ["sgd", "adam"]
    assert (tmp_path / "run" / "curves.png").exists()


def test_fragments_are_synced_by_every_kind_of_method(tmp_path: Path) -> None:
    c = tiny(
        "methods=adam,pa_cgad",
        "model.layers=2",
        "sync.fragments=2",
        "sync.drop=0.5",
        "sync.quorum=1",
        "delay.protocol=in_flight",
        "delay.tau=1",
        "train.rounds=8",
    )
    summary, _ = run(c, tmp_path / "run")
    for row in summary["rows"]:
        assert all(loss is not None for loss in row["final"])
        # Half of the syncs of eight rounds are lost, and the last is not there yet.
        assert all(0 < applied < 8 for applied in row["applied"])


@pytest.mark.slow
def test_low_precision_trains(tmp_path: Path) -> None:
    c = tiny("methods=adam", "train.precision=bf16_8bit", "train.keep_inner=false")
    summary, _ = run(c, tmp_path / "run")
    (row,) = summary["rows"]
    assert all(loss < CHANCE + 0.5 for loss in row["final"])


class TestJobs:
    def cells(self, *texts: str, methods: str = "adam,cgad") -> list[Cell]:
        return plan(FAMILY, tiny(f"methods={methods}", cells=texts), "corpus")

    def test_methods_share_what_they_do_not_use(self) -> None:
        low, high = self.cells("outer.alpha=0.1", "outer.alpha=0.4")
        adam, cgad = zip(low.jobs, high.jobs, strict=True)
        assert adam[0].identity == adam[1].identity
        assert cgad[0].identity != cgad[1].identity
        # And one program serves both alphas.
        assert cgad[0].program == cgad[1].program

    def test_all_delays_are_one_program(self) -> None:
        cells = self.cells("delay.tau=0", "delay.tau=3", "delay.kind=uniform")
        assert len({cell.jobs[0].program for cell in cells}) == 1
        assert len({cell.jobs[0].identity for cell in cells}) == 3
        assert room(FAMILY, cells) == 3

    def test_another_length_is_another_program(self) -> None:
        a, b = self.cells("train.local_steps=1", "train.local_steps=2")
        assert a.jobs[0].program != b.jobs[0].program

    def test_another_corpus_is_another_job(self) -> None:
        c = tiny("methods=adam")
        (one,), (other,) = plan(FAMILY, c, "one"), plan(FAMILY, c, "other")
        assert one.jobs[0].identity != other.jobs[0].identity

    def test_chunks_hold_one_program_each(self) -> None:
        cells = self.cells("delay.tau=0", "delay.tau=1", "delay.tau=2")
        groups = list(chunks([job for cell in cells for job in cell.jobs], 2))
        assert [[job.method for job in group] for group in groups] == [
            ["adam", "adam"],
            ["adam"],
            ["cgad", "cgad"],
            ["cgad"],
        ]


class TestSchedules:
    def test_skip_waits_and_ramp_does_not(self) -> None:
        _, ramp = schedule(tiny("delay.tau=2"), 0)
        delays, skip = schedule(tiny("delay.tau=2", "delay.start=skip"), 0)
        assert ramp.all()
        np.testing.assert_array_equal(skip[:, 0, 0], [False, False, True, True])
        assert (delays == 2).all()

    def test_seeds_draw_delays_of_their_own(self) -> None:
        c = tiny("delay.kind=uniform", "delay.tau=3", "train.rounds=40")
        one, other = schedule(c, 0)[0], schedule(c, 1)[0]
        assert (one != other).any()

    def test_a_trace_is_read(self, tmp_path: Path) -> None:
        file = tmp_path / "trace.csv"
        file.write_text("0,1\n0,0\n2,1\n")
        c = tiny("delay.kind=trace", f"delay.trace={file}")
        delays, _ = schedule(c, 0)
        np.testing.assert_array_equal(delays[:, 0], [[0, 0], [0, 0], [2, 1], [0, 1]])

    @pytest.mark.parametrize("text", ["", "1,x\n", "1,-1\n", "1\n1,2\n"])
    def test_a_trace_that_is_none_is_refused(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "trace.csv"
        file.write_text(text)
        with pytest.raises(ConfigError, match="trace.csv"):
            schedule(tiny("delay.kind=trace", f"delay.trace={file}"), 0)

    def test_a_trace_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        c = tiny("delay.kind=trace", f"delay.trace={tmp_path / 'none.csv'}")
        with pytest.raises(ConfigError, match="none.csv can't be read .*name a CSV"):
            schedule(c, 0)


def test_a_damaged_line_of_results_is_named(tmp_path: Path) -> None:
    (tmp_path / CELLS).write_text('{"identity": "a"}\nnonsense\n{"identity": "b"}\n')
    with pytest.raises(ResultsError, match=r"line 2 .*delete that line"):
        Results(tmp_path)
