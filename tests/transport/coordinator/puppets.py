"""Workers that do what a test says, one step at a time."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from blake3 import blake3

from spheroid_jax.transport.items.loading import load_part
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    Leave,
    Pulse,
    Register,
    Upload,
    Verdict,
    Work,
    WorkRequest,
)
from spheroid_jax.transport.updates import Encoding, write_update
from tests.transport.tiny import TinyRun

SECONDS = 15.0  # after which a test that waits has failed


class Puppet:
    """A worker's process, by hand; it keeps optimizer states by slot."""

    def __init__(self, run: TinyRun, name: str) -> None:
        self.run, self.name = run, name
        self.session = uuid.uuid4().hex
        self.states: dict[tuple[int, int], Any] = {}

    async def join(self) -> "Puppet":
        """Registers, and asks for work once: from now on it has a lease."""
        await self.register()
        await self.ask()
        return self

    async def register(self) -> None:
        here = self.run.coordinator
        await here.register(self.name, Register(VERSION, self.session))

    async def ask(self, after: int = -1, wait: float = 0.0) -> Work:
        request = WorkRequest(self.session, after, wait)
        return await self.run.coordinator.work(self.name, request)

    async def beat(self, doing: Any = "training", round_: int = 0) -> Pulse:
        beat = Heartbeat(self.session, doing, round_)
        return await self.run.coordinator.heartbeat(self.name, beat)

    async def leave(self) -> None:
        await self.run.coordinator.leave(self.name, Leave(self.session))

    def train(self, work: Work) -> dict[str, np.ndarray]:
        """The local phase of some work."""
        places = []
        for kind in ("block", "interface"):
            place = self.run.coordinator.item(work.items[kind].digest)
            assert place is not None
            places.append(place)
        part = load_part(places[0], places[1], self.run.trainer.abstract)
        slot = work.block, work.replica
        trained = self.run.trainer.train(part, self.states.get(slot), work.round, *slot)
        self.states[slot] = trained.state
        return trained.delta

    def upload(
        self,
        work: Work,
        delta: Mapping[str, np.ndarray],
        encoding: Encoding = Encoding(),  # noqa: B008 - immutable
        **changes: Any,
    ) -> tuple[Upload, Path]:
        """A file with an update, and the message that announces it."""
        path = self.run.directory / "exchange" / "uploads" / uuid.uuid4().hex
        path.parent.mkdir(parents=True, exist_ok=True)
        write_update(path, delta, encoding, {"round": work.round}, finite=False)
        data = path.read_bytes()
        given = {
            "session": self.session,
            "round": work.round,
            "block": work.block,
            "replica": work.replica,
            "attempt": 0,
            "bytes": len(data),
            "blake3": blake3(data).hexdigest(),
            "ticket": work.ticket,
            "loss": 1.0,
        }
        return Upload(**{**given, **changes}), path

    async def send(
        self, work: Work, delta: Mapping[str, np.ndarray], **changes: Any
    ) -> Verdict:
        """What becomes of an update."""
        upload, path = self.upload(work, delta, **changes)
        return await self.deliver(upload, path)

    async def deliver(self, upload: Upload, path: Path) -> Verdict:
        verdict = await self.run.coordinator.begin(self.name, upload)
        if verdict is None:
            verdict = await self.run.coordinator.commit(self.name, upload, path)
        return verdict

    async def once(self) -> Verdict:
        """Asks, trains, sends."""
        work = await self.ask()
        assert work.do == "train", work
        return await self.send(work, self.train(work))


@contextlib.asynccontextmanager
async def running(run: TinyRun) -> AsyncIterator["asyncio.Task[str]"]:
    """The coordinator goes through its rounds while the test does its part."""
    async with asyncio.timeout(SECONDS):
        task = asyncio.create_task(run.coordinator.run())
        await asyncio.sleep(0)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def opened(run: TinyRun, round_: int, state: str = "open") -> None:
    """Waits until a round is open, or the run in another state."""
    board = run.coordinator.board
    while board.round < round_ or board.state != state:
        await run.coordinator.changed(board.version, 5.0)
    assert board.round == round_, f"round {board.round} where {round_} was to come"


async def settled(run: TinyRun) -> None:
    """Lets the coordinator do all that it can without time passing."""
    books = run.coordinator._books
    while True:
        for _ in range(20):
            await asyncio.sleep(0.002)
        notes = [run.ledger.noted(key, {}) for key in ("held", "sessions")]
        if notes == [books.held, books._sessions]:  # no disk is waited for
            return


def zeros(run: TinyRun) -> dict[str, np.ndarray]:
    """An update that changes nothing."""
    return {n: np.zeros(s, np.float32) for n, s in run.model.expected.items()}


def ones(run: TinyRun, value: float = 1.0) -> dict[str, np.ndarray]:
    """An update of one value everywhere."""
    return {n: np.full(s, value, np.float32) for n, s in run.model.expected.items()}


def blockwise(state: Mapping[str, np.ndarray], block: int) -> list[np.ndarray]:
    """What a run's state holds of one block: parameters and outer state."""
    return [leaf[block] for name, leaf in state.items() if "'blocks'" in name]


def leaves(tree: Any) -> list[np.ndarray]:
    """Leaves as NumPy arrays."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
