"""Run directories: numbered, claimed once, taken up only by their own configuration."""

import json
from pathlib import Path

import pytest

from spheroid_jax.config import ADDED, default
from spheroid_jax.runs.session import fresh_command, resume_command
from spheroid_jax.runs.settings import training_identity
from spheroid_jax.runs.workdir import (
    WorkdirError,
    default_workdir,
    flatten,
    open_workdir,
)


def claim(root: Path, name: str) -> None:
    (root / name).mkdir()
    (root / name / "config.json").write_text("{}")


def test_fresh_runs_are_numbered(tmp_path: Path) -> None:
    assert default_workdir("b3", "quick", False, tmp_path) == tmp_path / "b3-quick"
    claim(tmp_path, "b3-quick")
    assert default_workdir("b3", "quick", False, tmp_path) == tmp_path / "b3-quick-2"
    claim(tmp_path, "b3-quick-2")
    assert default_workdir("b3", "quick", False, tmp_path) == tmp_path / "b3-quick-3"
    assert default_workdir("b3", "small", False, tmp_path) == tmp_path / "b3-small"


def test_resuming_takes_the_newest(tmp_path: Path) -> None:
    for name in ("b3-quick", "b3-quick-2"):
        claim(tmp_path, name)
    assert default_workdir("b3", "quick", True, tmp_path) == tmp_path / "b3-quick-2"


def test_resuming_without_any_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkdirError, match="nothing to resume: no run called b3-quick"):
        default_workdir("b3", "quick", True, tmp_path)


def test_a_run_is_resumed_only_by_its_own_configuration(tmp_path: Path) -> None:
    config = default()
    open_workdir(tmp_path / "run", config, resume=False)
    open_workdir(tmp_path / "run", config, resume=True)
    config.model.layers = 7
    with pytest.raises(WorkdirError, match=r"model\.layers was 4, now 7"):
        open_workdir(tmp_path / "run", config, resume=True)


def test_a_run_from_before_a_field_came_is_resumed_with_what_it_did(
    tmp_path: Path,
) -> None:
    config = default()
    open_workdir(tmp_path / "run", config, resume=False)
    path = tmp_path / "run/config.json"
    older = json.loads(path.read_text())
    for field in ADDED:
        section, name = field.split(".")
        del older[section][name]
    path.write_text(json.dumps(older))
    open_workdir(tmp_path / "run", config, resume=True)
    config.train.context_mask = 0.5
    with pytest.raises(WorkdirError, match=r"train\.context_mask was 0\.0, now 0\.5"):
        open_workdir(tmp_path / "run", config, resume=True)


def test_a_checkpoint_from_before_a_field_came_is_of_the_same_run() -> None:
    config, before = default(), default()
    with before.unlocked():
        del before.train.context_mask, before.train.context_fill
    identity = training_identity(config)
    assert identity == training_identity(before)
    # What fills a context that isn't cut is the same nothing.
    config.train.context_fill = "zero"
    assert training_identity(config) == identity
    config.train.context_mask = 0.5
    cut = training_identity(config)
    assert cut == {**identity, "train.context_mask": 0.5, "train.context_fill": "zero"}


def test_a_folder_in_use_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(WorkdirError, match="isn't empty"):
        open_workdir(tmp_path, default(), resume=False)
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"name": ')
    with pytest.raises(WorkdirError, match=r"config\.json can't be read"):
        open_workdir(tmp_path, default(), resume=True)


def test_a_path_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkdirError, match="can't write to"):
        open_workdir(tmp_path / "file" / "run", default(), resume=False)


def test_the_saved_config_holds_every_field(tmp_path: Path) -> None:
    open_workdir(tmp_path / "run", default(), resume=False)
    saved = flatten(json.loads((tmp_path / "run" / "config.json").read_text()))
    assert saved["train.learning_rate"] == default().train.learning_rate
    assert saved["methods"] == list(default().methods)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m x --config=a", "python -m x --config=a --workdir=runs/a --resume"),
        ("python -m x --workdir=b", "python -m x --workdir=b --resume"),
        ("python -m x --workdir=b --resume", "python -m x --workdir=b --resume"),
        ("python -m x '--t=a b'", "python -m x '--t=a b' --workdir=runs/a --resume"),
    ],
)
def test_the_way_back_is_a_command(command: str, expected: str) -> None:
    assert resume_command(command, Path("runs/a")) == expected


@pytest.mark.parametrize(
    "extra", ["--workdir=a", "--workdir a", "--resume", "--workdir=a --resume"]
)
def test_the_command_that_starts_anew_names_no_folder(extra: str) -> None:
    assert fresh_command(f"python -m x --c=1 {extra}") == "python -m x --c=1"
