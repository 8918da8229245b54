"""Digests are those that their names say, and a store writes what it was told to."""

import hashlib
import json
from pathlib import Path

import jax.numpy as jnp
import pytest
from blake3 import blake3

from spheroid_jax import schema
from spheroid_jax.checkpoints import CheckpointError, blobs
from spheroid_jax.checkpoints.digests import CRYPTOGRAPHIC, DIGESTS, FORMATS
from tests.checkpoints.states import abstract, assert_same, blocks_state, open_

# From the specification of XXH3, from FIPS 180-4 and from BLAKE3's test_vectors.json
# (its input of 3 bytes is 0, 1, 2).
VECTORS = [
    ("xxh3", b"", "99aa06d3014798d86001c324468d497f"),
    ("xxh3", b"a", "a96faf705af16834e6c632b61e964e1f"),
    (
        "sha256",
        b"abc",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    ),
    (
        "blake3",
        b"",
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    ),
    (
        "blake3",
        b"\0\1\2",
        "e1be4d7a8ab5560aa4199eea339849ba8e293d55ca0a81006726d184519e647f",
    ),
]


@pytest.mark.parametrize(("name", "data", "expected"), VECTORS)
def test_published_vectors(name: str, data: bytes, expected: str) -> None:
    """Whether it comes in one part or in several."""
    whole, parts = DIGESTS[name](), DIGESTS[name]()
    whole.update(memoryview(data))
    for byte in data:
        parts.update(memoryview(bytes([byte])))
    assert whole.hexdigest() == parts.hexdigest() == expected


def test_each_digest_has_a_format_and_a_value_of_the_field() -> None:
    assert set(DIGESTS) == set(FORMATS) == set(schema.DIGESTS)
    assert len(set(FORMATS.values())) == len(FORMATS)


@pytest.mark.parametrize("name", ["sha256", "blake3"])
def test_it_is_of_each_piece_of_a_box(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What peers check, computed here from the raw files."""
    monkeypatch.setattr(blobs, "PIECE", 100)
    with open_(tmp_path, digest=name) as store:
        store.save(1, blocks_state(), {})
        item = store.metadata()["items"]["block_1"]
    content = (tmp_path / "1/block_1/index.0.json").read_bytes()
    data = (tmp_path / "1/block_1/data.0").read_bytes()
    boxes = json.loads(content)["boxes"]
    # 3 bfloat16 and 2 x 8 x 4 float32: 6 bytes, then 100 + 100 + 56.
    parts = [data[:6], data[6:106], data[106:206], data[206:]]
    found = [digest for box in boxes for digest in box[name]]
    of = hashlib.sha256 if name == "sha256" else blake3
    assert found == [of(part).hexdigest() for part in parts]
    assert all(box.keys() >= {"leaf", "start", "shape", "offset"} for box in boxes)
    listed = json.dumps([hashlib.sha256(content).hexdigest()])
    assert item == hashlib.sha256(listed.encode()).hexdigest()


def test_fast_digests_are_the_default_and_vouch_for_nothing_cryptographic(
    tmp_path: Path,
) -> None:
    """So a peer can't be given them by mistake."""
    with open_(tmp_path) as store:
        store.save(1, blocks_state(), {})
    for index in (tmp_path / "1").rglob("index.0.json"):
        for box in json.loads(index.read_text())["boxes"]:
            assert not box.keys() & set(CRYPTOGRAPHIC)
            assert all(len(digest) == 32 for digest in box["xxh3"])


def test_rounds_of_all_kinds_side_by_side(tmp_path: Path) -> None:
    """As after the setting was changed between two sessions of a run."""
    states = {1: blocks_state(seed=1), 2: blocks_state(seed=2)}
    states[3] = blocks_state(seed=3)
    for round_, digest in ((1, "sha256"), (2, "xxh3"), (3, "blake3")):
        with open_(tmp_path, digest=digest) as store:
            store.save(round_, states[round_], {})
    with open_(tmp_path, digest="sha256") as store:
        for round_, state in states.items():
            assert_same(store.restore(abstract(state), round_)[0], state)


def test_an_unknown_digest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"one of blake3, sha256, xxh3, not"):
        open_(tmp_path, digest="md5")
    with open_(tmp_path) as store:
        store.save(1, {"x": jnp.ones(1)}, {})  # and nothing was left locked
