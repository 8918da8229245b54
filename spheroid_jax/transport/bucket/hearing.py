"""What a worker hears of its coordinator: the run, and the answers to what it says."""

from collections.abc import Callable
from typing import NoReturn

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.layout import Answer, Run
from spheroid_jax.transport.bucket.store import BlobStore, Found
from spheroid_jax.transport.http.retry import Again
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import VERSION, ProtocolError, decode


class Hearing:
    """Reads ``run.json`` and ``work/NAME.json``; what is no answer is passed over.

    Attributes:
      superseded: whether another process has taken this one's place.
    """

    def __init__(
        self,
        store: BlobStore,
        name: str,
        key: bytes | None,
        notice: Callable[[str], None],
    ) -> None:
        """Nothing was heard yet.

        Args:
          store: the prefix of the run.
          name: of the worker.
          key: by which answers must be signed; None where nothing is.
          notice: gets a line about an answer that is ignored.
        """
        self._store, self._name, self._key, self._notice = store, name, key, notice
        self._run: Found | None = None  # as it was read last
        self._met = False
        self.superseded = False
        self.forget()

    def forget(self) -> None:
        """Answers to come are to another greeting."""
        self.newest: Answer | None = None
        self._counter = -1  # of the newest answer
        self._generation: bytes | None = None  # of the object that it was in

    async def run(self) -> Run:
        """The run as it is now.

        Raises:
          Again: there is none, or none that can be read.
          BucketError: it can't be read.
        """
        store, known = self._store, self._run
        self._run = None
        read = store.reread(layout.RUN, known) if known else store.read(layout.RUN)
        found = await read
        if found is None:
            await store.check()
            said = "there is no run.json"
            if not self._met:
                said += ": no coordinator has begun there (is the address right?)"
            raise Again(said, cure="is the coordinator running?")
        try:
            run = decode(found.content, Run)
        except ProtocolError as error:
            raise Again(f"run.json: {error}", garbled=True) from error
        self._run, self._met = found, True
        return run

    def check(self, run: Run) -> None:
        """Whether this worker can take part in it.

        Raises:
          LinkError: it can't.
        """
        where = self._store.address.url
        if run.protocol != VERSION:
            raise LinkError(
                f"{where}: the coordinator speaks version {run.protocol} of the "
                f"protocol, this worker {VERSION}: install the same version of "
                "spheroid_jax",
                code="version",
            )
        if run.signed and self._key is None:
            raise LinkError(
                f"{where}: this run takes signed messages only: give this worker "
                "its token",
                code="unauthorized",
            )
        if self._key is not None and not run.signed:
            raise LinkError(
                f"{where}: this run's messages aren't signed: start its "
                "coordinator with tokens, or this worker without",
                code="unauthorized",
            )

    async def answer(self, run: Run, session: str) -> Answer | None:
        """Takes up an answer that is newer than what was heard; returns the newest.

        Args:
          run: whose coordinator speaks.
          session: of this process.

        Raises:
          BucketError: it can't be read.
        """
        key = layout.answer(self._name)
        found = await self._store.read(key, unless=self._generation)
        if found is not None:
            self._generation = found.generation
            self._take(found.content, run, session)
        return self.newest

    def _take(self, content: bytes, run: Run, session: str) -> None:
        try:
            envelope = layout.unseal(content, "answer", run.run, self._key)
            if (envelope.worker, envelope.subject) != (self._name, run.epoch):
                return
            answer = layout.opened(envelope, Answer)
        except ProtocolError as error:
            self._notice(f"{self._store.address.url}: an answer is ignored: {error}")
            return
        if envelope.counter <= self._counter:
            return
        if session in (answer.ousted or []):
            self.superseded = True
        elif envelope.session == session:
            self._counter, self.newest = envelope.counter, answer
        elif answer.ousted is None and self.newest and answer.registered:
            self.superseded = True  # this process was here, another one came

    def check_token(self) -> None:
        """Whether the newest answer is that our token is valid no longer.

        It concerns whatever was said, also what wasn't read any more.

        Raises:
          LinkError: it is.
        """
        refusal = self.newest.refusal if self.newest is not None else None
        if self.newest is not None and refusal is not None and refusal.status == 401:
            self.refused(self.newest)

    def refused(self, answer: Answer) -> NoReturn:
        """Raises the ``LinkError`` that a refusal is."""
        refusal = answer.refusal
        assert refusal is not None
        raise LinkError(
            f"{self._store.address.url}: the coordinator refuses: {refusal.error}",
            code=refusal.code,
            status=refusal.status,
        )
