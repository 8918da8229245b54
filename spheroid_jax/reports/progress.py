"""Progress of one method: a bar on a terminal, a few plain lines elsewhere."""

import math
import sys
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from spheroid_jax.reports.tables import duration, nats, si

LINES = 20  # plain lines a run prints at most, besides the first and the last
_FULL = 80  # columns of a terminal; with fewer, only round, CE and time left are shown


class Progress:
    """Rounds done, cross-entropy, bytes a second, time spent and time left."""

    def __init__(
        self,
        description: str,
        rounds: int,
        *,
        start: int = 0,
        stream: TextIO | None = None,
    ) -> None:
        """Shows nothing yet; that begins with the ``with`` block.

        Args:
          description: What is going on, such as the method's name.
          rounds: Rounds of the whole run.
          start: Rounds done before, when a run is resumed.
          stream: Where to show it; by default standard error.
        """
        self._description, self._rounds, self._start = description, rounds, start
        self._stream = sys.stderr if stream is None else stream
        self._round, self._numbers = start, ""
        self._began = self._updated = time.monotonic()
        self._first: tuple[int, float] | None = None  # round and time, once known
        self._shown = 0  # twentieths of the way that have had a plain line
        self._narrow = False
        self._bar = self._make_bar()

    def update(
        self, round_: int, *, ce: float, bytes_per_second: float, note: str = ""
    ) -> None:
        """Shows that ``round_`` is done.

        Args:
          round_: Rounds completed, of the whole run.
          ce: Cross-entropy, nats per byte.
          bytes_per_second: Bytes trained on per second of the round.
          note: What ``ce`` was measured on, or any other few words.
        """
        now = time.monotonic()
        # The first round compiles; it doesn't tell how long the others take.
        self._first = self._first or (round_, now)
        self._round, self._updated = round_, now
        parts = [f"CE {nats(ce)} {note}".rstrip(), si(bytes_per_second, "B/s")]
        if self._narrow:
            parts = [f"CE {nats(ce)}"]
        self._numbers = "".join(f"  {part}" for part in parts)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=round_)
        elif self._is_due(round_):
            self._print(f"{self._description}  round  {self._status(now)}")

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if self._bar is None:
            self._print(line)
        else:
            text = Text(self._encodable(line))
            self._bar.console.print(text, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _make_bar(self) -> Bar | None:
        if not self._stream.isatty():
            return None
        console = Console(file=self._stream)
        if console.is_dumb_terminal:
            return None
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}", markup=False),
            _Status(self),
        ]
        self._narrow = console.width < _FULL
        if not self._narrow:
            columns.insert(1, BarColumn(bar_width=min(40, console.width - _FULL + 8)))
        bar = Bar(*columns, console=console, refresh_per_second=4)
        description = self._encodable(self._description)
        bar.add_task(description, total=self._rounds, completed=self._start)
        return bar

    def _status(self, now: float) -> str:
        """Round, numbers and times, for the bar and for plain lines alike."""
        width = len(str(self._rounds))
        done = f"{self._round:>{width}}/{self._rounds}{self._numbers}"
        spent = duration(now - self._began)
        if self._round >= self._rounds:
            return f"{done}  in {spent}"
        if self._first is None:  # a clock, or it would seem to stand still
            return f"{done}  compiling, {spent}"
        left = self._seconds_left(now)
        # A plain line stands still, so what time has passed says little there.
        before = f"{spent}, " if self._bar is not None and not self._narrow else ""
        return f"{done}  {before}{duration(left)} left" if left is not None else done

    def _seconds_left(self, now: float) -> float | None:
        if self._first is None:
            return None
        round_, at = self._first
        if self._round == round_:  # one update so far: the best guess, compile and all
            round_, at = self._start, self._began
        per_round = (self._updated - at) / max(1, self._round - round_)
        return per_round * (self._rounds - self._round) - (now - self._updated)

    def _is_due(self, round_: int) -> bool:
        """Whether a plain line is due: the first round, every twentieth, the last."""
        share = (round_ - self._start) / max(1, self._rounds - self._start)
        twentieth = math.floor(LINES * share)
        due = twentieth > self._shown or (self._first or (0,))[0] == round_
        self._shown = max(self._shown, twentieth)
        return due

    def _encodable(self, text: str) -> str:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        return text.encode(encoding, "replace").decode(encoding)

    def _print(self, line: str) -> None:
        print(self._encodable(line), file=self._stream, flush=True)


class _Status(ProgressColumn):
    """The numbers beside the bar, with clocks that run."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        text = self._progress._status(time.monotonic())
        return Text(text, no_wrap=True, overflow="crop")
