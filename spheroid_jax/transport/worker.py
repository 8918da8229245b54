"""A worker: asks for work, trains, sends what came of it; until the run is over."""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from spheroid_jax.transport.fetching import fetched_part
from spheroid_jax.transport.items.cache import ItemCache
from spheroid_jax.transport.link import Link, LinkError
from spheroid_jax.transport.outbox import Outbox
from spheroid_jax.transport.protocol import Heartbeat, Upload, Verdict, Work
from spheroid_jax.transport.session import Identity, Session
from spheroid_jax.transport.slots import Slots
from spheroid_jax.transport.trainer import Trained, Trainer
from spheroid_jax.transport.updates import Encoding, UpdateError

__all__ = ["Identity", "Worker", "round_line"]

Doing = Literal["waiting", "fetching", "training", "sending"]
_REFUSALS = (
    *("forbidden", "conflict", "unknown", "malformed", "too_large"),
    *("corrupted", "quota"),
)
_NOT_FINITE = ("holds NaN", "holds an infinite value")  # of screening an update
_ANEW = "AdamW starts anew. If it happens again, lower train.learning_rate"


class Worker:
    """One process of a worker.

    Its folder holds what it would miss after a restart: fetched items, the inner
    optimizer's state of every slot that it had, what error feedback owes, and an
    update that isn't delivered. All of it may be deleted between two runs.
    """

    def __init__(
        self,
        link: Link,
        trainer: Trainer,
        folder: Path,
        identity: Identity,
        encoding: Encoding,
        heartbeat: float,
        say: Callable[[str], None] = print,
    ) -> None:
        """Connects nothing yet.

        Args:
          link: to the coordinator.
          trainer: of the run's configuration.
          folder: this worker's own.
          identity: of this process.
          encoding: of updates.
          heartbeat: seconds between signs of life.
          say: prints a line.
        """
        self._link, self._trainer = link, trainer
        self._session, self._encoding = Session(link, identity), encoding
        self._heartbeat, self._say = heartbeat, say
        self._outbox = Outbox(folder / "outbox")
        self._cache = ItemCache(folder / "items")
        self._doing: Doing = "waiting"
        self._round = 0
        self._after = -1
        self._wanted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._attempts = 0
        self._slots = Slots(folder / "slots", trainer)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="training")
        self.rounds_done = 0

    async def run(self) -> str:
        """Works until the run is over, or until it is asked to stop.

        Returns:
          ``finished`` or ``left``.

        Raises:
          LinkError: the coordinator can't be reached, or refuses this worker.
        """
        beating = asyncio.create_task(self._beat())
        working = asyncio.create_task(self._work())
        try:
            done, _ = await asyncio.wait(
                [beating, working], return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()  # a heartbeat only ends by an error
            return working.result()
        finally:
            for task in (beating, working):
                task.cancel()
            await asyncio.gather(beating, working, return_exceptions=True)
            self._thread.shutdown()
            self._cache.close()

    def stop(self) -> None:
        """Asks for a graceful end: the update in hand is still sent."""
        self._stopping.set()

    async def register(self) -> None:
        """Presents this process anew; the coordinator may have been restarted."""
        await self._session.register()

    async def _work(self) -> str:
        if (left := self._outbox.pending()) is not None:
            await self._resend(left)
        said = ""
        while not self._stopping.is_set():
            began = time.monotonic()
            work = await self._session.ask(self._after, self._stopping)
            if work is None:
                break
            if work.do == "stop":
                self._say(f"the run is over: {work.why}")
                return "finished"
            if work.do == "wait":
                if work.why and work.why != said:
                    self._say(f"waiting: {work.why}")
                said = work.why
                continue
            said = ""
            await self._one_round(work, time.monotonic() - began)
        await self._session.leave()
        return "left"

    async def _one_round(self, work: Work, waited: float) -> None:
        self._round, self._after = work.round, work.round
        self._wanted.set()
        seconds = {"wait": waited}
        try:
            part = await self._timed("fetch", seconds, self._part(work))
            trained = await self._timed("train", seconds, self._train(work, part))
            del part
            if trained is None:
                return
            upload = await self._packed(work, trained)
            verdict = await self._timed("send", seconds, self._send(upload))
        except UpdateError as error:
            await self._restart(work.block, work.replica)
            self._say(f"round {work.round + 1}: {error}; {_ANEW}")
            return
        except LinkError as error:
            if error.code not in ("unknown", "conflict", "forbidden"):
                raise
            # The item or the work is no longer there: ask what is wanted now.
            self._say(f"round {work.round + 1}: {error}")
            self._after = -1
            self._slots.forget()  # should it be the same, it starts from before again
            return
        finally:
            self._doing = "waiting"
        if verdict is not None:
            anew = await self._settle(upload, verdict)
            self._say(round_line(work, trained.loss, verdict, seconds) + anew)
        await self._pulse({f"{k}_seconds": v for k, v in seconds.items()})

    async def _part(self, work: Work) -> Any:
        return await fetched_part(self._link, self._cache, work, self._trainer.abstract)

    async def _timed(self, phase: str, seconds: dict[str, float], action: Any) -> Any:
        names: dict[str, Doing] = {
            "fetch": "fetching",
            "train": "training",
            "send": "sending",
        }
        self._doing = names[phase]
        began = time.monotonic()
        try:
            return await action
        finally:
            seconds[phase] = time.monotonic() - began

    async def _train(self, work: Work, part: Any) -> Trained | None:
        """None if the loss isn't a number: nothing of that is to be sent."""
        loop = asyncio.get_running_loop()
        trained = await loop.run_in_executor(
            self._thread, self._slots.train, work, part
        )
        if trained.is_finite:
            return trained
        what = f"the loss is {trained.loss}"
        if math.isfinite(trained.loss):
            what = "the update isn't finite"
        self._say(f"round {work.round + 1}: {what}, nothing is sent; {_ANEW}")
        return None

    async def _packed(self, work: Work, trained: Trained) -> Upload:
        self._attempts += 1
        session = self._session.identity.session
        # A round may be trained again, and to another result.
        attempt = int(session[:8], 16) << 20 | self._attempts
        return await asyncio.to_thread(
            self._slots.pack,
            work,
            trained,
            self._encoding,
            self._outbox,
            session,
            attempt,
        )

    async def _send(self, upload: Upload) -> Verdict | None:
        """None if the coordinator said meanwhile that it is too late."""
        sending = asyncio.create_task(
            self._session.known(lambda: self._link.submit(upload, self._outbox.file))
        )
        try:
            while not sending.done():
                await asyncio.wait([sending], timeout=1.0)
                if not self._wanted.is_set() and not sending.done():
                    number = upload.round + 1
                    self._say(f"round {number}: too late, not sent to the end")
                    self._outbox.clear()
                    return None
            return sending.result()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _settle(self, upload: Upload, verdict: Verdict) -> str:
        """Returns what is to be told besides, if it was refused for its numbers."""
        await asyncio.to_thread(self._slots.settle, upload, verdict, self._outbox)
        self.rounds_done += 1
        refused = verdict.verdict == "rejected"
        if not refused or not any(what in verdict.why for what in _NOT_FINITE):
            return ""
        # What it was trained with may hold them, too, and spoil every round to come.
        await self._restart(upload.block, upload.replica)
        return f". {_ANEW}"

    async def _restart(self, block: int, replica: int) -> None:
        await asyncio.get_running_loop().run_in_executor(
            self._thread, self._slots.restart, block, replica
        )

    async def _resend(self, upload: Upload) -> None:
        """Delivers what a process before this one has trained."""
        upload = Upload(
            **{
                **{f: getattr(upload, f) for f in upload.__struct_fields__},
                "session": self._session.identity.session,
            }
        )
        self._round = upload.round
        self._wanted.set()
        try:
            verdict = await self._session.known(
                lambda: self._link.submit(upload, self._outbox.file)
            )
        except LinkError as error:
            # Nothing can be done about this update; the rest isn't about it.
            if error.code not in _REFUSALS:
                raise
            number = upload.round + 1
            self._say(f"the update of round {number} isn't delivered: {error}")
            self._outbox.clear()
            return
        anew = await self._settle(upload, verdict)
        self._after = upload.round
        number, what = upload.round + 1, verdict.verdict
        self._say(f"round {number}: {what}, trained before{anew}")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat)
            await self._pulse({})

    async def _pulse(self, seconds: dict[str, float]) -> None:
        round_ = self._round
        session = self._session.identity.session
        pulse = await self._session.pulse(
            Heartbeat(session, self._doing, round_, **seconds)
        )
        # An answer may be about a round that is over.
        if not pulse.wanted and pulse.round >= round_ == self._round:
            self._wanted.clear()


def round_line(
    work: Work, loss: float, verdict: Verdict, seconds: dict[str, float]
) -> str:
    """A round in a line for whoever runs the worker.

    Args:
      work: that was given.
      loss: mean over the local steps.
      verdict: on the update.
      seconds: by phase: ``fetch``, ``train`` and ``send``.
    """
    what = verdict.verdict + (f" ({verdict.why})" if verdict.why else "")
    if verdict.verdict == "accepted" and verdict.age:
        what = f"accepted, {verdict.age} rounds late"
    return (
        f"round {work.round + 1}, block {work.block}: loss {loss:.3f}, "
        f"{what}; fetched in {seconds['fetch']:.1f} s, trained in "
        f"{seconds['train']:.1f} s, sent in {seconds['send']:.1f} s"
    )
