"""The coordinator's side of a bucket: a front like that of HTTP, by looking again.

Workers come by names that are keys of the bucket. Whoever may write there can use any
name; with ``keys`` they must also sign with the token of that name.
"""

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.intake import BucketIntake, Keys
from spheroid_jax.transport.bucket.layout import Answer, Envelope, Refusal, Run, Said
from spheroid_jax.transport.bucket.publishing import Publisher
from spheroid_jax.transport.bucket.store import BlobStore, Found
from spheroid_jax.transport.coordinator_api import CoordinatorAPI
from spheroid_jax.transport.protocol import (
    VERSION,
    Leave,
    Message,
    ProtocolError,
    Register,
    Work,
    WorkRequest,
    encode,
)

POLL_SECONDS = 2.0
KEEP_ROUNDS = 3
_LOG = logging.getLogger(__name__)
_LONGEST = 30.0  # seconds between looks at a bucket that fails
_AT_ONCE = 8  # workers that are looked at


async def serve_bucket(
    coordinator: CoordinatorAPI,
    store: BlobStore,
    directory: Path,
    *,
    keys: Keys | None,
    poll_seconds: float = POLL_SECONDS,
    keep_rounds: int = KEEP_ROUNDS,
    say: Callable[[str], None] = _LOG.warning,
) -> None:
    """Serves workers through a bucket until it is cancelled.

    Args:
      coordinator: whom to ask.
      store: the prefix of this run alone.
      directory: for updates on their way, on the disk of the accepted ones; this
        function's own.
      keys: gives the SHA-256 (32 bytes) of a worker's token, None for a name that has
        none or a revoked one. Without ``keys`` nothing is signed, and who may write to
        the bucket can speak for every worker.
      poll_seconds: between looks; half of it is added to every answer.
      keep_rounds: rounds after which items, updates and verdicts are deleted; more
        than the greatest age of late updates.
      say: gets a line for the operator.

    Raises:
      BucketError: the bucket can't be used at all, found out at the start.
      ValueError: an argument makes no sense.
    """
    if not 0 < poll_seconds <= 3600:
        raise ValueError(f"poll_seconds must be in (0, 3600], not {poll_seconds}")
    if keep_rounds < 1:
        raise ValueError(f"keep_rounds must be at least 1, not {keep_rounds}")
    await store.check()
    front = _Front(coordinator, store, directory, keys, poll_seconds, keep_rounds, say)
    await store.put(layout.RUN, encode(front.run))
    try:
        await front.serve()
    finally:
        await front.close()


@dataclasses.dataclass
class _Worker:
    """A name under ``workers/`` and the conversation with it."""

    name: str
    key: bytes | None = None
    session: str = ""
    counter: int = -1  # of the newest message of this session
    past: set[str] = dataclasses.field(default_factory=set)  # sessions
    seen: dict[str, bytes] = dataclasses.field(default_factory=dict)  # generations
    answer: Answer = dataclasses.field(default_factory=lambda: Answer(0))
    asked: int = 0
    ask: asyncio.Task[None] | None = None
    complained: str = ""  # of its messages
    untold: bool = False  # the answer, as its writing failed
    answering: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


class _Front:
    """All conversations."""

    def __init__(
        self,
        coordinator: CoordinatorAPI,
        store: BlobStore,
        directory: Path,
        keys: Keys | None,
        poll_seconds: float,
        keep_rounds: int,
        say: Callable[[str], None],
    ) -> None:
        self._coordinator, self._store, self._keys = coordinator, store, keys
        self._poll, self._keep, self._say = poll_seconds, keep_rounds, say
        self.run = Run(
            VERSION,
            str(coordinator.status()["run"]),
            secrets.token_hex(16),
            poll_seconds,
            keys is not None,
        )
        self._items = Publisher(store)
        self._intake = BucketIntake(
            coordinator, store, directory, self.run.run, keys, say
        )
        self._workers: dict[str, _Worker] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._answers = 0  # counts them, in this epoch; no worker takes an older one
        self._cleaned = -1
        self._complained = ""

    async def serve(self) -> None:
        failed = 0
        while True:
            looks: list[Callable[[], Awaitable[None]]]
            looks = [self._look_for_workers, self._look_for_updates, self._clean]
            looks += [partial(self._look_at, w) for w in self._workers.values()]
            done = await asyncio.gather(*map(self._tried, looks))
            # A bucket that fails now and then isn't left alone for that.
            failed = 0 if any(done[:2]) else failed + 1
            if all(done):
                self._complained = ""
            await asyncio.sleep(self._pause(failed))

    def _pause(self, failed: int) -> float:
        return min(max(_LONGEST, self._poll), self._poll * 2.0 ** min(failed, 10))

    async def _tried(self, look: Callable[[], Awaitable[None]]) -> bool:
        try:
            await look()
        except BucketError as error:
            self._complain(str(error))
            return False
        return True

    async def close(self) -> None:
        asks = [worker.ask for worker in self._workers.values() if worker.ask]
        for task in asks:
            task.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        await self._intake.close()
        await self._items.close()

    async def _look_for_workers(self) -> None:
        for key in await self._store.list("workers/"):
            name = key.split("/")[1]
            if layout.is_worker(name):
                self._workers.setdefault(name, _Worker(name))

    async def _look_for_updates(self) -> None:
        self._intake.look(await self._store.list("updates/"))

    async def _clean(self) -> None:
        round_ = int(self._coordinator.status()["round"])
        if round_ != self._cleaned:
            before = round_ - self._keep
            await self._intake.clean(before)
            await self._items.clean(before, round_)
            self._cleaned = round_

    def _complain(self, text: str) -> None:
        if text != self._complained:
            self._complained = text
            self._say(text)

    async def _look_at(self, worker: _Worker) -> None:
        async with self._places:
            if self._keys is not None and self._keys(worker.name) is None:
                return  # not even read
            try:
                hello = await self._new(worker, layout.hello(worker.name))
                if hello is not None:
                    await self._greet(worker, hello)
                said = await self._new(worker, layout.pulse(worker.name))
                if said is not None:
                    await self._hear(worker, said)
            except ProtocolError as error:
                # Nobody is answered: the answer's place belongs to the true worker.
                if worker.complained != str(error):  # it may lie there for long
                    worker.complained = str(error)
                    self._say(f"a message under {worker.name} is ignored: {error}")
            if worker.untold:
                await self._tell(worker, worker.answer, worker.session)

    async def _new(self, worker: _Worker, key: str) -> Found | None:
        """The object, if it is another one than before."""
        try:
            found = await self._store.read(key, unless=worker.seen.get(key))
        except BucketError as error:
            if error.code != "too_large":
                raise
            raise ProtocolError(str(error), status=413, code="too_large") from error
        if found is not None:
            worker.seen[key] = found.generation
        return found

    def _opened(
        self, worker: _Worker, found: Found, kind: layout.Kind, body: type[Message]
    ) -> tuple[Envelope, Message] | None:
        """A message to be heard; None: it is to be passed over."""
        if self._keys is not None:
            # Of this moment: it may have been revoked while the message was read.
            worker.key = self._keys(worker.name)
            if worker.key is None:
                return None
        envelope = layout.unseal(found.content, kind, self.run.run, worker.key)
        if envelope.worker != worker.name:
            raise ProtocolError(f"it is in the name of {envelope.worker}")
        if envelope.subject != self.run.epoch:
            return None  # a worker that doesn't know yet of our start
        return envelope, layout.opened(envelope, body)

    async def _greet(self, worker: _Worker, found: Found) -> None:
        opened = self._opened(worker, found, "hello", Register)
        if opened is None:
            return
        envelope, request = opened
        if request.session != envelope.session:
            raise ProtocolError("its session isn't that of its envelope")
        if envelope.session in worker.past:
            raise ProtocolError("it was said before, in a session that is over")
        if envelope.session == worker.session and envelope.counter <= worker.counter:
            raise ProtocolError("it was said before")
        try:
            registered = await self._coordinator.register(worker.name, request)
        except ProtocolError as error:
            refused = Answer(envelope.counter, refusal=Refusal.of(error))
            if envelope.session == worker.session:
                worker.answer = refused
            await self._tell(worker, refused, envelope.session)
            return
        if worker.session != envelope.session:
            worker.past.add(worker.session)
            worker.session, worker.asked = envelope.session, 0
        self._forget_question(worker)
        worker.counter = envelope.counter
        worker.answer = Answer(envelope.counter, registered=registered)
        await self._tell(worker, worker.answer, worker.session)

    async def _hear(self, worker: _Worker, found: Found) -> None:
        opened = self._opened(worker, found, "said", Said)
        if opened is None:
            return
        envelope, said = opened
        if envelope.session != worker.session:
            # Of a process whose greeting isn't here yet, or that another one has
            # superseded, which it will see.
            del worker.seen[layout.pulse(worker.name)]
            return
        if envelope.counter <= worker.counter:
            raise ProtocolError("it was said before")
        worker.counter = envelope.counter
        asks = said.ask
        sessions = {said.heartbeat.session, *((asks.session,) if asks else ())}
        if sessions != {worker.session}:
            raise ProtocolError("its session isn't that of its envelope")
        changes: dict[str, Any] = {"heard": envelope.counter, "refusal": None}
        try:
            if said.leave:
                self._forget_question(worker)
                await self._coordinator.leave(worker.name, Leave(worker.session))
            else:
                pulse = await self._coordinator.heartbeat(worker.name, said.heartbeat)
                changes["pulse"] = pulse
        except ProtocolError as error:
            changes["refusal"] = Refusal.of(error)
        else:
            if asks is not None and said.asked > worker.asked and not said.leave:
                self._forget_question(worker)
                worker.asked = said.asked
                worker.ask = asyncio.create_task(self._ask(worker, asks, said.asked))
        worker.answer = msgspec.structs.replace(worker.answer, **changes)
        await self._tell(worker, worker.answer, worker.session)

    def _forget_question(self, worker: _Worker) -> None:
        if worker.ask is not None:
            worker.ask.cancel()
            worker.ask = None

    async def _ask(self, worker: _Worker, request: WorkRequest, asked: int) -> None:
        """Waits for work, publishes what it needs, and tells the worker of it."""
        failed = 0
        while True:
            changes: dict[str, Any] = {"work": None, "asked": asked}
            try:
                work = await self._coordinator.work(worker.name, request)
                changes["work"] = await self._published(work)
            except ProtocolError as error:
                changes["refusal"] = Refusal.of(error)
            except (BucketError, OSError) as error:
                failed += 1
                self._complain(f"{worker.name} waits for its work: {error}")
                await asyncio.sleep(self._pause(failed))
                continue
            worker.answer = msgspec.structs.replace(worker.answer, **changes)
            try:
                await self._tell(worker, worker.answer, worker.session)
            except BucketError as error:
                self._complain(str(error))  # told at the next look
            return

    async def _published(self, work: Work) -> Work:
        """The work, once its items are in the bucket."""
        began = time.monotonic()
        for item in work.items.values():
            directory = self._coordinator.item(item.digest)
            if directory is None:  # the round is over
                return Work("wait", why="the round is over", round=work.round)
            await self._items.publish(item, directory, work.round)
        if work.deadline is None:
            return work
        left = work.deadline - (time.monotonic() - began)
        return msgspec.structs.replace(work, deadline=max(0.0, left))

    async def _tell(self, worker: _Worker, answer: Answer, session: str) -> None:
        async with worker.answering:
            # What is said later is newer, and is said later.
            if session == worker.session:
                answer = worker.answer
                worker.untold = True
            self._answers += 1
            content = layout.seal(
                answer,
                "answer",
                worker.name,
                session,
                self._answers,
                run=self.run.run,
                subject=self.run.epoch,
                key=worker.key,
            )
            await self._store.put(layout.answer(worker.name), content)
            if session == worker.session and answer is worker.answer:
                worker.untold = False
