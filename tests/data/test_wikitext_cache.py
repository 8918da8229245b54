"""The WikiText cache: filled once, checked always, repaired when it rots."""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.data import CorpusError, load_corpus, wikitext

NAME = "wikitext-2-raw"


@pytest.fixture
def mirror(official: None, tmp_path: Path, wiki: Any) -> str:
    folder = tmp_path / "mirror"
    folder.mkdir()
    for split, data in wiki.raw.items():
        (folder / f"wiki.{split}.raw").write_bytes(data)
    return str(folder)


def test_fetched_once(
    mirror: str, no_network: None, wiki: Any, cache_folder: Path
) -> None:
    first = load_corpus(NAME, mirror=mirror)
    again = load_corpus(NAME)
    wiki.check(again)
    assert (again.sha256, again.source) == (first.sha256, first.source)
    manifest = json.loads((cache_folder / "manifest.json").read_text())
    for split, data in wiki.raw.items():
        assert (cache_folder / f"{split}.raw").read_bytes() == data
        assert manifest["splits"][split] == {
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }


def test_cache_dir_and_xdg(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    load_corpus(NAME, mirror=mirror, cache_dir=str(tmp_path / "mine"))
    assert (tmp_path / "mine" / NAME / "manifest.json").is_file()
    assert not cache_folder.exists()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # invalid: to be ignored
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    load_corpus(NAME, mirror=mirror)
    default = tmp_path / "home" / ".cache" / "spheroid_jax" / NAME
    assert (default / "manifest.json").is_file()


@pytest.mark.parametrize("damage", ["bit", "missing", "manifest", "other"])
def test_damage_is_noticed_and_repaired(
    damage: str,
    mirror: str,
    no_network: None,
    capsys: pytest.CaptureFixture[str],
    wiki: Any,
    cache_folder: Path,
) -> None:
    load_corpus(NAME, mirror=mirror)
    raw, manifest = cache_folder / "valid.raw", cache_folder / "manifest.json"
    if damage == "bit":
        raw.write_bytes(raw.read_bytes().replace(b"V", b"W", 1))
    elif damage == "missing":
        raw.unlink()
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:50])
    else:  # another text with a manifest that agrees is still not WikiText
        raw.write_bytes(b"other")
        content = json.loads(manifest.read_text())
        content["splits"]["valid"]["sha256"] = hashlib.sha256(b"other").hexdigest()
        manifest.write_text(json.dumps(content))
    capsys.readouterr()
    both = f"the cache {cache_folder} is damaged .*could not be fetched"
    with pytest.raises(CorpusError, match=both):
        load_corpus(NAME)
    wiki.check(load_corpus(NAME, mirror=mirror))
    assert "fetching it again" in capsys.readouterr().err
    wiki.check(load_corpus(NAME))


@pytest.mark.parametrize("survived", [0, 1, 3])
def test_death_while_filling_leaves_no_half_cache(
    survived: int,
    mirror: str,
    no_network: None,
    monkeypatch: pytest.MonkeyPatch,
    wiki: Any,
    cache_folder: Path,
) -> None:
    moved: list[Path] = []

    def replace_then_die(source: Path, target: Path) -> None:
        if len(moved) == survived:
            raise KeyboardInterrupt
        moved.append(target)
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(wikitext.os, "replace", replace_then_die)
        with pytest.raises(KeyboardInterrupt):
            load_corpus(NAME, mirror=mirror)
    with pytest.raises(CorpusError, match="could not be fetched"):
        load_corpus(NAME)
    assert not list(cache_folder.parent.glob(".partial-*"))
    wiki.check(load_corpus(NAME, mirror=mirror))


def test_leftovers_of_a_kill_go_when_they_are_old(
    no_network: None, cache_folder: Path
) -> None:
    cache = cache_folder.parent
    old, young = cache / ".partial-old", cache / ".partial-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "train.parquet").write_bytes(b"half")
    os.utime(old, (time.time() - 1e6,) * 2)
    with pytest.raises(CorpusError):
        load_corpus(NAME)
    assert not old.exists()
    assert young.exists()


def test_a_cache_that_cannot_be_written(mirror: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CorpusError, match=r"cannot write the cache .*XDG_CACHE_HOME"):
        load_corpus(NAME, mirror=mirror, cache_dir=str(tmp_path / "file"))
