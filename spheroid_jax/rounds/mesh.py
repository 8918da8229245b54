"""Where workers live: a mesh with axes ``block`` and ``replica``.

Workers (b, k) are sharded over both axes and block parameters over ``block``; the
interface is replicated. On one device the mesh is 1 x 1 and the program is the same.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spheroid_jax.rounds.round import RoundState

WORKERS = P("block", "replica")


def make_mesh(block: int, replica: int) -> Mesh:
    """A mesh over the first ``block * replica`` devices.

    Axis types are Auto on purpose: jax.make_mesh defaults to Explicit, which refuses
    sharding constraints.

    Raises:
      ValueError: if there are too few devices.
    """
    if block * replica > jax.device_count():
        raise ValueError(
            f"a mesh of {block} x {replica} needs {block * replica} devices, "
            f"there are {jax.device_count()}"
        )
    devices = np.array(jax.devices()[: block * replica]).reshape(block, replica)
    return Mesh(devices, ("block", "replica"), axis_types=(AxisType.Auto,) * 2)


def state_sharding(mesh: Mesh, state: RoundState) -> RoundState:
    """Shardings for every leaf of a state, whose leaves may be abstract.

    Leaves under ``blocks`` have a leading block axis; the outer optimizer's state
    follows the parameters' paths.
    """

    def by_path(path: tuple[Any, ...], _: Any) -> NamedSharding:
        names = {getattr(entry, "key", None) for entry in path}
        return NamedSharding(mesh, P("block") if "blocks" in names else P())

    replicated: Any = NamedSharding(mesh, P())
    return RoundState(
        params=jax.tree_util.tree_map_with_path(by_path, state.params),
        outer=jax.tree_util.tree_map_with_path(by_path, state.outer),
        workers=jax.tree.map(lambda _: NamedSharding(mesh, WORKERS), state.workers),
        round=replicated,
        key=replicated,
    )
