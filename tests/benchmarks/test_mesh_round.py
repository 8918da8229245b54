"""The benchmark's three ways do the same round, and its table has them all."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import mesh_round
from spheroid_jax.commandline import load
from spheroid_jax.delivery import lockstep
from spheroid_jax.rounds import make_round
from spheroid_jax.runs.methods import build_method


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    file = tmp_path / "tiny.py"
    file.write_text(
        "from spheroid_jax.config import default\n"
        "def get_config():\n"
        "    c = default()\n"
        "    c.model.blocks, c.model.layers = 2, 1\n"
        "    c.model.width, c.model.heads = 16, 2\n"
        "    c.data.seq_len, c.data.batch, c.train.local_steps = 8, 2, 2\n"
        "    c.model.remat, c.train.replicas = 'none', 2\n"
        "    return c\n"
    )
    return str(file)


def test_the_table_has_a_row_for_each_k(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    arguments = [f"--config={tiny}", "--repeats=1", f"--json={out}", "--replicas=2"]
    assert mesh_round.main(arguments) == 0
    written = json.loads(out.read_text())
    (row,) = written["rows"]
    assert (row["K"], row["mesh"], row["workers"]) == (2, "2 x 2 x 1", 4)
    assert all(row[f"{way}, ms"] > 0 for way in ("mesh", "one device", "loop"))
    assert set(written["ratios"]) == {
        "K=2: loop / mesh",
        "K=2: one device / mesh",
    }
    printed = capsys.readouterr().out
    assert "2 x 2 x 1" in printed
    assert "all-reduce" in printed


def test_the_loop_over_workers_is_the_same_round(tiny: str) -> None:
    config = load(tiny)
    method = build_method(config, "blocktrain")
    state = jax.jit(lambda k: mesh_round.first_state(method, k))(jax.random.key(0))
    shape = mesh_round.windows_shape(method, config)
    windows = jax.random.randint(jax.random.key(1), shape, 0, 256).astype("uint8")
    expected, _ = jax.jit(make_round(method.engine))(state, windows, lockstep(2, 2))
    got = mesh_round.python_loop(method)(state, windows)
    assert int(got.round) == 1
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4),
        (got.params, got.outer),
        (expected.params, expected.outer),
    )
