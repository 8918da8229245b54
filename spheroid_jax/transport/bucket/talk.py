"""The coordinator's talk with one worker: what it says is heard, and answered."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.intake import Keys
from spheroid_jax.transport.bucket.layout import Answer, Envelope, Refusal, Run, Said
from spheroid_jax.transport.bucket.publishing import Publisher
from spheroid_jax.transport.bucket.store import BlobStore, Found
from spheroid_jax.transport.bucket.tally import Tally
from spheroid_jax.transport.coordinator_api import CoordinatorAPI
from spheroid_jax.transport.items.index import DATA
from spheroid_jax.transport.protocol import (
    Item,
    Leave,
    Message,
    ProtocolError,
    Register,
    Work,
    WorkRequest,
)


class House(NamedTuple):
    """What the talks of a coordinator share.

    Attributes:
      coordinator: whom to ask.
      store: the prefix of the run.
      keys: by which workers sign; None where nothing is signed.
      run: of this start of the coordinator.
      items: puts what work needs.
      tally: of bytes.
      number: numbers answers, over all workers.
      pause: seconds till the next try, after so many that failed.
      complain: tells the operator of a trouble, once.
      say: tells the operator.
    """

    coordinator: CoordinatorAPI
    store: BlobStore
    keys: Keys | None
    run: Run
    items: Publisher
    tally: Tally
    number: Callable[[], int]
    pause: Callable[[int], float]
    complain: Callable[[str], None]
    say: Callable[[str], None]


class Talk:
    """A name under ``workers/`` and the conversation with it."""

    def __init__(self, house: House, name: str) -> None:
        """Nothing is known of it."""
        self._house, self.name = house, name
        self._key: bytes | None = None
        self._session = ""
        self._counter = -1  # of the newest message of this session
        self._past: set[str] = set()  # sessions
        self._seen: dict[str, bytes] = {}  # generations
        self._answer = Answer(0)
        self._asked = 0
        self._ask: asyncio.Task[None] | None = None
        self._wants: list[str] = []
        self._complained = ""  # of its messages
        self._untold = False  # the answer, as its writing failed
        self._answering = asyncio.Lock()

    async def look(self) -> None:
        """Hears and answers what is new.

        Raises:
          BucketError: something can't be read or written; the next look does it.
        """
        if self._house.keys is not None and self._house.keys(self.name) is None:
            return  # not even read
        try:
            hello = await self._new(layout.hello(self.name))
            if hello is not None:
                await self._greet(hello)
            said = await self._new(layout.pulse(self.name))
            if said is not None:
                await self._hear(said)
        except ProtocolError as error:
            # Nobody is answered: the answer's place belongs to the true worker.
            if self._complained != str(error):  # it may lie there for long
                self._complained = str(error)
                self._house.say(f"a message under {self.name} is ignored: {error}")
        await self._provide()
        if self._untold:
            await self._tell(self._answer, self._session)

    async def close(self) -> None:
        """Ends what is under way."""
        if self._ask is not None:
            self._ask.cancel()
            await asyncio.gather(self._ask, return_exceptions=True)

    async def _new(self, key: str) -> Found | None:
        """The object, if it is another one than before."""
        try:
            found = await self._house.store.read(key, unless=self._seen.get(key))
        except BucketError as error:
            if error.code != "too_large":
                raise
            raise ProtocolError(str(error), status=413, code="too_large") from error
        if found is not None:
            self._seen[key] = found.generation
        return found

    def _opened(
        self, found: Found, kind: layout.Kind, body: type[Message]
    ) -> tuple[Envelope, Message] | None:
        """A message to be heard; None: it is to be passed over."""
        house = self._house
        if house.keys is not None:
            # Of this moment: it may have been revoked while the message was read.
            self._key = house.keys(self.name)
            if self._key is None:
                return None
        envelope = layout.unseal(found.content, kind, house.run.run, self._key)
        if envelope.worker != self.name:
            raise ProtocolError(f"it is in the name of {envelope.worker}")
        if envelope.subject != house.run.epoch:
            return None  # a worker that doesn't know yet of our start
        return envelope, layout.opened(envelope, body)

    async def _greet(self, found: Found) -> None:
        opened = self._opened(found, "hello", Register)
        if opened is None:
            return
        envelope, request = opened
        if request.session != envelope.session:
            raise ProtocolError("its session isn't that of its envelope")
        if envelope.session in self._past:
            raise ProtocolError("it was said before, in a session that is over")
        if envelope.session == self._session and envelope.counter <= self._counter:
            raise ProtocolError("it was said before")
        try:
            registered = await self._house.coordinator.register(self.name, request)
        except ProtocolError as error:
            refused = Answer(envelope.counter, refusal=Refusal.of(error))
            if envelope.session == self._session:
                self._answer = refused
            await self._tell(refused, envelope.session)
            return
        self._house.tally.heard(self.name, request.session, None, len(found.content))
        if self._session != envelope.session:
            self._past.add(self._session)
            self._session, self._asked = envelope.session, 0
        self._forget_question()
        self._wants = []
        self._counter = envelope.counter
        self._answer = Answer(envelope.counter, registered=registered)
        await self._tell(self._answer, self._session)

    async def _hear(self, found: Found) -> None:
        opened = self._opened(found, "said", Said)
        if opened is None:
            return
        envelope, said = opened
        if envelope.session != self._session:
            # Of a process whose greeting isn't here yet, or that another one has
            # superseded, which it will see.
            del self._seen[layout.pulse(self.name)]
            return
        if envelope.counter <= self._counter:
            raise ProtocolError("it was said before")
        self._counter = envelope.counter
        asks = said.ask
        sessions = {said.heartbeat.session, *((asks.session,) if asks else ())}
        if sessions != {self._session}:
            raise ProtocolError("its session isn't that of its envelope")
        changes: dict[str, Any] = {"heard": envelope.counter, "refusal": None}
        coordinator = self._house.coordinator
        try:
            if said.leave:
                self._forget_question()
                await coordinator.leave(self.name, Leave(self._session))
            else:
                pulse = await coordinator.heartbeat(self.name, said.heartbeat)
                changes["pulse"] = pulse
        except ProtocolError as error:
            changes["refusal"] = Refusal.of(error)
        else:
            self._house.tally.heard(
                self.name, self._session, said.moved, len(found.content)
            )
            self._take_wants(said.wants or [])
            if asks is not None and said.asked > self._asked and not said.leave:
                self._forget_question()
                self._asked = said.asked
                answering = self._answer_question(asks, said.asked, said.wants is None)
                self._ask = asyncio.create_task(answering)
        self._answer = msgspec.structs.replace(self._answer, **changes)
        await self._tell(self._answer, self._session)

    def _take_wants(self, wants: list[str]) -> None:
        for digest in wants:
            self._house.items.doubt(digest)
        self._wants = wants
        self._answer = msgspec.structs.replace(self._answer, gone=[])

    async def _provide(self) -> None:
        """Has the data put that the worker can't do without.

        It may have those of any item that is published, as over HTTP.
        """
        house, gone = self._house, list[str]()
        for digest in self._wants:
            directory = house.coordinator.item(digest)
            try:
                if directory is None:
                    raise FileNotFoundError
                item = Item(digest, (directory / DATA).stat().st_size)
                round_ = int(house.coordinator.status()["round"])
                house.items.provide(item, directory, round_)
            except FileNotFoundError:  # the round is over
                gone.append(digest)
            except (BucketError, OSError) as error:
                house.complain(f"{self.name} waits for item {digest[:12]}: {error}")
        if gone != self._answer.gone:
            self._answer = msgspec.structs.replace(self._answer, gone=gone)
            await self._tell(self._answer, self._session)

    def _forget_question(self) -> None:
        if self._ask is not None:
            self._ask.cancel()
            self._ask = None

    async def _answer_question(
        self, request: WorkRequest, asked: int, whole: bool
    ) -> None:
        """Waits for work, publishes what it needs, and tells the worker of it."""
        house, failed = self._house, 0
        while True:
            changes: dict[str, Any] = {"work": None, "asked": asked}
            try:
                work = await house.coordinator.work(self.name, request)
                changes["work"] = await self._published(work, whole)
            except ProtocolError as error:
                changes["refusal"] = Refusal.of(error)
            except (BucketError, OSError) as error:
                failed += 1
                house.complain(f"{self.name} waits for its work: {error}")
                await asyncio.sleep(house.pause(failed))
                continue
            self._answer = msgspec.structs.replace(self._answer, **changes)
            try:
                await self._tell(self._answer, self._session)
            except BucketError as error:
                house.complain(str(error))  # told at the next look
            return

    async def _published(self, work: Work, whole: bool) -> Work:
        """The work, once its items are in the bucket."""
        house, began = self._house, time.monotonic()
        for item in work.items.values():
            directory = house.coordinator.item(item.digest)
            if directory is None:  # the round is over
                return Work("wait", why="the round is over", round=work.round)
            await house.items.publish(item, directory, work.round, whole=whole)
        if work.deadline is None:
            return work
        left = work.deadline - (time.monotonic() - began)
        return msgspec.structs.replace(work, deadline=max(0.0, left))

    async def _tell(self, answer: Answer, session: str) -> None:
        async with self._answering:
            # What is said later is newer, and is said later.
            if session == self._session:
                answer = self._answer
                self._untold = True
            content = layout.seal(
                answer,
                "answer",
                self.name,
                session,
                self._house.number(),
                run=self._house.run.run,
                subject=self._house.run.epoch,
                key=self._key,
            )
            await self._house.store.put(layout.answer(self.name), content)
            if session == self._session and answer is self._answer:
                self._untold = False
