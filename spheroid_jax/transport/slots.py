"""What a worker keeps of every slot that it had: AdamW's state, and what it owes."""

from pathlib import Path
from typing import Any

from spheroid_jax.transport.outbox import Outbox
from spheroid_jax.transport.protocol import Upload, Verdict, Work
from spheroid_jax.transport.trainer import Trained, Trainer
from spheroid_jax.transport.updates import (
    Encoding,
    Feedback,
    UpdateError,
    UpdateReader,
    write_update,
)


class Slots:
    """One slot in memory, the others on disk; of one thread at a time."""

    def __init__(self, directory: Path, trainer: Trainer) -> None:
        """Knows no slot yet."""
        self._directory, self._trainer = directory, trainer
        self._slot: tuple[int, int] | None = None
        self._state: Any = None
        self._feedback = Feedback()

    def train(self, work: Work, part: Any) -> Trained:
        """The local phase of the work's slot, whose state is on disk on return.

        One whose loss isn't a number leaves nothing: the slot starts anew.

        Raises:
          OSError: the state can't be kept.
        """
        self._take(work)
        trained = self._trainer.train(
            part, self._state, work.round, work.block, work.replica
        )
        self._state = trained.state
        if trained.is_finite:
            place = self._place(work.block, work.replica)
            self._trainer.save(place / "inner.npz", trained.state, work.round)
        else:
            self.restart(work.block, work.replica)
        return trained

    def restart(self, block: int, replica: int) -> None:
        """Throws away AdamW's state of a slot and what it owes, also those on disk.

        Raises:
          OSError: they can't be deleted.
        """
        place = self._place(block, replica)
        self._trainer.forget(place / "inner.npz")
        (place / "owed").unlink(missing_ok=True)
        if self._slot == (block, replica):
            self.forget()

    def forget(self) -> None:
        """The slot in memory is read from disk again, as before its last round."""
        self._slot = None

    def pack(
        self,
        work: Work,
        trained: Trained,
        encoding: Encoding,
        outbox: Outbox,
        session: str,
        attempt: int,
    ) -> Upload:
        """Puts an update, and what it leaves owing, into the outbox.

        Raises:
          OSError: it can't be written.
          UpdateError: a number is too large for the encoding.
        """
        sent = self._feedback.compensate(trained.delta)
        facts = {"round": work.round, "block": work.block}
        written = write_update(outbox.file, sent, encoding, facts)
        if encoding.kind != "float32":
            with UpdateReader(outbox.file) as reader:
                after = self._feedback.after(sent, reader)
            after.save(outbox.owed)
        upload = Upload(
            session=session,
            round=work.round,
            block=work.block,
            replica=work.replica,
            attempt=attempt,
            bytes=written.bytes,
            blake3=written.blake3,
            ticket=work.ticket,
            loss=trained.loss,
        )
        outbox.put(upload)
        return upload

    def settle(self, upload: Upload, verdict: Verdict, outbox: Outbox) -> None:
        """What was lost in the encoding is owed from now on, if it was accepted."""
        if verdict.verdict == "accepted" and outbox.owed.exists():
            place = self._place(upload.block, upload.replica) / "owed"
            place.parent.mkdir(parents=True, exist_ok=True)
            outbox.owed.replace(place)
            self._feedback = Feedback.load(place)
        outbox.clear()

    def _take(self, work: Work) -> None:
        slot = work.block, work.replica
        if self._slot == slot:
            return
        self._slot = slot
        place = self._place(*slot)
        self._state = self._trainer.load(place / "inner.npz", work.round)
        try:
            self._feedback = Feedback.load(place / "owed")
        except UpdateError:
            self._feedback = Feedback()
        owed = {name: leaf.shape for name, leaf in self._feedback.residual.items()}
        if owed and owed != self._trainer.shapes:
            self._feedback = Feedback()  # of another model

    def _place(self, block: int, replica: int) -> Path:
        return self._directory / f"{block}-{replica}"
