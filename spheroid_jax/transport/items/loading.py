"""From fetched items to the arrays that a worker trains."""

from pathlib import Path
from typing import Any

from spheroid_jax.checkpoints import CheckpointError, blobs, facts, leaves
from spheroid_jax.checkpoints.placement import load

PyTree = Any


def load_part(block: Path, interface: Path, abstract: PyTree) -> PyTree:
    """Loads a worker's part, every piece of it checked on the way.

    Args:
      block: Directory of a block's item, as fetched.
      interface: Directory of the interface's.
      abstract: ``{"block": ..., "interface": ...}``, the leaves of the block without
        the axis of blocks: ``jax.ShapeDtypeStruct`` or arrays; NumPy arrays are
        loaded as such, others to where their sharding says.

    Returns:
      The part, in the structure of ``abstract``.

    Raises:
      manifests.Damage: A file isn't what was fetched; discard the item, fetch it again.
      CheckpointError: The items hold other leaves, or arrays of another shape or dtype.
    """
    wanted = {leaves.part_name(n): x for n, x in leaves.named(abstract).items()}
    found = blobs.catalog(block) | blobs.catalog(interface)
    there = {name: record["is"] for name, (record, _) in found.items()}
    here = {name: leaves.loadable(leaf) for name, leaf in wanted.items()}
    if different := facts.differences(there, here):
        raise CheckpointError(
            f"the coordinator's part is another: {facts.shortened(different)}; use the "
            "release that the coordinator has"
        )
    return load(abstract, wanted, found)
