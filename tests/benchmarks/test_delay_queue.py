"""The benchmark compares two simulations that do the same, and prints its table."""

import json
from pathlib import Path

import pytest

from benchmarks import delay_queue


def test_both_simulations_end_at_the_same_parameters() -> None:
    # CGAD divides by the root of small second moments, which enlarges rounding.
    assert delay_queue.check(2, 3) < 1e-3


def test_prints_a_table_and_writes_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    arguments = ["--workers=4", "--delays=0,4", "--repeats=1", f"--json={file}"]
    assert delay_queue.main(arguments) == 0
    text = capsys.readouterr().out
    assert "compiled rounds/s" in text
    written = json.loads(file.read_text())
    settings = [(r["workers"], r["largest delay"]) for r in written["rows"]]
    assert settings == [(4, 4), (4, 0)]
    assert all(row["ratio"] > 0 for row in written["rows"])
