"""What is shown of texts while they are written."""

import threading

import pytest

from spheroid_jax.serving.showing import Showing


class Screen:
    """Bytes and lines in the order in which they came."""

    def __init__(self, end: bytes = b"", moment: float = 60.0) -> None:
        self.seen: list[bytes | str] = []
        self.told = threading.Event()
        self.showing = Showing(self.seen.append, end, self._say, moment, together=True)

    def _say(self, line: str) -> None:
        self.seen.append(line)
        self.told.set()

    @property
    def text(self) -> bytes:
        return b"".join(one for one in self.seen if isinstance(one, bytes))


def test_bytes_come_before_the_text_is_done() -> None:
    screen = Screen()
    screen.showing.sweep(1, 4, "given")
    screen.showing.wrote(0, b"ab", False)
    screen.showing.sweep(1, 1, "given")
    screen.showing.wrote(0, b"c", False)
    screen.showing.sweep(1, 1, "given")
    assert screen.text == b"abc"
    screen.showing.wrote(0, b"d", True)
    screen.showing.finish([b"abcd"])
    assert screen.text == b"abcd"


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_texts_come_in_order_whichever_is_done_first(end: bytes) -> None:
    screen, texts = Screen(end), [b"one", b"", b"three", b"four"]
    screen.showing.sweep(8, 1, "given")
    screen.showing.wrote(2, b"three", True)
    screen.showing.wrote(0, b"on", False)
    screen.showing.sweep(8, 1, "given")
    assert screen.text == b"on"
    screen.showing.wrote(0, b"e", True)
    screen.showing.wrote(3, b"fo", False)
    screen.showing.sweep(8, 1, "given")
    # The second was never written, as one of no length: what follows waits.
    assert screen.text == b"one" + end
    screen.showing.finish(texts)
    assert screen.text == b"".join(text + end for text in texts)


def test_it_is_said_when_a_program_is_compiled_and_when_it_is_there() -> None:
    screen = Screen(moment=0.01)
    screen.showing.sweep(1, 16, "given")
    assert screen.told.wait(10)
    assert screen.seen == ["compiles for 16 positions (first time; kept on disk) ..."]
    screen.showing.wrote(0, b"a", False)
    assert str(screen.seen[1]).startswith("compiled in ")


def test_a_line_begins_on_a_line_of_its_own_amid_a_text() -> None:
    screen = Screen(moment=0.01)
    screen.showing.sweep(1, 1, "given")
    screen.showing.wrote(0, b"a", False)
    screen.showing.sweep(1, 1, "given")
    screen.showing.wrote(0, b"b", False)
    screen.told.clear()
    screen.showing.sweep(1, 4, "drafted")
    assert screen.told.wait(10)
    assert str(screen.seen[-1]).startswith("\ncompiles for 4 positions")


def test_a_program_that_is_there_at_once_is_not_spoken_of() -> None:
    screen = Screen()
    screen.showing.sweep(1, 16, "given")
    screen.showing.wrote(0, b"a", True)
    screen.showing.finish([b"a"])
    assert screen.seen == [b"a"]
