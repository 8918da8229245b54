"""Ends what an experiment has started, even where the experiment was killed.

Runs as a program of its own, from the standard library alone, and reads from its
standard input what there is to end: ``+process PID``, ``-process PID`` once it's gone,
``+namespace NAME``. When the input ends, for whatever reason, it kills the processes'
groups, then what is left in the namespaces, and deletes these.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable


def _ip(*arguments: str) -> str:
    """What ``ip netns`` says; nothing where it fails or hangs."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            ["ip", "netns", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=30,
        ).stdout
    return ""


def remove_namespaces(names: Iterable[str]) -> None:
    """Kills what runs in network namespaces and deletes them."""
    names = list(names)
    for name in names:
        for pid in _ip("pids", name).split():
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
    for name in names:
        _ip("delete", name)


def main() -> None:
    """Waits for the end of the input, then cleans up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes: set[int] = set()
    namespaces: list[str] = []
    for line in sys.stdin:
        what, _, which = line.strip().partition(" ")
        if what == "+process":
            processes.add(int(which))
        elif what == "-process":
            processes.discard(int(which))
        elif what == "+namespace":
            namespaces.append(which)
    for pid in processes:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    remove_namespaces(namespaces)


if __name__ == "__main__":
    main()
