"""Items made by hand, as the checkpoints' layout says, and a source of them."""

import hashlib
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import Item

PIECE = 1000  # bytes


def layout(leaves: dict[str, np.ndarray], piece: int = PIECE) -> tuple[dict, bytes]:
    """The index and the data of an item that holds some arrays."""
    data, boxes, records = b"", [], {}
    for name, array in leaves.items():
        flat = array.tobytes()
        cuts = [flat[at : at + piece] for at in range(0, len(flat), piece)]
        boxes.append(
            {
                "leaf": name,
                "start": [0] * array.ndim,
                "shape": list(array.shape),
                "offset": len(data),
                "blake3": [blake3(cut).hexdigest() for cut in cuts],
            }
        )
        records[name] = {
            "is": f"{array.dtype}{list(array.shape)}",
            "dtype": str(array.dtype),
            "shape": list(array.shape),
        }
        data += flat
    return {"bytes": len(data), "piece": piece, "leaves": records, "boxes": boxes}, data


def item_of(index: Any, size: int) -> tuple[Item, bytes]:
    """An item's digest, from scratch, and its index as bytes."""
    content = index if isinstance(index, bytes) else json.dumps(index).encode()
    inner = hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256(json.dumps([inner]).encode()).hexdigest()
    return Item(digest, size), content


def write_item(directory: Path, leaves: dict[str, np.ndarray]) -> Item:
    """An item on disk."""
    index, data = layout(leaves)
    item, content = item_of(index, len(data))
    directory.mkdir(parents=True)
    (directory / "index.0.json").write_bytes(content)
    (directory / "data.0").write_bytes(data)
    return item


def numbers(count: int, seed: int = 0) -> np.ndarray:
    """Float32 numbers that repeat nowhere."""
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


class Source:
    """An item from memory; what it is asked for is kept.

    ``spoil`` gets the data before it is sent, with the number of the request.
    """

    url = "memory"

    def __init__(
        self,
        content: bytes,
        data: bytes,
        spoil: Callable[[bytes, int], bytes] = lambda data, number: data,
        chunk: int = 333,
    ) -> None:
        self.content, self.data = content, data
        self._spoil, self._chunk = spoil, chunk
        self.indexes = 0
        self.asked: list[tuple[int, int]] = []

    async def read_index(self, item: Item) -> bytes:
        self.indexes += 1
        return self.content

    async def read_data(
        self, item: Item, start: int, stop: int
    ) -> AsyncGenerator[bytes, None]:
        self.asked.append((start, stop))
        data = self._spoil(self.data, len(self.asked))[start:stop]
        for at in range(0, len(data), self._chunk):
            yield data[at : at + self._chunk]

    async def read_step(self, item: Item) -> AsyncGenerator[bytes, None]:
        yield await self._no_step(item)

    async def _no_step(self, item: Item) -> bytes:
        raise LinkError("no such step", code="unknown", status=404)
