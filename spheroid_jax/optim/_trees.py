"""Trees that stand at or above the leaves of another: ages, labels of fragments."""

from typing import Any

import jax
import optax

_Path = tuple[Any, ...]


def is_none(node: Any) -> bool:
    """Whether a node is None, which JAX otherwise takes for an empty tree."""
    return node is None


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves, None among them, and the structure of a tree."""
    return jax.tree.flatten(tree, is_leaf=is_none)


def _is_hole(node: Any) -> bool:
    return node is None or isinstance(node, optax.MaskedNode)


def broadcast_prefix(prefix: Any, tree: Any, name: str, tree_name: str) -> list[Any]:
    """Gives each leaf of a tree the value that stands at or above it in another tree.

    Values above a masked part of the tree are left over and ignored, so that a tree
    written for all parameters also serves inside ``optax.masked`` and
    ``optax.partition``.

    Args:
      prefix: one value, or a tree of values.
      tree: the tree to cover; None counts as a leaf and needs no value.
      name: what to call ``prefix`` in an error.
      tree_name: what to call ``tree`` in an error.

    Returns:
      A list in the order of :func:`flatten`.

    Raises:
      ValueError: if a leaf has no value, or a value no leaf.
    """
    values: dict[_Path, Any] = dict(jax.tree_util.tree_flatten_with_path(prefix)[0])
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_hole)[0]
    found: list[Any] = []
    used: set[_Path] = set()
    for path, leaf in leaves:
        above = next(
            (path[:n] for n in range(len(path) + 1) if path[:n] in values), None
        )
        if above is None and not _is_hole(leaf):
            raise ValueError(
                f"{name} has no value for {tree_name}{jax.tree_util.keystr(path)}; "
                "give one value, or a tree with a value at or above every leaf"
            )
        if above is not None:
            used.add(above)
        if not isinstance(leaf, optax.MaskedNode):
            found.append(None if above is None else values[above])
    holes = [path for path, leaf in leaves if _is_hole(leaf)]
    for path in values.keys() - used:
        if not any(path[: len(hole)] == hole for hole in holes):
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} stands at no leaf of {tree_name} "
                "and above none; give the two the same structure"
            )
    return found
