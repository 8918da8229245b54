"""One run directory for all processes, and for whatever mesh it goes on with."""

import json
from pathlib import Path

import pytest

from spheroid_jax import config
from spheroid_jax.runs import workdir as module
from spheroid_jax.runs.workdir import WorkdirError, open_shared_workdir, open_workdir


def test_a_run_goes_on_with_another_mesh(tmp_path: Path) -> None:
    fields = config.default()
    open_workdir(tmp_path / "run", fields, resume=False)
    fields.mesh.block, fields.mesh.replica = 3, 2
    open_workdir(tmp_path / "run", fields, resume=True)
    fields.train.rounds += 1
    with pytest.raises(WorkdirError, match="train.rounds was"):
        open_workdir(tmp_path / "run", fields, resume=True)


def test_the_process_that_speaks_makes_the_directory(tmp_path: Path) -> None:
    fields = config.default()
    open_shared_workdir(tmp_path / "run", fields, resume=False)
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["train"]["rounds"] == fields.train.rounds


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is another than process 0, which has written ``{"a": 1}``."""
    monkeypatch.setattr(module.distributed, "is_main", lambda: False)
    monkeypatch.setattr(module.distributed, "agree", lambda name, value: '{"a": 1}')
    monkeypatch.setattr(module, "_SHARED_WITHIN", 0.2)


@pytest.mark.usefixtures("follower")
def test_another_process_writes_nothing_and_sees_what_process_0_wrote(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    open_shared_workdir(tmp_path, config.default(), resume=False)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.usefixtures("follower")
@pytest.mark.parametrize("found", [None, '{"a": 2}'])
def test_a_directory_that_is_not_shared_is_named(
    tmp_path: Path, found: str | None
) -> None:
    if found is not None:
        (tmp_path / "config.json").write_text(found)
    with pytest.raises(WorkdirError, match="shared file system"):
        open_shared_workdir(tmp_path, config.default(), resume=False)
