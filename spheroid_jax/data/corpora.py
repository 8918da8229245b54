"""From a name in the configuration to the bytes."""

import difflib
import os
from pathlib import Path

from spheroid_jax.data.corpus import Corpus, CorpusError
from spheroid_jax.data.embedded import load_embedded
from spheroid_jax.data.files import load_path
from spheroid_jax.data.wikitext import NAMES, is_url, load_wikitext

_PATIENCE = 4.0  # seconds in which a mirror must answer before `auto` goes on without


def load_corpus(spec: str, *, mirror: str = "", cache_dir: str = "") -> Corpus:
    """Loads the corpus that ``spec`` names.

    Args:
      spec: one of
        ``auto``: WikiText-2 if it is cached or a mirror answers within 4 seconds,
        else the embedded corpus with a note that says why (a ``mirror`` that is a
        folder must hold it);
        ``embedded``: the language reference inside every Python, works offline;
        ``wikitext-2-raw``, ``wikitext-103-raw``: see
        :func:`spheroid_jax.data.wikitext.load_wikitext`;
        ``file:PATH``: your own text, see :func:`spheroid_jax.data.files.load_path`.
      mirror: URL or folder to fetch WikiText from; empty: the hub.
      cache_dir: folder of the WikiText cache; empty: the XDG cache.

    Raises:
      CorpusError: the one line to show the user.
    """
    if spec.startswith("file:"):
        if not (path := spec.removeprefix("file:")):
            raise CorpusError("file: names no path: write file:PATH")
        return load_path(Path(os.path.expanduser(path)))
    if spec in NAMES:
        return load_wikitext(spec, mirror=mirror, cache_dir=cache_dir)
    if spec == "embedded":
        return load_embedded()
    if spec == "auto":
        return _auto(mirror, cache_dir)
    known = ("auto", "embedded", *NAMES, "file:PATH")
    if os.path.exists(os.path.expanduser(spec)):
        hint = f"did you mean file:{spec}?"
    elif near := difflib.get_close_matches(spec, known, 1):
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"use one of {', '.join(known)}"
    raise CorpusError(f"unknown corpus {spec!r}: {hint}")


def _auto(mirror: str, cache_dir: str) -> Corpus:
    try:
        return load_wikitext(
            "wikitext-2-raw", mirror=mirror, cache_dir=cache_dir, patience=_PATIENCE
        )
    except CorpusError as error:
        if mirror and not is_url(mirror):
            raise  # a wrong folder is a mistake; only a network may be absent
        return load_embedded(
            (
                "WikiText-2 NOT USED, this run trains on the small embedded corpus "
                f"(Python's own language reference): {error}",
            )
        )
