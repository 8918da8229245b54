"""A step: what turns one item into the next, encoded; a fraction of the item itself.

The coordinator encodes how an item changed, and what it publishes is the older item
plus what that *decodes* to. So a worker that holds the older one comes to the very same
bytes, which the item's own digests prove; whatever isn't right is fetched in full.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spheroid_jax.transport.items.index import DATA, INDEX
from spheroid_jax.transport.protocol import Item
from spheroid_jax.transport.updates import (
    Encoding,
    UpdateError,
    UpdateReader,
    ranges,
    write_update,
)

STEP = "step.0"  # beside an item's index and data
_BASE = "base"
_HEADER = 1 << 20  # bytes that a step may have beyond its item's


def write_step(
    path: Path,
    old: Mapping[str, np.ndarray],
    new: Mapping[str, np.ndarray],
    encoding: Encoding,
    base: str,
) -> dict[str, np.ndarray]:
    """Writes the step from ``old`` towards ``new``, and says how far it goes.

    Args:
      path: of the file.
      old: float32 leaves of the item that workers hold, named as in its index.
      new: where to.
      encoding: of the difference.
      base: digest of the older item.

    Returns:
      ``old`` plus what the file decodes to: to be published.

    Raises:
      UpdateError: a difference that the encoding can't carry.
      OSError: it can't be written.
    """
    change = {name: new[name] - leaf for name, leaf in old.items()}
    write_update(path, change, encoding, {_BASE: base})
    with UpdateReader(path) as step:
        return {name: _stepped(leaf, step, name) for name, leaf in old.items()}


def base_of(path: Path) -> tuple[str, int]:
    """The digest of the item that a step starts from, and the file's bytes.

    Nothing, and 0, where there is no step that can be read.
    """
    try:
        with UpdateReader(path) as step:
            return str(step.facts[_BASE]), path.stat().st_size
    except (UpdateError, OSError, KeyError):
        return "", 0


def is_worth(item: Item) -> bool:
    """Whether a step leads to an item, of a size that a step can have."""
    return bool(item.base) and 0 < item.step_bytes <= item.bytes + _HEADER


def take_step(base: Path, index: bytes, path: Path, descriptor: int) -> None:
    """Writes what a step makes of an older item into the data of a new one.

    Nothing of it is trusted: the result is yet to be verified. A step that doesn't fit
    leaves the data as they are, or wrong.

    Args:
      base: directory of the older item.
      index: of the new item.
      path: of the step.
      descriptor: of the new item's data.
    """
    try:
        ours, theirs = json.loads((base / INDEX).read_bytes()), json.loads(index)
        places = {box["leaf"]: box for box in theirs["boxes"]}
        with UpdateReader(path) as step, (base / DATA).open("rb") as data:
            for box in ours["boxes"]:
                there = places[box["leaf"]]
                if box["shape"] != there["shape"] or not _is_float(ours, box["leaf"]):
                    return
                _copy(box, there["offset"], step, data.fileno(), descriptor)
    except (OSError, ValueError, LookupError, UpdateError):
        return


def _copy(
    box: dict[str, Any], to: int, step: UpdateReader, source: int, target: int
) -> None:
    for start, stop in ranges(math.prod(box["shape"])):
        raw = os.pread(source, 4 * (stop - start), box["offset"] + 4 * start)
        moved = np.frombuffer(raw, "<f4") + step.read(box["leaf"], start, stop)
        os.pwrite(target, moved.astype("<f4").tobytes(), to + 4 * start)


def _stepped(leaf: np.ndarray, step: UpdateReader, name: str) -> np.ndarray:
    moved = np.array(leaf, np.float32)
    flat = moved.reshape(-1)
    for start, stop in ranges(flat.size):
        flat[start:stop] += step.read(name, start, stop)
    return moved


def _is_float(index: dict[str, Any], leaf: str) -> bool:
    return bool(index["leaves"][leaf]["dtype"] == "float32")
