"""The benchmark of transfers moves what it says, and compares like with like."""

import asyncio
import json
import shutil
import time
from pathlib import Path

import pytest

from benchmarks import _moving, _processes, transport

programs = pytest.mark.skipif(
    shutil.which("nginx") is None or shutil.which("curl") is None,
    reason="nginx or curl isn't installed",
)


def test_what_is_moved_arrives(tmp_path: Path) -> None:
    content = _moving.make_content(tmp_path / "content", 3 << 20)
    server = _moving.start_ours(content, None)
    try:
        mover = _moving.Mover(content)
        asyncio.run(mover.submit(server, "ada"))
        asyncio.run(mover.fetch(server, "bob"))
        sent = (tmp_path / "content/accepted/ada").read_bytes()
        got = (tmp_path / "content/got/bob/data.0").read_bytes()
        assert sent == got == content.data.read_bytes()
        mover.forget()
        assert not (tmp_path / "content/got").exists()
    finally:
        _processes.end(server.process)
    assert server.process.poll() is not None


@programs
def test_prints_both_tables_and_writes_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    options = ["--mib=1", "--repeats=1", "--at-once=1,2", f"--json={file}"]
    assert transport.main([*options, f"--directory={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert "http upload: of nginx (target 0.6)" in said
    found = json.loads(file.read_text())
    kinds = {(r["scheme"], r["what"], r["client, server"]) for r in found["rows"]}
    assert len(kinds) == len(found["rows"]) == 2 * 9
    assert ("https", "download", "ours, nginx") in kinds
    assert all(row["MB/s"] > 0 for row in found["rows"])
    assert all(
        row["of nginx"] == 1 for row in found["rows"] if row[_WHO] == "curl, nginx"
    )
    assert [row["at once"] for row in found["memory"]] == [1, 2, 1] * 2
    assert list(tmp_path.iterdir()) == [file]  # nothing else is left behind


_WHO = "client, server"


def test_without_nginx_the_rest_is_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(transport.shutil, "which", lambda name: None)
    rows = transport.run_scheme(tmp_path, None, 1 << 20, 1)
    assert [(row["what"], row["of nginx"]) for row in rows] == [
        ("download", "-"),
        ("upload", "-"),
    ]
    said = capsys.readouterr().out
    assert "nginx isn't installed" in said
    assert "curl isn't installed" in said


def test_ratios_are_of_timings_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours takes twice as long each time, while the machine gets slower."""
    speeds = iter([9, 9, 1, 2, 4, 8, 16, 32])  # the first pair isn't counted
    monkeypatch.setattr(
        transport, "timed", lambda way, mover: transport.Timing(next(speeds), 1.0, 0.5)
    )
    names = ("curl, nginx", "ours, ours")
    ways = [transport.Way("upload", name, print, None) for name in names]  # type: ignore[arg-type]
    rows = transport.compare("http", ways, None, 1 << 29, 3)  # type: ignore[arg-type]
    assert [row["of nginx"] for row in rows] == [1.0, 0.5]
    assert rows[1]["MB/s"] == round((1 << 29) / 1e6 / 8)
    assert rows[1]["client CPU s/GiB"] == 2.0


def test_memory_and_time_of_a_process() -> None:
    """This one's: 40 MB for a moment, and a tenth of a second of work."""
    import os

    pid = os.getpid()
    _processes.reset_peak(pid)
    before, cpu = _processes.resident(pid), _processes.cpu_seconds(pid)
    held = bytearray(b"x") * (40 << 20)
    del held
    ends = time.process_time() + 0.1
    while time.process_time() < ends:
        pass
    grown = _processes.resident(pid, "VmHWM") - before
    assert 38 << 20 < grown < 60 << 20
    assert 0.05 <= _processes.cpu_seconds(pid) - cpu < 5
