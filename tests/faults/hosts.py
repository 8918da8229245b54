"""Processes that aren't any: a thread and an event loop each, that die like by -9.

A host that dies stops where it is. Its event loop never goes on, a thread at a
failpoint never returns from it, so no handler and no ``finally`` of it runs; its
sockets are closed as the kernel would. What is in the hands of other threads at that
moment happens or doesn't, as with a real kill. ``bury`` frees what is left, once nobody
looks at the disk any more.
"""

import asyncio
import collections
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_here = threading.local()


class Killed(BaseException):
    """Ends a thread of a dead host, when it is buried."""


class Host:
    """One process.

    Attributes:
      name: for a reader.
      loop: runs in a thread of its own.
      executor: threads of the loop; whoever needs others takes :meth:`threads`.
      servers: listening, to be closed with it.
      besides: threads of its own making.
      locks: what gives locks of files back; the kernel would.
      dead: whether it was killed.
    """

    def __init__(
        self, name: str, strike: Callable[["Host", str, int], str] = lambda *_: ""
    ) -> None:
        """Starts it.

        Args:
          name: for a reader.
          strike: is asked at every failpoint, with its name and how often it was
            passed; ``kill`` ends the host there.
        """
        self.name, self._strike = name, strike
        self.loop = asyncio.new_event_loop()
        self.servers: list[asyncio.Server] = []
        self.besides: list[threading.Thread] = []
        self.locks: list[Callable[[], None]] = []
        self.dead = threading.Event()
        self._released = threading.Event()
        self._hits: collections.Counter[str] = collections.Counter()
        self._frozen: set[threading.Thread] = set()
        self._waiting: set[threading.Thread] = set()
        self._executors: list[ThreadPoolExecutor] = []
        self._lock = threading.Lock()
        self.loop.set_exception_handler(lambda loop, context: None)
        self.loop.set_default_executor(self.threads(4))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def threads(self, count: int) -> ThreadPoolExecutor:
        """Threads that belong to this host."""
        made = ThreadPoolExecutor(count, self.name, initializer=self._enter)
        self._executors.append(made)
        return made

    def start(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine here; a future of :mod:`concurrent`."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def point(self, name: str) -> None:
        """A failpoint; doesn't return if the host is dead, or dies here."""
        with self._lock:
            self._hits[name] += 1
            count = self._hits[name]
        if not self.dead.is_set() and self._strike(self, name, count) == "kill":
            self.dead.set()
        if self.dead.is_set():
            self._freeze()

    def kill(self) -> None:
        """After this nothing of the host happens any more."""
        self.dead.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        while self._thread.is_alive() and self._thread not in self._frozen:
            self._thread.join(0.002)
        self._close_sockets()
        for executor in self._executors:
            executor.shutdown(wait=False, cancel_futures=True)
        for thread in [
            *self.besides,
            *(t for e in self._executors for t in e._threads),
        ]:
            while thread.is_alive() and thread not in self._frozen | self._waiting:
                thread.join(0.002)
        for give_back in self.locks:
            give_back()

    def bury(self) -> None:
        """Ends its threads and frees its memory."""
        self.dead.set()
        self._released.set()
        with contextlib.suppress(RuntimeError):  # closed
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        if self.loop.is_running() or self.loop.is_closed():
            return
        before, _here.host = here(), self  # whose thread this is meanwhile
        try:
            for _ in range(3):  # it may have been told to stop more than once
                with contextlib.suppress(RuntimeError):
                    self.loop.run_until_complete(_ended())
                    break
        finally:
            _here.host = before
        for executor in self._executors:
            executor.shutdown(wait=True, cancel_futures=True)
        self.loop.close()

    @contextlib.contextmanager
    def waits(self) -> Any:
        """This thread waits for others; while it does, it does nothing itself."""
        thread = threading.current_thread()
        self._waiting.add(thread)
        try:
            yield
        finally:
            self._waiting.discard(thread)
            if self.dead.is_set():
                self._freeze()

    def _run(self) -> None:
        self._enter()
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _enter(self) -> None:
        _here.host = self

    def _freeze(self) -> None:
        if self._released.is_set():
            raise Killed
        thread = threading.current_thread()
        self._frozen.add(thread)
        self._released.wait()
        self._frozen.discard(thread)
        raise Killed

    def _close_sockets(self) -> None:
        for server in self.servers:
            for listening in server.sockets:
                listening._sock.close()  # type: ignore[attr-defined]
        for transport in list(self.loop._transports.values()):  # type: ignore[attr-defined]
            if transport._sock is not None:
                transport._sock.close()


def point(name: str) -> None:
    """A failpoint of the host that this thread belongs to, if it does to any."""
    host = getattr(_here, "host", None)
    if host is not None:
        host.point(name)


def here() -> Host | None:
    """The host that this thread belongs to."""
    return getattr(_here, "host", None)


async def _ended() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=2)
