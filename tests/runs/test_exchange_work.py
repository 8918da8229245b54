"""A worker's program before it says anything to a coordinator."""

from pathlib import Path

import pytest

from spheroid_jax.runs.exchange import frame, work
from spheroid_jax.transport.own_folder import lock_token

TOKEN = "a-token-of-letters-and-digits-0123456789"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    token = tmp_path / "ann.token"
    token.touch(mode=0o600)
    token.write_text(f"{TOKEN}\n")
    return ["--coordinator=http://localhost:1", f"--token-file={token}"]


def test_a_folder_in_which_the_token_is_at_work_ends_it_before_anybody_hears_of_it(
    tmp_path: Path,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(work, "_link", lambda *given: pytest.fail("it spoke"))
    given = [*arguments, f"--workdir={tmp_path}"]
    with lock_token(tmp_path, TOKEN):
        assert frame.program(given, work.parse, work.work, "") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: another worker process (process ")
    assert "end it first, or give this one a token of its own" in line


def test_a_folder_that_cant_be_written_is_told_in_a_line(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    given = [*arguments, f"--workdir={tmp_path / 'file'}"]
    assert frame.program(given, work.parse, work.work, "") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "can't be locked" in line
    assert "or name a --workdir on a local disk" in line


def test_without_a_folder_there_is_one_for_all_workers(arguments: list[str]) -> None:
    for more in ([], ["--workdir="]):
        assert work.parse([*arguments, *more]).workdir == Path("runs", "workers")
