"""What a worker has to hold: AdamW's bytes from shapes, and a step's from its program.

A float32 parameter trained by AdamW costs 16 bytes: itself, its gradient and two
moments (BlockTrain, arXiv 2606.24722, memory profile).
"""

from typing import Any, NamedTuple

import jax
from jax.stages import Compiled

BYTES_PER_PARAMETER = 16
GIB = 2**30


class ActiveState(NamedTuple):
    """Parameters that a worker trains, and the AdamW state they cost in GiB."""

    what: str
    params: int
    adamw_gib: float


class StepMemory(NamedTuple):
    """Bytes of a compiled program on one device, as its buffers were assigned.

    Attributes:
      arguments: what it is given: weights, moments, windows.
      outputs: what it returns.
      aliased: outputs that take the place of donated arguments.
      temporaries: everything between: gradients, activations, work space.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int

    @property
    def total(self) -> int:
        """Bytes held at once; no byte is counted twice."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


def step_memory(program: Compiled) -> StepMemory | None:
    """Memory of a compiled program, or None where the backend doesn't tell.

    Nothing has to be allocated or run: a program compiled from shapes will do.
    """
    found = program.memory_analysis()
    if found is None:
        return None
    return StepMemory(
        found.argument_size_in_bytes,
        found.output_size_in_bytes,
        found.alias_size_in_bytes,
        found.temp_size_in_bytes,
    )


def size(tree: Any) -> int:
    """Number of parameters in a tree, whose leaves may be abstract."""
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
    block = size(params["blocks"]) // blocks
    interface = size(params["interface"])
    return [
        active_state("one worker: its block and the interface", block + interface),
        active_state("of that, the interface", interface),
        active_state("the full stack: all blocks and the interface", size(params)),
    ]
