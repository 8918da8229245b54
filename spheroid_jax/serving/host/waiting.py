"""The sweeps that wait to be computed, and which of them go together.

Continuous batching: whenever the processor is free, the oldest sweep goes, and with it
all others that the same compiled program can take. Nobody waits for a batch to fill,
and nobody is passed over for good.
"""

import dataclasses
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

Payload = TypeVar("Payload")


@dataclasses.dataclass(eq=False)
class Item(Generic[Payload]):
    """A sweep that waits.

    Attributes:
      key: of its request; no two of one request go into one batch.
      group: hashable; those of the same group can be computed together.
      expires: when nobody waits for its result any more.
      payload: the sweep.
      arrived: when it came.
    """

    key: Hashable
    group: Any
    expires: float
    payload: Payload
    arrived: float = dataclasses.field(default_factory=time.monotonic)


class Waiting(Generic[Payload]):
    """A bounded queue, oldest first; at most ``most`` items."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: list[Item[Payload]] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        """Whether there is no place for another one."""
        return len(self._items) >= self._most

    @property
    def oldest(self) -> float | None:
        """When the one came that waits longest; None if none waits."""
        return self._items[0].arrived if self._items else None

    def keys(self) -> set[Hashable]:
        """Whose sweeps wait."""
        return {item.key for item in self._items}

    def put(self, item: Item[Payload]) -> bool:
        """Adds one at the end; false if there is no place."""
        if self.full:
            return False
        self._items.append(item)
        return True

    def take(self, most: int) -> list[Item[Payload]]:
        """Removes the oldest and up to ``most - 1`` others that go with it."""
        taken: dict[Hashable, Item[Payload]] = {}
        passed: set[Hashable] = set()  # requests of which one has to wait
        for item in self._items:
            if len(taken) == most:
                break
            same = item.group == self._items[0].group
            if same and item.key not in taken and item.key not in passed:
                taken[item.key] = item
            else:
                # Sweeps of one request stay in order, whatever their groups.
                passed.add(item.key)
        chosen = list(taken.values())
        self._forget(chosen)
        return chosen

    def remove(self, unwanted: Callable[[Item[Payload]], bool]) -> list[Item[Payload]]:
        """Removes those that are ``unwanted``, and returns them."""
        gone = [item for item in self._items if unwanted(item)]
        self._forget(gone)
        return gone

    def expired(self, now: float) -> list[Item[Payload]]:
        """Removes those that nobody waits for any more, and returns them."""
        return self.remove(lambda item: item.expires <= now)

    def _forget(self, gone: Iterable[Item[Payload]]) -> None:
        there = {id(item) for item in gone}
        self._items = [item for item in self._items if id(item) not in there]
