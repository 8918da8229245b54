"""Where a process may die: before and after everything that it puts on a disk.

Every name is passed twice, as ``NAME.before`` and ``NAME.after``. Those of the
coordinator, in the order of an update's way: ``record`` (an upload is announced),
``part`` (bytes of it), ``move`` (its file gets its place), ``row`` (the ledger accepts
it); then of a round: ``step`` (in memory), ``save`` (the whole of it), ``commit`` (the
checkpoint counts), ``prune`` (old ones go), ``publish``, ``round`` (it is written
down), ``note``, ``forget`` (rows), ``unlink`` (rows and files). Of a worker: ``train``,
``inner`` (its optimizer's state), ``pack`` (the update's file), ``put`` (it is to be
sent), ``clear`` (it was).

``KIND`` of a request (see ``links.kind``), at the coordinator as ``serve KIND``, at the
worker as ``ask KIND``.
"""

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from spheroid_jax.checkpoints.store import Checkpoints
from spheroid_jax.checkpoints.writer import Writer
from spheroid_jax.transport import outbox, session, slots, trainer
from spheroid_jax.transport.coordinator import intake, model
from spheroid_jax.transport.http import parts
from spheroid_jax.transport.ledger import Ledger
from tests.faults import spoiling
from tests.faults.hosts import Host, here, point

# What is put on the disk in threads of the coordinator.
COORDINATOR = (
    *("record", "part", "move", "row", "step", "save", "commit", "prune"),
    *("publish", "round", "note", "forget", "unlink"),
)
WORKER = ("train", "inner", "pack", "put", "clear")

_PATCHED: tuple[tuple[Any, str, str], ...] = (
    (parts.Part, "keep_record", "record"),
    (parts.Part, "write", "part"),
    (Ledger, "accept", "row"),
    (Ledger, "record_round", "round"),
    (Ledger, "note", "note"),
    (Ledger, "forget", "forget"),
    (intake.Intake, "forget", "unlink"),
    (model.Model, "step", "step"),
    (model.Model, "publish", "publish"),
    (Writer, "_complete", "commit"),
    (Checkpoints, "_prune", "prune"),
    (trainer.Trainer, "train", "train"),
    (trainer.Trainer, "save", "inner"),
    (slots, "write_update", "pack"),
    (outbox.Outbox, "put", "put"),
    (outbox.Outbox, "clear", "clear"),
)


class _Os:
    """The module ``os`` with a failpoint where an update gets its place."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def replace(self, *given: Any) -> None:
        point("move.before")
        os.replace(*given)
        point("move.after")


def _with_points(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        point(f"{name}.before")
        found = function(*args, **kwargs)
        point(f"{name}.after")
        return found

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        point(f"{name}.before")
        found = await function(*args, **kwargs)
        point(f"{name}.after")
        return found

    return awaited if inspect.iscoroutinefunction(function) else wrapped


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """All failpoints are there; they do nothing outside of a host."""
    with contextlib.ExitStack() as stack:
        write = mock.patch.object(slots, "write_update", spoiling.write_update)
        stack.enter_context(write)
        for owner, attribute, name in _PATCHED:
            made = _with_points(getattr(owner, attribute), name)
            stack.enter_context(mock.patch.object(owner, attribute, made))
        stack.enter_context(mock.patch.object(intake, "os", _Os()))
        save = _with_points(_waiting(model.Model.save), "save")
        stack.enter_context(mock.patch.object(model.Model, "save", save))
        stack.enter_context(mock.patch.object(session, "_ASK_SECONDS", 0.3))
        yield


def _waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Saving is done by another thread, which may die while this one waits."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        host = here()
        with host.waits() if host else contextlib.nullcontext():
            return function(*args, **kwargs)

    return wrapped


def adopt(host: Host, checkpoints: Checkpoints) -> None:
    """Has the thread that saves pass the failpoints of ``host``."""
    start = checkpoints._writer.start

    def adopted(round_: int, items: Any, manifest: Any, after: Any) -> None:
        def pruned() -> None:
            host._enter()
            after()

        start(round_, items, manifest, pruned)
        pending = checkpoints._writer._pending
        assert pending is not None
        host.besides.append(pending[1]._thread)

    complete = checkpoints._writer._complete

    def completed(*given: Any) -> None:
        host._enter()
        complete(*given)

    checkpoints._writer.start = adopted  # type: ignore
    checkpoints._writer._complete = completed  # type: ignore
