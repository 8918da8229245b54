"""The paper's active-state table: AdamW bytes of one worker against the full stack.

A float32 parameter trained by AdamW costs 16 bytes: itself, its gradient and two
moments (BlockTrain, arXiv 2606.24722, memory profile).
"""

from typing import Any, NamedTuple

import jax

BYTES_PER_PARAMETER = 16
GIB = 2**30


class ActiveState(NamedTuple):
    """Parameters that a worker trains, and the AdamW state they cost in GiB."""

    what: str
    params: int
    adamw_gib: float


def _size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def active_state(what: str, params: int) -> ActiveState:
    """A row of the table for a worker that trains ``params`` parameters."""
    return ActiveState(what, params, params * BYTES_PER_PARAMETER / GIB)


def active_states(params: Any, blocks: int) -> list[ActiveState]:
    """Rows for one BlockTrain worker, the interface alone and the full stack.

    Args:
      params: BlockTrain's parameters ``{"blocks": leaves (B, ...), "interface": ...}``;
        only shapes are used, so the leaves may be abstract.
      blocks: B.

    The full stack is BlockTrain's own; the end-to-end reference goes without the noisy
    half of the interface.
    """
    block = _size(params["blocks"]) // blocks
    interface = _size(params["interface"])
    return [
        active_state("one worker: its block and the interface", block + interface),
        active_state("of that, the interface", interface),
        active_state("the full stack: all blocks and the interface", _size(params)),
    ]
