"""Arrays that span processes: each makes its own pieces, none sees the others'."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spheroid_jax.distributed.errors import DistributedError

Workers = tuple[tuple[int, int], ...]


def mesh_devices(count: int) -> list[jax.Device]:
    """Devices for a mesh of ``count``, as many from each process, process by process.

    With one process these are all that there are.

    So along the outermost axis of a mesh that extends over processes, neighbours are on
    one process as far as possible: what crosses the slow link are blocks, which
    exchange the interface alone.

    Raises:
      DistributedError: the processes can't have an equal share.
    """
    processes = jax.process_count()
    if processes == 1:
        return jax.devices()
    share = count // processes
    if count % processes or not share:
        fits = [n for n in range(1, count + 1) if count % n == 0]
        raise DistributedError(
            f"a mesh of {count} devices can't be shared by {processes} processes: "
            f"start {' or '.join(map(str, fits))} processes, or choose a mesh "
            f"(mesh.block, mesh.replica, mesh.fsdp) of a multiple of {processes}"
        )
    by_process: dict[int, list[jax.Device]] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    fewest = min(len(devices) for devices in by_process.values())
    if share > fewest:
        raise DistributedError(
            f"a mesh of {count} devices needs {share} on each of {processes} "
            f"processes, and one has {fewest}: start more processes, or choose a "
            "smaller mesh (mesh.block, mesh.replica, mesh.fsdp)"
        )
    return [d for process in sorted(by_process) for d in by_process[process][:share]]


def everywhere(mesh: Mesh, value: Any) -> Any:
    """Host values or local arrays, the same at every process, as arrays of the mesh.

    Keys become what they were. With one process the value stays as it is.
    """
    if jax.process_count() == 1:
        return value
    sharding = NamedSharding(mesh, P())

    def place(leaf: Any) -> jax.Array:
        if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
            bits = place(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(leaf))
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)

    return jax.tree.map(place, value)


def on_host(tree: Any) -> Any:
    """NumPy values of arrays that may span processes; every process must ask."""
    leaves, structure = jax.tree.flatten(tree)
    spread = {
        i: leaf
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, jax.Array)
        and not (leaf.is_fully_addressable or leaf.is_fully_replicated)
    }
    if spread:
        (mesh,) = {_mesh_of(leaf) for leaf in spread.values()}
        for i, whole in _gather(mesh)(spread).items():
            leaves[i] = whole
    return jax.tree.unflatten(structure, [np.asarray(leaf) for leaf in leaves])


def _mesh_of(leaf: jax.Array) -> Mesh:
    assert isinstance(leaf.sharding, NamedSharding)
    assert isinstance(leaf.sharding.mesh, Mesh)
    return leaf.sharding.mesh


@functools.cache
def _gather(mesh: Mesh) -> Callable[[dict[int, jax.Array]], dict[int, jax.Array]]:
    """Copies arrays to every device; one function, or each call would compile anew."""
    return jax.jit(lambda arrays: arrays, out_shardings=NamedSharding(mesh, P()))


def own_workers(sharding: NamedSharding, shape: Sequence[int]) -> Workers | None:
    """The workers (b, k) whose windows this process needs, in order.

    Args:
      sharding: of the windows.
      shape: theirs, (B, K, H, N, T+1).

    Returns:
      None with one process, which needs all.
    """
    if jax.process_count() == 1:
        return None
    places = sharding.addressable_devices_indices_map(tuple(shape)).values()
    return tuple(sorted({w for place in places for w in _workers(place, shape)}))


def spread_windows(
    rows: np.ndarray,
    workers: Workers | None,
    sharding: NamedSharding,
    shape: Sequence[int],
) -> jax.Array:
    """The windows of all workers as one array, of which each process gives its own.

    Args:
      rows: windows of ``workers``, (len(workers), H, N, T+1); all of them, in
        ``shape``, if that is None.
      workers: from :func:`own_workers`.
      sharding: of the result.
      shape: of the result, (B, K, H, N, T+1).
    """
    if workers is None:
        return jax.device_put(rows, sharding)
    row_of = {worker: row for row, worker in enumerate(workers)}

    def piece(index: Any) -> np.ndarray:
        mine = [row_of[worker] for worker in _workers(index, shape)]
        lengths = [len(range(*s.indices(n))) for s, n in zip(index, shape, strict=True)]
        return rows[mine][:, *index[2:]].reshape(lengths)

    return jax.make_array_from_callback(tuple(shape), sharding, piece)


def _workers(index: Any, shape: Sequence[int]) -> list[tuple[int, int]]:
    blocks, replicas = (
        range(*part.indices(n)) for part, n in zip(index[:2], shape[:2], strict=True)
    )
    return [(b, k) for b in blocks for k in replicas]
