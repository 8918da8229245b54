"""Loads a round, or the items of it that are asked for, checking on the way."""

import dataclasses
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

from spheroid_jax import manifests
from spheroid_jax.checkpoints import blobs, facts, leaves
from spheroid_jax.checkpoints.errors import CheckpointError, cause
from spheroid_jax.checkpoints.placement import load

PyTree = Any
Leaf = tuple[dict[str, Any], list[blobs.Source]]

_CURE = "use the settings that wrote it, or another directory"


class Reader:
    """One complete round, whose manifest has been read and checked."""

    def __init__(
        self, step: Path, name: str, *, formats: Set[int], identity: Mapping[str, Any]
    ) -> None:
        """Reads the manifest of ``step``, called ``name`` in messages.

        Raises:
          CheckpointError: Another format or identity.
          manifests.Damage: The manifest isn't what was written.
        """
        self._step, self._name = step, name
        self.manifest = manifests.read(step)
        found = self.manifest["format"]
        if found not in formats:
            *first, last = map(str, sorted(formats))
            known = f"{', '.join(first)} and {last}" if first else last
            raise CheckpointError(
                f"{name} has format {found}, this version reads formats {known}; use "
                "the version that wrote it, or another directory"
            )
        different = facts.differences(
            facts.flat(self.manifest["identity"]), facts.flat(identity)
        )
        if different:
            raise CheckpointError(
                f"{name} is of another run: {'; '.join(different)}; use the same "
                "settings, or another directory"
            )
        self._blocks = sum(item.startswith("block_") for item in self.manifest["items"])

    def state(self, abstract: PyTree) -> PyTree:
        """The whole state; raises CheckpointError or manifests.Damage."""
        return self._assembled(abstract, "", set(self.manifest["items"]))

    def params(self, abstract: PyTree) -> PyTree:
        """The parameters; raises CheckpointError or manifests.Damage."""
        items = set(self.manifest["items"]) - {leaves.REST}
        return self._assembled(abstract, f"{leaves.PARAMS}.", items)

    def part(self, abstract: PyTree, block: int) -> PyTree:
        """One block and the interface; raises CheckpointError or manifests.Damage."""
        if not 0 <= block < self._blocks:
            has = f"blocks 0 to {self._blocks - 1}" if self._blocks else "no blocks"
            raise CheckpointError(
                f"{self._name} has {has}, so not block {block}; ask for one it has"
            )
        wanted = _renamed(abstract, leaves.part_name)
        found: dict[str, Leaf] = {}
        for catalog in self._catalogs({leaves.block_item(block), leaves.INTERFACE}):
            found |= catalog
        self._check({name: record["is"] for name, (record, _) in found.items()}, wanted)
        return self._load(abstract, wanted, found)

    def _assembled(self, abstract: PyTree, prefix: str, items: set[str]) -> PyTree:
        """The leaves whose names in the state start with ``prefix``."""
        wanted = _renamed(abstract, lambda name: prefix + name)
        there = {
            name: text
            for name, text in self.manifest["leaves"].items()
            if name.startswith(prefix)
        }
        self._check(there, wanted)
        return self._load(abstract, wanted, self._joined(items))

    def _catalogs(self, items: set[str]) -> list[blobs.Catalog]:
        manifests.verify(self._step, self.manifest, items)
        return [blobs.catalog(self._step / item) for item in sorted(items)]

    def _joined(self, items: set[str]) -> dict[str, Leaf]:
        """Leaves of several items; those of blocks get back the axis of blocks."""
        found: dict[str, Leaf] = {}
        for item, catalog in zip(sorted(items), self._catalogs(items), strict=True):
            if not item.startswith("block_"):
                found |= catalog
                continue
            block = int(item.removeprefix("block_"))
            for name, (record, sources) in catalog.items():
                if name not in found:
                    shape = [self._blocks, *record["shape"]]
                    found[name] = record | {"shape": shape}, []
                found[name][1].extend(_lifted(source, block) for source in sources)
        return found

    def _check(self, there: Mapping[str, str], wanted: Mapping[str, Any]) -> None:
        here = {name: leaves.loadable(leaf) for name, leaf in wanted.items()}
        different = facts.differences(there, here)
        if different:
            raise CheckpointError(
                f"{self._name} holds another state: {facts.shortened(different)}; "
                f"{_CURE}"
            )

    def _load(
        self, abstract: PyTree, wanted: Mapping[str, Any], found: Mapping[str, Leaf]
    ) -> PyTree:
        try:
            return load(abstract, wanted, found)
        except manifests.Damage:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{self._name} can't be loaded: {cause(error)}"
            ) from error


def is_intact(step: Path) -> bool:
    """Whether every byte of a round is what was written."""
    try:
        manifest = manifests.read(step)
        manifests.verify(step, manifest, set(manifest["items"]))
        for item in manifest["items"]:
            blobs.verify(step / item)
    except (manifests.Damage, LookupError):
        return False
    return True


def _renamed(abstract: PyTree, path: Callable[[str], str]) -> dict[str, Any]:
    """Leaves by their names in the state, in the order of the tree."""
    return {path(name): leaf for name, leaf in leaves.named(abstract).items()}


def _lifted(source: blobs.Source, block: int) -> blobs.Source:
    return dataclasses.replace(
        source, start=(block, *source.start), shape=(1, *source.shape)
    )
