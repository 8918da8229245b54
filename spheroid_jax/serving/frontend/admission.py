"""How many texts are written at once, how many may wait, and who is sent away.

Stages keep a cache for every text they work on, in a bounded number of slots. More
texts than that would only be refused there, after they had crossed the net.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from spheroid_jax.serving.frontend.errors import ApiError


class Ticket:
    """A text's place, or its wait for one."""

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def inside(self) -> bool:
        """Whether the text has a place."""
        return self._turn.done() and not self._turn.cancelled()

    async def turn(self) -> None:
        """Returns when the text may go."""
        await asyncio.shield(self._turn)

    def admit(self) -> None:
        """Its turn has come."""
        self._turn.set_result(None)

    def close(self) -> None:
        """The text is done, or was given up; does nothing the second time."""
        self._admission.leave(self)


class Admission:
    """A bounded number of texts inside, a bounded number that wait, first come first.

    Args:
      capacity: how many may be inside now; may change, see ``changed``.
      queue: how many may wait.
      retry_after: seconds after which one that is sent away may come again.

    Attributes:
      closed: nobody comes in any more; who is there may end.
    """

    def __init__(
        self, capacity: Callable[[], int], queue: int, retry_after: float = 1.0
    ) -> None:
        self._capacity, self._queue, self._retry = capacity, queue, retry_after
        self.closed = False
        self._inside: set[Ticket] = set()
        self._waiting: deque[Ticket] = deque()

    @property
    def inside(self) -> int:
        """Texts that are being written."""
        return len(self._inside)

    @property
    def waiting(self) -> int:
        """Texts that wait for a place."""
        return len(self._waiting)

    def enter(self, texts: int) -> list[Ticket]:
        """Tickets for the texts of a request; all, or none.

        Raises:
          ApiError: 429, they would have to wait and too many do; 503, it is closed.
        """
        if self.closed:
            raise ApiError(
                "this front end is about to end; ask again, or another",
                status=503,
                code="draining",
                retry_after=self._retry,
            )
        room = max(0, self._capacity() - self.inside)
        if self.waiting + texts > room + self._queue:
            raise ApiError(
                f"{self.waiting} texts wait already and {self._queue} may; ask again "
                "later",
                status=429,
                code="rate_limit_exceeded",
                retry_after=self._retry,
            )
        tickets = [Ticket(self) for _ in range(texts)]
        self._waiting.extend(tickets)
        self.changed()
        return tickets

    def leave(self, ticket: Ticket) -> None:
        """Frees a ticket's place."""
        if ticket in self._inside:
            self._inside.remove(ticket)
        elif ticket in self._waiting:
            self._waiting.remove(ticket)
        self.changed()

    def changed(self) -> None:
        """There may be more places than before."""
        while self._waiting and self.inside < self._capacity():
            ticket = self._waiting.popleft()
            self._inside.add(ticket)
            ticket.admit()
