"""From boxes on disk to arrays where they are wanted, on whatever devices."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding

from spheroid_jax import manifests
from spheroid_jax.checkpoints.blobs import Source, read
from spheroid_jax.checkpoints.leaves import is_key

_ALIGNMENT = 64  # bytes; what JAX needs to use a buffer on the CPU without a copy


class Loader:
    """Loads leaves: first ``want`` each, then ``load`` all, then ``result`` of each."""

    def __init__(self) -> None:
        self._direct: list[tuple[Source, np.ndarray]] = []

    def want(
        self, target: Any, record: dict[str, Any], sources: Sequence[Source]
    ) -> "Wanted":
        """Plans to load a leaf as ``target`` asks, from what an index says of it.

        Args:
          target: jax.Array or ShapeDtypeStruct (its sharding says where to; without
            one, the first device), NumPy array, or Python number.
          record: from the catalog; its shape is the whole leaf's.
          sources: boxes in the coordinates of the whole leaf.
        """
        if "value" in record:
            return Wanted(record["value"], record, [], None)
        shape, dtype = tuple(record["shape"]), np.dtype(record["dtype"])
        if isinstance(target, np.ndarray | np.generic):
            parts = [_Part((0,) * len(shape), _aligned(shape, dtype), [])]
            sharding = None
        else:
            sharding = _physical(target)
            parts = _parts(shape, dtype, sharding)
        for part in parts:
            self._plan(part, sources)
        return Wanted(target, record, parts, sharding)

    def load(self) -> None:
        """Reads all that was planned; raises manifests.Damage."""
        read(self._direct)
        self._direct = []

    def _plan(self, part: "_Part", sources: Sequence[Source]) -> None:
        covered = 0
        for source in {(s.start, s.shape): s for s in sources}.values():
            inside = _overlap(part, source)
            if inside is None:
                continue
            here, there = inside
            view = part.data[here]
            covered += view.size
            if view.shape == source.shape and view.flags.c_contiguous:
                self._direct.append((source, view))
            else:
                part.indirect.append((source, here, there))
        if covered != part.data.size:
            where = sources[0].file.parent if sources else "its item"
            raise manifests.Damage(f"{where} doesn't hold all of an array")


class _Part:
    """A box to be filled, and the devices that get it."""

    def __init__(
        self, start: tuple[int, ...], data: np.ndarray, devices: list[Any]
    ) -> None:
        self.start, self.data, self.devices = start, data, devices
        self.indirect: list[tuple[Source, Any, Any]] = []


class Wanted:
    """A leaf to be loaded."""

    def __init__(
        self,
        target: Any,
        record: dict[str, Any],
        parts: list[_Part],
        sharding: Sharding | None,
    ) -> None:
        self._target, self._record = target, record
        self._parts, self._sharding = parts, sharding

    def result(self) -> Any:
        """The leaf, once the loader has loaded; can be called once."""
        if "value" in self._record:
            return self._record["value"]
        self._fill_indirect()
        if self._sharding is None:
            return self._parts[0].data
        pieces = [
            jax.device_put(part.data, SingleDeviceSharding(device))
            for part in self._parts
            for device in part.devices
        ]
        self._parts = []
        shape = tuple(self._record["shape"])
        array = jax.make_array_from_single_device_arrays(
            shape, self._sharding, pieces, dtype=np.dtype(self._record["dtype"])
        )
        if "impl" in self._record:
            array = jax.random.wrap_key_data(array, impl=self._record["impl"])
        return array

    def _fill_indirect(self) -> None:
        """Boxes cut otherwise than they were written: whole boxes, then cut.

        One box at a time is held beside the arrays.
        """
        uses: dict[Source, list[tuple[_Part, Any, Any]]] = {}
        for part in self._parts:
            for source, here, there in part.indirect:
                uses.setdefault(source, []).append((part, here, there))
        for source, cuts in uses.items():
            whole = _aligned(source.shape, source.dtype)
            read([(source, whole)])
            for part, here, there in cuts:
                part.data[here] = whole[there]


def _physical(target: Any) -> Sharding:
    """Where to; for keys, the sharding of their data, which has one axis more."""
    sharding = target.sharding
    if sharding is None:
        return SingleDeviceSharding(jax.devices()[0])
    if is_key(target) and not isinstance(
        sharding, NamedSharding | SingleDeviceSharding
    ):
        raise ValueError(f"keys can't be loaded as {sharding}; use a NamedSharding")
    return sharding


def _parts(shape: tuple[int, ...], dtype: np.dtype, sharding: Sharding) -> list[_Part]:
    """The different boxes of this process's devices."""
    parts: dict[tuple[Any, ...], _Part] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = tuple(
            entry.indices(size)[:2]
            for entry, size in zip(index or (), shape, strict=True)
        )
        if bounds not in parts:
            start = tuple(low for low, _ in bounds)
            data = _aligned(tuple(high - low for low, high in bounds), dtype)
            parts[bounds] = _Part(start, data, [])
        parts[bounds].devices.append(device)
    return list(parts.values())


def load(
    abstract: Any,
    wanted: Mapping[str, Any],
    found: Mapping[str, tuple[dict[str, Any], list[Source]]],
) -> Any:
    """Loads leaves, every piece of them checked, into the structure of ``abstract``.

    Args:
      abstract: a tree.
      wanted: its leaves in order, by name.
      found: record and sources of each.

    Raises:
      manifests.Damage: a piece isn't what was written.
    """
    loader = Loader()
    planned = [loader.want(leaf, *found[name]) for name, leaf in wanted.items()]
    loader.load()
    loaded = [leaf.result() for leaf in planned]
    return jax.tree.unflatten(jax.tree.structure(abstract), loaded)


def _overlap(part: _Part, source: Source) -> tuple[Any, Any] | None:
    """The common elements, as slices of the part and of the source."""
    here, there = [], []
    for a, n, b, m in zip(
        part.start, part.data.shape, source.start, source.shape, strict=True
    ):
        low, high = max(a, b), min(a + n, b + m)
        if low >= high:
            return None
        here.append(slice(low - a, high - a))
        there.append(slice(low - b, high - b))
    # The ellipsis makes a view of an array without axes too.
    return (*here, ...), (*there, ...)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % _ALIGNMENT
    return raw[skip : skip + size].view(dtype).reshape(shape)
