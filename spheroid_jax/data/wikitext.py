"""WikiText from the hub: fetched once, checked, and kept in the user's cache."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

from spheroid_jax.data.corpus import SPLITS, Corpus, CorpusError, make_corpus
from spheroid_jax.data.download import DownloadError, download, unreachable
from spheroid_jax.data.files import find_splits, read_split
from spheroid_jax.data.parquet import INSTALL, has_pyarrow

HUBS = ("https://huggingface.co", "https://hf-mirror.com")
# A revision rather than a branch, so that WikiText-103 is the same bytes for everyone.
_REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
_DATASET = f"datasets/Salesforce/wikitext/resolve/{_REVISION}"
_SHARDS = {
    "wikitext-2-raw": {"train": 1, "valid": 1, "test": 1},
    "wikitext-103-raw": {"train": 2, "valid": 1, "test": 1},
}
NAMES = tuple(_SHARDS)
# Official raw files (S. Merity et al. 2016): bytes and SHA-256.
OFFICIAL = {
    "wikitext-2-raw": {
        "train": (
            10940747,
            "6707892fa3788b5ab9ed78ab5ff37d9fe825f6011a2ad4fcd6a6d467f0e7da57",
        ),
        "valid": (
            1146846,
            "4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7",
        ),
        "test": (
            1290590,
            "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08",
        ),
    },
    "wikitext-103-raw": {},
}
_STALE = 24 * 3600.0  # seconds after which another process' partial download is dead


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/spheroid_jax``, by default ``~/.cache/spheroid_jax``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "spheroid_jax"


def load_wikitext(
    name: str, *, mirror: str = "", cache_dir: str = "", patience: float = 0.0
) -> Corpus:
    """Loads WikiText from the cache, else fetches it and fills the cache.

    The cache holds ``NAME/{train,valid,test}.raw`` and ``NAME/manifest.json`` with
    the size and SHA-256 of each; both are checked at every load, and a damaged cache
    is fetched again. ``mirror`` says where to fetch from, so it changes nothing once
    the cache is filled.

    Args:
      name: ``wikitext-2-raw`` or ``wikitext-103-raw``.
      mirror: empty for the hub and its public mirror; else the URL of a hub
        (``https://host``) or of a folder laid out like the data set
        (``URL/wikitext-2-raw-v1/train-00000-of-00001.parquet``), or a local folder
        with these parquet files or the raw ``wiki.train.raw``.
      cache_dir: where the cache is; empty for :func:`default_cache`.
      patience: if positive, seconds within which a mirror must answer at all.

    Raises:
      CorpusError: nothing could be fetched, or what came is not WikiText.
    """
    folder = (Path(cache_dir).expanduser() if cache_dir else default_cache()) / name
    damage = ""
    if (folder / "manifest.json").is_file():
        try:
            return _read_cache(name, folder)
        except CorpusError as error:
            damage = f"{error}; "
            _say(f"{error}; fetching it again")
    try:
        splits, source = _fetch(name, mirror, folder.parent, patience)
        _write_cache(name, folder, splits, source)
    except CorpusError as error:
        raise CorpusError(f"{damage}{error}") from None
    except OSError as error:
        raise CorpusError(
            f"{damage}cannot write the cache {folder.parent} ({error.strerror}): set "
            "XDG_CACHE_HOME to a folder that can be written"
        ) from None
    return make_corpus(name, splits, source)


def check_official(name: str, splits: dict[str, bytes]) -> None:
    """Raises CorpusError where a split differs from the official raw file."""
    for split, (size, digest) in OFFICIAL[name].items():
        found = hashlib.sha256(splits[split]).hexdigest()
        if found != digest:
            raise CorpusError(
                f"not the official {name}: {split} has {len(splits[split])} bytes and "
                f"SHA-256 {found}, official are {size} bytes and {digest}; use another "
                "mirror, or file:PATH if you mean this text"
            )


def _read_cache(name: str, folder: Path) -> Corpus:
    try:
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        splits = {split: (folder / f"{split}.raw").read_bytes() for split in SPLITS}
        kept = {split: manifest["splits"][split]["sha256"] for split in SPLITS}
        source = str(manifest["source"])
    except (OSError, ValueError, KeyError, TypeError):
        raise CorpusError(f"the cache {folder} is damaged (unreadable)") from None
    for split, data in splits.items():
        found = hashlib.sha256(data).hexdigest()
        if found != kept[split]:
            raise CorpusError(
                f"the cache {folder} is damaged ({split}.raw has SHA-256 {found}, its "
                f"manifest says {kept[split]})"
            )
    try:
        check_official(name, splits)
    except CorpusError as error:
        raise CorpusError(f"the cache {folder} is damaged ({error})") from None
    return make_corpus(name, splits, source)


def _write_cache(
    name: str, folder: Path, splits: dict[str, bytes], source: str
) -> None:
    """Fills the cache; the manifest comes last and makes the rest count."""
    manifest = {
        "corpus": name,
        "source": source,
        "splits": {
            split: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for split, data in splits.items()
        },
    }
    contents = {f"{split}.raw": data for split, data in splits.items()}
    contents["manifest.json"] = json.dumps(manifest, indent=2).encode()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder.parent) as partial:
        for file_name, data in contents.items():
            path = Path(partial) / file_name
            path.write_bytes(data)
            os.replace(path, folder / file_name)


def _fetch(
    name: str, mirror: str, cache: Path, patience: float
) -> tuple[dict[str, bytes], str]:
    """Tries every mirror in order; returns the splits and where they came from."""
    if mirror and not is_url(mirror):
        return _from_folder(name, Path(mirror).expanduser())
    if not has_pyarrow():
        raise CorpusError(f"{name} comes as parquet, which needs pyarrow: {INSTALL}")
    bases = [_base(mirror)] if mirror else [_base(hub) for hub in HUBS]
    probes = {base: f"{base}/{_shard(name, 'valid', 0)}" for base in bases}
    failures = unreachable(probes, patience) if patience > 0 else {}
    cache.mkdir(parents=True, exist_ok=True)
    _remove_stale(cache)
    for base in bases:
        if base in failures:
            continue
        try:
            return _from_url(name, base, cache), f"Salesforce/wikitext @ {_host(base)}"
        except (DownloadError, CorpusError) as error:
            failures[base] = str(error)
    reasons = "; ".join(f"{_host(base)}: {failures[base]}" for base in bases)
    raise CorpusError(
        f"{name} could not be fetched ({reasons}): connect to the network once, or set "
        "data.mirror to a URL or folder that has it"
    )


def _from_url(name: str, base: str, cache: Path) -> dict[str, bytes]:
    splits = {}
    _say(f"fetching {name} from {_host(base)}")
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=cache) as partial:
        for split, shards in _SHARDS[name].items():
            paths = []
            for index in range(shards):
                shard = _shard(name, split, index)
                paths.append(Path(partial) / Path(shard).name)
                download(f"{base}/{shard}", paths[-1])
            splits[split] = read_split(paths, wikitext_rows=True)
            for path in paths:
                path.unlink()
    check_official(name, splits)
    return splits


def _from_folder(name: str, folder: Path) -> tuple[dict[str, bytes], str]:
    if not folder.is_dir():
        raise CorpusError(
            f"the mirror {folder} is no folder: data.mirror takes an http(s) URL or a "
            "local folder"
        )
    try:
        for candidate in (folder / f"{name}-v1", folder / name, folder):
            found = find_splits(candidate) if candidate.is_dir() else {}
            if all(split in found for split in SPLITS):
                splits = {
                    split: read_split(found[split], wikitext_rows=True)
                    for split in SPLITS
                }
                check_official(name, splits)
                return splits, str(candidate)
    except OSError as error:
        raise CorpusError(f"cannot read {folder}: {error.strerror}") from None
    raise CorpusError(
        f"the mirror {folder} does not hold {name}: put wiki.train.raw, wiki.valid.raw "
        f"and wiki.test.raw there, or the hub's parquet files"
    )


def is_url(mirror: str) -> bool:
    """Whether a mirror is an address; everything else is a local folder."""
    return mirror.startswith(("http://", "https://"))


def _base(mirror: str) -> str:
    """Where the data set's folders are; a bare host is taken for a hub."""
    mirror = mirror.rstrip("/")
    bare = not urllib.parse.urlsplit(mirror).path
    return f"{mirror}/{_DATASET}" if bare else mirror


def _shard(name: str, split: str, index: int) -> str:
    stem = "validation" if split == "valid" else split
    return f"{name}-v1/{stem}-{index:05d}-of-{_SHARDS[name][split]:05d}.parquet"


def _host(base: str) -> str:
    return urllib.parse.urlsplit(base).netloc


def _remove_stale(cache: Path) -> None:
    """Removes what a killed download left behind, long after its death."""
    for path in cache.glob(".partial-*"):
        if time.time() - path.stat().st_mtime > _STALE:
            shutil.rmtree(path, ignore_errors=True)


def _say(line: str) -> None:
    print(f"spheroid_jax: {line}", file=sys.stderr, flush=True)
