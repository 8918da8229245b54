"""WikiText: to the byte from the hub's parquet, over networks that fail."""

import hashlib
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.data import CorpusError, load_corpus, wikitext
from spheroid_jax.data import download as download_module

NAME = "wikitext-2-raw"


def test_rows_of_the_hub_become_the_official_bytes(
    official: None, wiki: Any, tmp_path: Path
) -> None:
    for path, data in wiki.shards.items():
        (tmp_path / "mirror" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mirror" / path).write_bytes(data)
    corpus = load_corpus(NAME, mirror=str(tmp_path / "mirror"))
    wiki.check(corpus)
    assert corpus.name == NAME
    assert str(tmp_path / "mirror") in corpus.source
    assert corpus.notes == ()


def test_real_splits_survive_the_trip(
    wikitext_raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wiki: Any
) -> None:
    """The true digests of two splits, from rows in the form the hub has."""
    true = {s: wikitext.OFFICIAL[NAME][s] for s in ("valid", "test")}
    monkeypatch.setitem(wikitext.OFFICIAL, NAME, true)
    for split, stem in (("valid", "validation"), ("test", "test")):
        raw = (wikitext_raw / f"wiki.{split}.raw").read_bytes()
        wiki.as_parquet(raw, tmp_path / f"{stem}.parquet")
    wiki.as_parquet(wiki.raw["train"], tmp_path / "train.parquet")
    corpus = load_corpus(NAME, mirror=str(tmp_path))
    assert (corpus.valid.size, corpus.test.size) == (1146846, 1290590)


def test_folder_of_raw_files(official: None, tmp_path: Path, wiki: Any) -> None:
    for split, data in wiki.raw.items():
        (tmp_path / f"wiki.{split}.raw").write_bytes(data)
    wiki.check(load_corpus(NAME, mirror=str(tmp_path)))


def test_the_second_hub_helps_out(
    official: None,
    wiki: Any,
    serve: Callable[[dict], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = serve({}), serve(wiki.hub_pages())
    monkeypatch.setattr(wikitext, "HUBS", (first, second))
    corpus = load_corpus(NAME)
    wiki.check(corpus)
    assert second.removeprefix("http://") in corpus.source


@pytest.mark.parametrize("fault", ["cut off", "other text", "no parquet"])
def test_a_hub_that_lies_is_passed_over(
    fault: str,
    official: None,
    wiki: Any,
    serve: Callable[[dict], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    good = wiki.hub_pages()
    path = next(p for p in good if "/train-" in p)
    body = good[path][2]
    bad = {
        "cut off": (200, len(body), body[:-100]),
        "other text": (200, None, wiki.as_parquet(b" \n other\n", tmp_path / "x")),
        "no parquet": (200, None, b"<html>Please log in</html>"),
    }[fault]
    hubs = (serve({**good, path: bad}), serve(good))
    monkeypatch.setattr(wikitext, "HUBS", hubs)
    wiki.check(load_corpus(NAME))

    monkeypatch.setattr(wikitext, "HUBS", hubs[:1])
    with pytest.raises(CorpusError, match=r"could not be fetched \(127.0.0.1:") as e:
        load_corpus(NAME, cache_dir=str(tmp_path / "fresh"))
    expected = {
        "cut off": f"cut off after {len(body) - 100} of {len(body)} bytes",
        "other text": "not the official wikitext-2-raw: train has 9 bytes",
        "no parquet": "cannot be read as parquet",
    }[fault]
    assert expected in str(e.value)
    assert "\n" not in str(e.value)
    assert not list((tmp_path / "fresh").rglob("*.*"))


def test_redirects_are_followed(
    official: None, wiki: Any, serve: Callable[[dict], str]
) -> None:
    store = serve(wiki.pages_under("/blob"))
    mirror = serve(
        {f"/d/{p}": (302, None, f"{store}/blob/{p}".encode()) for p in wiki.shards}
    )
    wiki.check(load_corpus(NAME, mirror=f"{mirror}/d/"))


def test_a_mirror_is_the_only_one_asked(
    wiki: Any, serve: Callable[[dict], str]
) -> None:
    mirror = serve({})
    with pytest.raises(CorpusError, match=r"\(127.0.0.1:\d+: HTTP 404\): connect"):
        load_corpus(NAME, mirror=f"{mirror}/somewhere")


def test_a_hub_that_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "_STALL", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, never answers
        mirror = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        start = time.monotonic()
        with pytest.raises(CorpusError, match="timed out"):
            load_corpus(NAME, mirror=mirror)
    assert time.monotonic() - start < 3


def test_a_long_download_reports_its_progress(
    official: None,
    wiki: Any,
    serve: Callable[[dict], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mirror = serve(wiki.pages_under("/x"))
    monkeypatch.setattr(download_module, "_REPORT_FROM", 1)
    load_corpus(NAME, mirror=f"{mirror}/x")
    lines = capsys.readouterr().err
    assert lines.startswith(f"spheroid_jax: fetching {NAME} from 127.0.0.1:")
    assert "train-00000-of-00001.parquet: 100 %" in lines


def test_wikitext_103_has_two_shards(
    tmp_path: Path, wiki: Any, cache_folder: Path
) -> None:
    folder = tmp_path / "wikitext-103-raw-v1"
    half = len(wiki.raw["train"]) // 2
    assert wiki.raw["train"][half - 1] == ord("\n")
    wiki.as_parquet(wiki.raw["train"][:half], folder / "train-00000-of-00002.parquet")
    wiki.as_parquet(wiki.raw["train"][half:], folder / "train-00001-of-00002.parquet")
    wiki.as_parquet(wiki.raw["valid"], folder / "validation-00000-of-00001.parquet")
    wiki.as_parquet(wiki.raw["test"], folder / "test-00000-of-00001.parquet")
    corpus = load_corpus("wikitext-103-raw", mirror=str(tmp_path))
    wiki.check(corpus)
    assert corpus.name == "wikitext-103-raw"
    # No official digest is known for it, so its manifest alone tells damage.
    cached = cache_folder.parent / "wikitext-103-raw" / "test.raw"
    cached.write_bytes(wiki.raw["test"].replace(b"F", b"G", 1))
    with pytest.raises(CorpusError, match=r"is damaged \(test.raw has SHA-256"):
        load_corpus("wikitext-103-raw", mirror=str(tmp_path / "none"))


def test_wrong_bytes_name_both_digests(tmp_path: Path, wiki: Any) -> None:
    for split, data in wiki.raw.items():
        (tmp_path / f"wiki.{split}.raw").write_bytes(data)
    found = hashlib.sha256(wiki.raw["train"]).hexdigest()
    with pytest.raises(CorpusError, match=f"{found}.*10940747.*6707892fa378"):
        load_corpus(NAME, mirror=str(tmp_path))


def test_a_folder_without_it(tmp_path: Path, wiki: Any) -> None:
    with pytest.raises(CorpusError, match=r"does not hold .* put wiki\.train\.raw"):
        load_corpus(NAME, mirror=str(tmp_path))
    for spec in (NAME, "auto"):
        with pytest.raises(CorpusError, match="is no folder"):
            load_corpus(spec, mirror=str(tmp_path / "typo"))


def test_without_pyarrow_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(CorpusError, match=r'pip install "spheroid_jax\[data\]"'):
        load_corpus(NAME)
