"""Every config file at every size is sound, says what it is, and can be overridden."""

import importlib
import re
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from spheroid_jax import fields
from spheroid_jax.commandline import load
from spheroid_jax.validation import ConfigError, problems

ROOT = Path(__file__).parents[1]
NAMES = sorted(
    path.stem for path in (ROOT / "configs").glob("*.py") if path.stem != "__init__"
)
SIZES = {name: importlib.import_module(f"configs.{name}").SIZES for name in NAMES}
ALL = [(name, size) for name in NAMES for size in SIZES[name]]


def at(name: str, size: str = "") -> ConfigDict:
    colon = f":{size}" if size else ""
    return load(f"{ROOT / 'configs' / name}.py{colon}")


@pytest.mark.parametrize(("name", "size"), ALL)
def test_every_size_is_sound(name: str, size: str) -> None:
    config = at(name, size)
    assert problems(config, 1) == []
    assert (config.name, config.size) == (name, size)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_size_it_is_quick(name: str) -> None:
    assert at(name) == at(name, "quick")


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_size_names_the_sizes(name: str) -> None:
    with pytest.raises(ConfigError, match=", ".join(SIZES[name])):
        at(name, "huge")


@pytest.mark.parametrize(("name", "size"), ALL)
def test_every_field_can_be_overridden_with_its_own_value(name: str, size: str) -> None:
    config = at(name, size)
    for field, value in fields.leaves(config).items():
        text = str(value)
        fields.assign(config, field, text)
        found = fields.leaves(config)[field]
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_names_the_command_of_every_size(name: str) -> None:
    text = importlib.import_module(f"configs.{name}").__doc__ or ""
    module = "sweep" if "sweep" in at(name) else "run"
    commands = re.findall(rf"python -m experiments\.{module} --config=(\S+)", text)
    assert commands == [f"configs/{name}.py:{size}" for size in SIZES[name]]


def test_the_depth_sweep_cuts_the_same_twelve_layers() -> None:
    sweep = at("depth_sweep")
    cells = [fields.overridden(sweep, cell).model for cell in sweep.sweep.cells]
    assert [cell.layers for cell in cells] == [1, 2, 3, 4, 6, 12]
    assert {cell.layers * cell.blocks for cell in cells} == {12}


def test_the_sigma_ablation_compares_the_two_ranges_of_the_paper() -> None:
    sweep = at("sigma_ablation")
    cells = [fields.overridden(sweep, cell).diffusion for cell in sweep.sweep.cells]
    assert [(c.sigma_min, c.sigma_max) for c in cells] == [(0.1, 2.0), (1.0, 10.0)]


def test_the_grid_gives_every_method_the_same_rates() -> None:
    sweep = at("lr_grid")
    cells = [fields.overridden(sweep, cell).train for cell in sweep.sweep.cells]
    grid = [2e-3, 4e-3, 8e-3]
    for method in ("", "_end_to_end", "_block_sized"):
        assert [cell[f"learning_rate{method}"] for cell in cells] == grid


def test_two_replicas_meet_one_at_equal_rounds_and_at_equal_data() -> None:
    sweep = at("six_workers", "small")
    cells = [fields.overridden(sweep, cell) for cell in sweep.sweep.cells]
    budgets = [
        (
            c.train.replicas,
            c.train.rounds,
            c.train.replicas * c.train.rounds * c.data.batch,
        )
        for c in cells
    ]
    two, short, long, half = budgets
    assert [k for k, _, _ in budgets] == [2, 1, 1, 2]
    assert two[1] == short[1] == half[1] == long[1] // 2
    assert two[2] == long[2] == 2 * short[2] == 2 * half[2]
    # At equal data one replica is the main experiment itself.
    main = at("b3_l4", "small")
    assert (cells[2].train, cells[2].data) == (main.train, main.data)


def test_the_table_of_active_states_spans_the_widths_of_the_paper() -> None:
    for size in SIZES["memory"]:
        model = at("memory", size).model
        assert (model.blocks, model.layers, model.mlp_ratio) == (3, 4, 4)
        assert (min(model.widths), max(model.widths)) == (512, 18432)


def test_paper_size() -> None:
    c = at("b3_l4", "paper")
    assert (c.model.blocks, c.model.layers, c.model.width) == (3, 4, 512)
    assert (c.model.heads, c.model.mlp_ratio * c.model.width) == (8, 2048)
    assert (c.data.seq_len, c.data.batch) == (256, 64)
    assert (c.train.rounds, c.train.local_steps) == (32, 200)
