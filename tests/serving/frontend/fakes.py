"""Stages without a model, in the tests' own loop, that hang, die and lie when told to.

What they write is a function of the seed and of all bytes before: a text that comes out
right has been sent right. They speak the real protocol to the front end; to each other
they hand sweeps directly.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator

import numpy as np

from spheroid_jax.serving.frontend.assembly import Frontend, assemble
from spheroid_jax.serving.frontend.front import NameOf
from spheroid_jax.serving.frontend.http import make_app
from spheroid_jax.serving.frontend.settings import Settings
from spheroid_jax.serving.methods import Method
from spheroid_jax.serving.wire.auth import Credentials, Identity
from spheroid_jax.serving.wire.connection import Connection, Handler
from spheroid_jax.serving.wire.dialling import dial
from spheroid_jax.serving.wire.limits import WireError
from spheroid_jax.serving.wire.listening import Listener, listen
from spheroid_jax.serving.wire.messages import (
    Arrays,
    Close,
    Fact,
    Failure,
    FailureKind,
    Message,
    Ping,
    Pong,
    Result,
    StageSeconds,
    Sweep,
)
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.server import Running, serve
from spheroid_jax.transport.http.tls import Token

TOKEN = Token("spheroid_of_the_tests_alone")
CREDENTIALS = Credentials.shared(TOKEN)
PLACES = 64
QUICK = Settings(
    request=10.0,
    sweep=0.6,
    patience=1.0,
    ping=0.05,
    pong=0.3,
    oldest=1.0,
    backoff=(0.02, 0.1),
    queue=64,
    stall=1.0,
    length=512,
    drain=2.0,
)


def byte_after(seed: int, text: bytes) -> int:
    """The byte that the fake model writes after a text."""
    return hashlib.sha256(seed.to_bytes(4, "big") + text).digest()[0]


def written(seed: int, prompt: bytes, length: int) -> bytes:
    """What ``token`` writes, where all fits into the places."""
    text = bytearray(prompt or b"\n")
    start = len(text)
    for _ in range(length):
        text.append(byte_after(seed, bytes(text)))
    return bytes(text[start:])


class FakeStage:
    """A stage; ``down``, ``hang``, ``slow`` and others make it misbehave."""

    def __init__(
        self,
        others: dict[str, "FakeStage"],
        index: int,
        count: int,
        slots: int,
        fingerprint: str,
        kind: str,
    ) -> None:
        self.others, self.index, self.count = others, index, count
        self.facts: dict[str, Fact] = {
            "fingerprint": fingerprint,
            "name": "fake",
            "kind": kind,
            "index": index,
            "count": count,
            "places": PLACES,
            "slots": slots,
        }
        self.slots = slots
        self.texts: dict[bytes, bytearray] = {}
        self.closed: dict[bytes, int] = {}
        self.sweeps = 0
        self.slow = 0.0
        self.hang = False
        self.fail: list[FailureKind] = []  # kinds of failures of the next sweeps
        self.swallow = 0  # so many of the next sweeps vanish
        self.oldest = 0.0
        self.most_held = 0
        self._listener: Listener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def up(self) -> bool:
        return self._listener is not None

    @property
    def connections(self) -> int:
        return len(self._listener.connections) if self._listener else 0

    async def start(self) -> None:
        self._listener = await listen(
            "127.0.0.1",
            self.port,
            CREDENTIALS,
            self._take,
            identity=Identity("stage", self.facts),
            closed=self._gone,
        )
        self.port = self._listener.port
        self.others[self.address] = self

    async def stop(self) -> None:
        """Dies; what it held is lost."""
        listener, self._listener = self._listener, None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if listener is not None:
            await listener.close()
        self.texts.clear()

    def garble(self) -> None:
        """Sends a frame with a flipped bit to the front end."""
        assert self._listener is not None
        for one in self._listener.connections:
            transport = one._stream._transport
            assert transport is not None
            transport.write(b"\x9fSPW\x01\x00\x00\x00" + bytes(24))

    def _gone(self, connection: Connection) -> None:
        self.texts.clear()  # one front end is all there is

    async def _take(self, one: Connection, message: Message, arrays: Arrays) -> None:
        if self.hang:
            return
        if isinstance(message, Ping):
            free = self.slots - len(self.texts)
            pong = Pong(message.number, 0, self.oldest, free, self.slots, self.sweeps)
            await one.send(pong)
        elif isinstance(message, Close):
            self.closed[message.request] = message.attempt
            self.texts.pop(message.request, None)
        elif isinstance(message, Sweep):
            self.spawn(message, arrays["bytes"].tobytes())

    def spawn(self, sweep: Sweep, row: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._work(sweep, row))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, sweep: Sweep, message: Message, arrays: Arrays | None = None
    ) -> None:
        assert self._listener is not None
        for one in self._listener.connections:
            if one.id == sweep.frontend:
                with contextlib.suppress(WireError):
                    await one.send(message, arrays)

    async def _fail(self, sweep: Sweep, kind: FailureKind, text: str = "") -> None:
        failure = Failure(
            sweep.request,
            sweep.number,
            sweep.attempt,
            self.index,
            kind,
            text,
        )
        await self._answer(sweep, failure)

    async def _work(self, sweep: Sweep, row: bytes) -> None:
        if self.slow:
            await asyncio.sleep(self.slow)
        if self.hang:
            return
        if self.closed.get(sweep.request, -1) >= sweep.attempt:
            return
        if self.swallow:
            self.swallow -= 1
            return
        if self.fail:
            await self._fail(sweep, self.fail.pop(0), "as the test wants")
            return
        if sweep.request not in self.texts:
            if not sweep.fresh:
                await self._fail(sweep, "lost")
                return
            if len(self.texts) >= self.slots:
                await self._fail(sweep, "busy")
                return
        if sweep.fresh:
            self.texts[sweep.request] = bytearray()
        self.most_held = max(self.most_held, len(self.texts))
        text = self.texts[sweep.request]
        if sweep.start > len(text):
            await self._fail(sweep, "refused", "a hole")
            return
        del text[sweep.start :]
        text += row[: sweep.known]
        before = bytes(text)
        guesses = self._guesses(sweep, before, row)
        text += guesses  # as a cache holds them; the next sweep writes over wrong ones
        self.sweeps += 1
        if sweep.route:
            following = self.others[sweep.route[0]]
            if not following.up:
                await self._fail(sweep, "peer", sweep.route[0])
                return
            following.spawn(
                Sweep(
                    **{
                        **{f: getattr(sweep, f) for f in sweep.__struct_fields__},
                        "route": sweep.route[1:],
                    }
                ),
                row,
            )
            return
        await self._draw(sweep, before, guesses, row)

    def _guesses(self, sweep: Sweep, text: bytes, row: bytes) -> bytes:
        if sweep.fill != "drafted":
            return row[sweep.known :]
        made = bytearray()
        for k in range(sweep.count - sweep.known):  # right but for every third
            byte = byte_after(sweep.seed, text + made)
            made.append(byte if (len(text) + k) % 3 else byte ^ 1)
        return bytes(made)

    async def _draw(
        self, sweep: Sweep, text: bytes, guesses: bytes, row: bytes
    ) -> None:
        window = sweep.count - sweep.known + 1
        drawn = bytes(byte_after(sweep.seed, text + guesses[:k]) for k in range(window))
        arrays: Arrays = {"bytes": np.frombuffer(drawn, np.uint8)}
        if sweep.fill == "drafted":
            context = row[: sweep.known] + guesses
            arrays["context"] = np.frombuffer(context, np.uint8)
        if sweep.want_logprobs:
            arrays["logprob"] = -np.frombuffer(drawn, np.uint8).astype(np.float32)
        spent = tuple(StageSeconds(0.001, 0.0) for _ in range(self.count))
        result = Result(sweep.request, sweep.number, sweep.attempt, self.index, spent)
        await self._answer(sweep, result, arrays)


class House:
    """Fake stages, and a front end with its HTTP server."""

    def __init__(self) -> None:
        self.stages: list[FakeStage] = []
        self.lines: list[str] = []
        self.frontend: Frontend
        self.running: Running

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.running.port}"

    @property
    def held(self) -> int:
        """Slots that are taken at stages."""
        return sum(len(stage.texts) for stage in self.stages)

    async def until(self, condition, seconds: float = 5.0) -> None:  # type: ignore[no-untyped-def]
        """Waits for something to become true."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)

    def idle(self) -> bool:
        """Whether nothing is left of any request."""
        frontend = self.frontend
        admission, trips = frontend.admission, frontend.stages.trips
        taken = sum(link.texts for link in frontend.stages.links)
        left = len(trips) + trips.abandoned
        return not (self.held or admission.inside or admission.waiting or taken or left)


LIMITS = Limits(message_seconds=2.0, shutdown=1.0, linger=0.5)


@contextlib.asynccontextmanager
async def house(
    replicas: tuple[int, ...] = (1, 1, 1),
    settings: Settings = QUICK,
    slots: int = 8,
    name_of: NameOf | None = None,
    method: Method | None = None,
    kind: str = "blocktrain",
    fingerprints: dict[int, str] | None = None,
    start: bool = True,
    limits: Limits = LIMITS,
    credentials: Credentials = CREDENTIALS,
) -> AsyncIterator[House]:
    """A front end over fake stages; ``replicas`` of each block.

    Args:
      fingerprints: of stages that hold another model, by their place in the list.
      start: whether the stages are there from the beginning.
      limits: of HTTP.
      credentials: of the front end.
    """
    it = House()
    others: dict[str, FakeStage] = {}
    for index, number in enumerate(replicas):
        for _ in range(number):
            mark = (fingerprints or {}).get(len(it.stages), "f0")
            stage = FakeStage(others, index, len(replicas), slots, mark, kind)
            it.stages.append(stage)
            await stage.start()
    if not start:
        for stage in it.stages:
            await stage.stop()
    identity = Identity("frontend")

    async def connect(address: str, handler: Handler) -> Connection:
        return await dial(address, credentials, handler, identity=identity)

    addresses = [stage.address for stage in it.stages]
    it.frontend = assemble(
        addresses, connect, identity.id, settings, method, say=it.lines.append
    )
    app = make_app(it.frontend, limits, name_of)
    async with it.frontend.stages.connected():
        it.running = await serve(app, "127.0.0.1", 0)
        try:
            if start:
                await it.until(lambda: not it.frontend.stages.missing)
            yield it
        finally:
            await it.running.close()
    for stage in it.stages:
        await stage.stop()
