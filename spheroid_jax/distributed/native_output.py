"""What native libraries print when processes part, made one line.

XLA ends a process whose peers are gone from inside, with a page of log lines and a
stack trace; no exception reaches Python. So a process that runs beside others sends
what native code prints (file descriptors 1 and 2) through a helper, which outlives it:
the helper passes ordinary lines on, holds back those of the end, and says in one line
what they mean. Python's own output goes straight to the screen.

Run as a script this file is the helper; it uses the standard library alone.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import TextIO

_CONTROL = "\0"
# Gloo greets from several threads at once, so that its lines mix, piece by piece.
_CHATTER = re.compile(
    r"(\[Gloo\] Rank |\d+| is connected to | peer ranks\. |"
    r"Expected number of connected peer ranks is : |\s)+"
)
# From the first of these lines on, the process is about to end.
_ENDING = re.compile(
    r"^[WEF]\d{4} [\d:.]+ +\d+ "
    r"(coordination_service\w*|preemption_sync_manager|client)\.(cc|h):"
)
_FATAL = "Terminating process because the JAX distributed service"
_DEAD = re.compile(r"stopped sending heartbeats\):?\s*((?:^\s*\S*?\d+\s*$\n?)+)", re.M)
_LEADER = "Failed to send RPC to coordination service"


class Helper:
    """What a process needs to talk to its helper."""

    def __init__(self) -> None:
        """Starts the helper and sends what native code prints through it."""
        sys.stdout.flush()
        sys.stderr.flush()
        screen = [os.dup(1), os.dup(2)]
        read, write = os.pipe()
        subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=read,
            stdout=screen[1],
            stderr=screen[1],
        )
        os.close(read)
        sys.stdout = _text(screen[0], sys.stdout)
        sys.stderr = _text(screen[1], sys.stderr)
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(write)

    def expect(self, line: str) -> None:
        """What to say if native code ends the process; ``{who}`` are the lost peers."""
        self._send("expect", line)

    def last_words(self, line: str) -> None:
        """Says ``line``, if any, instead of all that native code says from now on."""
        self._send("end", line)

    def _send(self, what: str, line: str) -> None:
        one_line = " ".join(line.split())
        with contextlib.suppress(OSError):  # after its last words it is gone
            os.write(2, f"\n{_CONTROL}{what} {one_line}\n".encode())


def digest(lines: Iterable[str], screen: TextIO) -> None:
    """Passes lines on to ``screen`` until the process ends, and says why it did."""
    expected, held, ending = "", [], False
    for line in lines:
        if line.startswith(_CONTROL):
            what, _, text = line[1:].rstrip("\n").partition(" ")
            if what == "end":
                print(text, end="\n" if text else "", file=screen, flush=True)
                return
            expected = text
            continue
        ending = ending or bool(_ENDING.match(line))
        if ending:
            held.append(line)
        elif line.strip() and not _CHATTER.fullmatch(line):
            print(line, end="", file=screen, flush=True)
    text = "".join(held)
    if _FATAL in text and expected:
        text = expected.replace("{who}", _lost(text)) + "\n"
    print(text, end="", file=screen, flush=True)


def _lost(text: str) -> str:
    """The processes that XLA misses, in words."""
    if found := _DEAD.search(text):
        # A task is called by its number, or by a path that ends in it.
        numbers = sorted({int(n) for n in re.findall(r"(\d+)\s*$", found[1], re.M)})
        plural = "es" if len(numbers) > 1 else ""
        return f"process{plural} {' and '.join(map(str, numbers))}"
    return "process 0" if _LEADER in text else "another process"


def _text(descriptor: int, like: TextIO) -> TextIO:
    return os.fdopen(
        descriptor, "w", buffering=1, encoding=like.encoding, errors=like.errors
    )


if __name__ == "__main__":
    # It ends when the pipe does, not before: the last line is still to come.
    for _signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(_signal, signal.SIG_IGN)
    with os.fdopen(0, encoding="utf-8", errors="replace") as _lines:
        digest(_lines, sys.stderr)
