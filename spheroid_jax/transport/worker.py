"""A worker: asks for work, trains, sends what came of it; until the run is over."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

from spheroid_jax import manifests
from spheroid_jax.transport.items.cache import ItemCache
from spheroid_jax.transport.items.loading import load_part
from spheroid_jax.transport.link import Link, LinkError
from spheroid_jax.transport.outbox import Outbox
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    Leave,
    Register,
    Upload,
    Verdict,
    Work,
    WorkRequest,
)
from spheroid_jax.transport.slots import Slots
from spheroid_jax.transport.trainer import Trained, Trainer
from spheroid_jax.transport.updates import Encoding

Doing = Literal["waiting", "fetching", "training", "sending"]
_REFUSALS = (
    *("forbidden", "conflict", "unknown", "malformed", "too_large"),
    *("corrupted", "quota"),
)
_KINDS = ("block", "interface")  # of a worker's items, as load_part wants them
_ASK_SECONDS = 20.0  # a question for work is held open so long
_REGISTRATIONS = 5  # for one call


class Identity(NamedTuple):
    """How this process presents itself."""

    session: str  # 32 hexadecimal digits, drawn anew by every process
    software: str
    device: str


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
        self._identity, self._encoding = identity, encoding
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
        identity = self._identity
        await self._link.register(
            Register(VERSION, identity.session, identity.software, identity.device)
        )

    async def _work(self) -> str:
        if (left := self._outbox.pending()) is not None:
            await self._resend(left)
        said = ""
        while not self._stopping.is_set():
            began = time.monotonic()
            work = await self._ask()
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
        with contextlib.suppress(LinkError):
            await self._link.leave(Leave(self._identity.session))
        return "left"

    async def _ask(self) -> Work | None:
        """What to do; None if asked to stop meanwhile."""
        request = WorkRequest(self._identity.session, self._after, _ASK_SECONDS)
        asking = asyncio.create_task(self._known(lambda: self._link.work(request)))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([asking, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not self._stopping.is_set():
            return asking.result()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return None

    async def _one_round(self, work: Work, waited: float) -> None:
        self._round, self._after = work.round, work.round
        self._wanted.set()
        seconds = {"wait": waited}
        try:
            part = await self._timed("fetch", seconds, self._fetch(work))
            trained = await self._timed("train", seconds, self._train(work, part))
            del part
            if trained is None:
                return
            upload = await self._packed(work, trained)
            verdict = await self._timed("send", seconds, self._send(upload))
        except LinkError as error:
            if error.code not in ("unknown", "conflict", "forbidden"):
                raise
            # The item or the work is no longer there: ask what is wanted now.
            self._say(f"round {work.round}: {error}")
            self._after = -1
            self._slots.forget()  # should it be the same, it starts from before again
            return
        finally:
            self._doing = "waiting"
        if verdict is not None:
            await self._settle(upload, verdict)
            self._tell(work, trained, verdict, seconds)
        await self._pulse({f"{k}_seconds": v for k, v in seconds.items()})

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

    async def _fetch(self, work: Work) -> Any:
        items = {kind: work.items[kind] for kind in _KINDS if kind in work.items}
        if len(items) < len(_KINDS):
            raise LinkError(
                "the coordinator gives work without its items; install its release",
                code="garbled",
            )
        for last in (False, True):
            # Not what the coordinator calls them: they are folders here.
            block, interface = [
                (await self._cache.get(self._link, item, kind)).path
                for kind, item in items.items()
            ]
            try:
                return await asyncio.to_thread(
                    load_part, block, interface, self._trainer.abstract
                )
            except manifests.Damage as damage:
                if last:
                    raise LinkError(f"this disk: {damage}", code="disk") from damage
                for kind, item in items.items():
                    self._cache.discard(item, kind)
        raise AssertionError

    async def _train(self, work: Work, part: Any) -> Trained | None:
        """None if the loss isn't a number: nothing of that is to be sent."""

        loop = asyncio.get_running_loop()
        trained = await loop.run_in_executor(
            self._thread, self._slots.train, work, part
        )
        if trained.is_finite:
            return trained
        self._say(
            f"round {work.round}: the loss is {trained.loss}, nothing is sent; AdamW "
            "starts anew. If it happens again, lower train.learning_rate"
        )
        return None

    async def _packed(self, work: Work, trained: Trained) -> Upload:
        self._attempts += 1
        session = self._identity.session
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
            self._known(lambda: self._link.submit(upload, self._outbox.file))
        )
        try:
            while not sending.done():
                await asyncio.wait([sending], timeout=1.0)
                if not self._wanted.is_set() and not sending.done():
                    self._say(f"round {upload.round}: too late, not sent to the end")
                    self._outbox.clear()
                    return None
            return sending.result()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _settle(self, upload: Upload, verdict: Verdict) -> None:
        await asyncio.to_thread(self._slots.settle, upload, verdict, self._outbox)
        self.rounds_done += 1

    async def _resend(self, upload: Upload) -> None:
        """Delivers what a process before this one has trained."""
        upload = Upload(
            **{
                **{f: getattr(upload, f) for f in upload.__struct_fields__},
                "session": self._identity.session,
            }
        )
        self._round = upload.round
        self._wanted.set()
        try:
            verdict = await self._known(
                lambda: self._link.submit(upload, self._outbox.file)
            )
        except LinkError as error:
            # Nothing can be done about this update; the rest isn't about it.
            if error.code not in _REFUSALS:
                raise
            self._say(f"the update of round {upload.round} isn't delivered: {error}")
            self._outbox.clear()
            return
        await self._settle(upload, verdict)
        self._after = upload.round
        self._say(f"round {upload.round}: {verdict.verdict}, trained before")

    async def _known(self, call: Callable[[], Any]) -> Any:
        """Calls, and registers first where the coordinator doesn't know us any more.

        It may be restarted again in between, so that happens a few times.
        """
        for _ in range(_REGISTRATIONS):
            try:
                return await call()
            except LinkError as error:
                if error.code != "unknown" or error.status != 409:
                    raise
            await self.register()
        return await call()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat)
            await self._pulse({})

    async def _pulse(self, seconds: dict[str, float]) -> None:
        round_ = self._round
        beat = Heartbeat(self._identity.session, self._doing, round_, **seconds)
        pulse = await self._known(lambda: self._link.heartbeat(beat))
        # An answer may be about a round that is over.
        if not pulse.wanted and pulse.round >= round_ == self._round:
            self._wanted.clear()

    def _tell(
        self, work: Work, trained: Trained, verdict: Verdict, seconds: dict[str, float]
    ) -> None:
        what = verdict.verdict + (f" ({verdict.why})" if verdict.why else "")
        if verdict.verdict == "accepted" and verdict.age:
            what = f"accepted, {verdict.age} rounds late"
        self._say(
            f"round {work.round + 1}, block {work.block}: loss {trained.loss:.3f}, "
            f"{what}; fetched in {seconds['fetch']:.1f} s, trained in "
            f"{seconds['train']:.1f} s, sent in {seconds['send']:.1f} s"
        )
