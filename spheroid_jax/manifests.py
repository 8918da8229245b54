"""A manifest of a directory: what it holds, with the SHA-256 of every file.

The manifest is written last and by a rename, so a directory that has one is complete,
and it carries a digest of itself, so that no flipped bit goes unseen.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


class Damage(Exception):
    """A file isn't what was written; one line that names it."""


def digests(step: Path) -> dict[str, dict[str, Any]]:
    """Returns {relative path: {bytes, sha256}} of all files, each synced to disk."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(step.rglob("*")):
        sync(path)  # Orbax doesn't flush its small files
        if path.is_file():
            files[path.relative_to(step).as_posix()] = {
                "bytes": path.stat().st_size,
                "sha256": _sha256(path),
            }
    return files


def verify(step: Path, manifest: Mapping[str, Any]) -> None:
    """Raises Damage for the first file that is missing or isn't what was written."""
    for name, expected in manifest["files"].items():
        path = step / name
        if not path.is_file():
            raise Damage(f"file {path} is missing")
        try:
            size, digest = path.stat().st_size, _sha256(path)
        except OSError as error:
            raise Damage(f"file {path} can't be read ({error.strerror})") from error
        if size != expected["bytes"]:
            raise Damage(
                f"file {path} has {size} bytes where {expected['bytes']} were written"
            )
        if digest != expected["sha256"]:
            raise Damage(f"file {path} has another SHA-256 than when it was written")


def read(step: Path) -> dict[str, Any]:
    """Returns the manifest, checked against the digest it carries of itself."""
    path = step / MANIFEST
    try:
        envelope = json.loads(path.read_bytes())
        manifest = envelope["manifest"]
        intact = envelope["sha256"] == _sha256_of_json(manifest)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Damage(f"file {path} can't be read") from error
    if not intact:
        raise Damage(f"file {path} has another SHA-256 than when it was written")
    return manifest


def write(step: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest of ``step``: all of it, on disk, or nothing."""
    envelope = {"sha256": _sha256_of_json(manifest), "manifest": manifest}
    temporary = step / f"{MANIFEST}.tmp"
    temporary.write_text(json.dumps(envelope, indent=1), encoding="utf-8")
    sync(temporary)
    os.replace(temporary, step / MANIFEST)
    sync(step)


def _sha256_of_json(value: Any) -> str:
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
