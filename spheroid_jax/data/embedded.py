"""The corpus every Python carries: the language reference in ``pydoc_data``."""

import hashlib
import re
import sys
from collections.abc import Mapping

from spheroid_jax.data.corpus import Corpus, CorpusError, make_corpus

# 256 evaluation windows of 128 bytes need 33 kB, which 12 % of 0.38 MB gives.
_SHARES = {"valid": 0.12, "test": 0.06}
_LARGEST_HELD_OUT = 0.05  # of all text: a longer topic would make the shares lopsided
_EXCERPT = 0.6  # a topic with less new text than this share of itself is dropped
_LONG = 60  # characters from which a repeated paragraph is no coincidence


def load_embedded(notes: tuple[str, ...] = ()) -> Corpus:
    """Loads about 0.38 MB of English prose with some code; works offline.

    The text belongs to the running Python, so it differs a little between versions:
    the corpus' SHA-256 tells them apart.

    Raises:
      CorpusError: this Python was built without ``pydoc_data``.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise CorpusError(
            f"the embedded corpus is missing: {sys.executable} has no module "
            "pydoc_data (some minimal builds leave it out); use another Python, or "
            "your own text with file:PATH"
        ) from None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    source = f"pydoc_data.topics of CPython {version}"
    return make_corpus("embedded", split_topics(topics), source, notes)


def split_topics(topics: Mapping[str, str]) -> dict[str, bytes]:
    """Splits topics into train, valid and test; no long paragraph is in two.

    Which split a topic falls into depends on its name and length alone (the order of
    the names' SHA-256), so neighbouring Python versions hold out much the same.

    Args:
      topics: text by topic name.

    Returns:
      Bytes by split, topics in the order of their names, joined by blank lines.
    """
    texts = _without_repeats(topics)
    total = sum(len(text) for text in texts.values())
    chosen: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    sizes = dict.fromkeys(_SHARES, 0)
    for name in sorted(texts, key=lambda name: hashlib.sha256(name.encode()).digest()):
        open_splits = [s for s in _SHARES if sizes[s] < _SHARES[s] * total]
        if not open_splits or len(texts[name]) > _LARGEST_HELD_OUT * total:
            chosen["train"].append(name)
        else:
            chosen[open_splits[0]].append(name)
            sizes[open_splits[0]] += len(texts[name])
    return {
        split: "".join(texts[name] + "\n\n" for name in sorted(names)).encode()
        for split, names in chosen.items()
    }


def _without_repeats(topics: Mapping[str, str]) -> dict[str, str]:
    """Keeps every long paragraph once, in the longest topic that has it.

    Many topics are excerpts of longer ones (``while`` of ``compound``): split as they
    stand, validation text would be read in training.
    """
    seen: set[str] = set()
    kept = {}
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        paragraphs = []
        for paragraph in re.split(r"\n[ \t]*\n", topics[name]):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                paragraphs.append(paragraph.strip("\n"))
            if len(words) >= _LONG:
                seen.add(words)
        text = "\n\n".join(paragraphs)
        if len(text) >= _EXCERPT * len(topics[name]):
            kept[name] = text
    return kept
