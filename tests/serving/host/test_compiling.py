"""What a stage says of the programs that it compiles."""

import asyncio
import threading
import time

import pytest

from spheroid_jax.serving.host.compiling import Compiling, described
from spheroid_jax.serving.host.computing import Shape
from spheroid_jax.serving.host.thread import OneThread
from tests.serving.host.toys import Pipeline, looped

SHAPE = Shape(1, 16, "drafted")


class Compiler:
    """Hangs until it is let go."""

    def __init__(self, moment: float) -> None:
        self.lines: list[str] = []
        self.thread = OneThread("test")
        self.compiling = Compiling(self.thread, self.lines.append, moment)
        self.go = threading.Event()

    def run(self, shape: Shape = SHAPE) -> asyncio.Future[bool]:
        running = self.compiling.run(shape, "first text of this shape", self.go.wait)
        return asyncio.ensure_future(running)

    async def until(self, lines: int) -> None:
        async with asyncio.timeout(10):
            while len(self.lines) < lines:
                await asyncio.sleep(0.005)


@looped
async def test_a_new_shape_is_told_when_it_begins_and_when_it_is_there() -> None:
    it = Compiler(moment=0.01)
    running = it.run()
    await it.until(1)
    assert it.lines == [
        "compiles for 1 text of 16 positions, drafted (first text of this shape; kept "
        "on disk) ..."
    ]
    assert it.compiling.busy
    it.go.set()
    assert await running
    assert it.lines[1].startswith("compiled in ")
    assert not it.compiling.busy
    # The next one of the shape takes long for another reason.
    it.go.clear()
    running = it.run()
    await asyncio.sleep(0.05)
    it.go.set()
    await running
    assert len(it.lines) == 2
    it.thread.close()


@looped
async def test_what_is_there_at_once_is_not_told() -> None:
    it = Compiler(moment=30.0)
    it.go.set()
    await it.run()
    assert it.lines == []
    it.thread.close()


@looped
async def test_who_waits_for_another_shape_is_told_of_when_it_is_its_turn() -> None:
    it = Compiler(moment=0.01)
    first, second = it.run(), it.run(Shape(1, 4, "given"))
    await it.until(1)
    await asyncio.sleep(0.05)
    assert len(it.lines) == 1  # the second hasn't begun
    it.go.set()
    await asyncio.gather(first, second)
    it.thread.close()


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (Shape(16, 1, "given"), "16 texts of 1 position"),
        (Shape(1, 16, "drafted"), "1 text of 16 positions, drafted"),
        (
            Shape(2, 4, "expected", "ensemble"),
            "2 texts of 4 positions, expected, ensemble",
        ),
    ],
)
def test_shapes_in_words(shape: Shape, words: str) -> None:
    assert described(shape) == words


@looped
async def test_warming_that_is_cancelled_ends_after_the_program_in_hand() -> None:
    async with Pipeline() as line:
        begun, go, done = threading.Event(), threading.Event(), list[int]()

        def warm(batch: int, count: int, fill: str, answer: str) -> None:
            begun.set()
            assert go.wait(10)
            done.append(count)

        line.engine.warm = warm  # type: ignore[method-assign]
        shapes = [Shape(1, 1, "given"), Shape(1, 4, "given")]
        warming = asyncio.create_task(line.host.warm(shapes))
        await asyncio.to_thread(begun.wait, 10)
        warming.cancel()
        await asyncio.sleep(0.05)
        assert not warming.done()
        go.set()
        before = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await warming
        assert time.monotonic() - before < 5
        assert done == [1]


@looped
async def test_a_text_tells_that_its_shape_is_compiled() -> None:
    async with Pipeline(max_batch=4) as line:
        line.engine.hold.clear()
        line.send(1, b"abc")
        async with asyncio.timeout(10):
            while not line.said:
                await asyncio.sleep(0.01)
        line.engine.hold.set()
        await line.front.answer(1)
        assert line.said[0].startswith("compiles for 1 text of 4 positions (first text")
        # One more of the shape, however long it takes, says nothing new.
        before = len(line.said)
        line.send(2, b"abd")
        await line.front.answer(2)
        assert len(line.said) == before
