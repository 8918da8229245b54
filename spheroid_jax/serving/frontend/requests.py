"""Writes texts: each waits for its turn, and is written until it is done.

A text's bytes depend on its seed and on nothing else, so a text that lost a stage is
begun anew elsewhere, from its prompt and what it has, and goes on as if nothing had
happened.
"""

import asyncio
from collections.abc import Awaitable, Callable

from spheroid_jax.serving.frontend.admission import Ticket
from spheroid_jax.serving.frontend.jobs import Job, Piece, Progress
from spheroid_jax.serving.frontend.metrics import Metrics
from spheroid_jax.serving.frontend.model import Model
from spheroid_jax.serving.frontend.settings import Settings
from spheroid_jax.serving.frontend.stages import Stages
from spheroid_jax.serving.frontend.writing import Text, late, unavailable
from spheroid_jax.serving.wire.messages import WireDtype

Emit = Callable[[Piece], Awaitable[None]]


class Writer:
    """Writes texts.

    Args:
      stages: that compute.
      settings: how long to wait for what.
      metrics: that count.
      frontend: 16 bytes, by which stages know this front end.
      wire_dtype: of what stages send each other.
    """

    def __init__(
        self,
        stages: Stages,
        settings: Settings,
        metrics: Metrics,
        frontend: bytes,
        wire_dtype: WireDtype = "float32",
    ) -> None:
        self.stages, self.settings, self.metrics = stages, settings, metrics
        self.frontend, self.wire_dtype = frontend, wire_dtype

    async def write(
        self,
        job: Job,
        model: Model,
        ticket: Ticket,
        deadline: float,
        emit: Emit,
        index: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Writes a text; ``emit`` gets its pieces as they become certain.

        Args:
          job: what to write.
          model: with which; another one won't do.
          ticket: the text's place; closed here.
          deadline: by the loop's clock.
          emit: may take its time; the text waits.
          index: of the text, for its pieces.
          progress: is kept up to date.

        Raises:
          ApiError: 503 or 504, why it can't be done in time; 500, it breaks stages.
        """
        text = Text(self, job, model, deadline, progress or Progress())
        try:
            await self._turn(ticket, deadline)
            while not text.decoder.done:
                data = await text.step()
                if data or text.decoder.done:
                    await emit(text.piece(index, data))
            if job.length == 0:
                await emit(text.piece(index, b""))
        finally:
            text.close()
            ticket.close()

    async def _turn(self, ticket: Ticket, deadline: float) -> None:
        """Waits for a text's turn; for a block without a stage no longer than that."""
        time = asyncio.get_running_loop().time
        while True:
            until = min(deadline, time() + self.settings.patience)
            try:
                async with asyncio.timeout_at(until):
                    return await ticket.turn()
            except TimeoutError:
                if self.stages.missing:
                    raise unavailable(self.stages, self.settings) from None
                if time() >= deadline:
                    raise late("it waited for its turn") from None
