"""Corpora of bytes, and the windows that workers train on."""

from spheroid_jax.data.corpora import load_corpus
from spheroid_jax.data.corpus import Corpus, CorpusError
from spheroid_jax.data.entropy import byte_entropies
from spheroid_jax.data.iterator import DataStateError, RoundIterator
from spheroid_jax.data.windows import evaluation_windows, fingerprint, round_batches

__all__ = [
    "Corpus",
    "CorpusError",
    "DataStateError",
    "RoundIterator",
    "byte_entropies",
    "evaluation_windows",
    "fingerprint",
    "load_corpus",
    "round_batches",
]
