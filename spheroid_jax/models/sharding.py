"""Fully sharded parameters: which axis of each leaf the ``fsdp`` mesh axis cuts.

Works from shapes alone, so the leaves may be abstract, and by paths, so that an
optimizer's state, whose paths end like the parameters', is cut as they are.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "fsdp"
# Leaves under these keys have an axis that a scan over layers walks.
SCANNED = frozenset({"layers", "block", "blocks"})
SMALLEST = 2**14


def path_names(path: Sequence[Any]) -> set[str]:
    """The string keys on the way to a leaf."""
    return {entry.key for entry in path if isinstance(getattr(entry, "key", None), str)}


def is_scanned(path: Sequence[Any]) -> bool:
    """Whether a leaf has an axis of layers, which a scan walks."""
    return bool(SCANNED & path_names(path))


def leaf_spec(
    path: Sequence[Any],
    leaf: Any,
    size: int,
    *,
    leading: Sequence[str] = (),
    smallest: int = SMALLEST,
) -> P:
    """How one leaf is cut: its leading axes by name, one of the others by ``fsdp``.

    The axis of layers, which comes after the leading ones, is never cut: a scan slices
    it, and a device must have its share of every layer. Of the rest the largest axis
    that divides is cut, and the last only where no other can be: elements along it
    share the scales of block-wise quantised moments, and whole rows gather as they
    lie. What cannot be cut, or isn't worth a gather, stays whole.

    Args:
      path: keys on the way to the leaf.
      leaf: anything with ``shape``; may have fewer axes than ``leading``.
      size: devices along the ``fsdp`` axis.
      leading: mesh axes of the first axes of the leaf.
      smallest: elements of one layer's leaf of one worker, below which it isn't cut.
    """
    leading = leading[: len(leaf.shape)]
    first = len(leading) + is_scanned(path)
    own = leaf.shape[first:]
    cut = [axis for axis, length in enumerate(own) if length % size == 0]
    if size == 1 or not cut or math.prod(own) < smallest:
        return P(*leading)
    best = max(cut, key=lambda axis: (axis < len(own) - 1, own[axis]))
    return P(*leading, *[None] * (first - len(leading) + best), AXIS)


def fsdp_specs(shapes: Any, size: int, *, smallest: int = SMALLEST) -> Any:
    """A tree of PartitionSpec: the :func:`leaf_spec` of each leaf of one model.

    Args:
      shapes: parameters, an optimizer's state or both; anything with ``shape``.
      size: devices along the ``fsdp`` axis.
      smallest: elements of one layer's leaf, below which it is replicated.

    Raises:
      ValueError: size is below 1.
    """
    if size < 1:
        raise ValueError(f"size is {size}; the fsdp axis needs at least 1 device")
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf_spec(path, leaf, size, smallest=smallest), shapes
    )


@contextlib.contextmanager
def shared_over_fsdp(mesh: Mesh) -> Iterator[None]:
    """While a loss is traced in here, :func:`gathered` and :func:`divided` act."""
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield


def gathered(tree: Any) -> Any:
    """Leaves whole on every device of ``fsdp``; outside of a shared trace, as they are.

    A layer's weights go through here inside the scan over layers, so that a device
    holds one whole layer at a time, and their gradients are added up over fsdp.
    """
    return _pinned(tree, P())


def divided(tree: Any) -> Any:
    """Leaves whose first axis, sequences, is cut by ``fsdp``, as in :func:`gathered`.

    Left to itself the compiler moves activations of the whole batch between devices
    where it should move weights.
    """
    return _pinned(tree, P(AXIS))


def _pinned(tree: Any, spec: P) -> Any:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape.get(AXIS, 1) == 1:
        return tree
    # Under vmap the axes of workers aren't seen here, and stay where they are.
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, spec))


def fsdp_shardings(shapes: Any, mesh: Mesh, *, smallest: int = SMALLEST) -> Any:
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


def bytes_per_device(shapes: Any, size: int, *, smallest: int = SMALLEST) -> int:
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
