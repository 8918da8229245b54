"""The status as it changes, encoded once for everybody who watches."""

import asyncio
import collections
import contextlib
import logging
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from spheroid_jax.transport.coordinator_api import CoordinatorAPI

_LOG = logging.getLogger(__name__)
_ROUNDS = 20  # of the log, as many as the page shows
_LOGGED = 200  # of the log, for programs
_POINTS = 400  # of the chart: more than a screen tells apart
_WORKERS = 200  # as many as the page shows
_JUST = 600.0  # seconds that somebody who is gone is looked for


def encode(status: Any) -> bytes:
    """JSON that every browser reads: a NaN or an infinity becomes ``null``."""
    try:
        return msgspec.json.encode(status, enc_hook=_plain)
    except UnicodeEncodeError:  # such as a file's name that isn't UTF-8
        return msgspec.json.encode(_utf8(status), enc_hook=_plain)


def for_programs(status: dict[str, Any]) -> dict[str, Any]:
    """A status that doesn't grow with rounds, for ``/status``.

    The newest 200 rounds, and at most 400 evaluations, evenly thinned: of a run's whole
    course, and the newest always.
    """
    return {
        **status,
        "ce": _thinned(status.get("ce", [])),
        "rounds_log": status.get("rounds_log", [])[-_LOGGED:],
    }


def for_page(status: dict[str, Any]) -> dict[str, Any]:
    """The part of a status that the page draws, so that an event stays small.

    It grows neither with rounds nor with workers: evaluations as in
    :func:`for_programs`, the newest 20 rounds, and the 200 workers that matter most,
    with ``worker_states`` to say how many of all are in which state.
    """
    workers = status.get("workers", [])
    return {
        **status,
        "ce": _thinned(status.get("ce", [])),
        "rounds_log": status.get("rounds_log", [])[-_ROUNDS:],
        "workers": sorted(workers, key=_rank)[:_WORKERS],
        "worker_states": collections.Counter(str(w.get("state")) for w in workers),
    }


def _thinned(evaluations: list[Any]) -> list[Any]:
    stride = -(-len(evaluations) // _POINTS) or 1
    # Counted from the newest, which is never left out.
    return evaluations[::-1][::stride][::-1]


def _rank(worker: dict[str, Any]) -> tuple[int, float]:
    """Late first, then who is just gone, who is here, and who is gone for longest."""
    state, seen = worker.get("state"), worker.get("seen_seconds")
    silent = math.inf if seen is None else float(seen)
    if state != "gone":
        return (0 if state == "late" else 2), 0.0
    return (1 if silent < _JUST else 3), silent


class Feed:
    """Asks the coordinator on behalf of all viewers; idle while there are none.

    A viewer takes the newest status when it is ready for one. Nothing is queued, so a
    slow viewer misses what is outdated anyway.

    Attributes:
      viewers: how many watch.
      closed: whether the server is going; every viewer should end.
    """

    def __init__(self, coordinator: CoordinatorAPI, interval: float, refresh: float):
        """``interval``: least seconds between two; ``refresh``: most seconds."""
        self._coordinator = coordinator
        self._interval, self._refresh = interval, refresh
        self._serial, self._newest = 0, b""
        self._published = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.viewers = 0
        self.closed = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Counts a viewer in."""
        self.viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            self.viewers -= 1
            if not self.viewers:
                self._stop()

    def now(self) -> tuple[int, bytes]:
        """The status of this moment, and what to call :meth:`newer` with."""
        return self._serial, encode(for_page(self._coordinator.status()))

    async def newer(self, seen: int, wait: float) -> tuple[int, bytes] | None:
        """A status after ``seen``; None if there is none within ``wait`` seconds."""
        if self._serial <= seen:
            try:
                async with asyncio.timeout(wait):
                    await self._published.wait()
            except TimeoutError:
                return None
        return self._serial, self._newest

    def close(self) -> None:
        """Ends all viewers, within about a second."""
        self.closed = True
        self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _follow(self) -> None:
        version = -1
        while True:
            try:
                version = await self._coordinator.changed(version, self._refresh)
                newest = encode(for_page(self._coordinator.status()))
            except Exception:
                _LOG.exception("the dashboard has no status to show")
                await asyncio.sleep(self._refresh)
                continue
            self._serial, self._newest = self._serial + 1, newest
            published, self._published = self._published, asyncio.Event()
            published.set()
            await asyncio.sleep(self._interval)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # a number or an array of NumPy
        return value.tolist()
    raise NotImplementedError(f"a status can't hold a {type(value).__name__}")


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_utf8(key): _utf8(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_utf8(entry) for entry in value]
    return value
