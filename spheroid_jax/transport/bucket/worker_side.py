"""A worker's side of a bucket: a :class:`~spheroid_jax.transport.link.Link`.

The coordinator's answers are signed with the worker's token like its own messages, so
with a token nobody else who may write to the bucket can give this worker work.
"""

from collections.abc import Callable
from pathlib import Path

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.conversation import Conversation
from spheroid_jax.transport.bucket.sending import Sending
from spheroid_jax.transport.bucket.source import BucketItems
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.http.retry import Pace, Tools
from spheroid_jax.transport.items.fetch import fetch
from spheroid_jax.transport.link import Progress
from spheroid_jax.transport.protocol import (
    Heartbeat,
    Item,
    Leave,
    Pulse,
    Register,
    Registered,
    Upload,
    Verdict,
    Work,
    WorkRequest,
)


class BucketLink:
    """The exchange with a coordinator through a bucket."""

    def __init__(
        self,
        store: BlobStore,
        name: str,
        token: str | None = None,
        *,
        pace: Pace | None = None,
        tools: Tools | None = None,
        grace: float = 10.0,
        notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Asks nothing yet.

        Args:
          store: the prefix of the run.
          name: of the worker; with a token, the name that goes with it.
          token: signs; None where the run asks for no signatures.
          pace: how long to try.
          tools: time and chance.
          grace: seconds in which an answer must come, if ten looks take less.
          notice: gets a line about what goes wrong for now.

        Raises:
          ValueError: the name can't be one.
        """
        if not layout.is_worker(name):
            raise ValueError(
                f"the worker's name {name!r:.80} must be letters, digits, dots, dashes "
                "or underscores, at most 64"
            )
        pace, self._tools = pace or Pace(), tools or Tools()
        key = None if token is None else layout.key_of(token)
        self._store, self._name, self._patience = store, name, pace.patience
        self._talk = Conversation(store, name, key, pace, self._tools, grace, notice)
        self._sending = Sending(
            store,
            name,
            key,
            tried=self._talk.tried,
            look=self._talk.look,
            count=self._talk.count,
            moved=self._talk.moved,
            clock=self._tools.clock,
            patience=pace.patience,
        )

    def __repr__(self) -> str:
        return f"BucketLink({self._store.address.url!r}, {self._name!r})"

    async def register(self, request: Register) -> Registered:
        """See :class:`Link`."""
        return await self._talk.greet(request)

    async def work(self, request: WorkRequest) -> Work:
        """See :class:`Link`."""
        talk = self._talk
        number = talk.question(request)
        said = await talk.say()
        ends = self._tools.clock() + request.wait + talk.patience
        while self._tools.clock() < ends:
            answer = await talk.answer(said)
            if answer is None:
                said = await talk.say()
            elif answer.asked == number and answer.work is not None:
                talk.answered(number)
                return answer.work
        return Work("wait", why="the coordinator gives no answer yet")

    async def heartbeat(self, request: Heartbeat) -> Pulse:
        """See :class:`Link`."""
        talk = self._talk
        said = await talk.say(request)
        ends = self._tools.clock() + talk.patience
        while self._tools.clock() < ends:
            answer = await talk.answer(said)
            if answer is None:
                said = await talk.say(request)
            elif answer.heard >= said.counter and answer.pulse is not None:
                return answer.pulse
        # Unknown; giving training up for a silence would be a loss.
        return Pulse(request.round, wanted=True)

    async def leave(self, request: Leave) -> None:
        """See :class:`Link`."""
        del request  # the session is that of registering
        talk = self._talk
        said = await talk.say(leave=True)
        ends = self._tools.clock() + talk.patience
        while self._tools.clock() < ends:
            answer = await talk.answer(said)
            if answer is None or answer.heard >= said.counter:
                return

    async def fetch(
        self, item: Item, target: Path, progress: Progress | None = None
    ) -> int:
        """See :class:`Link`."""
        source = BucketItems(
            self._store,
            tried=self._talk.tried,
            look=self._talk.look,
            want=self._talk.want,
            clock=self._tools.clock,
            patience=self._patience,
        )
        try:
            return await fetch(source, item, target, progress)
        finally:
            self._talk.has(item.digest)

    async def submit(
        self, upload: Upload, path: Path, progress: Progress | None = None
    ) -> Verdict:
        """See :class:`Link`."""
        told = progress or (lambda done, total: None)
        return await self._sending.send(upload, path, told, self._talk.run.run)

    async def close(self) -> None:
        """See :class:`Link`."""
        await self._talk.close()
