"""What becomes of an update: checked, put on disk, promised; in this order."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spheroid_jax import manifests
from spheroid_jax.transport.assignment import Slot
from spheroid_jax.transport.closing import Fate, Policy, fate
from spheroid_jax.transport.coordinator.tickets import Tickets
from spheroid_jax.transport.ledger import (
    KEEP_ROUNDS,
    AcceptedUpdate,
    Duplicate,
    Ledger,
    LedgerError,
)
from spheroid_jax.transport.protocol import (
    ProtocolError,
    Upload,
    Verdict,
    upload_name,
)
from spheroid_jax.transport.updates import (
    NormBound,
    Screened,
    UpdateError,
    UpdateReader,
    screen,
)

HEADER_ROOM = 1 << 20  # bytes that an update may have beside four for each element
SUFFIX = ".update"


class OpenRound(NamedTuple):
    """What intake has to know of the moment."""

    number: int
    closing: bool


class Intake:
    """The only way by which an update gets in.

    An update is accepted once it is a file in ``directory`` and a row of the ledger;
    what is a file alone is a leftover of a crash, and nobody was told of it.
    """

    def __init__(
        self,
        directory: Path,
        ledger: Ledger,
        policy: Policy,
        expected: dict[str, tuple[int, ...]],
        bounds: NormBound,
        norms: Callable[[], list[float]],
        rounds: int,
        now: Callable[[], OpenRound],
    ) -> None:
        """Opens ``directory`` and deletes what isn't in the ledger.

        Raises:
          LedgerError: an update isn't there that was accepted.
        """
        self._directory, self._ledger, self._policy = directory, ledger, policy
        self._expected, self._now = expected, now
        self._bounds, self._norms, self._rounds = bounds, norms, rounds
        elements = sum(_size(shape) for shape in expected.values())
        self._limit = 4 * elements + HEADER_ROOM
        self._tickets = Tickets(ledger)
        self._busy = 0
        self._free = asyncio.Event()
        self._free.set()
        self._screens = asyncio.Semaphore(2)  # each holds a few buffers
        self._taking = asyncio.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        # In memory too: a look-up must not wait for another update's way to the disk.
        self._known: dict[str, AcceptedUpdate] = {}
        self._by_round: dict[int, list[AcceptedUpdate]] = {}
        for update in ledger.remembered():
            self._remember(update)
        accepted = ledger.accepted()
        there = set(directory.iterdir())
        for file in there - {self.path(update.name) for update in accepted}:
            file.unlink()
        for update in accepted:
            due = update.applies_in >= now().number
            if due and self.path(update.name) not in there:
                raise LedgerError(
                    f"{self.path(update.name)} is gone, an update that was accepted: "
                    "put it back, or begin anew in another run directory"
                )

    def ticket(self, worker: str, round_: int, slot: Slot) -> str:
        """Proof that the worker was given this work; good after a restart, too."""
        return self._tickets.of(worker, round_, slot)

    def path(self, name: str) -> Path:
        """Where an accepted update is."""
        return self._directory / f"{name}{SUFFIX}"

    async def settled(self) -> None:
        """Waits for updates that are being accepted at this moment."""
        await self._free.wait()

    def precheck(self, worker: str, upload: Upload) -> Verdict | None:
        """A verdict that can be given without the update; None: it is welcome.

        Raises:
          ProtocolError: the worker was given other work, or it is too large.
        """
        self._tickets.check(worker, upload)
        if upload.bytes > self._limit:
            raise ProtocolError(
                f"an update has at most {self._limit} bytes, not {upload.bytes}",
                status=413,
                code="too_large",
            )
        name = upload_name(worker, upload)
        if (before := self._known.get(name)) is not None:
            return _accepted(before, "it was accepted before")
        found = self._fate(upload)
        if found.verdict != "accepted":
            return _verdict(found)
        slot = Slot(upload.block, upload.replica)
        for other in self._by_round.get(upload.round, ()):
            if other.worker == worker or Slot(other.block, other.replica) == slot:
                return Verdict("duplicate", f"an update of {other.worker} is there")
        return None

    def heard(self, round_: int) -> set[Slot]:
        """Slots whose update of that round is accepted."""
        return {Slot(u.block, u.replica) for u in self._by_round.get(round_, ())}

    def has(self, worker: str, round_: int) -> bool:
        """Whether an update of that worker and round is accepted."""
        return any(u.worker == worker for u in self._by_round.get(round_, ()))

    async def forget(self, before_round: int) -> None:
        """Deletes what has been applied; a replay of it is a duplicate all the same.

        Raises:
          LedgerError: it can't be written down.
          OSError: a file can't be deleted; a restart will.
        """

        def delete() -> None:
            for update in self._ledger.forget(before_round):
                self.path(update.name).unlink(missing_ok=True)

        await asyncio.to_thread(delete)
        horizon = before_round - KEEP_ROUNDS
        for name in [n for n, u in self._known.items() if u.applies_in < horizon]:
            old = self._known.pop(name)
            self._by_round[old.round].remove(old)
            if not self._by_round[old.round]:
                del self._by_round[old.round]

    async def take(
        self, worker: str, upload: Upload, path: Path
    ) -> tuple[Verdict, bool]:
        """Checks the file and accepts it, or deletes it and says why.

        Returns:
          The verdict, and whether the update is in by this very call.

        Raises:
          ProtocolError: no room on the disk; the file is left, so try again.
        """
        verdict, is_new = self.precheck(worker, upload), False
        if verdict is None:
            async with self._screens:
                norm = self._norms()[upload.block]
                bound = self._bounds.bound(upload.block, norm)
                try:
                    found = await asyncio.to_thread(
                        _screened, path, self._expected, bound
                    )
                except OSError as error:
                    raise _no_room(error) from error
            if found.why:
                verdict = Verdict("rejected", found.why)
            else:
                async with self._taking:
                    verdict, is_new = await self._accept(
                        worker, upload, path, found.norm
                    )
        if not is_new:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        return verdict, is_new

    async def _accept(
        self, worker: str, upload: Upload, path: Path, norm: float
    ) -> tuple[Verdict, bool]:
        # The round may have closed meanwhile, or another update have come first.
        verdict = self.precheck(worker, upload)
        if verdict is not None:
            return verdict, False
        found = self._fate(upload)
        update = AcceptedUpdate(
            name=upload_name(worker, upload),
            worker=worker,
            block=upload.block,
            replica=upload.replica,
            round=upload.round,
            applies_in=found.applies_in,
            bytes=upload.bytes,
            norm=norm,
            loss=upload.loss,
        )
        self._busy += 1
        self._free.clear()
        try:
            await asyncio.to_thread(self._store, path, update)
        except Duplicate as error:
            return Verdict("duplicate", str(error)), False
        except (LedgerError, OSError) as error:
            raise _no_room(error) from error
        finally:
            self._busy -= 1
            if not self._busy:
                self._free.set()
        self._remember(update)
        self._bounds.accept(upload.block, norm)
        return _accepted(update, found.why), True

    def _remember(self, update: AcceptedUpdate) -> None:
        self._known[update.name] = update
        self._by_round.setdefault(update.round, []).append(update)

    def _store(self, path: Path, update: AcceptedUpdate) -> None:
        manifests.sync(path)
        kept = self.path(update.name)
        os.replace(path, kept)
        try:
            manifests.sync(self._directory)
            self._ledger.accept(update)
        except BaseException:
            os.replace(kept, path)
            raise

    def _fate(self, upload: Upload) -> Fate:
        now = self._now()
        return fate(self._policy, upload.round, now.number, now.closing, self._rounds)


def _screened(
    path: Path, expected: dict[str, tuple[int, ...]], bound: float | None
) -> Screened:
    try:
        with UpdateReader(path) as reader:
            found = screen(reader, expected, bound)
    except UpdateError as error:
        return Screened(float("nan"), str(error))
    if not found.why:
        # Here already, beside others: acceptance, one at a time, waits less then.
        manifests.sync(path)
    return found


def _accepted(update: AcceptedUpdate, why: str) -> Verdict:
    age = update.applies_in - update.round
    return Verdict("accepted", why, age=age, applies_in=update.applies_in)


def _verdict(found: Fate) -> Verdict:
    word: Any = found.verdict
    return Verdict(word, found.why, age=found.age, applies_in=found.applies_in)


def _no_room(error: Exception) -> ProtocolError:
    full = getattr(error, "disk_full", False) or getattr(error, "errno", 0) in (
        errno.ENOSPC,
        errno.EDQUOT,
    )
    if full:
        return ProtocolError(
            "the coordinator's disk is full: try again later",
            status=507,
            code="disk_full",
        )
    return ProtocolError(
        "the coordinator can't write to its disk: try again later",
        status=503,
        code="busy",
    )


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
