"""A model that counts: each update adds one to a place of its own.

The part of block b has a vector with a place for every (round, replica), and the
interface one with a place for every (round, block, replica). The windows say which slot
is trained, and the local phase adds 1 at its places, whatever the model is. So the
parameters tell, for every update there can be, how often it was applied, and at which
weight; a NumPy sum over the ledger must come to the same.
"""

import functools
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from spheroid_jax import partition
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.objectives import Batch
from spheroid_jax.rounds import Engine
from spheroid_jax.transport.coordinator import Model, Rules
from spheroid_jax.transport.ledger_rows import AcceptedUpdate
from spheroid_jax.transport.trainer import Trainer

BLOCKS, MOST_ROUNDS, MOST_REPLICAS = 2, 8, 2
OWN = MOST_ROUNDS * MOST_REPLICAS  # places of a block
SHARED = OWN * BLOCKS  # places of the interface
PAD = 64  # ones that nobody changes: an update must not be larger than the part


def counted(part: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Any]:
    """Minus the sum at the places that the windows name: its gradient is -1 there."""
    round_, block, replica = (batch.windows[0, i].astype(jnp.int32) for i in range(3))
    own = round_ * MOST_REPLICAS + replica
    shared = (round_ * BLOCKS + block) * MOST_REPLICAS + replica
    loss = -part["block"]["own"][own] - part["interface"]["shared"][shared]
    return loss + 0.0 * jnp.sum(part["block"]["pad"]), {}


def init(key: jax.Array) -> Any:
    """Nothing is counted yet."""
    return {
        "blocks": {
            "own": jnp.zeros((BLOCKS, OWN)),
            "pad": jnp.ones((BLOCKS, PAD)),
        },
        "interface": {"shared": jnp.zeros((SHARED,))},
    }


def windows(round_: int, block: int, replica: int) -> np.ndarray:
    """The slot, as bytes; one local step."""
    return np.array([[[round_, block, replica, 0]]], np.uint8)


def weigh(age: Any) -> Any:
    """1/2 for an update that is one round late, 1/4 for an older one."""
    return jnp.where(age == 0, 1.0, jnp.where(age == 1, 0.5, 0.25))


@functools.cache
def engine(replicas: int) -> Engine:
    """Plain sums: both learning rates are 1."""
    return Engine(
        partition.blocks(BLOCKS), counted, optax.sgd(1.0), optax.sgd(1.0), replicas
    )


@functools.cache
def trainer(replicas: int) -> Trainer:
    """Compiled once for all schedules."""
    made = Trainer(engine(replicas), init, jax.random.key(0), windows, 1)
    made.compile()
    return made


@functools.cache
def first(replicas: int) -> tuple[tempfile.TemporaryDirectory[str], Any, Any]:
    """A directory with round 0, and the compiled steps of every model like it."""
    folder = tempfile.TemporaryDirectory(prefix="counting-")
    with checkpoints_in(Path(folder.name)) as checkpoints:
        model = _model(Path(folder.name), replicas, checkpoints)
        model.compile()
    return folder, model._step_block, model._step_shared


def model_in(directory: Path, replicas: int, checkpoints: Checkpoints) -> Model:
    """Restored from ``directory``; without a compile of its own."""
    model = _model(directory, replicas, checkpoints)
    _, model._step_block, model._step_shared = first(replicas)
    return model


def start_in(directory: Path, replicas: int) -> None:
    """Puts round 0 into a directory."""
    shutil.copytree(first(replicas)[0].name, directory)


def checkpoints_in(directory: Path) -> Checkpoints:
    return Checkpoints(directory, keep=2, identity={}, digest="blake3")


def _model(directory: Path, replicas: int, checkpoints: Checkpoints) -> Model:
    return Model(
        engine(replicas),
        Rules(weigh),
        lambda: (init(jax.random.key(0)), jax.random.key(0)),
        lambda params: {"ce_chain": 1.0, "ce_ensemble": 1.0},
        checkpoints,
        directory,
    )


def on_disk(directory: Path) -> tuple[int, Any]:
    """Round and parameters of the newest complete checkpoint."""
    abstract = jax.eval_shape(init, jax.random.key(0))
    with checkpoints_in(directory) as checkpoints:
        round_ = checkpoints.latest()
        assert round_ is not None
        return round_, checkpoints.restore_params(abstract, round_)


def expected(updates: Iterable[AcceptedUpdate]) -> tuple[np.ndarray, np.ndarray]:
    """What the places must hold once these are applied: own (B, OWN), shared (SHARED,).

    In each round a block adds the mean of its weighted updates; the interface the mean
    over the blocks of those.
    """
    own, shared = np.zeros((BLOCKS, OWN)), np.zeros(SHARED)
    by_round: dict[int, dict[int, list[AcceptedUpdate]]] = {}
    for u in updates:
        by_round.setdefault(u.applies_in, {}).setdefault(u.block, []).append(u)
    for blocks in by_round.values():
        for block, ups in blocks.items():
            for u in ups:
                share = 0.5 ** min(u.applies_in - u.round, 2) / len(ups)
                own[block, u.round * MOST_REPLICAS + u.replica] += share
                at = (u.round * BLOCKS + block) * MOST_REPLICAS + u.replica
                shared[at] += share / len(blocks)
    return own, shared
