"""The benchmark measures what it says, and prints its table."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import checkpoint


def test_peak_memory_is_that_of_the_function() -> None:
    """A function that holds 60 MB for a moment, and one that holds nothing."""
    held = checkpoint.timed(lambda: np.ones(60_000_000, np.uint8).sum())
    idle = checkpoint.timed(lambda: None)
    assert 55e6 < held.peak < 75e6
    assert idle.peak < 5e6


def test_prints_a_table_and_writes_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    arguments = ["--megabytes=1,2", "--repeats=1", f"--json={file}"]
    assert checkpoint.main([*arguments, f"--directory={tmp_path}"]) == 0
    text = capsys.readouterr().out
    assert "restore a block: over cp (target 0.5)" in text
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 2 * 9
    # A block is half of what both are.
    sizes = {row["operation"]: row["MB"] for row in rows}
    assert sizes["restore a block"] == pytest.approx(sizes["restore all"] / 2, abs=0.1)
    assert all(row["MB/s"] > 0 and row["over cp"] > 0 for row in rows)
    assert list(tmp_path.iterdir()) == [file]  # nothing else is left behind
