"""An index from a peer is believed only where it adds up."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from spheroid_jax.transport.items import index
from spheroid_jax.transport.protocol import Item
from tests.transport.items.making import item_of, layout, numbers, write_item

LEAVES = {
    "params.blocks.w": numbers(700).reshape(7, 100),
    "params.blocks.b": np.arange(5, dtype=np.int32),
    "params.blocks.none": np.zeros((0, 3), np.float32),
}


def test_pieces_are_where_the_layout_puts_them() -> None:
    found, data = layout(LEAVES)
    item, content = item_of(found, len(data))
    pieces = index.pieces(content, item)
    # 2800 bytes and 20 bytes in pieces of 1000, each leaf for itself.
    cut = [(0, 1000), (1000, 1000), (2000, 800), (2800, 20)]
    assert [(p.offset, p.size) for p in pieces] == cut
    for piece in pieces:
        there = data[piece.offset : piece.offset + piece.size]
        assert piece.digest == blake3(there).hexdigest()


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("bytes",), 2819, "2819"),
        (("bytes",), -1, "isn't an index"),
        (("piece",), 0, "isn't an index"),
        (("piece",), 1 << 40, "isn't an index"),
        (("piece",), 999.5, "isn't an index"),
        (("boxes", 0, "offset"), 4, "isn't where it must be"),
        (("boxes", 1, "offset"), 0, "isn't where it must be"),
        (("boxes", 0, "shape"), [7, 99], "isn't where it must be"),
        (("boxes", 0, "shape"), [7], "isn't inside its leaf"),
        (("boxes", 0, "shape"), [8, 100], "isn't inside its leaf"),
        (("boxes", 0, "start"), [1, 0], "isn't inside its leaf"),
        (("boxes", 0, "start"), [-1, 0], "isn't an index"),
        (("boxes", 0, "shape"), [0] * 33, "isn't an index"),
        (("boxes", 0, "leaf"), "params.other", "isn't inside its leaf"),
        (("boxes", 0, "blake3", 0), "../" * 21 + "x", "isn't an index"),
        (("boxes", 0, "blake3"), [], "isn't where it must be"),
        (("boxes", 0, "blake3"), None, "isn't where it must be"),
        (("boxes",), [], "0 bytes"),
        (("boxes",), None, "isn't an index"),
        (("leaves", "params.blocks.b", "dtype"), "object", "can't be sent"),
        (("leaves", "params.blocks.b", "dtype"), "V4", "can't be sent"),
        (("leaves", "params.blocks.b", "dtype"), "float32", "two ways"),
        (("leaves", "params.blocks.b", "shape"), [6], "two ways"),
        (("leaves", "extra"), {"is": "i", "value": 3}, "isn't an index"),
    ],
)
def test_one_thing_wrong_is_told(where: tuple, value: Any, said: str) -> None:
    found, data = layout(LEAVES)
    spoilt = copy.deepcopy(found)
    inner: Any = spoilt
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    item, content = item_of(spoilt, len(data))
    with pytest.raises(index.BadIndex, match=said) as raised:
        index.pieces(content, item)
    assert "\n" not in str(raised.value)


def test_a_leaf_that_no_box_holds_is_told() -> None:
    found, data = layout(LEAVES)
    found["leaves"]["more"] = {"is": "int8[1]", "dtype": "int8", "shape": [1]}
    item, content = item_of(found, len(data))
    with pytest.raises(index.BadIndex, match="don't hold"):
        index.pieces(content, item)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{}", b"[" * 100_000])
def test_what_is_no_index_is_told(content: bytes) -> None:
    item, content = item_of(content, 0)
    with pytest.raises(index.BadIndex, match="isn't an index"):
        index.pieces(content, item)


def test_another_items_index_is_told() -> None:
    found, data = layout(LEAVES)
    _, content = item_of(found, len(data))
    with pytest.raises(index.BadIndex, match="another SHA-256"):
        index.pieces(content, Item("0" * 64, len(data)))


def test_holds_is_about_this_item(tmp_path: Path) -> None:
    item = write_item(tmp_path / "a", LEAVES)
    assert index.holds(tmp_path / "a", item)
    assert not index.holds(tmp_path / "b", item)
    assert not index.holds(tmp_path / "a", Item(item.digest, item.bytes + 1))
    assert not index.holds(tmp_path / "a", Item("0" * 64, item.bytes))
    (tmp_path / "a" / "data.0").write_bytes(b"short")
    assert not index.holds(tmp_path / "a", item)
