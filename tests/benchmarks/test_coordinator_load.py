"""The load on a coordinator: real rounds, every request counted, no error."""

import json
from pathlib import Path

import pytest

from benchmarks import _light, _loaded, coordinator_load


@pytest.mark.slow
def test_a_small_load_goes_through_rounds_without_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    options = ["--workers=4", "--seconds=6", "--width=16", "--think=0.1"]
    options += [f"--json={file}", f"--directory={tmp_path}"]
    assert coordinator_load.main(options) == 0
    said = capsys.readouterr().out
    found = json.loads(file.read_text())
    counts = {row["request"]: row["count"] for row in found["rows"]}
    assert counts["POST workers"] == counts["POST leave"] == 4
    # Every update is announced, sent and committed once.
    updates = counts[_light.ANNOUNCE]
    assert updates == counts[_light.SEND] == counts[_light.COMMIT] >= 4
    assert f"{updates} accepted" in found["summary"][0]
    assert "0 errors" in said
    (run,) = found["runs"]
    assert (run["workers"], run["width"], run["errors"]) == (4, 16, 0)
    # An interpreter with JAX takes more than this; libraries are files on disk.
    assert 50 < run["own before MiB"] < run["before MiB"] <= run["most MiB"]
    assert run["own most MiB"] < run["most MiB"]
    assert list(tmp_path.iterdir()) == [file]  # nothing else is left behind


def test_latency_of_work_begins_when_there_is_some() -> None:
    """Asked before the round opened, and after it; the first round isn't known."""
    rounds = _loaded.Rounds.__new__(_loaded.Rounds)
    rounds.opened = {1: 100.0}
    seen = {
        "requests": {"POST work": [30.0], "POST heartbeat": [0.01]},
        "work": [(1, 90.0, 100.2), (1, 101.0, 101.5), (0, 1.0, 2.0)],
        "verdicts": {"accepted": 2, "rejected": 1},
        "errors": [],
        "lag": [0.0],
        "up": 3,
        "down": 4,
    }
    found = _loaded.gather([seen], rounds)
    assert found.requests["work"] == pytest.approx([0.2, 0.5])
    assert "POST work" not in found.requests
    assert found.errors == ["an update was rejected"]
    assert (found.moved, found.rounds) == (7, 1)


def test_percentiles_are_in_milliseconds_and_what_is_slow_is_counted() -> None:
    row = coordinator_load.row("x", [0.001] * 98 + [0.05, 0.2])
    assert row["p50 ms"] == 1.0
    assert row["max ms"] == 200.0
    assert (row["count"], row["over"]) == (100, 1)
