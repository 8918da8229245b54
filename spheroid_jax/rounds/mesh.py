"""Where workers live: a mesh with axes ``block``, ``replica`` and ``fsdp``.

Workers (b, k) are sharded over block and replica, the parameters of blocks over block,
and a worker's batch and the large leaves of its state over fsdp; the interface is the
same for all workers. On one device the mesh is 1 x 1 x 1 and the program is the same.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spheroid_jax.models.sharding import (
    AXIS,
    SMALLEST,
    divided,
    gathered,
    is_scanned,
    leaf_spec,
    path_names,
    shared_over_fsdp,
)
from spheroid_jax.objectives import Batch, Metrics
from spheroid_jax.rounds.round import Engine, RoundState, make_round

AXES = ("block", "replica", AXIS)
WORKERS = P("block", "replica")
WINDOWS = P("block", "replica", None, AXIS)  # (B, K, H, N, T + 1)


class MeshShape(NamedTuple):
    """Devices along each axis of a mesh.

    In a configuration zero means: choose.
    """

    block: int = 1
    replica: int = 1
    fsdp: int = 1

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.block * self.replica * self.fsdp


def fitting_shapes(
    devices: int, blocks: int, replicas: int, batch: int
) -> list[MeshShape]:
    """Every mesh of at most ``devices`` whose axes divide B, K and the batch N."""
    axes = (
        [n for n in range(1, min(devices, length) + 1) if length % n == 0]
        for length in (blocks, replicas, batch)
    )
    shapes = (MeshShape(*lengths) for lengths in product(*axes))
    return [shape for shape in shapes if shape.devices <= devices]


def choose_shape(
    asked: MeshShape, devices: int, blocks: int, replicas: int, batch: int
) -> MeshShape | None:
    """The mesh that was asked for, its zeros chosen to use as many devices as may be.

    Of several the one with more blocks is taken, then with more replicas: they talk
    once a round, the devices of fsdp in every local step.

    Returns:
      None where nothing fits.
    """
    fits = [
        shape
        for shape in fitting_shapes(devices, blocks, replicas, batch)
        if all(want in (0, got) for want, got in zip(asked, shape, strict=True))
    ]
    return max(fits, key=lambda s: (s.devices, s.block, s.replica), default=None)


def misfit(
    asked: MeshShape, devices: int, blocks: int, replicas: int, batch: int
) -> str:
    """Why a mesh can't be, and the nearest that can; empty where nothing is wrong.

    Args:
      asked: the mesh; zeros are free.
      devices: how many there are.
      blocks: B, ``model.blocks``.
      replicas: K, ``train.replicas``.
      batch: N, ``data.batch``.
    """
    if choose_shape(asked, devices, blocks, replicas, batch):
        return ""
    named = zip(
        ("mesh.block", "mesh.replica", "mesh.fsdp"),
        ("model.blocks", "train.replicas", "data.batch"),
        asked,
        (blocks, replicas, batch),
        strict=True,
    )
    wrong = [
        f"{axis} does not divide {field}={length}{_neighbours(field, size, length)}"
        for axis, field, size, length in named
        if size and length % size
    ]
    needed = MeshShape(*(max(size, 1) for size in asked)).devices
    if needed > devices:
        wrong.append(f"it needs {needed} devices and there are {devices}")
    near = min(
        fitting_shapes(devices, blocks, replicas, batch),
        key=lambda shape: (_distance(asked, shape), -shape.devices, -shape.block),
    )
    return (
        f"{_words(asked)} does not fit: {', '.join(wrong)}, use {_words(near)}"
        f" ({near.devices} of {devices} devices)"
    )


def _neighbours(field: str, size: int, length: int) -> str:
    """What the batch could be instead; B and K are rarely free to choose."""
    if field != "data.batch":
        return ""
    below = length // size * size
    cures = [str(n) for n in (below, below + size) if n]
    return f" ({' and '.join(cures)} would do)"


def _distance(asked: MeshShape, shape: MeshShape) -> int:
    return sum(abs(a - b) for a, b in zip(asked, shape, strict=True) if a)


def _words(shape: MeshShape) -> str:
    return f"mesh.block={shape.block} mesh.replica={shape.replica} mesh.fsdp={shape[2]}"


def reference_shape(shape: MeshShape, batch: int) -> MeshShape:
    """The mesh for a method whose workers all hold the same part (B = 1).

    The devices of the block axis cut the batch instead, where they divide it.
    """
    joined = shape.block * shape.fsdp
    return MeshShape(1, shape.replica, shape.fsdp if batch % joined else joined)


def make_mesh(
    block: int,
    replica: int,
    fsdp: int = 1,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """A mesh over the first ``block * replica * fsdp`` devices.

    Neighbouring devices share an fsdp group, which talks in every local step; blocks,
    which share the interface alone, are farthest apart.

    Axis types are Auto on purpose: jax.make_mesh defaults to Explicit, which refuses
    sharding constraints.

    Args:
      block: devices along the axis of blocks.
      replica: devices along the axis of replicas.
      fsdp: devices that share one worker.
      devices: what to lay it on; by default all that JAX has.

    Raises:
      ValueError: if there are too few devices.
    """
    shape = MeshShape(block, replica, fsdp)
    available = jax.devices() if devices is None else devices
    if shape.devices > len(available):
        raise ValueError(
            f"a mesh of {block} x {replica} x {fsdp} needs {shape.devices} devices, "
            f"there are {len(available)}"
        )
    grid = np.array(available[: shape.devices]).reshape(shape)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def state_sharding(
    mesh: Mesh, state: RoundState, *, smallest: int = SMALLEST
) -> RoundState:
    """Shardings for every leaf of a state, whose leaves may be abstract.

    Leaves under ``blocks`` have a leading block axis, those of workers (B, K); the
    outer optimizer's state follows the parameters' paths. Inside, large leaves are cut
    over fsdp, see :func:`spheroid_jax.models.sharding.leaf_spec`.

    Args:
      mesh: from :func:`make_mesh`.
      state: the state of a run, or its shapes.
      smallest: elements of one layer's leaf of one worker, below which fsdp leaves it
        whole.
    """
    size = mesh.shape[AXIS]

    def placed(tree: Any, leading: Callable[[set[str]], tuple[str, ...]]) -> Any:
        def one(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
            axes = leading(path_names(path))
            spec = leaf_spec(path, leaf, size, leading=axes, smallest=smallest)
            return NamedSharding(mesh, spec)

        return jax.tree_util.tree_map_with_path(one, tree)

    def by_block(names: set[str]) -> tuple[str, ...]:
        return ("block",) if "blocks" in names else ()

    replicated: Any = NamedSharding(mesh, P())
    return RoundState(
        params=placed(state.params, by_block),
        outer=placed(state.outer, by_block),
        workers=placed(state.workers, lambda _: ("block", "replica")),
        round=replicated,
        key=replicated,
    )


def on_mesh(engine: Engine, mesh: Mesh) -> Engine:
    """The engine whose workers share their local steps among the devices of fsdp.

    In each step the interface and, one after the other, the layers are gathered, every
    device takes its share of the batch, and gradients are added up over fsdp;
    optimizer states stay cut.
    """
    if mesh.shape[AXIS] == 1:
        return engine

    def objective(part: Any, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        with shared_over_fsdp(mesh):
            part = jax.tree_util.tree_map_with_path(
                lambda path, leaf: leaf if is_scanned(path) else gathered(leaf), part
            )
            batch = batch._replace(windows=divided(batch.windows))
            return engine.objective(part, batch, key)

    return engine._replace(objective=objective)


def mesh_round(engine: Engine, mesh: Mesh, shardings: RoundState) -> jax.stages.Wrapped:
    """The compiled round on a mesh; the state it is given is donated.

    The next state lies as this one does, so that every round runs the same program
    and takes the memory of the last.

    Args:
      engine: the method.
      mesh: from :func:`make_mesh`.
      shardings: from :func:`state_sharding`.
    """
    return jax.jit(
        make_round(on_mesh(engine, mesh)),
        donate_argnums=0,
        out_shardings=(shardings, NamedSharding(mesh, WORKERS)),
    )
