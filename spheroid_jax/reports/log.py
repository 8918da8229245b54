"""The metrics of a run, written once: JSON lines, mirrored to TensorBoard.

Tables and plots are made from ``metrics.jsonl``, so anyone can redraw them.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tensorboardX import SummaryWriter

from spheroid_jax.reports.files import plain, to_json, write_atomic

METRICS = "metrics.jsonl"
_OWN_KEYS = ("method", "round", "step", "seconds")


class MetricsError(ValueError):
    """A metrics file can't be read; one line, with file, line number and cure."""


class MetricsLog:
    """Appends to ``metrics.jsonl`` and to ``tensorboard/METHOD`` in a run directory."""

    def __init__(self, workdir: Path) -> None:
        """Opens the log of ``workdir`` and goes on behind what it holds.

        Raises:
          MetricsError: The file is there and isn't a metrics file.
        """
        self._path = workdir / METRICS
        self._tensorboard = workdir / "tensorboard"
        self._writers: dict[str, SummaryWriter] = {}
        workdir.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            self._replace(read_metrics(self._path))  # drops a torn last line
        self._file = self._path.open("a", encoding="utf-8")

    def write(
        self,
        method: str,
        round_: int,
        metrics: Mapping[str, Any],
        *,
        step: int,
        seconds: float,
    ) -> None:
        """Appends one record; it is with the operating system on return.

        Args:
          method: Which method the numbers belong to.
          round_: Rounds completed.
          metrics: Numbers by name; one that isn't finite is written as null.
          step: Local steps completed.
          seconds: Wall time spent on this method so far.
        """
        if clash := [name for name in metrics if name in _OWN_KEYS]:
            raise ValueError(f"a metric can't be called {clash[0]!r}")
        own = {"method": method, "round": round_, "step": step, "seconds": seconds}
        self._file.write(to_json(own | dict(metrics)) + "\n")
        self._file.flush()
        writer = self._writer(method)
        for name, value in metrics.items():
            if (number := plain(value)) is not None:
                writer.add_scalar(name, number, round_)
        writer.flush()

    def rewind(self, method: str, round_: int) -> None:
        """Forgets the records of ``method`` after ``round_``.

        A run that was killed has written rounds which the resumed run writes again.
        """
        self._file.close()
        records = read_metrics(self._path)
        kept = [r for r in records if r["method"] != method or r["round"] <= round_]
        self._replace(kept)
        self._file = self._path.open("a", encoding="utf-8")
        if method in self._writers:
            self._writers.pop(method).close()
        if len(kept) < len(records):
            self._writers[method] = self._open_writer(method, purge_step=round_ + 1)

    def close(self) -> None:
        """Closes the file and TensorBoard's."""
        self._file.close()
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _writer(self, method: str) -> SummaryWriter:
        # Made on the first record, so that a method without any has no folder.
        if method not in self._writers:
            self._writers[method] = self._open_writer(method)
        return self._writers[method]

    def _open_writer(self, method: str, **options: Any) -> SummaryWriter:
        # Its own file name only counts seconds, and a second writer would overwrite.
        unique = f".{time.time_ns()}"
        folder = str(self._tensorboard / method)
        writer = SummaryWriter(folder, filename_suffix=unique, **options)
        # Its thread would end at an error of the disk, and the next record but a few
        # wait for that thread for ever. It is a mirror: the file tells of the disk.
        events = writer.file_writer.event_writer._ev_writer
        events.write_event = _unless_refused(events.write_event)
        events.flush = _unless_refused(events.flush)
        return writer

    def _replace(self, records: Iterable[Mapping[str, Any]]) -> None:
        write_atomic(self._path, "".join(to_json(r) + "\n" for r in records))


class NoLog(MetricsLog):
    """The log of a process that leaves logging to another."""

    def __init__(self) -> None:
        """Opens nothing."""

    def write(
        self,
        method: str,
        round_: int,
        metrics: Mapping[str, Any],
        *,
        step: int,
        seconds: float,
    ) -> None:
        """Does nothing."""

    def rewind(self, method: str, round_: int) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def _unless_refused(action: Callable[..., Any]) -> Callable[..., Any]:
    def tried(*given: Any) -> Any:
        with contextlib.suppress(OSError):
            return action(*given)
        return None

    return tried


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a metrics file, oldest first.

    The last line may be torn, as a killed run leaves it; it is left out.

    Raises:
      MetricsError: There is no such file, or another line isn't a record.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise MetricsError(f"{path} can't be read: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is not None:
            records.append(record)
        elif line and number < len(lines):  # what follows the last newline is torn
            raise MetricsError(
                f"{path} line {number} isn't a record of metrics; delete that line"
            )
    return records


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not set(_OWN_KEYS) <= record.keys():
        return None
    return record
