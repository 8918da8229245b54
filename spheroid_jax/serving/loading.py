"""A stage from a run's checkpoint: only its own part is read.

Files are read and never written, so a run that still trains can be served from, and so
can a copy that nobody may write to.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from spheroid_jax import manifests
from spheroid_jax.checkpoints import CheckpointError
from spheroid_jax.checkpoints.digests import FORMATS
from spheroid_jax.checkpoints.reader import Reader
from spheroid_jax.checkpoints.retention import complete
from spheroid_jax.models import Autoregressive, BlockDenoiser
from spheroid_jax.runs.methods import (
    block_denoiser,
    build_method,
    grid_levels,
    interface_shape,
    transformer_shape,
)
from spheroid_jax.runs.settings import training_identity
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.stages import BLOCKTRAIN, Stage, block_stages

Params = Any

REFERENCES = ("end_to_end", "block_sized")
METHODS = (BLOCKTRAIN, *REFERENCES)
_CONFIG = "config.json"
_TRIES = 3  # a run that still trains deletes rounds while they are read
_HEX = 32  # of a SHA-256; enough to tell checkpoints apart


class Facts(NamedTuple):
    """What a stage's parameters are of.

    Attributes:
      fingerprint: the same for all stages that may serve together: those of one round
        of one method of one run, cut alike, wherever its files were copied to.
      method: one of ``METHODS``.
      round: rounds completed.
      config: name of the run's configuration.
    """

    fingerprint: str
    method: str
    round: int
    config: str


class Run(NamedTuple):
    """One method of a run.

    Attributes:
      directory: of its checkpoints.
      method: its name.
      config: of the run.
    """

    directory: Path
    method: str
    config: ConfigDict


def load_stage(
    path: Path | str, *, index: int, count: int | None = None, round_: int | None = None
) -> tuple[Stage, Params, Facts]:
    """Loads a stage and its parameters, which lie on the first device.

    Args:
      path: a run's directory, whose blocks are meant, or a method's directory in it,
        ``.../checkpoints/METHOD``.
      index: which stage, from 0.
      count: how many stages: of blocks as many as there are; a reference is cut into so
        many, by default one.
      round_: rounds completed; None for the newest checkpoint.

    Raises:
      ServingError: there is no such stage, or it can't be loaded; one line.
    """
    run = open_run(path)
    stage = stage_of(run, index=index, count=count)
    for attempt in range(_TRIES):
        chosen = _round(run.directory, round_)
        try:
            return stage, *_read(run, stage, chosen)
        except CheckpointError as error:
            raise ServingError(str(error)) from error
        except manifests.Damage as damage:
            if attempt + 1 < _TRIES and _gone(run.directory, chosen, round_):
                continue
            raise ServingError(
                f"checkpoint of round {chosen} in {run.directory} is damaged: "
                f"{damage}; copy it again, or choose another round"
            ) from damage
    raise AssertionError  # the last attempt has returned or raised


def load_model(
    path: Path | str, *, count: int | None = None, round_: int | None = None
) -> tuple[tuple[Stage, ...], tuple[Params, ...], Facts]:
    """All stages of a checkpoint, their parameters, and what they are of.

    Arguments and errors of :func:`load_stage`.
    """
    stage, part, facts = load_stage(path, index=0, count=count, round_=round_)
    stages, parts = [stage], [part]
    for index in range(1, stage.count):
        # A run that still trains may have a newer one by now.
        stage, part, _ = load_stage(path, index=index, count=count, round_=facts.round)
        stages.append(stage)
        parts.append(part)
    return tuple(stages), tuple(parts), facts


def open_run(path: Path | str) -> Run:
    """Finds a method's checkpoints and the configuration they are of.

    Raises:
      ServingError: there are none; one line.
    """
    path = Path(path)
    root, method = path, BLOCKTRAIN
    if not (path / _CONFIG).is_file() and path.parent.name == "checkpoints":
        root, method = path.parent.parent, path.name
    if not (root / _CONFIG).is_file():
        raise ServingError(
            f"{path} isn't of a run: name a folder that holds a {_CONFIG}, or its "
            "checkpoints/METHOD"
        )
    directory = root / "checkpoints" / method
    if method not in METHODS or not directory.is_dir():
        there = [m for m in METHODS if (root / "checkpoints" / m).is_dir()]
        cure = (
            f"name {' or '.join(str(root / 'checkpoints' / m) for m in there)}"
            if there
            else "train first"
        )
        raise ServingError(f"{root} has no checkpoints of {method}; {cure}")
    return Run(directory, method, _config(root / _CONFIG))


def stage_of(run: Run, *, index: int, count: int | None = None) -> Stage:
    """A stage of a run's model, without parameters.

    Raises:
      ServingError: there is no such stage; one line.
    """
    try:
        model, grid = _model(run)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServingError(
            f"{run.directory.parent.parent / _CONFIG} doesn't describe a model that "
            f"can be served: {error}"
        ) from error
    if isinstance(model, Autoregressive):
        return Stage(model, index, 1 if count is None else count)
    if count not in (None, len(grid)):
        raise ServingError(
            f"the model has {len(grid)} blocks, each of them a stage, so not {count}"
        )
    if not 0 <= index < len(grid):
        raise ServingError(
            f"stage is {index}, but the model has blocks 0 to {len(grid) - 1}"
        )
    return block_stages(model, grid)[index]


def _config(path: Path) -> ConfigDict:
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ServingError(f"{path} can't be read: {error}") from error
    if not isinstance(plain, dict):
        raise ServingError(f"{path} can't be read: it is no configuration")
    return ConfigDict(plain)


def _model(run: Run) -> tuple[BlockDenoiser | Autoregressive, tuple[float, ...]]:
    config = run.config
    if run.method == BLOCKTRAIN:
        return block_denoiser(config), tuple(map(float, grid_levels(config)))
    layers = build_method(config, run.method).layers_per_worker
    model = Autoregressive(
        transformer_shape(config, layers), interface_shape(config, noisy=False)
    )
    return model, ()


def _round(directory: Path, round_: int | None) -> int:
    rounds = _complete(directory)
    if round_ is None and rounds:
        return rounds[-1]
    if round_ is None or round_ not in rounds:
        wanted = "checkpoint" if round_ is None else f"checkpoint of round {round_}"
        raise ServingError(
            f"no complete {wanted} in {directory} (complete rounds: "
            f"{', '.join(map(str, rounds)) or 'none'})"
        )
    return round_


def _gone(directory: Path, chosen: int, asked: int | None) -> bool:
    return asked is None and _complete(directory)[-1:] not in ([], [chosen])


def _complete(directory: Path) -> list[int]:
    try:
        return sorted(complete(directory))
    except OSError as error:
        raise ServingError(f"{directory} can't be read: {error.strerror}") from error


def _read(run: Run, stage: Stage, round_: int) -> tuple[Params, Facts]:
    reader = Reader(
        run.directory / str(round_),
        f"checkpoint of round {round_} in {run.directory}",
        formats=frozenset(FORMATS.values()),
        identity={"method": run.method, **training_identity(run.config)},
    )
    manifest = reader.manifest
    facts = {name: manifest[name] for name in ("identity", "round", "items")}
    fingerprint = manifests.sha256_of_json(facts | {"stages": stage.count})[:_HEX]
    return _part(reader, stage), Facts(
        fingerprint, run.method, round_, str(run.config.name)
    )


def _part(reader: Reader, stage: Stage) -> Params:
    model = stage.model
    if isinstance(model, BlockDenoiser):
        return reader.part(_shapes(lambda key: _one_block(model, key)), stage.index)
    # A reference is one item, read whole; what other stages hold is let go.
    return stage.part(reader.params(_shapes(model.init)))


def _one_block(model: BlockDenoiser, key: jax.Array) -> Params:
    params = model.init(key, 1)
    block = jax.tree.map(lambda leaf: leaf[0], params["blocks"])
    return {"block": block, "interface": params["interface"]}


def _shapes(init: Callable[[jax.Array], Params]) -> Params:
    return jax.eval_shape(init, jax.random.key(0))
