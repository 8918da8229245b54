"""Digests of data: a fast one against accidents, a cryptographic one against people.

XXH3 (128 bits, https://xxhash.com) finds any flipped bit that a disk or a copy brings
about, at the speed of memory, but whoever wants to can write other data of the same
digest. BLAKE3 (https://github.com/BLAKE3-team/BLAKE3-specs) and SHA-256 (FIPS 180-4)
vouch for data that strangers hand on; the first is four times as fast here. All let go
of the interpreter's lock.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Protocol

import blake3
import xxhash

XXH3, SHA256, BLAKE3 = "xxh3", "sha256", "blake3"


class Digest(Protocol):
    """What is computed of data that comes in parts."""

    def update(self, data: memoryview, /) -> object:
        """Takes the next part."""

    def hexdigest(self) -> str:
        """The digest of all parts so far."""


DIGESTS: Mapping[str, Callable[[], Digest]] = {
    XXH3: xxhash.xxh3_128,
    SHA256: hashlib.sha256,
    BLAKE3: blake3.blake3,
}
CRYPTOGRAPHIC = (BLAKE3, SHA256)  # nobody can make other data of the same digest

FORMATS: Mapping[str, int] = {SHA256: 2, XXH3: 3, BLAKE3: 4}  # of checkpoints

_TITLES = {XXH3: "XXH3 digest", SHA256: "SHA-256", BLAKE3: "BLAKE3 digest"}


def title(name: str) -> str:
    """How messages call a digest."""
    return _TITLES[name]
