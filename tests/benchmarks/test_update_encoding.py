"""The benchmark of encodings reports what a file would take."""

import json

import numpy as np
import pytest

from benchmarks import update_encoding


def test_every_encoding_of_every_update_is_a_row(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        update_encoding, "trained", lambda *_: [np.ones(512, np.float32)]
    )
    out = tmp_path / "out.json"
    arguments = ["--numbers=4096", "--repeats=1", f"--json={out}"]
    assert update_encoding.main(arguments) == 0
    rows = json.loads(out.read_text())["rows"]
    bits = {row["encoding"]: row["bits"] for row in rows if row["update"] == "gaussian"}
    assert bits["float32"] == 32
    assert bits["int8"] == 8.125
    assert bits["int4"] == 4.125
    assert bits["int4 zstd 3"] < bits["int4"]
    assert len(rows) == 3 * 8
    assert all(row["error"] == 0 for row in rows if "float32" in row["encoding"])
    assert "times smaller" in capsys.readouterr().out
