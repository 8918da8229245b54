"""Shows texts while they are written, and why nothing comes for a while."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class Watch(Protocol):
    """Who wants to see texts while they are written."""

    def sweep(self, texts: int, positions: int, fill: str) -> None:
        """One is about to be computed; of a new shape it is compiled first."""

    def wrote(self, row: int, data: bytes, done: bool) -> None:
        """Bytes of a prompt's text that stand, after those told; maybe the last."""


class Shifted(NamedTuple):
    """A watch whose rows begin at ``first``."""

    watch: Watch
    first: int

    def sweep(self, texts: int, positions: int, fill: str) -> None:
        """One is about to be computed."""
        self.watch.sweep(texts, positions, fill)

    def wrote(self, row: int, data: bytes, done: bool) -> None:
        """Bytes of a text, and whether they are its last."""
        self.watch.wrote(self.first + row, data, done)


class Showing:
    """A watch of ``generate``: bytes as they come, text after text.

    What it writes is all texts in their order, whichever is done first. Bytes come when
    the next sweep begins: if that compiles first, what it says of it comes before them.

    Args:
      write: takes bytes; None: none are shown.
      end: bytes after each text.
      say: for the one who waits; one line each.
      together: lines and texts go to the same screen.
      moment: seconds after which it is told that a program is compiled: one that was
        kept on disk is there sooner.
    """

    def __init__(
        self,
        write: Callable[[bytes], None] | None,
        end: bytes,
        say: Callable[[str], None],
        moment: float = 1.0,
        *,
        together: bool = False,
    ) -> None:
        self._write, self._end, self._say = write, end, say
        self._moment, self._together = moment, together
        self._row = 0  # whose text is shown just now
        self._shown = 0  # bytes of it
        self._texts: dict[int, bytearray] = {}  # from that one on
        self._done: set[int] = set()
        self._shapes: set[tuple[int, int, str]] = set()
        self._timer: threading.Timer | None = None
        self._told = threading.Event()
        self._began = 0.0

    def sweep(self, texts: int, positions: int, fill: str) -> None:
        """One is about to be computed."""
        self._settle()
        shape = (texts, positions, fill)
        if shape in self._shapes:
            self._show()
            return
        self._shapes.add(shape)
        plural = "s" * (positions > 1)
        line = f"compiles for {positions} position{plural} (first time; kept on disk)"

        def tell() -> None:
            self._told.set()
            # Not on the line of a text that is half written.
            self._say(("\n" if self._together and self._shown else "") + f"{line} ...")

        self._began = time.monotonic()
        self._timer = threading.Timer(self._moment, tell)
        self._timer.daemon = True
        self._timer.start()

    def wrote(self, row: int, data: bytes, done: bool) -> None:
        """Bytes of a text, and whether they are its last."""
        self._settle()
        self._texts.setdefault(row, bytearray()).extend(data)
        if done:
            self._done.add(row)

    def finish(self, texts: Sequence[bytes]) -> None:
        """All texts are written: shows what wasn't shown of them."""
        self._settle()
        self._texts = {n: bytearray(texts[n]) for n in range(self._row, len(texts))}
        self._done = set(self._texts)
        self._show()

    def close(self) -> None:
        """Nothing more is told."""
        if self._timer is not None:
            self._timer.cancel()

    def _show(self) -> None:
        while self._row in self._texts:
            text = self._texts[self._row]
            more, done = bytes(text[self._shown :]), self._row in self._done
            if done:
                more += self._end
            if more and self._write is not None:
                self._write(more)
            self._shown = len(text)
            if not done:
                return
            del self._texts[self._row]
            self._done.discard(self._row)
            self._row, self._shown = self._row + 1, 0

    def _settle(self) -> None:
        """A sweep has ended: what was compiled for it is there."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            timer.join()
        if self._told.is_set():
            self._told.clear()
            self._say(f"compiled in {time.monotonic() - self._began:.1f} s")
