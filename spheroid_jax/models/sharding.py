"""Fully sharded parameters: which axis of each leaf the ``fsdp`` mesh axis cuts.

Works from shapes alone, so the leaves may be abstract, and by paths, so that an
optimizer's state, whose paths end like the parameters', is cut as they are.
"""

import math
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "fsdp"
LAYERS = "layers"  # leaves under this key have a leading axis that a scan walks


def fsdp_specs(shapes: Any, size: int, *, smallest: int = 2**14) -> Any:
    """A tree of PartitionSpec: each leaf cut along its largest axis that divides.

    The leading axis of leaves under ``layers`` is never cut: a scan slices it, and a
    device must have its share of every layer. The last axis is cut only where no other
    can be: elements along it share the scales of block-wise quantised moments, and
    whole rows gather as they lie. Leaves that cannot be cut, or aren't worth a gather,
    are replicated.

    Args:
      shapes: parameters, an optimizer's state or both; anything with ``shape``.
      size: devices along the ``fsdp`` axis.
      smallest: elements of one layer's leaf, below which it is replicated.

    Raises:
      ValueError: size is below 1.
    """
    if size < 1:
        raise ValueError(f"size is {size}; the fsdp axis needs at least 1 device")

    def spec(path: tuple[Any, ...], leaf: Any) -> P:
        scanned = int(LAYERS in {getattr(entry, "key", None) for entry in path})
        own = leaf.shape[scanned:]
        cut = [axis for axis, length in enumerate(own) if length % size == 0]
        if size == 1 or not cut or math.prod(own) < smallest:
            return P()
        best = max(cut, key=lambda axis: (axis < len(own) - 1, own[axis]))
        return P(*[None] * (scanned + best), AXIS)

    return jax.tree_util.tree_map_with_path(spec, shapes)


def fsdp_shardings(shapes: Any, mesh: Mesh, *, smallest: int = 2**14) -> Any:
    """The specs of :func:`fsdp_specs` as shardings on a mesh with an ``fsdp`` axis.

    Raises:
      ValueError: the mesh has no such axis.
    """
    if AXIS not in mesh.shape:
        raise ValueError(
            f"the mesh has the axes {', '.join(mesh.axis_names)}; "
            f"sharded parameters need one named {AXIS}"
        )
    specs = fsdp_specs(shapes, mesh.shape[AXIS], smallest=smallest)
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda spec: isinstance(spec, P),
    )


def bytes_per_device(shapes: Any, size: int, *, smallest: int = 2**14) -> int:
    """Bytes of ``shapes`` that one device of ``size`` holds when so sharded."""
    leaves = jax.tree.leaves(shapes)
    specs = jax.tree.leaves(
        fsdp_specs(shapes, size, smallest=smallest),
        is_leaf=lambda spec: isinstance(spec, P),
    )
    return sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize // (size if AXIS in spec else 1)
        for leaf, spec in zip(leaves, specs, strict=True)
    )
