import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from spheroid_jax.reports.progress import LINES, Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def plain_lines(
    clock: Clock,
    rounds: int,
    *,
    start: int = 0,
    seconds: Callable[[int], float] = lambda _: 10.0,
) -> list[str]:
    stream = io.StringIO()
    with Progress("blocktrain", rounds, start=start, stream=stream) as progress:
        for round_ in range(start + 1, rounds + 1):
            clock.now += seconds(round_)
            progress.update(round_, ce=2.1314, bytes_per_second=2.1e5)
    return stream.getvalue().splitlines()


def test_a_plain_line_says_where_the_run_stands(clock: Clock) -> None:
    """Rounds of 10 s, so 28 more take 280 s."""
    lines = plain_lines(clock, 40)
    assert lines[6] == "blocktrain  round  12/40  CE 2.131  210 kB/s  4m40s left"
    assert lines[-1] == "blocktrain  round  40/40  CE 2.131  210 kB/s  in 6m40s"


def test_the_note_follows_the_number_it_explains(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("m", 2, stream=stream) as progress:
        progress.update(1, ce=1.0, bytes_per_second=10, note="in training")
    assert "  CE 1.000 in training  10 B/s  " in stream.getvalue()


def test_the_round_that_compiles_does_not_spoil_the_estimate(clock: Clock) -> None:
    lines = plain_lines(clock, 4, seconds=lambda round_: 100 if round_ == 1 else 2)
    assert [line.rsplit("  ", 1)[1] for line in lines] == [
        "5m00s left",  # all that is known is the first round
        "4s left",
        "2s left",
        "in 1m46s",
    ]


@pytest.mark.parametrize("rounds", [1, 7, 20, 21, 33, 1000])
def test_plain_lines_are_few_with_the_first_and_the_last(
    clock: Clock, rounds: int
) -> None:
    lines = plain_lines(clock, rounds)
    shown = [int(re.search(r"(\d+)/", line).group(1)) for line in lines]  # type: ignore[union-attr]
    assert shown[0] == 1
    assert shown[-1] == rounds
    assert len(shown) == len(set(shown)) == min(rounds, len(shown))
    assert min(rounds, LINES) <= len(shown) <= LINES + 2


def test_a_resumed_run_counts_from_where_it_was(clock: Clock) -> None:
    lines = plain_lines(clock, 8, start=6)
    assert [line.split("CE")[0] for line in lines] == [
        "blocktrain  round  7/8  ",
        "blocktrain  round  8/8  ",
    ]
    assert lines[0].endswith("10s left")
    assert plain_lines(clock, 8, start=8) == []
    assert len(plain_lines(clock, 1000, start=980)) == 20


def test_plain_lines_are_flushed_and_survive_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    with Progress("naïve", 1, stream=stream) as progress:
        progress.say("corpus: “wiki”")
        progress.update(1, ce=1.0, bytes_per_second=1.0)
        assert raw.getvalue().decode("ascii").splitlines() == [
            "corpus: ?wiki?",
            "na?ve  round  1/1  CE 1.000  1 B/s  in 0s",
        ]


ON_A_TERMINAL = """
from spheroid_jax.reports.progress import Progress
with Progress("naïve", 12) as progress:
    progress.say("NOTE: “wiki” [bold]" + "x" * 60)
    for round_ in range(1, 13):
        progress.update(round_, ce=2.1314, bytes_per_second=2.1e5, note="on validation")
"""


def on_a_terminal(columns: int, **environment: str) -> str:
    """What the program above sends to a terminal."""
    ours, theirs = pty.openpty()
    settings = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "COLUMNS": str(columns),
        "TERM": "xterm",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL],
        env=os.environ | settings | environment,
        stderr=theirs,
    )
    os.close(theirs)
    output = b""
    try:
        while piece := os.read(ours, 4096):
            output += piece
    except OSError:  # how Linux says that the other side has closed
        pass
    finally:
        os.close(ours)
    assert process.wait() == 0, output
    return output.decode()


def shown(output: str) -> list[str]:
    """The lines without control sequences; \\r starts one anew."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output)
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_a_terminal_gets_a_bar() -> None:
    output = on_a_terminal(100)
    assert "\x1b[" in output
    last = shown(output)[-1]
    assert re.fullmatch(
        r"naïve ━+ 12/12  CE 2.131 on validation  210 kB/s  in \d+s\s*", last
    )
    # Until the first round is done a clock runs, or the bar would seem to stand still.
    assert any(re.search(r" 0/12  compiling, \d+s", line) for line in shown(output))
    assert any("NOTE: “wiki” [bold]" + "x" * 60 in line for line in shown(output))


@pytest.mark.parametrize("columns", [20, 40, 60, 80])
def test_the_bar_is_one_line_however_narrow_the_terminal(columns: int) -> None:
    bars = [line for line in shown(on_a_terminal(columns)) if "xxx" not in line]
    assert all(line.startswith("naïve ") for line in bars), bars
    assert max(map(len, bars)) <= columns
    if columns >= 40:
        assert all(re.search(r"CE 2.131.* in \d+s", line) for line in bars[-1:])


def test_a_terminal_without_utf_8_gets_ascii() -> None:
    output = on_a_terminal(80, PYTHONIOENCODING="ascii:strict")
    assert output.isascii()
    assert "na?ve -" in shown(output)[-1]


def test_a_terminal_that_can_not_move_its_cursor_gets_plain_lines() -> None:
    output = on_a_terminal(80, TERM="dumb")
    assert "\x1b" not in output
    assert "naïve  round  12/12" in shown(output)[-1]
