"""What a process keeps of memory that it has let go of, as the system counts it."""

import subprocess
import sys

import pytest

from spheroid_jax import heap

MIB = 2**20
THREADS, PIECES, SIZE = 6, 12, 600 << 10  # 42 MiB in all

_BEGIN = """
import gc, sys, threading
from pathlib import Path
from spheroid_jax import heap

def resident():
    fields = dict(l.split(":") for l in Path("/proc/self/status").open())
    return 1024 * int(fields["VmRSS"].split()[0])

def pieces(count, size):
    # The last one lies behind the others, so that no end of a heap is free.
    return [bytearray(size) for _ in range(count)], bytearray(90_000)
"""

_IN_THREADS = f"""
if sys.argv[1] == "give back":
    assert heap.give_back()
together, kept = threading.Barrier({THREADS}), []

def work():
    for _ in range(2):  # what glibc maps by itself is less the second time
        large, small = pieces({PIECES}, {SIZE})
        kept.append(small)
        together.wait()
        del large
        together.wait()

before = resident()
threads = [threading.Thread(target=work) for _ in range({THREADS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(resident() - before)
"""

_ONCE = """
large, small = pieces(500, 100_000)
held = resident()
del large
if sys.argv[1] == "trim":
    heap.trim()
print(held - resident())
"""


def said(program: str, how: str) -> int:
    """The number that a program prints, a process of its own."""
    command = [sys.executable, "-c", _BEGIN + program, how]
    return int(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.fixture(autouse=True)
def only_with_glibc() -> None:
    if heap._glibc() is None or not sys.platform.startswith("linux"):
        pytest.skip("the allocator isn't glibc's")


def test_what_threads_held_for_a_moment_is_given_back() -> None:
    assert said(_IN_THREADS, "give back") < 8 * MIB
    assert said(_IN_THREADS, "as it is") > 24 * MIB  # or there is nothing to see here


def test_what_was_needed_once_is_given_back() -> None:
    assert said(_ONCE, "trim") > 40 * MIB
    assert said(_ONCE, "as it is") < 8 * MIB
