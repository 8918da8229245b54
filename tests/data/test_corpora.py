"""Names of corpora, and what `auto` makes of the network it finds."""

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.data import CorpusError, corpora, load_corpus, wikitext
from spheroid_jax.data import download as download_module

NAME = "wikitext-2-raw"


def test_takes_wikitext_where_it_can(
    official: None,
    wiki: Any,
    serve: Callable[[dict], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hubs = ("http://127.0.0.1:9", serve(wiki.hub_pages()))
    monkeypatch.setattr(wikitext, "HUBS", hubs)
    wiki.check(load_corpus("auto"))
    monkeypatch.setattr(wikitext, "HUBS", ())
    cached = load_corpus("auto")
    assert (cached.name, cached.notes) == (NAME, ())


def test_falls_back_with_one_loud_line(no_network: None) -> None:
    corpus = load_corpus("auto")
    assert corpus.name == "embedded"
    assert corpus.sha256 == load_corpus("embedded").sha256
    (note,) = corpus.notes
    assert "\n" not in note
    for word in ("WikiText-2 NOT USED", "embedded", "connection refused", "mirror"):
        assert word in note


def test_a_network_that_swallows_packets_costs_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()

    def hang(*_: object, **__: object) -> None:
        over.wait(10)
        raise OSError

    # As a name server that never answers: no socket timeout bounds that.
    monkeypatch.setattr(download_module.urllib.request, "urlopen", hang)
    monkeypatch.setattr(corpora, "_PATIENCE", 0.2)
    start = time.monotonic()
    corpus = load_corpus("auto")
    assert time.monotonic() - start < 3
    over.set()
    assert corpus.name == "embedded"
    assert "no answer within 0.2 s" in corpus.notes[0]


def test_a_damaged_cache_is_mentioned(
    official: None, no_network: None, tmp_path: Path, cache_folder: Path
) -> None:
    cache_folder.mkdir(parents=True)
    (cache_folder / "manifest.json").write_text("{}")
    assert "is damaged" in load_corpus("auto").notes[0]


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("wikitext-2", "did you mean wikitext-2-raw?"),
        ("wikitext-103", "did you mean wikitext-103-raw?"),
        ("embeded", "did you mean embedded?"),
        ("", "use one of auto, embedded"),
        ("/dev/null", "did you mean file:/dev/null?"),
    ],
)
def test_an_unknown_name_gets_a_hint(spec: str, hint: str) -> None:
    with pytest.raises(CorpusError) as caught:
        load_corpus(spec)
    assert hint in str(caught.value)


def test_the_digest_is_the_documented_one(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b"abc")
    (tmp_path / "valid.txt").write_bytes(b"xyz")
    lines = [
        f"{split} {hashlib.sha256(data).hexdigest()}\n"
        for split, data in (("train", b"abc"), ("valid", b"xyz"), ("test", b""))
    ]
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert load_corpus(f"file:{tmp_path}").sha256 == expected
