"""Digests of data: a fast one against accidents, a cryptographic one against people.

XXH3 (128 bits, https://xxhash.com) finds any flipped bit that a disk or a copy brings
about, at the speed of memory, but whoever wants to can write other data of the same
digest. SHA-256 costs about ten times as much, and vouches for data that strangers hand
on. Both let go of the interpreter's lock.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Protocol

import xxhash

XXH3, SHA256 = "xxh3", "sha256"


class Digest(Protocol):
    """What is computed of data that comes in parts."""

    def update(self, data: memoryview, /) -> None:
        """Takes the next part."""

    def hexdigest(self) -> str:
        """The digest of all parts so far."""


DIGESTS: Mapping[str, Callable[[], Digest]] = {
    XXH3: xxhash.xxh3_128,
    SHA256: hashlib.sha256,
}

FORMATS: Mapping[str, int] = {SHA256: 2, XXH3: 3}  # of a checkpoint with such digests

_TITLES = {XXH3: "XXH3 digest", SHA256: "SHA-256"}


def title(name: str) -> str:
    """How messages call a digest."""
    return _TITLES[name]
