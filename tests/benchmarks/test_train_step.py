"""A benchmark prints a table and writes the same rows as JSON."""

import json

import pytest

from benchmarks import train_step
from benchmarks._harness import paired_ratio


def test_the_train_step_benchmark_reports_all_three_steps(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tmp_path / "tiny.py"
    tiny.write_text(
        "from spheroid_jax.config import default\n"
        "def get_config():\n"
        "    c = default()\n"
        "    c.model.width, c.model.heads, c.model.layers = 16, 2, 1\n"
        "    c.data.seq_len, c.data.batch = 16, 2\n"
        "    return c\n"
    )
    monkeypatch.setattr(train_step, "matmul_peak", lambda: 1e12)
    # As on an accelerator whose peak is known, two teraflops.
    monkeypatch.setattr(train_step, "model_flops_utilisation", lambda f: f / 2e12)
    out = tmp_path / "out.json"
    status = train_step.main([f"--config={tiny}", "--repeats=2", f"--json={out}"])
    assert status == 0
    written = json.loads(out.read_text())
    assert len(written["rows"]) == 3
    printed = capsys.readouterr().out
    for row in written["rows"]:
        assert row["step"] in printed
        assert row["tokens/s"] > 0
        # The share is of the peak that was measured, here a made-up teraflop.
        assert row["share of matmul peak"] == pytest.approx(
            row["GFLOP/s"] / 1000, abs=1e-3
        )
        assert row["MFU"] == pytest.approx(row["GFLOP/s"] / 2000, abs=1e-4)
    assert "block step / L-layer step" in written["ratios"]


def test_ratios_pair_timings_taken_side_by_side() -> None:
    # The machine slows down threefold half-way: the paired ratio doesn't notice.
    assert paired_ratio([2.0, 2.0, 6.0, 6.0], [1.0, 1.0, 3.0, 3.0]) == 2.0
