"""A worker's talk with its coordinator through two objects, one for each direction."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.hearing import Hearing
from spheroid_jax.transport.bucket.layout import Answer, Moved, Run, Said
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.trying import Trying
from spheroid_jax.transport.http.retry import Again, Pace, Tools
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import (
    Heartbeat,
    Register,
    Registered,
    WorkRequest,
)

_LOOKS = 10  # in which an answer must come


class Spoken(NamedTuple):
    """What was said: its number, and to which start of the coordinator."""

    counter: int
    epoch: str


class Conversation:
    """Says what there is to say, and hears what is new.

    A coordinator that has started anew is noticed by its epoch, and greeted again; who
    waits for an answer then has to say again what it waits for.
    """

    def __init__(
        self,
        store: BlobStore,
        name: str,
        key: bytes | None,
        pace: Pace,
        tools: Tools,
        grace: float,
        notice: Callable[[str], None],
    ) -> None:
        """See :class:`~spheroid_jax.transport.bucket.worker_side.BucketLink`."""
        self._store, self._name, self._key = store, name, key
        self._pace, self._tools, self._notice = pace, tools, notice
        self.tried = Trying(self.where, pace, tools, notice)
        self._grace = grace
        self._greeting: Register | None = None
        self._run: Run | None = None  # that this process is registered with
        self._counter = 0  # of our messages
        self._hearing = Hearing(store, name, key, notice)
        self._beat: Heartbeat | None = None
        self._ask: WorkRequest | None = None
        self.asked = 0
        self._wants: dict[str, Spoken] = {}  # items, and when their lack was told
        self._before = 0  # bytes read that an earlier start of the coordinator knows
        self._told = 0  # bytes read, as they were told last
        self._looking: asyncio.Task[None] | None = None
        self._speaking, self._joining = asyncio.Lock(), asyncio.Lock()

    @property
    def run(self) -> Run:
        """The run.

        Raises:
          LinkError: This process isn't registered.
        """
        if self._run is None:
            raise LinkError(
                f"{self.where}: this worker isn't registered: register first",
                code="unknown",
                status=409,
            )
        return self._run

    @property
    def where(self) -> str:
        """The bucket, for messages."""
        return self._store.address.url

    @property
    def patience(self) -> float:
        """Seconds in which an answer must come."""
        return max(self._grace, _LOOKS * self.run.poll_seconds)

    # What is said.

    async def greet(self, greeting: Register) -> Registered:
        """Registers this process.

        Raises:
          LinkError: The coordinator refuses, or gives no answer for long.
        """
        self._greeting = greeting

        async def attempt() -> Registered:
            async with self._joining:
                return await self._join(greeting)

        patience = self._pace.first_patience
        return await self.tried("registering", attempt, patience)

    def question(self, ask: WorkRequest) -> int:
        """Asks for work from now on; returns the question's number."""
        self._ask = ask
        self.asked += 1
        return self.asked

    def answered(self, number: int) -> None:
        """The question needs no answer any more."""
        if number == self.asked:
            self._ask = None

    async def say(self, beat: Heartbeat | None = None, leave: bool = False) -> Spoken:
        """Writes all that there is to say."""
        if beat is not None:
            self._beat = beat
        async with self._speaking:  # or an older message could be written last
            run, greeting = self.run, self._greeting
            assert greeting is not None
            counter = self.count()
            said = Said(
                self._beat if self._beat is not None else Heartbeat(greeting.session),
                self._ask,
                self.asked,
                leave,
                list(self._wants)[: layout.WANTS],
                self.moved(),
            )
            content = self._sealed(greeting, said, "said", counter, run)
            key = layout.pulse(self._name)
            await self.tried("speaking", lambda: self._store.put(key, content))
            return Spoken(counter, run.epoch)

    async def want(self, digest: str) -> None:
        """Says that an item's data aren't there, and looks whether there is news.

        Raises:
          LinkError: The coordinator has the item no more, or refuses.
        """
        said = self._wants.get(digest)
        if said is None or said.epoch != self.run.epoch:
            self._wants[digest] = Spoken(-1, "")  # it is part of what is said now
            said = self._wants[digest] = await self.say()
        answer = await self.answer(said)
        if answer and answer.heard >= said.counter and digest in answer.gone:
            raise LinkError(
                f"{self.where}: the coordinator has item {digest[:12]} no more, its "
                "round is over: ask for work again",
                code="unknown",
                status=404,
            )

    def has(self, digest: str) -> None:
        """An item isn't wanted any more; told with what is said next."""
        self._wants.pop(digest, None)

    def moved(self) -> Moved:
        """What was read of the bucket, to be told."""
        self._told = self._store.received
        return Moved(self.run.epoch, self._told - self._before)

    def count(self) -> int:
        """Numbers a message."""
        self._counter += 1
        return self._counter

    # What is heard.

    async def answer(self, said: Spoken) -> Answer | None:
        """Waits a little and looks; None if it was said to one that is no more.

        Raises:
          LinkError: The coordinator refuses what was said.
        """
        await self.look()
        if self.run.epoch != said.epoch:
            return None
        answer = self._hearing.newest
        if answer is None:
            return Answer(0)
        if answer.refusal is not None and answer.heard >= said.counter:
            self._hearing.refused(answer)
        return answer

    async def look(self) -> None:
        """A pause, then a look; joins again if the coordinator has started anew.

        Who wants one while another pauses has that one: looks are requests, and cost.

        Raises:
          LinkError: This process is superseded, or the bucket fails for long.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
            # Its error is that of whoever waits, if anybody still does.
            self._looking.add_done_callback(lambda t: t.cancelled() or t.exception())
        await asyncio.shield(self._looking)

    async def close(self) -> None:
        """Ends a look that nobody waits for."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        await self._tools.sleep(self.run.poll_seconds)

        async def attempt() -> None:
            async with self._joining:  # or two would join
                assert self._greeting is not None
                if (await self._hearing.run()).epoch == self.run.epoch:
                    await self._hearing.answer(self.run, self._greeting.session)
                    return
                self._notice(f"{self.where}: the coordinator has started anew")
                await self._join(self._greeting)

        await self.tried("listening", attempt)
        self._hearing.check_token()
        if self._hearing.superseded:
            raise LinkError(
                f"{self.where}: another process has taken over as {self._name}: use "
                "one token a worker",
                code="superseded",
                status=409,
            )

    async def _join(self, greeting: Register) -> Registered:
        hearing = self._hearing
        run = await hearing.run()
        hearing.check(run)
        hearing.forget()
        counter = self.count()
        content = self._sealed(greeting, greeting, "hello", counter, run)
        await self._store.put(layout.hello(self._name), content)
        clock = self._tools.clock
        ends = clock() + max(self._grace, _LOOKS * run.poll_seconds)
        while clock() < ends:
            await self._tools.sleep(run.poll_seconds)
            answer = await hearing.answer(run, greeting.session)
            # An older answer is one to another hello, or put back by somebody.
            if answer is None or answer.heard < counter:
                if (await hearing.run()).epoch != run.epoch:
                    raise Again("the coordinator has started anew")
                continue
            if answer.refusal is not None:
                hearing.refused(answer)
            if answer.registered is not None:
                if self._run is None or self._run.epoch != run.epoch:
                    self._before = self._told
                self._run, hearing.superseded = run, False
                self.tried.has_met = True
                return answer.registered
        raise Again(
            "the coordinator gives no answer",
            cure="is it running, with this bucket, and is this worker's token one of "
            "its ledger, for this name, and not revoked?",
        )

    def _sealed(
        self,
        greeting: Register,
        body: msgspec.Struct,
        kind: layout.Kind,
        counter: int,
        run: Run,
    ) -> bytes:
        return layout.seal(
            body,
            kind,
            self._name,
            greeting.session,
            counter,
            run=run.run,
            subject=run.epoch,
            key=self._key,
        )
