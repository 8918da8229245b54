"""Memory for large uploads: one sum for all that run, and a little more for each.

An upload takes an eighth of what is left of the sum, as much as is of use to it at most
and what it can't do without at least. So a few are as fast as can be, many are slower
by little, and many at once don't take the coordinator's memory.
"""

import contextlib
import mmap
from collections.abc import Iterator

SUM = 32 << 20  # bytes
LEAST, MOST = 64 << 10, 1 << 20  # bytes of a buffer; whole pages
_PART = 8


class Buffers:
    """What the uploads of a server read into."""

    def __init__(self, total: int = SUM) -> None:
        """None is in use yet; ``total`` is bytes."""
        self._left = total

    @contextlib.contextmanager
    def lent(self, count: int) -> Iterator[list[memoryview]]:
        """Gives ``count`` buffers of one size; their memory goes back to the system.

        Not from the heap: it would keep what uploads had at their peak, and what lies
        between.
        """
        size = self._left // _PART // count // LEAST * LEAST
        size = max(LEAST, min(MOST, size))
        self._left -= count * size
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            memory = memoryview(mmap.mmap(-1, count * size, flags))
            yield [memory[n * size : (n + 1) * size] for n in range(count)]
        finally:
            self._left += count * size
