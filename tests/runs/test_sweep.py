"""A sweep runs its cells once each and reports them together."""

import json
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from spheroid_jax.config import default
from spheroid_jax.runs import sweep


@pytest.fixture
def config() -> ConfigDict:
    c = default()
    c.name = "test_sweep"
    c.data.corpus = "embedded"
    c.model.blocks, c.model.layers, c.model.width, c.model.heads = 2, 1, 8, 2
    c.data.seq_len, c.data.batch = 8, 2
    c.train.rounds, c.train.local_steps, c.train.warmup_steps = 2, 1, 0
    c.eval.windows = c.eval.curve_windows = c.eval.batch = 2
    c.eval.mix_draws = 1
    c.methods = ("blocktrain", "block_sized")
    c.sweep = ConfigDict()
    c.sweep.axis = "model.blocks"
    c.sweep.cells = ("model.blocks=1", "model.blocks=2 model.head=tied")
    c.sweep.log_x = False
    c.sweep.series = ("ce_chain", "block_sized")
    return c


def test_labels_are_folder_names_that_tell_cells_apart() -> None:
    label = sweep.cell_label("model.blocks=2 data.corpus=file:/a/b c")
    assert label == "blocks=2-corpus=file_a_b_c"


def test_every_cell_is_run_and_reported(config: ConfigDict, tmp_path: Path) -> None:
    lines: list[str] = []
    sweep.run_sweep(
        config, tmp_path / "s", resume=False, command="test", say=lines.append
    )
    summary = json.loads((tmp_path / "s" / "summary.json").read_text())
    assert [cell["settings"] for cell in summary["cells"]] == [
        {"model.blocks": 1},
        {"model.blocks": 2, "model.head": "tied"},
    ]
    for cell in summary["cells"]:
        assert cell["results"].keys() >= {"ce_chain", "ce_ensemble", "block_sized"}
        own = json.loads((tmp_path / "s" / cell["summary"]).read_text())
        assert own["results"] == cell["results"]
        assert cell["scale"]["blocks"] == cell["settings"]["model.blocks"]
        # 2 rounds of one step on 2 windows of 8 bytes, for each block.
        assert cell["scale"]["bytes_seen"] == 2 * 2 * 8 * cell["scale"]["blocks"]
    assert len(summary["cells"][0]["results"]["local_ce"]) == 1
    assert "blocks" in (tmp_path / "s" / "report.md").read_text()
    assert (tmp_path / "s" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert any("cell 2/2" in line for line in lines)


def test_finished_cells_are_not_run_again(
    config: ConfigDict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Path] = []
    real = sweep.run_experiment

    def stopping(cell_config: ConfigDict, workdir: Path, **options: object) -> object:
        ran.append(workdir)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return real(cell_config, workdir, **options)

    monkeypatch.setattr(sweep, "run_experiment", stopping)
    with pytest.raises(KeyboardInterrupt):
        sweep.run_sweep(config, tmp_path / "s", resume=False, command="test")
    sweep.run_sweep(config, tmp_path / "s", resume=True, command="test")
    # The first cell once; the second, which was interrupted, again.
    assert [path.name for path in ran] == [
        "blocks=1",
        "blocks=2-head=tied",
        "blocks=2-head=tied",
    ]
    summary = json.loads((tmp_path / "s" / "summary.json").read_text())
    assert len(summary["cells"]) == 2
