"""What runs of every kind say of their corpus and their machine."""

import math
import platform
from typing import Any

import jax

from spheroid_jax import data


def corpus_lines(corpus: data.Corpus) -> list[str]:
    """The corpus, and what a byte of it costs to models that know little."""
    entropies = corpus.entropies
    return [
        f"corpus: {corpus.name}, {len(corpus.train):,} bytes to train on, "
        f"{len(corpus.valid):,} to validate on ({corpus.source})",
        "a byte of it costs "
        f"{math.log(256):.3f} nats to a model that knows nothing, "
        f"{entropies[0]:.3f} to one that knows byte frequencies, "
        f"{entropies[1]:.3f} to one that sees one byte back",
    ]


def corpus_facts(corpus: data.Corpus) -> dict[str, Any]:
    """The corpus as a summary tells of it."""
    return {
        "name": corpus.name,
        "sha256": corpus.sha256,
        "train_bytes": len(corpus.train),
        "valid_bytes": len(corpus.valid),
        "source": corpus.source,
        "entropies": list(corpus.entropies),
        "notes": list(corpus.notes),
    }


def environment() -> dict[str, str]:
    """Versions and devices."""
    return {
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "devices": str(jax.device_count()),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
