"""A state as named leaves: what each is, which item holds it, which boxes of it.

A box is a rectangular part of an array: where it starts and its elements. An array on
one device is one box, a sharded one a box a device, and boxes of several processes
make up the whole.
"""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spheroid_jax.checkpoints.threads import parallel

PyTree = Any
Start = tuple[int, ...]

INTERFACE, PARAMS, REST = "interface", "params", "rest"
_BLOCKS_PATH, _INTERFACE_PATH = "params.blocks", "params.interface"


@dataclasses.dataclass(frozen=True)
class Box:
    """Part of the leaf called ``leaf``: the elements from ``start`` on."""

    leaf: str
    start: Start
    data: np.ndarray


@dataclasses.dataclass
class Item:
    """What one item holds of one process: records of its leaves, and boxes."""

    leaves: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    boxes: list[Box] = dataclasses.field(default_factory=list)


def block_item(block: int) -> str:
    """The name of a block's item."""
    return f"block_{block}"


def named(tree: PyTree) -> dict[str, Any]:
    """Returns {path: leaf}, such as {"params.interface.head": Array}.

    Raises:
      ValueError: if two leaves have the same path, as a dot in a key can bring about.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(p, simple=True, separator=".") for p, _ in flat]
    repeated = [n for n, count in collections.Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"two leaves are called {repeated[0]}; rename a key")
    return {name: leaf for name, (_, leaf) in zip(names, flat, strict=True)}


def within(name: str, path: str) -> bool:
    """Whether the leaf ``name`` is at ``path`` or below it."""
    return name == path or name.startswith(f"{path}.")


def describe(leaf: Any, skip: int = 0) -> str:
    """dtype and shape, such as "float32[3, 4]"; ``skip`` leading axes left out."""
    if hasattr(leaf, "dtype"):
        return f"{leaf.dtype}{list(leaf.shape)[skip:]}"
    return f"Python {type(leaf).__name__}"


def loadable(leaf: Any) -> str:
    """What JAX would make of a leaf; without x64, it narrows 64 bits in silence."""
    if isinstance(leaf, jax.ShapeDtypeStruct) and not is_key(leaf):
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        leaf = jax.ShapeDtypeStruct(leaf.shape, dtype)
    return describe(leaf)


def block_count(leaves: Mapping[str, Any]) -> int:
    """Blocks that a state's parameters can be split into; 0 if they can't be."""
    sizes = {
        leaf.shape[0] if getattr(leaf, "shape", ()) else 0
        for name, leaf in leaves.items()
        if within(name, _BLOCKS_PATH)
    }
    has_interface = any(within(name, _INTERFACE_PATH) for name in leaves)
    return sizes.pop() if len(sizes) == 1 and has_interface else 0


def items_of(name: str, blocks: int) -> list[str]:
    """The items that hold a leaf of a state with that many blocks."""
    if blocks and within(name, _BLOCKS_PATH):
        return [block_item(block) for block in range(blocks)]
    if blocks and within(name, _INTERFACE_PATH):
        return [INTERFACE]
    return [PARAMS if within(name, PARAMS) else REST]


def part_name(name: str) -> str:
    """Where a leaf of a worker's part, ``{"block", "interface"}``, is in the state."""
    if within(name, "block"):
        return _BLOCKS_PATH + name.removeprefix("block")
    return f"{PARAMS}.{name}"


def is_key(leaf: Any) -> bool:
    """Whether a leaf holds typed random keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def snapshot(state: PyTree, *, copy: bool) -> dict[str, Item]:
    """All that this process has to write, by item.

    With ``copy`` the arrays may be donated or deleted afterwards; without, they mustn't
    be as long as the items are held, for what is in host memory is viewed. Of a
    replicated array only the first replica is taken, so the processes together take
    each element once.
    """
    leaves = named(state)
    blocks = block_count(leaves)
    items: dict[str, Item] = collections.defaultdict(Item)
    slots: list[tuple[str, Start, Any]] = []
    for name, leaf in leaves.items():
        split = blocks and within(name, _BLOCKS_PATH)
        for item in items_of(name, blocks):
            items[item].leaves[name] = _record(leaf, skip=1 if split else 0)
        slots += [(name, start, data) for start, data in _boxes(leaf)]
    to_host = _host_copy if copy else np.asarray
    copies = parallel(to_host, [data for _, _, data in slots])
    for (name, start, _), data in zip(slots, copies, strict=True):
        if blocks and within(name, _BLOCKS_PATH):
            for offset, one in enumerate(data):
                holder = items[block_item(start[0] + offset)]
                holder.boxes.append(Box(name, start[1:], one))
        else:
            items[items_of(name, blocks)[0]].boxes.append(Box(name, start, data))
    return dict(items)


def _record(leaf: Any, skip: int) -> dict[str, Any]:
    """What an index says of a leaf."""
    record: dict[str, Any] = {"is": describe(leaf, skip)}
    if not hasattr(leaf, "dtype"):
        return record | {"value": leaf}
    if is_key(leaf):
        raw = jax.eval_shape(jax.random.key_data, leaf)
        record["impl"] = str(jax.random.key_impl(leaf))
    else:
        raw = leaf
    return record | {"dtype": str(raw.dtype), "shape": list(raw.shape)[skip:]}


def _boxes(leaf: Any) -> list[tuple[Start, Any]]:
    """The boxes that this process writes: (start, array)."""
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array):
        return [
            (tuple(index.start or 0 for index in shard.index), shard.data)
            for shard in leaf.addressable_shards
            if shard.replica_id == 0
        ]
    if not hasattr(leaf, "dtype") or jax.process_index() > 0:
        return []
    return [((0,) * np.ndim(leaf), leaf)]


def _host_copy(data: Any) -> np.ndarray:
    on_device = isinstance(data, jax.Array) and any(
        device.platform != "cpu" for device in data.devices()
    )
    # From a device, np.asarray is a copy already; on the CPU it is a view.
    return np.asarray(data) if on_device else np.array(data, order="C", copy=True)
