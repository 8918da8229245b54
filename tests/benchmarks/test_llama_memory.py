"""The memory table against bytes counted by hand."""

import json
from pathlib import Path

import pytest

from benchmarks import llama_memory
from spheroid_jax.models import llama, parameter_count


def test_the_memory_table_counts_bytes_from_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    arguments = ["--sizes=25m,7b", "--devices=1,8", f"--json={out}"]
    assert llama_memory.main(arguments) == 0
    written = json.loads(out.read_text())
    printed = capsys.readouterr().out
    assert len(written["rows"]) == 2 * 2 * 2
    for row in written["rows"]:
        count = parameter_count(llama(row["size"]))
        assert row["parameters"] == count
        # Four bytes thrice, or two and twice one with two scales for 256 elements. The
        # narrow table's scales can't be cut by eight.
        each = 12 if "float32" in row["state"] else 4 + 8 / 256
        expected = each * count / row["devices"]
        assert 0.999 * expected < row["bytes on a device"] < 1.1 * expected
        assert row["on a device, GiB"] == pytest.approx(
            row["weights, GiB"] + row["moments, GiB"], abs=2e-4
        )
        assert str(row["bytes on a device"]) in printed
    assert all(2.9 < ratio < 3.0 for ratio in written["ratios"].values())


def test_the_7b_of_float32_fills_75_gib_and_not_26() -> None:
    """6.68 B parameters at 12 bytes: 74.7 GiB; at 4.03: 25.1."""
    rows = llama_memory.rows_of("7b", [1])
    assert [row["on a device, GiB"] for row in rows] == pytest.approx(
        [74.68, 25.09], abs=0.05
    )
