"""What a configuration decides for one method: its keys, windows, mesh, identity."""

from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from spheroid_jax import distributed
from spheroid_jax.config import ADDED
from spheroid_jax.rounds.mesh import MeshShape, choose_shape, make_mesh, reference_shape
from spheroid_jax.runs.methods import Method


class Keys:
    """Random keys of a method, each for one purpose, all from the run's seed."""

    def __init__(self, seed: int, method: str) -> None:
        # The name's bytes, so that adding a method doesn't move the others' keys.
        root = jax.random.fold_in(
            jax.random.key(seed), int.from_bytes(method.encode()[:4], "big") >> 1
        )
        self.init, self.rounds, self.evaluation = jax.random.split(root, 3)


def method_mesh(method: Method, config: ConfigDict) -> Mesh:
    """The mesh that a method of a valid configuration runs on, on all processes.

    Raises:
      DistributedError: the processes can't share it.
    """
    shape = mesh_shape(config, method.engine.partition.count)
    return make_mesh(*shape, distributed.mesh_devices(shape.devices))


def mesh_shape(config: ConfigDict, parts: int) -> MeshShape:
    """The mesh of a valid configuration for a method of ``parts`` different parts."""
    batch = config.data.batch
    shape = choose_shape(
        MeshShape(config.mesh.block, config.mesh.replica, config.mesh.fsdp),
        jax.device_count(),
        config.model.blocks,
        config.train.replicas,
        batch,
    )
    if shape is None:
        raise ValueError("the mesh does not fit: validate the configuration first")
    return shape if parts > 1 else reference_shape(shape, batch)


def window_settings(method: Method, config: ConfigDict) -> dict[str, Any]:
    """What decides which windows a method's workers see; see ``data.RoundIterator``."""
    engine = method.engine
    return plan_settings(config, engine.partition.count, engine.replicas)


def plan_settings(config: ConfigDict, blocks: int, replicas: int) -> dict[str, Any]:
    """The fields of :class:`spheroid_jax.data.windows.WindowPlan`."""
    return {
        "seq_len": config.data.seq_len,
        "stride": config.data.stride,
        "batch": config.data.batch,
        "local_steps": config.train.local_steps,
        "blocks": blocks,
        "replicas": replicas,
        "sharding": config.data.sharding,
        "seed": config.seed,
    }


def training_identity(config: ConfigDict) -> dict[str, Any]:
    """The fields that a checkpoint must agree with: all that shape the training."""
    sections = ("model", "diffusion", "data", "train", "outer")
    flat: dict[str, Any] = {"seed": config.seed}
    for section in sections:
        for field, value in config[section].items():
            flat[f"{section}.{field}"] = value
    # Where the bytes come from may change between sessions; that they are the same
    # is checked by the data's own fingerprint.
    # So may the device, and with it the kernel.
    for field in ("data.corpus", "data.mirror", "model.attention"):
        flat.pop(field)
    # Where no context is cut, a checkpoint from before there was such a field fits.
    if not flat.get("train.context_mask"):
        for field in ADDED:
            flat.pop(field, None)
    return flat
