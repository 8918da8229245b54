"""A coordinator's run ends with a report, which anyone can draw again."""

import json
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax import config, data
from spheroid_jax.fields import ConfigError
from spheroid_jax.reports.exchange import coordinated
from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.runs.exchange import coordinate, ending, frame
from spheroid_jax.runs.exchange.options import parse
from spheroid_jax.runs.workdir import open_workdir
from spheroid_jax.transport.coordinator import METHOD
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.tokens import LEDGER
from tests.runs.exchange_configs import toy

FILES = {"summary.json", "report.md", "exchange.png"}
COMMAND = "python -m experiments.coordinator --config=mine.py"


def ran(folder: Path, rounds: int) -> Path:
    """What a run of three rounds has on its disk after so many."""
    c = toy(config.exchange(), folder / "text")
    c.name, c.size = "wan", "quick"
    workdir = folder / "run"
    open_workdir(workdir, c, resume=False)
    with MetricsLog(workdir) as log, Ledger.open(workdir / LEDGER) as ledger:
        ending.note_about(ledger, data.load_corpus(c.data.corpus), COMMAND)
        for number in range(1, rounds + 1):
            figures = {
                "round_seconds": 2.0,
                "closing_seconds": 0.5,
                "train_loss": 4.0,
                "heard": 2,
                "timely": 2,
                "expected": 2,
                "age": 0.0,
                "bytes_up": 10,
                "bytes_down": 20,
                "ce_chain": 5.0 - number,
                "ce_ensemble": 4.5 - number,
            }
            log.write(METHOD, number, figures, step=2 * number, seconds=3.0 * number)
        log.write("lockstep", 0, {"ce_chain": 9.0}, step=0, seconds=0.0)
        ledger.note("round", rounds)
        ledger.note("seconds", 3.0 * rounds)
    return workdir


def summary_in(workdir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((workdir / "summary.json").read_text())
    return found


def test_the_report_is_drawn_from_the_disk_alone(tmp_path: Path) -> None:
    workdir = ran(tmp_path, 3)
    assert ending.report_on(workdir) == (
        f"report: {workdir}/report.md, exchange.png and summary.json beside it"
    )
    assert {p.name for p in workdir.iterdir()} >= FILES
    summary = summary_in(workdir)
    assert summary["state"] == "finished"
    assert [p["ce_chain"] for p in summary["ce"]] == [4.0, 3.0, 2.0]
    assert summary["corpus"]["train_bytes"] > 0
    assert COMMAND in (workdir / "report.md").read_text()
    before = (workdir / "report.md").read_bytes()
    ending.report_on(workdir)
    assert (workdir / "report.md").read_bytes() == before


def test_a_stopped_run_is_marked(tmp_path: Path) -> None:
    workdir = ran(tmp_path, 2)
    assert ending.report_on(workdir).startswith("report so far (2 of 3 rounds): ")
    assert summary_in(workdir)["state"] == "unfinished"
    assert "**Unfinished**" in (workdir / "report.md").read_text()


def test_a_running_coordinator_may_be_reported_on(tmp_path: Path) -> None:
    workdir = ran(tmp_path, 2)
    with MetricsLog(workdir), Ledger.open(workdir / LEDGER) as ledger:
        ending.report_on(workdir)
        ledger.note("round", 3)  # it still can
    assert summary_in(workdir)["rounds_done"] == 2


def test_figures_alone_are_enough(tmp_path: Path) -> None:
    """Such as where somebody has only got these two files."""
    workdir = ran(tmp_path, 3)
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("config.json", "metrics.jsonl"):
        (alone / name).write_bytes((workdir / name).read_bytes())
    ending.report_on(alone)
    assert {p.name for p in alone.iterdir()} == {*FILES, "config.json", "metrics.jsonl"}
    ending.report_on(workdir)
    assert summary_in(alone)["ce"] == summary_in(workdir)["ce"]


def test_a_picture_that_cant_be_drawn_fails_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir = ran(tmp_path, 3)

    def broken(*given: Any) -> None:
        raise RuntimeError("no\nfonts")

    monkeypatch.setattr(coordinated, "plot_coordinated", broken)
    lines: list[str] = []
    ending.leave_report(workdir, lines.append)
    (line,) = lines
    assert "\n" not in line
    assert "couldn't be written (RuntimeError: no fonts)" in line
    assert f"--workdir={workdir} --report=only" in line
    assert summary_in(workdir)["state"] == "finished"


def test_metrics_that_cant_be_read_fail_no_run(tmp_path: Path) -> None:
    workdir = ran(tmp_path, 3)
    metrics = workdir / "metrics.jsonl"
    metrics.write_bytes(b"not a record\n" + metrics.read_bytes())
    lines: list[str] = []
    ending.leave_report(workdir, lines.append)
    assert "line 1 isn't a record of metrics; delete that line" in lines[0]


@pytest.mark.parametrize(("report", "drawn"), [("end", True), ("never", False)])
@pytest.mark.parametrize("ended", ["finished", "drained"])
def test_when_it_is_drawn(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    report: str,
    drawn: bool,
    ended: str,
) -> None:
    workdir = ran(tmp_path, 3)
    monkeypatch.setattr(coordinate, "_run", lambda *given: ended)
    options = parse(
        ["--config=configs/wan.py", f"--workdir={workdir}", f"--report={report}"]
    )
    assert coordinate.coordinate(options) == ended
    assert (workdir / "report.md").exists() == drawn
    assert (f"report: {workdir}/report.md" in capsys.readouterr().out) == drawn


def test_only_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a configuration, a port or a lock."""
    workdir = ran(tmp_path, 2)
    arguments = [f"--workdir={workdir}", "--report=only"]
    assert frame.program(lambda: parse(arguments), coordinate.coordinate, "") == 0
    said = capsys.readouterr()
    assert said.out.startswith("report so far (2 of 3 rounds)")
    assert said.err == ""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--config=configs/wan.py"], "leave --config out"),
        (["--config.train.rounds=3"], "leave --config.train.rounds=3 out"),
        (["--report=now"], "invalid choice: 'now'"),
    ],
)
def test_what_makes_no_sense_beside_it(
    tmp_path: Path, arguments: list[str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        parse([f"--workdir={tmp_path}", "--report=only", *arguments])


def test_a_directory_of_another_kind_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run's configuration"):
        ending.report_on(tmp_path)
    (tmp_path / "config.json").write_text('{"kind": "blocks"}')
    with pytest.raises(ConfigError, match=r"of kind blocks, which has no coordinator"):
        ending.report_on(tmp_path)
