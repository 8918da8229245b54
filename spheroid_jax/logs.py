"""What programs show of the log: plain lines, and none of them again and again."""

import logging
import re
import sys
import time
from typing import TextIO

_NUMBERS = re.compile(r"\d+")


class Plain(logging.Formatter):
    """``warning: text``; no names of modules, which mean nothing to who runs it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, without a traceback."""
        return f"{record.levelname.lower()}: {record.message}"


class Repeats(logging.Filter):
    """Shows what is said over and over once in ``seconds``, and how often it was.

    Lines that differ in numbers alone, such as ports, are the same.

    Args:
      seconds: between two lines that are the same.
      most: different lines that are remembered.
    """

    def __init__(self, seconds: float = 60.0, most: int = 256) -> None:
        super().__init__()
        self._seconds, self._most = seconds, most
        self._said: dict[str, tuple[float, int]] = {}  # when, and how often since

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is shown."""
        text, now = record.getMessage(), time.monotonic()
        key = _NUMBERS.sub("0", text)
        when, more = self._said.pop(key, (-1e9, 0))
        if now - when < self._seconds:
            self._said[key] = when, more + 1
            return False
        while len(self._said) >= self._most:
            del self._said[next(iter(self._said))]
        self._said[key] = now, 0
        if more:
            record.msg = f"{text} ({more} more like this in {now - when:.0f} s)"
            record.args = None
        return True


def show_logs(stream: TextIO | None = None, level: int = logging.WARNING) -> None:
    """Shows the log on stderr, or on ``stream``, in place of what showed it before.

    Call it after the imports: some libraries set up the log when they are imported.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Plain())
    handler.addFilter(Repeats())
    logging.basicConfig(handlers=[handler], level=level, force=True)
