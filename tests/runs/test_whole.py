"""Runs in one go: claimed, opened, reported, and never taken up halfway."""

import json
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict

from spheroid_jax import config
from spheroid_jax.fields import ConfigError
from spheroid_jax.runs.whole import Say, Whole, run_whole

Done = list[str]


def kind(done: Done, refused: str = "") -> Whole:
    def prepare(config: ConfigDict) -> str:
        if refused:
            raise ConfigError(refused)
        return "what is done"

    def work(config: ConfigDict, prepared: str, say: Say) -> dict[str, Any]:
        assert prepared == "what is done"
        done.append("work")
        say("half of it")
        return {"rows": [1, 2], "environment": "of the work"}

    def write(workdir: Path, summary: dict[str, Any]) -> None:
        done.append("report")
        (workdir / "summary.json").write_text(json.dumps(summary))

    return Whole(prepare, lambda config, prepared: prepared, work, write)


def go(whole: Whole, workdir: Path, *, resume: bool = False) -> tuple[Any, list[str]]:
    said: list[str] = []
    summary = run_whole(
        whole, config.bound(), workdir, resume=resume, command="again", say=said.append
    )
    return summary, said


def test_it_opens_works_and_reports(tmp_path: Path) -> None:
    done: Done = []
    summary, said = go(kind(done), tmp_path / "run")
    assert done == ["work", "report"]
    assert said[1:] == ["what is done", "half of it"]
    told = {name: summary[name] for name in ("kind", "rows", "command", "environment")}
    assert told == {
        "kind": "bound",
        "rows": [1, 2],
        "command": "again",
        "environment": "of the work",
    }


def test_a_finished_run_is_reported_again_and_not_run(tmp_path: Path) -> None:
    done: Done = []
    first, _ = go(kind(done), tmp_path / "run")
    again, said = go(kind(done), tmp_path / "run", resume=True)
    assert done == ["work", "report", "report"]
    assert again["rows"] == first["rows"]
    assert "finished before, not run again" in said[0]


@pytest.mark.parametrize("left", ['{"format": 1, "rows"', '{"format": 99}', "[]"])
def test_a_run_that_was_stopped_starts_again(tmp_path: Path, left: str) -> None:
    done: Done = []
    go(kind(done), tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text(left)
    go(kind(done), tmp_path / "run", resume=True)
    assert done.count("work") == 2


def test_what_is_refused_claims_no_directory(tmp_path: Path) -> None:
    done: Done = []
    with pytest.raises(ConfigError, match="no such file"):
        go(kind(done, "no such file"), tmp_path / "run")
    assert not done
    assert not (tmp_path / "run").exists()
