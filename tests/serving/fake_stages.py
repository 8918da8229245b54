"""Stages without arithmetic: a byte depends on all that its position may read.

They keep a cache by places as the real ones do, so that a sweep that starts too late,
or that leaves a stale entry behind, gives another byte.
"""

import hashlib
from typing import Any

from spheroid_jax.serving.decoding import Sweep

MISSING = ("no byte",)


def digest(*parts: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest())


class FakeStages:
    """``blocks`` stages that share a vocabulary of a few letters.

    A small ``letters`` makes drafts agree with the whole chain often.
    """

    def __init__(self, blocks: int, letters: int, seed: int = 0):
        self.blocks, self.letters, self.seed = blocks, letters, seed
        self.caches: list[list[Any]] = [[] for _ in range(blocks)]

    def forget(self) -> None:
        """A stage was lost, and with it the cache."""
        self.caches = [["spoilt"] * 99 for _ in range(self.blocks)]

    def letter(self, state: int) -> int:
        return ord("a") + state % self.letters

    def visit(self, block: int, place: int, index: int, read: Any, below: Any) -> int:
        """State of a position; the first block's is the chain's state there."""
        cache = self.caches[block]
        del cache[place + 1 :]
        cache[place:] = [(read, below)]
        return digest(self.seed, block, index, cache)

    def sweep(self, sweep: Sweep) -> tuple[bytes, bytes]:
        """Drawn bytes and the guesses that were used."""
        if sweep.fresh:
            self.caches = [[] for _ in range(self.blocks)]
        assert all(len(cache) >= sweep.start for cache in self.caches), "a hole"
        context: list[Any] = list(sweep.bytes)
        context += [MISSING] * (sweep.count - len(context))
        below: list[Any] = [None] * sweep.count
        for block in range(self.blocks):
            if block and sweep.fill in ("expected", "drawn"):
                for i in range(sweep.known, sweep.count):
                    before = below[i - 1]
                    exact = sweep.fill == "drawn"
                    context[i] = self.letter(before) if exact else ("mean", before)
            states = []
            for i in range(sweep.count):
                state = self.visit(
                    block, sweep.start + i, sweep.index + i, context[i], below[i]
                )
                states.append(state)
                drafts = block == 0 and sweep.fill in ("drafted", "written")
                if drafts and sweep.known <= i + 1 < sweep.count:
                    context[i + 1] = self.letter(state)
            below = states
        drawn = bytes(self.letter(state) for state in below[sweep.known - 1 :])
        if sweep.fill == "written":
            drawn = bytes(context[sweep.known :]) + drawn[-1:]
        used = context[sweep.known :] if sweep.fill == "drafted" else []
        return drawn, bytes(used)

    def next_byte(self, origin: int, text: bytes) -> int:
        """The byte after ``text``, whose places begin at ``origin``: no cache."""
        below: list[Any] = [None] * (len(text) - origin)
        for block in range(self.blocks):
            pairs = list(zip(text[origin:], below, strict=True))
            below = [
                digest(self.seed, block, origin + i, pairs[: i + 1])
                for i in range(len(pairs))
            ]
        return self.letter(below[-1])
