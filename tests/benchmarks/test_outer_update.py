"""The benchmark of outer updates, on a small tree; memory is exact at any size."""

import json
from pathlib import Path

import pytest

from benchmarks import outer_update


def test_no_update_needs_more_memory_than_adam(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    arguments = ["--params=1e6", "--repeats=2", f"--json={out}"]
    assert outer_update.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "no extra copy of the parameters: yes" in printed
    written = json.loads(out.read_text())
    assert [row["update"] for row in written["rows"]] == list(
        outer_update.NAMES.values()
    )
    for row in written["rows"]:
        assert row["update"] in printed
        assert row["ms"] > 0
        # Parameters, gradient and two moments; everything else is scalars.
        assert row["memory, copies of the parameters"] == pytest.approx(4, abs=0.01)
    for name in ("cgad", "pa_cgad", "pa_cgad_one"):
        assert written["ratios"][f"{name} / adam, time"] > 0
        assert written["ratios"][f"{name}, copies more than adam"] < 0.01


def test_the_tree_has_the_size_asked_for() -> None:
    leaves = outer_update.tree(1_000_000)
    assert len(leaves) == outer_update.LEAVES
    assert sum(leaf.size for leaf in leaves.values()) == pytest.approx(1e6, rel=0.02)
    assert set(outer_update.fragments()) == set(leaves)
    assert len(set(outer_update.fragments().values())) == outer_update.FRAGMENTS
