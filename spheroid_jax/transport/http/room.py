"""Places for connections: so many, so many of one owner; the newest gets in."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

One = TypeVar("One", bound=Hashable)


def anyone(one: object) -> int:
    """The oldest goes first."""
    return 0


class Room(Generic[One]):
    """Who is there, by owner. Who comes is let in, if somebody else can go.

    That is somebody of the same owner, if that one has all that it may have; else, if
    all places are taken, somebody of the owner that has the most. So who has few keeps
    them, however many others come.

    Args:
      most: places.
      each: of them for one owner.
      rank: who goes first: the lowest, of those the one that came first; None for
        whom nobody takes the place of.
    """

    def __init__(
        self, most: int, each: int, rank: Callable[[One], int | None] = anyone
    ) -> None:
        self._most, self._each, self._rank = most, each, rank
        self._owners: dict[str, dict[One, None]] = {}
        self._owner: dict[One, str] = {}

    def __len__(self) -> int:
        return len(self._owner)

    def __contains__(self, one: One) -> bool:
        return one in self._owner

    def count(self, owner: str) -> int:
        """How many of one owner are there."""
        return len(self._owners.get(owner, ()))

    def enter(self, owner: str, one: One) -> tuple[bool, One | None]:
        """Lets somebody in, who isn't there yet.

        Returns:
          Whether there was a place; and who had to go for it, and isn't there any more.
        """
        gone = None
        if self.count(owner) >= self._each:
            gone = self._choose(owner)
        elif len(self) >= self._most:
            gone = self._choose_any()
        else:
            self._add(owner, one)
            return True, None
        if gone is None:
            return False, None
        self.leave(gone)
        self._add(owner, one)
        return True, gone

    def drop(self) -> One | None:
        """Has somebody go of the owner that has the most; None if nobody may."""
        gone = self._choose_any()
        if gone is not None:
            self.leave(gone)
        return gone

    def leave(self, one: One) -> None:
        """Somebody goes, or wasn't there."""
        owner = self._owner.pop(one, None)
        if owner is None:
            return
        del self._owners[owner][one]
        if not self._owners[owner]:
            del self._owners[owner]

    def renew(self, one: One) -> None:
        """From now on it is as if somebody had come just now."""
        if one in self._owner:
            of = self._owners[self._owner[one]]
            del of[one]
            of[one] = None

    def _add(self, owner: str, one: One) -> None:
        self._owners.setdefault(owner, {})[one] = None
        self._owner[one] = owner

    def _choose_any(self) -> One | None:
        by_size = sorted(self._owners, key=lambda owner: -len(self._owners[owner]))
        found = (self._choose(owner) for owner in by_size)
        return next((one for one in found if one is not None), None)

    def _choose(self, owner: str) -> One | None:
        ranked = [(self._rank(one), one) for one in self._owners.get(owner, ())]
        may = [(rank, one) for rank, one in ranked if rank is not None]
        return min(may, key=lambda pair: pair[0])[1] if may else None
