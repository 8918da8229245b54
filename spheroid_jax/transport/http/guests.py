"""Connections: who is a stranger, who has shown a token, and who has to go for whom."""

import dataclasses
import logging
from collections.abc import Callable

from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.room import Room
from spheroid_jax.transport.protocol import ProtocolError

log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class Guest:
    """A connection.

    Attributes:
      address: whom it comes from, as of ``requests.network_of``.
      cut: ends it now.
      name: of whom its newest request has shown a token; None: a stranger.
      busy: whether a request is being answered.
    """

    address: str
    cut: Callable[[], None]
    name: str | None = None
    busy: bool = False


class Guests:
    """All connections of a server.

    Who is new has a moment to show a token, so that many who come at once don't stand
    in each other's way. Strangers after that have a part of the places, and each
    address a part of those; a further one always gets in, and for it the longest idle
    goes, of its own address if that has its part, else of the address that has the
    most. So silence holds no places, and one address none of another's. Whoever has
    shown a token isn't among them any more.

    Args:
      limits: how many.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        each = min(limits.strangers_each, max(2, limits.strangers // 2))
        self._new: Room[Guest] = Room(limits.connections, limits.connections)
        self._strangers: Room[Guest] = Room(
            limits.strangers, each, rank=lambda guest: int(guest.busy)
        )
        self._known: Room[Guest] = Room(
            max(1, limits.connections - limits.strangers),
            limits.connections_each,
            rank=lambda guest: None if guest.busy else 0,
        )

    def __len__(self) -> int:
        return len(self._new) + len(self._strangers) + len(self._known)

    def enter(self, guest: Guest) -> None:
        """A connection was made."""
        if len(self) >= self._limits.connections:
            self._cut(self._new.drop() or self._strangers.drop())
        self._new.enter(guest.address, guest)

    def settle(self, guest: Guest) -> None:
        """The moment of a new one is over; of others nothing happens."""
        if guest in self._new:
            self._new.leave(guest)
            _, gone = self._strangers.enter(guest.address, guest)
            self._cut(gone)

    def leave(self, guest: Guest) -> None:
        """A connection is over."""
        for room in (self._new, self._strangers, self._known):
            room.leave(guest)

    def begin(self, guest: Guest, name: str | None) -> None:
        """A request came; with a token of ``name``, or without a valid one.

        Raises:
          ProtocolError: 429 there are too many connections of that name that are all
            at work, 503 of all names; the guest stays a stranger.
        """
        guest.busy = True
        if name is None:
            if guest in self._known:
                self._known.leave(guest)
                self._new.enter(guest.address, guest)
            guest.name = None
            self.settle(guest)
            self._strangers.renew(guest)
        elif name == guest.name:
            self._known.renew(guest)
        else:
            self._introduce(guest, name)

    def _introduce(self, guest: Guest, name: str) -> None:
        there = any(guest in r for r in (self._new, self._strangers, self._known))
        self.leave(guest)
        guest.name = None
        if not there:
            return  # it was cut just now
        has_place, gone = self._known.enter(name, guest)
        self._cut(gone)
        if has_place:
            guest.name = name
            return
        self._new.enter(guest.address, guest)
        self.settle(guest)
        most = self._limits.connections_each
        if self._known.count(name) >= most:
            raise ProtocolError(
                f"{most} connections are all that one token may have; close some",
                status=429,
                code="busy",
            )
        raise ProtocolError(
            "all connections are in use: ask again later", status=503, code="busy"
        )

    def end(self, guest: Guest) -> None:
        """A request was answered."""
        guest.busy = False

    def _cut(self, guest: Guest | None) -> None:
        if guest is not None:
            log.debug("a connection of %s is cut for a newer one", guest.address)
            guest.cut()
