"""What the coordinator says to one process of a worker, and what that one has asked."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.intake import Keys
from spheroid_jax.transport.bucket.layout import Answer, Refusal, Run
from spheroid_jax.transport.bucket.publishing import Publisher
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.tally import Tally
from spheroid_jax.transport.coordinator_api import CoordinatorAPI
from spheroid_jax.transport.items.index import DATA
from spheroid_jax.transport.protocol import Item, ProtocolError, Work, WorkRequest

_AGAIN = 10  # times that an answer is written anew after another process's


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


class Place:
    """Where a worker's processes are all answered: one at a time.

    Attributes:
      name: the worker's.
      ousted: sessions of processes that a newer one has taken over from.
      last: who was answered last.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ousted: list[str] = []
        self.last: Voice | None = None
        self.writing = asyncio.Lock()


class Voice:
    """One process of a worker.

    Attributes:
      session: its own.
      key: by which it signs, and is answered; None where nothing is signed.
      counter: of its newest message.
      asked: its newest question.
      untold: whether the answer isn't there: its writing failed, or another process
        was answered since, perhaps before this one looked.
    """

    def __init__(
        self, house: House, place: Place, session: str, key: bytes | None
    ) -> None:
        """It has said nothing yet."""
        self._house, self._place = house, place
        self.session, self.key = session, key
        self.counter, self.asked = -1, 0
        self.untold = False
        self._answer, self._again = Answer(0), 0
        self._wants: list[str] = []
        self._ask: asyncio.Task[None] | None = None

    def greeted(self, counter: int, answer: Answer) -> None:
        """It has presented itself, and what it asked before is void."""
        self.forget_question()
        self._wants = []
        self.counter, self._answer, self._again = counter, answer, 0

    def change(self, **changes: Any) -> None:
        """There is more to tell it."""
        self._answer, self._again = msgspec.structs.replace(self._answer, **changes), 0

    def covered(self) -> None:
        """Another process's answer was written over this one's."""
        if self._again < _AGAIN:
            self.untold, self._again = True, self._again + 1

    def refuse(self, error: ProtocolError) -> None:
        """Its newest message is refused."""
        self.forget_question()
        self.change(heard=max(self.counter, 0), refusal=Refusal.of(error), work=None)

    def want(self, wants: list[str]) -> None:
        """These are the items whose data it misses."""
        for digest in wants:
            self._house.items.doubt(digest)
        self._wants = wants
        self.change(gone=[])

    def forget_question(self) -> None:
        """Nobody waits for the answer any more."""
        if self._ask is not None:
            self._ask.cancel()
            self._ask = None

    async def close(self) -> None:
        """Ends what is under way."""
        if self._ask is not None:
            self._ask.cancel()
            await asyncio.gather(self._ask, return_exceptions=True)

    def ask(
        self,
        request: WorkRequest,
        asked: int,
        *,
        whole: bool,
        ousted: Callable[["Voice"], None],
    ) -> None:
        """Takes up a question in place of the one before.

        Args:
          request: what is asked.
          asked: its number.
          whole: whether the data of items are needed, steps or not.
          ousted: is called if a newer process has taken over.
        """
        self.forget_question()
        self.asked = asked
        answering = self._answer_question(request, whole, ousted)
        self._ask = asyncio.create_task(answering)

    async def provide(self) -> None:
        """Has the data put that it can't do without.

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
                name = self._place.name
                house.complain(f"{name} waits for item {digest[:12]}: {error}")
        if gone != self._answer.gone:
            self.change(gone=gone)
            await self.tell()

    async def tell(self) -> None:
        """Writes all that there is to tell it.

        Raises:
          BucketError: it can't be written; it is ``untold``.
        """
        place, house = self._place, self._house
        async with place.writing:
            # What is said later is newer, and is said later.
            ousted = list(place.ousted)
            self._answer = msgspec.structs.replace(self._answer, ousted=ousted)
            answer, self.untold = self._answer, True
            last, place.last = place.last, self
            if last is not None and last is not self:
                last.covered()
            content = layout.seal(
                answer,
                "answer",
                place.name,
                self.session,
                house.number(),
                run=house.run.run,
                subject=house.run.epoch,
                key=self.key,
            )
            await house.store.put(layout.answer(place.name), content)
            if answer is self._answer:
                self.untold = False

    async def _answer_question(
        self, request: WorkRequest, whole: bool, ousted: Callable[["Voice"], None]
    ) -> None:
        """Waits for work, publishes what it needs, and tells the worker of it."""
        house, failed, asked = self._house, 0, self.asked
        while True:
            changes: dict[str, Any] = {"work": None, "asked": asked}
            try:
                work = await house.coordinator.work(self._place.name, request)
                changes["work"] = await self._published(work, whole)
            except ProtocolError as error:
                changes["refusal"] = Refusal.of(error)
                if error.code == "superseded":
                    ousted(self)
            except (BucketError, OSError) as error:
                failed += 1
                house.complain(f"{self._place.name} waits for its work: {error}")
                await asyncio.sleep(house.pause(failed))
                continue
            self.change(**changes)
            try:
                await self.tell()
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
