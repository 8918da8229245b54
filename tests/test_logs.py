"""What programs show of the log."""

import io
import logging
from collections.abc import Iterator

import pytest

from spheroid_jax.logs import Repeats, show_logs


@pytest.fixture
def shown() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    for handler in before:  # or show_logs would close pytest's
        root.removeHandler(handler)
    stream = io.StringIO()
    show_logs(stream)
    try:
        yield stream
    finally:
        for handler in list(root.handlers):
            root.removeHandler(handler)
        for handler in before:
            root.addHandler(handler)
        root.setLevel(level)


def test_lines_have_no_names_of_modules(shown: io.StringIO) -> None:
    log = logging.getLogger("spheroid_jax.anything")
    log.warning("%s is slow", "b")
    log.error("it is over")
    log.info("not shown")
    assert shown.getvalue() == "warning: b is slow\nerror: it is over\n"


def test_an_exception_keeps_its_traceback(shown: io.StringIO) -> None:
    try:
        raise RuntimeError("odd")
    except RuntimeError:
        logging.getLogger("x").exception("a handshake failed")
    text = shown.getvalue()
    assert text.startswith("error: a handshake failed\nTraceback")
    assert text.endswith("RuntimeError: odd\n")


def test_what_a_stranger_causes_again_and_again_is_shown_once(
    shown: io.StringIO,
) -> None:
    log = logging.getLogger("x")
    for port in range(50000, 50040):
        log.warning("127.0.0.1:%d has a token that isn't known here", port)
    log.warning("something else")
    assert shown.getvalue().splitlines() == [
        "warning: 127.0.0.1:50000 has a token that isn't known here",
        "warning: something else",
    ]


def _record(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("x", logging.WARNING, "x.py", 1, text, args, None)


def test_after_its_time_it_is_shown_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    repeats = Repeats(seconds=60.0)
    assert repeats.filter(_record("port %d", 1))
    now[0] += 59.0
    assert not repeats.filter(_record("port %d", 2))
    assert not repeats.filter(_record("port %d", 3))
    now[0] += 2.0
    last = _record("port %d", 4)
    assert repeats.filter(last)
    assert last.getMessage() == "port 4 (2 more like this in 61 s)"
    again = _record("port %d", 5)
    now[0] += 61.0
    assert repeats.filter(again)
    assert again.getMessage() == "port 5"


def test_many_different_lines_are_not_remembered_for_ever() -> None:
    repeats = Repeats(most=3)
    for name in "abcd":
        assert repeats.filter(_record(name))
    assert not repeats.filter(_record("d"))
    assert repeats.filter(_record("a"))  # forgotten, so it counts as new
