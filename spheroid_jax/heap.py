"""Has glibc give memory back, in a process that lives long and has many threads.

Left to itself, glibc gives threads heaps of their own, up to eight a core, each of
which keeps what was once needed in it; and once large pieces were freed, up to 32 MiB,
it takes such pieces from these heaps, too. In a server whose threads hold a few
megabytes each for a moment, that comes to a hundred megabytes that nobody uses.

See mallopt(3) and malloc_trim(3). Elsewhere than with glibc nothing is done.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of <malloc.h>
_HEAPS = 2
_LARGE = 512 << 10  # bytes; a piece of that size is mapped by itself, and unmapped
_KEPT = 1 << 20  # bytes that may be free at the end of a heap


def give_back() -> bool:
    """Sets the allocator of this process so, for the rest of its life.

    Best called before there are many threads. From then on an array of half a megabyte
    or more costs what the system takes to clear its pages, each time it is made.

    Returns:
      Whether it is so; False where the allocator isn't glibc's.
    """
    libc = _glibc()
    if libc is None:
        return False
    settings = {_ARENA_MAX: _HEAPS, _MMAP_THRESHOLD: _LARGE, _TRIM_THRESHOLD: _KEPT}
    done = [libc.mallopt(name, value) == 1 for name, value in settings.items()]
    return all(done)


def trim() -> None:
    """Gives back what is free now, in whole pages; for after a peak that won't return.

    Takes about a tenth of a second, in which threads that need memory wait.
    """
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
