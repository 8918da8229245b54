"""A pipeline of toys: what a stage answers depends on every byte before a position.

Its cache is real, so a place that was never written, another request's bytes or a row
that was mixed up show in the answer.
"""

import asyncio
import dataclasses
import threading
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np

from spheroid_jax.serving.host.engine import CacheLost, Made, Work
from spheroid_jax.serving.host.forward import Forwarder
from spheroid_jax.serving.host.host import StageHost
from spheroid_jax.serving.host.outbox import FRONTEND, STAGE
from spheroid_jax.serving.host.settings import HostSettings
from spheroid_jax.serving.packing import bucket
from spheroid_jax.serving.wire.codec import check_sweep
from spheroid_jax.serving.wire.messages import Close, Failure, Message, Result, Sweep

PLACES, WIDTH = 32, 2
FRONT = b"front end one..."
Test = Callable[[], Coroutine[Any, Any, None]]


def looped(test: Test) -> Callable[[], None]:
    """Runs a test in an event loop of its own; an error nobody caught fails it."""

    def run() -> None:
        troubles: list[dict[str, Any]] = []

        async def inside() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, what: troubles.append(what))
            async with asyncio.timeout(120):
                await test()

        asyncio.run(inside())
        assert troubles == []

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@dataclasses.dataclass(frozen=True)
class ToyStage:
    """Sums a hash of the text so far into the state; the last one's sum is the byte."""

    index: int = 0
    count: int = 1
    kind: str = "blocktrain"
    width: int = WIDTH
    places: int = PLACES

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1


def text_hash(text: bytes, seed: int, stage: int) -> int:
    return zlib.crc32(bytes([stage]) + seed.to_bytes(4, "big") + text) % 251


class ToyEngine:
    """Computes in NumPy.

    Attributes:
      hold: clear it, and the computation hangs until it is set.
      fail: raised by the next batch.
      batches: {slot: start} of every batch so far.
    """

    def __init__(self, stage: ToyStage, slots: int) -> None:
        self.stage: Any = stage
        self.cache = np.zeros((slots, PLACES), np.uint8)
        self.hold = threading.Event()
        self.hold.set()
        self.fail: Exception | None = None
        self.batches: list[dict[int, int]] = []
        self.bad_slots: set[int] = set()

    def places(self, count: int) -> int:
        return bucket(count, PLACES)

    def warm(self, batch: int, count: int, fill: str, answer: str) -> None:
        pass

    def compute(self, works: Sequence[Work], fill: str, answer: str) -> list[Made]:
        assert self.hold.wait(20)
        if self.fail is not None:
            error, self.fail = self.fail, None
            if isinstance(error, CacheLost):
                self.cache[:] = 0
            raise error
        slots = [work.slot for work in works]
        assert len(set(slots)) == len(slots)
        assert len({self.places(work.count) for work in works}) == 1
        self.batches.append({work.slot: work.start for work in works})
        return [self._row(work) for work in works]

    def _row(self, work: Work) -> Made:
        row = self.cache[work.slot]
        row[work.start : work.start + work.count] = work.bytes
        sums = [
            text_hash(row[: work.start + s + 1].tobytes(), work.seed, self.stage.index)
            for s in range(work.count)
        ]
        total = np.array(sums, np.float32)
        if work.state is not None:
            total = total + work.state[:, 0]
        if work.slot in self.bad_slots:
            return Made(work.bytes, state=None, fault="the result isn't finite")
        if self.stage.last:
            drawn = (total % 256).astype(np.uint8)
            return Made(drawn, logprob=-total, context=work.bytes)
        draft = np.zeros((work.count, 256), np.float32)
        return Made(work.bytes, state=np.stack([total, total], 1), draft=draft)


def expected(text: bytes, seed: int, count: int) -> int:
    """The byte that ``count`` stages draw after a text."""
    return sum(text_hash(text, seed, b) for b in range(count)) % 256


class FakePeer:
    """The other end of a connection; what it was sent, and how it takes it."""

    def __init__(self, role: str = FRONTEND, id_: bytes = FRONT) -> None:
        self.role, self.id = role, id_
        self.got: list[tuple[Message, dict[str, np.ndarray]]] = []
        self.news = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()
        self.lost = False

    async def send(
        self, message: Message, arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        await self.takes.wait()
        if self.lost:
            raise ConnectionResetError("gone")
        self.got.append((message, dict(arrays or {})))
        self.news.set()

    async def answer(self, request: int, number: int = 0, attempt: int = 0) -> Any:
        """The (message, arrays) that ends a sweep."""
        wanted = (_id(request), number, attempt)
        async with asyncio.timeout(10):
            while True:
                for message, arrays in self.got:
                    if isinstance(message, (Result, Failure)):
                        told = (message.request, message.number, message.attempt)
                        if told == wanted:
                            return message, arrays
                self.news.clear()
                await self.news.wait()

    def answers(self) -> list[Message]:
        return [m for m, _ in self.got if isinstance(m, (Result, Failure))]


class FakeLink:
    """A connection between two hosts of one process."""

    def __init__(self, to: StageHost, facts: Mapping[str, Any]) -> None:
        self.to, self.facts = to, facts
        self.peer = FakePeer(STAGE, bytes(16))
        self.closed = False
        self.takes = asyncio.Event()
        self.takes.set()

    async def send(
        self, message: Message, arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        await self.takes.wait()
        if self.closed:
            raise ConnectionResetError("the connection was lost")
        self.to.handle(self.peer, message, dict(arrays or {}))

    async def close(self) -> None:
        self.closed = True


class Pipeline:
    """Hosts of toys, connected; address ``s1`` is stage 1's."""

    def __init__(self, count: int = 1, **settings: Any) -> None:
        chosen = {"slots": 4, "max_batch": 4, "tick": 0.02, "drain": 2.0, **settings}
        self.settings = HostSettings(**chosen)
        self.count = count
        self.said: list[str] = []
        self.front = FakePeer()
        self.engines = [
            ToyEngine(ToyStage(index, count), self.settings.slots)
            for index in range(count)
        ]
        self.links: list[FakeLink] = []
        self.dialled: list[str] = []
        self.facts = [{"index": b, "fingerprint": "f"} for b in range(count)]
        self.unreachable: set[str] = set()
        self.hosts = [
            StageHost(engine, self.settings, self._forwarder(b), self.said.append)
            for b, engine in enumerate(self.engines)
        ]

    @property
    def host(self) -> StageHost:
        return self.hosts[0]

    @property
    def engine(self) -> ToyEngine:
        return self.engines[0]

    def _forwarder(self, index: int) -> Forwarder:
        return Forwarder(
            self._dial,
            {"index": index + 1, "fingerprint": "f"},
            connect=1.0,
            backoff=0.05,
        )

    async def _dial(self, address: str) -> FakeLink:
        self.dialled.append(address)
        if address in self.unreachable:
            raise ConnectionRefusedError(f"{address} refused")
        index = int(address[1:])
        link = FakeLink(self.hosts[index], self.facts[index])
        self.links.append(link)
        return link

    async def __aenter__(self) -> "Pipeline":
        for host in self.hosts:
            host.start()
            host.joined(self.front)
        return self

    async def __aexit__(self, *_: object) -> None:
        for engine in self.engines:
            engine.hold.set()
        for host in self.hosts:
            await host.close()

    def send(self, request: int, text: bytes = b"ab", **changes: Any) -> None:
        self.hear(*sweep(request, text, stages=self.count, **changes))

    def hear(self, message: Message, arrays: dict[str, np.ndarray]) -> None:
        """The front end's message comes to stage 0."""
        answer = self.host.handle(self.front, message, arrays)
        if answer is not None:
            self.front.got.append((answer, {}))
            self.front.news.set()

    async def ask(self, request: int, text: bytes = b"ab", **changes: Any) -> Any:
        self.send(request, text, **changes)
        number, attempt = changes.get("number", 0), changes.get("attempt", 0)
        return await self.front.answer(request, number, attempt)

    def close(self, request: int, attempt: int = 0) -> None:
        for host in self.hosts:
            host.handle(self.front, Close(_id(request), attempt), {})


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def sweep(
    request: int, text: bytes = b"ab", *, stages: int = 1, **changes: Any
) -> tuple[Sweep, dict[str, np.ndarray]]:
    """A fresh sweep of a text, whose bytes are all known, and its arrays."""
    fields = {
        "request": _id(request),
        "number": 0,
        "attempt": 0,
        "frontend": FRONT,
        "deadline": 10.0,
        "start": 0,
        "index": 0,
        "known": len(text),
        "count": len(text),
        "fresh": changes.get("start", 0) == 0,
        "route": tuple(f"s{b}" for b in range(1, stages)),
        "seed": request,
    }
    message = Sweep(**{**fields, **changes})
    arrays = {"bytes": np.frombuffer(text, np.uint8)}
    check_sweep(message, arrays)
    return message, arrays
