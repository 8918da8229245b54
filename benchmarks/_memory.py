"""What is in another process's memory, as Linux counts it, and when it was most."""

import threading
from pathlib import Path
from typing import NamedTuple

MIB = 2**20
_EVERY = 0.1  # seconds between looks


class Memory(NamedTuple):
    """Bytes that are resident; NaN where nobody tells.

    Attributes:
      resident: all of them.
      own: those that no file on disk backs: heaps, arrays, stacks. The rest is
        programs and libraries, which the system can drop and read again.
    """

    resident: float
    own: float

    def text(self) -> str:
        """In a few words."""
        return f"{self.resident / MIB:.0f} MiB ({self.own / MIB:.0f} of them its own)"


UNKNOWN = Memory(float("nan"), float("nan"))


def memory_of(pid: int) -> Memory:
    """What a process holds at this moment."""
    found: dict[str, float] = {}
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            words = line.split()
            if words[-1] == "kB":
                found[words[0]] = 1024.0 * int(words[1])
    except OSError:
        return UNKNOWN
    return Memory(
        found.get("Rss:", float("nan")), found.get("Anonymous:", float("nan"))
    )


class Watch(threading.Thread):
    """Looks at a process's memory again and again."""

    def __init__(self, pid: int) -> None:
        """Not started yet."""
        super().__init__(daemon=True)
        self._pid, self._ended = pid, threading.Event()
        self.seen: list[Memory] = []

    def run(self) -> None:
        """Until it is told to end."""
        while not self._ended.wait(_EVERY):
            self.seen.append(memory_of(self._pid))

    def end(self) -> Memory:
        """The most of each that was seen; a peak between two looks isn't."""
        self._ended.set()
        self.join()
        if not self.seen:
            return UNKNOWN
        return Memory(*(max(each) for each in zip(*self.seen, strict=True)))
