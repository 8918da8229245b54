"""Items that a worker keeps, so that what didn't change isn't fetched again."""

import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from spheroid_jax.transport.items.pieces import PART
from spheroid_jax.transport.link import Link, LinkError, Progress
from spheroid_jax.transport.protocol import Item


class Got(NamedTuple):
    """An item that is here."""

    path: Path
    moved: int  # bytes that came over the wire for it


class ItemCache:
    """A directory of items, of one process; of every kind the newest few are kept."""

    def __init__(self, root: Path, keep: int = 2) -> None:
        """Opens the directory, and makes it if need be.

        Args:
          root: Holds nothing but items.
          keep: Items of each kind to keep, at least 1.

        Raises:
          LinkError: It can't be made, or another process uses it.
        """
        if keep < 1:
            raise ValueError(f"items to keep must be at least 1, not {keep}")
        self._root, self._keep = root, keep
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise LinkError(
                f"the cache of items {root} can't be used ({error.strerror}); use "
                "another directory",
                code="disk",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise LinkError(
                f"the cache of items {root} is used by another process; give every "
                "worker a directory of its own with --workdir=DIR",
                code="disk",
            ) from error

    async def get(
        self, link: Link, item: Item, kind: str, progress: Progress | None = None
    ) -> Got:
        """The item, fetched if it isn't here; older ones of its kind may go.

        Args:
          link: Where to fetch from.
          item: Which item.
          kind: ``block`` or ``interface``; equal pieces are looked for in the kind.
          progress: Told of bytes that are here, and of all.

        Raises:
          LinkError: It can't be fetched.
          ValueError: ``kind`` isn't a word.
        """
        path = self._path(item, kind)
        moved = await link.fetch(item, path, progress)
        os.utime(path)
        self._evict(path)
        return Got(path, moved)

    def discard(self, item: Item, kind: str) -> None:
        """Forgets an item, such as one that turned out to be damaged."""
        shutil.rmtree(self._path(item, kind), ignore_errors=True)

    def close(self) -> None:
        """Lets another process use the directory."""
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _path(self, item: Item, kind: str) -> Path:
        if not kind.isidentifier():
            raise ValueError(f"a kind of items is one word, not {kind!r:.80}")
        return self._root / kind / item.digest

    def _evict(self, newest: Path) -> None:
        there = list(newest.parent.iterdir())
        parts = [path for path in there if path.name.endswith(PART)]
        whole = [path for path in there if path not in parts and path != newest]
        whole.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in parts + whole[self._keep - 1 :]:
            shutil.rmtree(path, ignore_errors=True)
