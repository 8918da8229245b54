"""A manifest of a directory: what it holds, with the SHA-256 of its files.

The manifest is written last and by a rename, so a directory that has one is complete,
and it carries a digest of itself, so that no flipped bit goes unseen.

Data files are left to the indexes beside them, which hold digests piece by piece; the
manifest holds digests of the indexes, so it vouches for everything.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
_DATA = "data.*"


class Damage(Exception):
    """A file isn't what was written; one line that names it."""


def digests(step: Path) -> dict[str, dict[str, Any]]:
    """Returns {relative path: {bytes, sha256}} of all but data files, and syncs."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(step.rglob("*")):
        if path.match(_DATA):
            continue
        sync(path)  # Orbax doesn't flush its small files
        if path.is_file():
            files[path.relative_to(step).as_posix()] = {
                "bytes": path.stat().st_size,
                "sha256": _sha256(path),
            }
    return files


def item_digests(files: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns {item: digest of all it holds}, from the digests of its indexes."""
    items: dict[str, list[str]] = {}
    for name, file in sorted(files.items()):
        item, _, rest = name.partition("/")
        if Path(rest).match("index.*.json"):
            items.setdefault(item, []).append(file["sha256"])
    return {item: sha256_of_json(found) for item, found in items.items()}


def verify(step: Path, manifest: Mapping[str, Any], items: set[str]) -> None:
    """Checks the files of ``items`` and of no item, but for the content of data.

    Raises:
      Damage: for the first file that is missing or isn't what was written.
    """
    for name, expected in manifest["files"].items():
        item, inside, _ = name.partition("/")
        if inside and item not in items:
            continue
        path = step / name
        check_size(path, expected["bytes"])
        try:
            digest = _sha256(path)
        except OSError as error:
            raise Damage(f"file {path} can't be read ({error.strerror})") from error
        if digest != expected["sha256"]:
            raise Damage(f"file {path} has another SHA-256 than when it was written")


def check_size(path: Path, expected: int) -> None:
    """Raises Damage if ``path`` isn't a file of ``expected`` bytes."""
    if not path.is_file():
        raise Damage(f"file {path} is missing")
    size = path.stat().st_size
    if size != expected:
        raise Damage(f"file {path} has {size} bytes where {expected} were written")


def read(step: Path) -> dict[str, Any]:
    """Returns the manifest, checked against the digest it carries of itself."""
    path = step / MANIFEST
    try:
        envelope = json.loads(path.read_bytes())
        manifest = envelope["manifest"]
        intact = envelope["sha256"] == sha256_of_json(manifest)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Damage(f"file {path} can't be read") from error
    if not intact:
        raise Damage(f"file {path} has another SHA-256 than when it was written")
    return manifest


def write(step: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest of ``step``: all of it, on disk, or nothing."""
    envelope = {"sha256": sha256_of_json(manifest), "manifest": manifest}
    temporary = step / f"{MANIFEST}.tmp"
    temporary.write_text(json.dumps(envelope, indent=1), encoding="utf-8")
    sync(temporary)
    os.replace(temporary, step / MANIFEST)
    sync(step)


def sha256_of_json(value: Any) -> str:
    """A digest of JSON data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flushes a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
