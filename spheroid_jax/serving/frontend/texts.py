"""The texts of one request, written at the same time, as one stream of pieces."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from spheroid_jax.serving.frontend.admission import Ticket
from spheroid_jax.serving.frontend.errors import ApiError
from spheroid_jax.serving.frontend.jobs import Job, Piece, Progress
from spheroid_jax.serving.frontend.model import Model
from spheroid_jax.serving.frontend.requests import Writer

log = logging.getLogger(__name__)


class Texts:
    """Writes texts while it is entered.

    No more than one piece of each waits to be taken: a text whose reader is slow is
    written slowly.

    Args:
      writer: that writes.
      jobs: a text each.
      model: with which.
      tickets: their places; closed at the end.
      deadline: by the loop's clock.

    Attributes:
      progress: of each.
    """

    def __init__(
        self,
        writer: Writer,
        jobs: Sequence[Job],
        model: Model,
        tickets: Sequence[Ticket],
        deadline: float,
    ) -> None:
        self.progress = [Progress() for _ in jobs]
        self._writer, self._model, self._deadline = writer, model, deadline
        self._work = list(zip(jobs, tickets, strict=True))
        self._queue: asyncio.Queue[Piece | ApiError] = asyncio.Queue(len(jobs))
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Texts":
        self._tasks = [
            asyncio.create_task(self._write(i, job, ticket))
            for i, (job, ticket) in enumerate(self._work)
        ]
        return self

    async def __aexit__(self, *raised: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, ticket in self._work:
            ticket.close()

    async def pieces(self) -> AsyncIterator[Piece]:
        """The pieces of all texts, as they come.

        Raises:
          ApiError: one can't be written.
        """
        left = len(self._work)
        while left:
            item = await self._queue.get()
            if isinstance(item, ApiError):
                raise item
            left -= item.finish is not None
            yield item

    async def _write(self, index: int, job: Job, ticket: Ticket) -> None:
        try:
            await self._writer.write(
                job,
                self._model,
                ticket,
                self._deadline,
                self._queue.put,
                index,
                self.progress[index],
            )
        except ApiError as error:
            await self._queue.put(error)
        except Exception:
            log.exception("a text failed")
            await self._queue.put(
                ApiError("internal error", status=500, code="internal")
            )
