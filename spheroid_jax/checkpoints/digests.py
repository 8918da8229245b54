"""Digests of data: a fast one against accidents, a cryptographic one against people.

XXH3 (128 bits, https://xxhash.com) finds any flipped bit that a disk or a copy brings
about, at the speed of memory, but whoever wants to can write other data of the same
digest. SHA-256 costs about ten times as much, and vouches for data that strangers hand
on. Both let go of the interpreter's lock.
"""

import hashlib
from collections.abc import Callable, Mapping

import xxhash

XXH3, SHA256 = "xxh3", "sha256"

DIGESTS: Mapping[str, Callable[[memoryview], str]] = {
    XXH3: lambda data: xxhash.xxh3_128_hexdigest(data),
    SHA256: lambda data: hashlib.sha256(data).hexdigest(),
}

FORMATS: Mapping[str, int] = {SHA256: 2, XXH3: 3}  # of a checkpoint with such digests

_TITLES = {XXH3: "XXH3 digest", SHA256: "SHA-256"}


def title(name: str) -> str:
    """How messages call a digest."""
    return _TITLES[name]
