"""What a corpus is: three disjoint splits of bytes, and where they came from."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping

import numpy as np

from spheroid_jax.data.entropy import byte_entropies

SPLITS = ("train", "valid", "test")


class CorpusError(ValueError):
    """The data cannot be used; the message names the cause and the cure."""


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Text as bytes, in three splits that share no position.

    Attributes:
      name: what reports call it, such as ``wikitext-2-raw``.
      train: (n,) uint8, read-only.
      valid: (n,) uint8, read-only.
      test: (n,) uint8, read-only; of length 0 where the source has no test split.
      source: where the bytes came from.
      sha256: identifies the data: the hex digest of the three lines
        ``"train HEX\\n"``, ``"valid HEX\\n"``, ``"test HEX\\n"``, where HEX is the
        SHA-256 of that split's bytes.
      notes: lines that whoever reads a result must see (a fallback, bytes that are
        not UTF-8, carriage returns, a split that we made).
    """

    name: str
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    source: str
    sha256: str
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def entropies(self) -> tuple[float, float, float]:
        """Entropies of orders 0, 1 and 2 of the validation split, nats per byte."""
        return byte_entropies(self.valid)


def make_corpus(
    name: str, splits: Mapping[str, bytes], source: str, notes: tuple[str, ...] = ()
) -> Corpus:
    """Builds a corpus from the bytes of its splits and computes its digest."""
    digests = {split: hashlib.sha256(splits[split]).hexdigest() for split in SPLITS}
    lines = "".join(f"{split} {digests[split]}\n" for split in SPLITS)
    # frombuffer over bytes is a view that numpy marks read-only: no copy is made.
    arrays = {split: np.frombuffer(splits[split], np.uint8) for split in SPLITS}
    return Corpus(
        name=name,
        source=source,
        sha256=hashlib.sha256(lines.encode()).hexdigest(),
        notes=notes,
        **arrays,
    )
