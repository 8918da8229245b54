"""The run directory: made, claimed, or taken up again."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from spheroid_jax import distributed
from spheroid_jax.config import ADDED

_CONFIG = "config.json"
_SHARED_WITHIN = 30.0  # seconds; NFS may show a new file late


class WorkdirError(ValueError):
    """The run directory can't be used; the message names the cause and the cure."""


def default_workdir(name: str, size: str, resume: bool, root: Path) -> Path:
    """``root/name-size``, numbered when that is taken; resuming takes the newest."""
    stem = f"{name}-{size}"
    taken = [stem, *(f"{stem}-{i}" for i in range(2, 10_000))]
    existing = [d for d in taken if (root / d / "config.json").exists()]
    if resume and not existing:
        raise WorkdirError(
            f"nothing to resume: no run called {stem} under {root}; "
            "start one without --resume, or name its folder with --workdir=DIR"
        )
    if resume:
        return root / existing[-1]
    return root / next(d for d in taken if not (root / d).exists())


def open_workdir(
    workdir: Path, config: ConfigDict, resume: bool, *, besides: tuple[str, ...] = ()
) -> None:
    """Makes ``workdir`` and writes ``config.json``, or checks it when resuming.

    A fresh run may find what is named in ``besides``.

    Raises:
      WorkdirError: if a fresh run would overwrite another, if there is nothing to
        resume, or if the configuration isn't the one that the run started with.
    """
    path = workdir / _CONFIG
    if resume:
        _check_same(path, config)
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        if any(entry.name not in besides for entry in workdir.iterdir()):
            raise WorkdirError(
                f"{workdir} isn't empty; add --resume to go on with the run in it, "
                "or choose another folder with --workdir=DIR"
            )
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(as_json(config), indent=2) + "\n")
        os.replace(partial, path)
    except OSError as error:
        raise WorkdirError(f"can't write to {workdir}: {error.strerror}") from error


def open_shared_workdir(workdir: Path, config: ConfigDict, resume: bool) -> None:
    """As :func:`open_workdir`, by process 0 on behalf of all, who must see it.

    Raises:
      WorkdirError: as :func:`open_workdir`; at another process, if it doesn't see what
        process 0 has written.
    """

    def stamp() -> str:
        open_workdir(workdir, config, resume)
        return (workdir / _CONFIG).read_text()

    written = distributed.agree(f"workdir opened: {workdir}", stamp)
    deadline = time.monotonic() + _SHARED_WITHIN
    while not distributed.is_main():
        with contextlib.suppress(OSError):
            if (workdir / _CONFIG).read_text() == written:
                return
        if time.monotonic() > deadline:
            raise WorkdirError(
                f"{workdir} isn't what process 0 sees under this name: give all "
                "processes one directory on a shared file system with --workdir=DIR"
            )
        time.sleep(0.1)


def _check_same(path: Path, config: ConfigDict) -> None:
    try:
        started = json.loads(path.read_text())
    except FileNotFoundError:
        raise WorkdirError(
            f"nothing to resume in {path.parent}: it has no config.json; "
            "start the run without --resume"
        ) from None
    except (OSError, ValueError) as error:
        raise WorkdirError(f"{path} can't be read: {error}") from error
    before, now = {**ADDED, **flatten(started)}, {**ADDED, **flatten(as_json(config))}
    # Where a run is computed doesn't change what comes out of it.
    changed = [
        f"{name} was {before.get(name)!r}, now {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and not name.startswith("mesh.")
    ]
    if changed:
        raise WorkdirError(
            f"the run in {path.parent} was started with another configuration: "
            f"{'; '.join(changed)}; resume it with its own, or use a new --workdir"
        )


def as_json(config: ConfigDict) -> dict[str, Any]:
    """The configuration as plain JSON types (tuples become lists)."""
    plain: dict[str, Any] = json.loads(config.to_json())
    return plain


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` to ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
