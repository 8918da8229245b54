"""The items that a coordinator offers: those of checkpoints that are complete."""

import json
from collections.abc import Sequence
from pathlib import Path

from spheroid_jax import manifests
from spheroid_jax.checkpoints.digests import CRYPTOGRAPHIC
from spheroid_jax.transport.items.index import DATA, INDEX
from spheroid_jax.transport.items.steps import STEP, base_of
from spheroid_jax.transport.protocol import Item


class Published:
    """Where items are, by digest; items of several checkpoints at a time."""

    def __init__(self) -> None:
        """Nothing is published yet."""
        self._steps: dict[Path, dict[str, Item]] = {}

    def publish(
        self, step: Path, names: Sequence[str] | None = None
    ) -> dict[str, Item]:
        """Offers items of a checkpoint's directory.

        Args:
          step: A round's directory, complete.
          names: Which items, such as ``block_0``; None for blocks and interface.

        Returns:
          The items by name, to be told to workers.

        Raises:
          manifests.Damage: The checkpoint isn't what was written.
          ValueError: An item was written by several processes, or isn't there.
        """
        manifest = manifests.read(step)
        digests = manifest["items"]
        if names is None:
            names = [n for n in digests if n.startswith("block_") or n == "interface"]
        missing = sorted(set(names) - digests.keys())
        if missing:
            raise ValueError(f"{step} has no item {missing[0]}; it has {set(digests)}")
        manifests.verify(step, manifest, set(names))
        items = {name: _item(step / name, digests[name]) for name in names}
        self._steps[step] = items
        return items

    def withdraw(self, step: Path) -> None:
        """No longer offers what is only in ``step``; nothing is deleted."""
        self._steps.pop(step, None)

    def path(self, digest: str) -> Path | None:
        """The directory of an item, of the newest checkpoint that has it."""
        for step, items in reversed(self._steps.items()):
            for name, item in items.items():
                if item.digest == digest:
                    return step / name
        return None


def _item(directory: Path, digest: str) -> Item:
    indexes = sorted(path.name for path in directory.glob("index.*.json"))
    if indexes != [INDEX]:
        raise ValueError(
            f"{directory} has {len(indexes)} indexes where one can be sent; save the "
            "checkpoint from one process"
        )
    index = json.loads((directory / INDEX).read_bytes())
    if not all(any(kind in box for kind in CRYPTOGRAPHIC) for box in index["boxes"]):
        raise ValueError(
            f"{directory} has no cryptographic digests of its pieces, by which workers "
            'check them; save the checkpoint with digest="blake3"'
        )
    size = index["bytes"]
    manifests.check_size(directory / DATA, size)
    base, step_bytes = base_of(directory / STEP)
    return Item(digest, size, base, step_bytes)
