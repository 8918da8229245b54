"""A stage from a run's checkpoint: only its part, and one line for what is wrong."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from spheroid_jax import config as configuration
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.commandline import overrides
from spheroid_jax.runs.methods import build_method, grid_levels
from spheroid_jax.runs.settings import training_identity
from spheroid_jax.runs.workdir import as_json
from spheroid_jax.serving import loading
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.loading import load_stage
from tests.models.conftest import fill

TINY = (
    "model.blocks=3 model.layers=2 model.width=16 model.heads=2 data.seq_len=16 "
    "data.batch=2 train.rounds=4"
)
CONFIG = overrides(configuration.default(), TINY)


@functools.cache
def params(method: str) -> Any:
    """As if trained: random numbers in every leaf."""
    return fill(jax.eval_shape(build_method(CONFIG, method).init, jax.random.key(0)))


def save(root: Path, method: str, rounds: list[int]) -> None:
    """Writes rounds whose parameters are ``params`` plus the round."""
    root.mkdir(exist_ok=True)
    (root / "config.json").write_text(json.dumps(as_json(CONFIG)))
    identity = {"method": method, **training_identity(CONFIG)}
    with Checkpoints(
        root / "checkpoints" / method, keep=9, identity=identity, wait=True
    ) as store:
        for round_ in rounds:
            moved = jax.tree.map(lambda x, r=round_: x + r, params(method))
            store.save(round_, {"params": moved, "rest": np.ones(2)}, {})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody changes."""
    root = tmp_path_factory.mktemp("runs") / "run"
    save(root, "blocktrain", [2, 4])
    save(root, "end_to_end", [4])
    return root


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be spoilt."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def same(got: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("round_", [None, 2])
def test_a_block_and_the_interface_of_a_round(
    index: int, round_: int | None, trained: Path
) -> None:
    stage, part, facts = load_stage(trained, index=index, round_=round_)
    whole = jax.tree.map(lambda x: x + (round_ or 4), params("blocktrain"))
    same(part["block"], jax.tree.map(lambda x: x[index], whole["blocks"]))
    same(part["interface"], whole["interface"])
    assert part.keys() == {"block", "interface"}
    assert (stage.kind, stage.index, stage.count) == ("blocktrain", index, 3)
    assert stage.grid == tuple(grid_levels(CONFIG))
    assert (stage.width, stage.places) == (16, 16)
    assert facts[1:] == ("blocktrain", round_ or 4, CONFIG.name)


@pytest.mark.parametrize(
    ("index", "count", "layers"), [(0, None, (0, 6)), (1, 4, (1, 3)), (3, 4, (4, 6))]
)
def test_layers_of_a_reference(
    index: int, count: int | None, layers: tuple[int, int], trained: Path
) -> None:
    path = trained / "checkpoints" / "end_to_end"
    stage, part, facts = load_stage(path, index=index, count=count)
    whole = jax.tree.map(lambda x: x + 4, params("end_to_end"))
    same(part["layers"], jax.tree.map(lambda x: x[slice(*layers)], whole["layers"]))
    same(part["interface"], whole["interface"])
    assert (stage.kind, stage.index, stage.count) == (
        "autoregressive",
        index,
        count or 1,
    )
    assert facts.method == "end_to_end"


def test_fingerprints_are_one_of_stages_that_may_serve_together(
    trained: Path, run: Path
) -> None:
    def mark(path: Path, **which: Any) -> str:
        return load_stage(path, **which)[2].fingerprint

    blocks = {mark(path, index=i) for path in (trained, run) for i in range(3)}
    assert len(blocks) == 1
    reference = trained / "checkpoints" / "end_to_end"
    cut = {mark(reference, index=i, count=2) for i in range(2)}
    assert len(cut) == 1
    others = {mark(trained, index=0, round_=2), mark(reference, index=0, count=3)}
    assert len(blocks | cut | others) == 4


def test_only_its_own_items_are_read_and_nothing_is_written(run: Path) -> None:
    step = run / "checkpoints" / "blocktrain" / "4"
    for item in ("block_0", "block_2", "rest"):
        shutil.rmtree(step / item)
    before = sorted(run.rglob("*"))
    _, part, _ = load_stage(run, index=1)
    whole = jax.tree.map(lambda x: x + 4, params("blocktrain"))
    same(part["block"], jax.tree.map(lambda x: x[1], whole["blocks"]))
    assert sorted(run.rglob("*")) == before


def test_a_round_that_is_deleted_meanwhile_gives_way_to_the_next(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a run that still trains and keeps only its newest round."""
    directory = run / "checkpoints" / "blocktrain"
    shutil.move(directory / "4", run / "later")
    original = loading.Reader

    def reader(step: Path, *args: Any, **kwargs: Any) -> Any:
        if step.name == "2":
            shutil.move(run / "later", directory / "4")
            shutil.rmtree(step)
        return original(step, *args, **kwargs)

    monkeypatch.setattr(loading, "Reader", reader)
    assert load_stage(run, index=0)[2].round == 4


def refused(path: Path, **which: Any) -> str:
    with pytest.raises(ServingError) as caught:
        load_stage(path, **{"index": 0, **which})
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("method", "which", "says"),
    [
        ("", {"index": 3}, "stage is 3, but the model has blocks 0 to 2"),
        ("", {"index": -1}, "stage is -1, but the model has blocks 0 to 2"),
        ("", {"count": 2}, "has 3 blocks, each of them a stage, so not 2"),
        ("", {"round_": 3}, "no complete checkpoint of round 3"),
        ("", {"round_": 3}, "(complete rounds: 2, 4)"),
        ("end_to_end", {"index": 2, "count": 2}, "there are stages 0 to 1"),
        ("end_to_end", {"count": 7}, "7 stages can't share 6 layers; use fewer stages"),
        ("end_to_end", {"count": 0}, "stages are 0; there is at least one"),
        ("block_sized", {}, "no checkpoints of block_sized; name "),
        ("mistyped", {}, "no checkpoints of mistyped; name "),
    ],
)
def test_what_is_not_there_is_told(
    method: str, which: dict[str, Any], says: str, trained: Path
) -> None:
    path = trained / "checkpoints" / method if method else trained
    assert says in refused(path, **which)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, run: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", run / "checkpoints"):
        assert f"{path} isn't of a run: name a folder that holds" in refused(path)
    shutil.rmtree(run / "checkpoints")
    assert refused(run).endswith("has no checkpoints of blocktrain; train first")
    (run / "checkpoints" / "blocktrain").mkdir(parents=True)
    assert "no complete checkpoint" in refused(run)
    assert "(complete rounds: none)" in refused(run)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "name", ["block_0/data.0", "interface/index.0.json", "manifest.json"]
)
@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_damage_is_one_line_that_names_the_file(
    name: str, damage: Callable[[Path], None], run: Path
) -> None:
    file = run / "checkpoints" / "blocktrain" / "4" / name
    damage(file)
    if name == "manifest.json" and damage is Path.unlink:
        assert load_stage(run, index=0)[2].round == 2  # it was never complete
        return
    message = refused(run)
    assert "checkpoint of round 4 in " in message
    assert f"{file}" in message
    assert message.endswith("copy it again, or choose another round")
    assert load_stage(run, index=0, round_=2)[2].round == 2


def test_a_configuration_that_does_not_fit_is_one_line(run: Path) -> None:
    path = run / "config.json"
    good = json.loads(path.read_text())

    def changed(section: str, **fields: Any) -> str:
        config = json.loads(json.dumps(good))
        config[section] |= fields
        path.write_text(json.dumps(config))
        return refused(run)

    assert "is of another run: model.width is 16 there and 24 here" in changed(
        "model", width=24
    )
    assert "model.layout is 'concat'" in changed("model", layout="concat")
    assert "doesn't describe a model that can be served" in changed(
        "diffusion", grid="mistyped"
    )
    del good["model"]["heads"]
    assert "doesn't describe a model that can be served" in changed("model")
    path.write_text("{")
    assert f"{path} can't be read" in refused(run)
    path.write_text("[]")
    assert f"{path} can't be read" in refused(run)
