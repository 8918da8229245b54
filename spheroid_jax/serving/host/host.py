"""A stage that serves: from sweeps that come to results that go.

Everything but the computation happens in the event loop, and nothing in it waits.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.host import sweeps
from spheroid_jax.serving.host.compiling import Compiling
from spheroid_jax.serving.host.computing import Computes, Shape
from spheroid_jax.serving.host.engine import CacheLost, Made
from spheroid_jax.serving.host.forward import Forwarder
from spheroid_jax.serving.host.outbox import FRONTEND, Outbox, Peer
from spheroid_jax.serving.host.settings import HostSettings
from spheroid_jax.serving.host.slots import Held, RequestKey, Slots
from spheroid_jax.serving.host.thread import OneThread
from spheroid_jax.serving.host.waiting import Item, Waiting
from spheroid_jax.serving.packing import bucket
from spheroid_jax.serving.wire.messages import (
    Arrays,
    Close,
    FailureKind,
    Message,
    Ping,
    Pong,
    StageSeconds,
    Sweep,
)

_GOING_AWAY: tuple[FailureKind, str] = "peer", "is going away; use another one"


class _Asked(NamedTuple):
    """A sweep that waits or is computed; ``expires`` as of the monotonic clock."""

    sweep: Sweep
    arrays: Arrays
    held: Held
    expires: float


class StageHost:
    """One stage, served: :meth:`start` it, and :meth:`handle` what comes.

    Args:
      engine: computes for this host alone.
      settings: limits.
      forwarder: the way to the stages after this one.
      say: for the one who runs it; one line each.

    Attributes:
      broken: settled if the host can't go on, with the error; never otherwise.
    """

    def __init__(
        self,
        engine: Computes,
        settings: HostSettings,
        forwarder: Forwarder,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.stage, self.settings = engine.stage, settings
        self._engine = engine
        self._forwarder, self._say = forwarder, say
        self._outbox = Outbox(engine.stage.index, forwarder, say)
        self._slots = Slots(settings.slots)
        self._waiting: Waiting[_Asked] = Waiting(settings.queue)
        self._more = asyncio.Event()  # something waits
        self._thread = OneThread("compute")
        self._compiling = Compiling(self._thread, say)
        self._began: float | None = None  # of what is computed now
        self._inside: list[Held] = []  # likewise
        self._computed = 0
        self._draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def compiling(self) -> bool:
        """Whether a program is compiled just now."""
        return self._compiling.busy

    async def warm(self, shapes: Iterable[Shape]) -> None:
        """Compiles programs; cancelled, it ends after the one that is begun."""
        await self._compiling.ahead(shapes, self._engine.warm)

    def start(self) -> None:
        """Begins to compute what comes."""
        for work in (self._compute_forever(), self._tidy_forever()):
            task = asyncio.create_task(work)
            task.add_done_callback(self._over)
            self._tasks.append(task)

    async def drain(self) -> bool:
        """Takes nothing more, finishes what is computed, tells who waits.

        Returns:
          Whether all was done in ``settings.drain`` seconds.
        """
        self._draining = True
        for item in self._waiting.remove(lambda item: True):
            self._outbox.fail(item.payload.sweep, *_GOING_AWAY)
        until = time.monotonic() + self.settings.drain
        while self._began is not None or len(self._outbox):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.01)
        return True

    async def close(self) -> None:
        """Ends all tasks and connections to next stages; waits for nothing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._outbox.close()
        self._thread.close()
        await self._forwarder.close()

    # What comes.

    def joined(self, peer: Peer) -> None:
        """A peer has connected."""
        if peer.role == FRONTEND:
            self._outbox.joined(peer)

    def left(self, peer: Peer) -> None:
        """A peer's connection is over: what was held for it alone is freed."""
        if self._outbox.left(peer):
            for held in self._slots.of_frontend(peer.id):
                self._forget(held)

    def handle(self, peer: Peer, message: Message, arrays: Arrays) -> Message | None:
        """Takes a message of a peer; never waits.

        Returns:
          What to answer at once, on the same connection.
        """
        if isinstance(message, Sweep):
            return self._take_sweep(peer, message, arrays)
        if isinstance(message, Ping):
            return self.pong(message.number)
        if isinstance(message, Close):
            key = RequestKey(peer.id, message.request)
            self._slots.end(key, message.attempt)
            held = self._slots.find(key)
            if held is not None and held.newest <= message.attempt:
                self._forget(held)
        return None

    def pong(self, number: int = 0) -> Pong:
        """How this stage does."""
        since = [t for t in (self._began, self._waiting.oldest) if t is not None]
        oldest = time.monotonic() - min(since) if since else 0.0
        return Pong(
            number,
            queue=len(self._waiting),
            oldest=max(0.0, oldest),
            slots_free=self._slots.free,
            slots=self._slots.count,
            computed=self._computed,
            draining=self._draining,
        )

    def _take_sweep(self, peer: Peer, sweep: Sweep, arrays: Arrays) -> Message | None:
        if peer.role == FRONTEND and peer.id != sweep.frontend:
            said = "the sweep names another front end than the one that sent it"
            return self._outbox.failure(sweep, "refused", said)
        if not self._outbox.knows(sweep.frontend):
            self._outbox.trouble("a sweep came of a front end that isn't connected")
            return None
        refusal = self._admit(sweep, arrays)
        if refusal is None:
            return None
        if peer.role == FRONTEND:
            # Its own connection: one that doesn't read the answer isn't read either.
            return self._outbox.failure(sweep, *refusal)
        self._outbox.fail(sweep, *refusal)
        return None

    def _admit(self, sweep: Sweep, arrays: Arrays) -> tuple[FailureKind, str] | None:
        """Puts a sweep into the queue, a new request into a slot; or says why not."""
        if self._draining:
            return _GOING_AWAY
        try:
            sweeps.check(self.stage, sweep, arrays)
        except ServingError as error:
            return "refused", str(error)
        now, key = time.monotonic(), sweeps.key_of(sweep)
        most = self.settings.queue
        if self._slots.ended(key, sweep.attempt):
            return None  # the front end's last word was faster than the stage before
        held = self._slots.find(key)
        if held is None and not sweep.fresh:
            return "lost", "there is no cache of this request here: begin it anew"
        if self._waiting.full or len(self._outbox) >= most:
            return "busy", f"{most} sweeps wait; try again later"
        held = held or self._slots.open(key, now)
        if held is None:
            return "busy", f"all {self._slots.count} slots are taken; try again later"
        held.used, held.newest = now, max(held.newest, sweep.attempt)
        asked = _Asked(sweep, arrays, held, now + sweep.deadline)
        group = sweeps.group_of(sweep, self._engine.places(sweep.count))
        self._waiting.put(Item(key, group, asked.expires, asked, now))
        self._more.set()
        return None

    # What is computed.

    async def _compute_forever(self) -> None:
        while True:
            await self._more.wait()
            if not len(self._waiting):
                self._more.clear()
                continue
            items = self._waiting.take(self.settings.max_batch)
            batch = [item for item in items if self._may(item.payload)]
            if batch:
                await self._compute(batch)

    def _may(self, asked: _Asked) -> bool:
        """Whether it can be computed; who asked for it hears if not."""
        sweep, held = asked.sweep, asked.held
        if sweep.attempt < held.newest:
            return False  # nobody waits for it: the request was begun anew
        if time.monotonic() >= asked.expires:
            self._late(sweep)
            return False
        refusal = held.take(sweep)
        if refusal:
            self._outbox.fail(sweep, "refused", refusal)
        return not refusal

    def _late(self, sweep: Sweep) -> None:
        said = "its time was over before it was computed"
        self._outbox.fail(sweep, "late", said)

    async def _compute(self, batch: list[Item[_Asked]]) -> None:
        asked = [item.payload for item in batch]
        works = [sweeps.work_of(a.sweep, a.arrays, a.held.slot) for a in asked]
        places, fill, answer = batch[0].group
        rows = bucket(len(batch), self.settings.max_batch)
        self._began = began = time.monotonic()
        self._inside = [a.held for a in asked]
        try:
            made = await self._compiling.run(
                Shape(rows, places, fill, answer),
                "first text of this shape",
                *(self._engine.compute, works, fill, answer),
            )
        except Exception as error:
            self._failed(asked, error)
            return
        finally:
            self._began, self._inside = None, []
        seconds = time.monotonic() - began
        self._computed += len(batch)
        for item, row in zip(batch, made, strict=True):
            self._deliver(item.payload, row, seconds, began - item.arrived)

    def _failed(self, batch: list[_Asked], error: Exception) -> None:
        """The batch failed as a whole; the stage goes on."""
        why = " ".join(str(error).split())[:200] or type(error).__name__
        self._outbox.trouble(f"a step failed, {len(batch)} requests with it: {why}")
        for asked in batch:
            self._outbox.fail(asked.sweep, "broken", f"the step failed: {why}")
            self._forget(asked.held)
        if isinstance(error, CacheLost):
            for item in self._waiting.remove(lambda item: True):
                said = "the cache was lost when a step failed: begin anew"
                self._outbox.fail(item.payload.sweep, "lost", said)
            self._slots.clear()

    def _deliver(
        self, asked: _Asked, made: Made, seconds: float, queued: float
    ) -> None:
        sweep, held = asked.sweep, asked.held
        held.used = time.monotonic()
        if self._slots.find(held.key) is not held or sweep.attempt < held.newest:
            return  # closed meanwhile, or begun anew
        if made.fault:
            self._outbox.trouble(made.fault)
            self._outbox.fail(sweep, "broken", made.fault)
            self._forget(held)
            return
        spent = StageSeconds(seconds, max(0.0, queued))
        if self.stage.last:
            self._outbox.result(sweep, made, spent)
        else:
            self._outbox.pass_on(sweep, made, spent, asked.expires)

    # What is tidied up.

    def _forget(self, held: Held) -> None:
        """Frees a request's slot; what waits of it is dropped."""
        if self._slots.find(held.key) is held:
            self._waiting.remove(lambda item: item.payload.held is held)
            self._slots.close(held.key)

    async def _tidy_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.tick)
            now = time.monotonic()
            for item in self._waiting.expired(now):
                self._late(item.payload.sweep)
            busy = {held.key for held in self._inside} | self._waiting.keys()
            for held in self._slots.idle(now - self.settings.idle, busy):
                self._forget(held)

    def _over(self, task: asyncio.Task[None]) -> None:
        """One of the tasks that never end has ended."""
        if not task.cancelled() and not self.broken.done():
            self.broken.set_exception(task.exception() or RuntimeError("it ended"))
