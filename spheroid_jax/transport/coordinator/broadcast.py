"""What changed in a round, encoded for the workers who have the round before.

Error feedback on the coordinator's side: what is published is what workers can decode,
and what that leaves out is kept and goes along with the next step.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from spheroid_jax import manifests
from spheroid_jax.checkpoints.leaves import INTERFACE, block_item, named
from spheroid_jax.partition import Params
from spheroid_jax.transport.items.steps import STEP, write_step
from spheroid_jax.transport.updates import Encoding, UpdateError

_BLOCKS = "params.blocks"


class Broadcast:
    """Writes steps beside the checkpoints that they lead to."""

    def __init__(self, directory: Path, encoding: Encoding) -> None:
        """Steps lie in ``directory`` until their checkpoint is complete."""
        self._directory, self._encoding = directory, encoding
        self._written: dict[str, Path] = {}

    def step(
        self, old: Params, new: Params, blocks: Sequence[int], base_round: int
    ) -> tuple[Params, Params]:
        """Writes the steps of a round, and says where they lead.

        Args:
          old: the model that workers have.
          new: that of the outer optimizer.
          blocks: those that changed, and with them the interface.
          base_round: of the checkpoint that holds ``old``.

        Returns:
          The model that workers will have, and what it lacks of ``new``.
        """
        manifest = manifests.read(self._directory / str(base_round))
        was, now = _flat(old), _flat(new)
        published = {name: np.array(leaf) for name, leaf in was.items()}
        for block in blocks:
            names = [name for name in was if name.startswith(_BLOCKS)]
            moved = self._write(
                block_item(block),
                {n: was[n][block] for n in names},
                {n: now[n][block] for n in names},
                manifest["items"],
            )
            for name, leaf in moved.items():
                published[name][block] = leaf
        if blocks:
            names = [name for name in was if not name.startswith(_BLOCKS)]
            published |= self._write(
                INTERFACE,
                {n: was[n] for n in names},
                {n: now[n] for n in names},
                manifest["items"],
            )
        ahead = {name: now[name] - leaf for name, leaf in published.items()}
        return _like(old, published), _like(old, ahead)

    def publish(self, round_: int) -> None:
        """Puts the steps beside the items that they lead to.

        One that is missing, after a crash, costs its workers a full download.
        """
        for item, path in self._written.items():
            with contextlib.suppress(OSError):
                os.replace(path, self._directory / str(round_) / item / STEP)
        self._written = {}

    def _write(
        self,
        item: str,
        old: Mapping[str, np.ndarray],
        new: Mapping[str, np.ndarray],
        digests: Mapping[str, str],
    ) -> dict[str, np.ndarray]:
        folder = self._directory.with_name(self._directory.name + "_steps")
        path = folder / item
        self._written.pop(item, None)
        try:
            folder.mkdir(exist_ok=True)
            moved = write_step(path, old, new, self._encoding, digests[item])
        except (OSError, UpdateError):
            # A full disk, or a step too large to encode. Without one, workers fetch
            # all of the item, which then needn't be what can be encoded.
            return {name: np.array(leaf, np.float32) for name, leaf in new.items()}
        self._written[item] = path
        return moved


def _flat(params: Params) -> dict[str, np.ndarray]:
    """Leaves by their names in a checkpoint."""
    return {n: np.asarray(x) for n, x in named({"params": params}).items()}


def _like(params: Params, leaves: Mapping[str, np.ndarray]) -> Params:
    names = named({"params": params})
    return jax.tree.unflatten(
        jax.tree.structure(params), [jnp.asarray(leaves[name]) for name in names]
    )
