"""Pieces end in the part in order and whole, whatever ends their coming."""

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from blake3 import blake3

from spheroid_jax.transport.http.appending import append_all
from spheroid_jax.transport.http.bodies import Piece
from spheroid_jax.transport.http.parts import Part
from spheroid_jax.transport.protocol import ProtocolError, Upload

PIECES = [bytes([n]) * (n + 1) for n in range(40)]


class Slow(Part):
    """Writes piece ``stops_at`` only when it is let, or fails there."""

    stops_at: int = -1
    fails: bool = False
    count: int = 0

    def append(self, descriptor: int, piece: bytes) -> None:  # type: ignore[override]
        self.count += 1
        if self.count - 1 == self.stops_at:
            if self.fails:
                raise OSError("broken")
            self.reached.set()
            assert self.goes_on.wait(10.0)
        super().append(descriptor, piece)


def part_of(directory: Path, stops_at: int = -1, *, fails: bool = False) -> Slow:
    size = sum(map(len, PIECES))
    upload = Upload("0" * 32, 0, 0, 0, 0, size, "0" * 64, ticket="")
    path = directory / "some.part"
    part = Slow("some", "ada", upload, path, touched=0.0, hasher=blake3())
    part.stops_at, part.fails = stops_at, fails
    part.reached, part.goes_on = threading.Event(), threading.Event()
    return part


async def coming(
    *, then: Callable[[], None] = lambda: None, until: int = len(PIECES)
) -> AsyncGenerator[bytearray, None]:
    """Pieces in a ring of four buffers, as a server's are; ``then`` may raise."""
    ring = [bytearray(len(PIECES)) for _ in range(4)]
    for number, piece in enumerate(PIECES[:until]):
        buffer = ring[number % 4]
        buffer[:] = piece + bytes(len(PIECES) - len(piece))
        yield memoryview(buffer)[: len(piece)]
    then()


def append(part: Part, pieces: AsyncGenerator[bytearray, None]) -> None:
    descriptor = os.open(part.path, os.O_RDWR | os.O_CREAT)
    try:
        with ThreadPoolExecutor(2) as pool:
            asyncio.run(append_all(part, descriptor, pieces, pool))
    finally:
        os.close(descriptor)


def test_all_pieces_in_order_from_buffers_that_are_used_again(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    append(part, coming())
    whole = b"".join(PIECES)
    assert part.path.read_bytes() == whole
    assert part.size == len(whole)
    assert part.digest() == blake3(whole).hexdigest()


def test_a_broken_connection_leaves_what_came_before(tmp_path: Path) -> None:
    def broken() -> None:
        raise ConnectionResetError("gone")

    part = part_of(tmp_path)
    with pytest.raises(ConnectionResetError):
        append(part, coming(then=broken, until=7))
    assert part.path.read_bytes() == b"".join(PIECES[:7])
    assert part.size == 28
    assert part.digest() == blake3(b"".join(PIECES[:7])).hexdigest()


def test_a_disk_that_fails_ends_it_and_loses_nothing_before(tmp_path: Path) -> None:
    asked = []

    async def counted() -> AsyncGenerator[bytearray, None]:
        async for piece in coming():
            asked.append(len(piece))
            yield piece

    part = part_of(tmp_path, stops_at=5, fails=True)
    with pytest.raises(OSError, match="broken"):
        append(part, counted())
    assert part.size == sum(map(len, PIECES[:5]))
    assert len(asked) <= 8  # it doesn't read on for nothing
    assert part.hasher is None
    assert part.digest() == blake3(b"".join(PIECES[:5])).hexdigest()


def test_it_reads_one_piece_ahead_and_no_more(tmp_path: Path) -> None:
    part, taken = part_of(tmp_path, stops_at=3), []

    async def counted() -> AsyncGenerator[bytearray, None]:
        async for piece in coming():
            taken.append(len(piece))
            yield piece

    async def run() -> int:
        descriptor = os.open(part.path, os.O_RDWR | os.O_CREAT)
        with ThreadPoolExecutor(2) as pool:
            appending = asyncio.create_task(
                append_all(part, descriptor, counted(), pool)
            )
            await asyncio.to_thread(part.reached.wait, 10.0)
            await asyncio.sleep(0.1)
            ahead = len(taken)
            part.goes_on.set()
            await appending
        os.close(descriptor)
        return ahead

    # The fourth is being written, and the fifth waits: the sixth isn't asked for.
    assert asyncio.run(run()) == 5
    assert part.path.read_bytes() == b"".join(PIECES)


def test_who_is_cancelled_waits_for_the_thread(tmp_path: Path) -> None:
    part = part_of(tmp_path, stops_at=3)

    async def run() -> tuple[bool, int]:
        descriptor = os.open(part.path, os.O_RDWR | os.O_CREAT)
        with ThreadPoolExecutor(2) as pool:
            appending = asyncio.create_task(
                append_all(part, descriptor, coming(), pool)
            )
            await asyncio.to_thread(part.reached.wait, 10.0)
            appending.cancel()
            await asyncio.wait({appending}, timeout=0.1)
            waits = not appending.done()
            part.goes_on.set()
            with pytest.raises(asyncio.CancelledError):
                await appending
            size = part.size
            await asyncio.sleep(0.05)
            assert part.size == size  # nobody writes any more
        os.close(descriptor)
        return waits, size

    waits, size = asyncio.run(run())
    assert waits
    assert part.path.read_bytes() == b"".join(PIECES)[:size]


def test_a_part_that_was_dropped_takes_no_more(tmp_path: Path) -> None:
    part = part_of(tmp_path)

    async def dropped() -> AsyncGenerator[bytearray, None]:
        async for piece in coming():
            part.dropped = part.size > 50
            yield piece

    with pytest.raises(ProtocolError, match="announce it again") as caught:
        append(part, dropped())
    assert caught.value.status == 404
    assert part.size < sum(map(len, PIECES))


def test_who_sends_without_end_lets_others_have_a_turn(tmp_path: Path) -> None:
    """One thread for an upload that never pauses, and for a small one that came later.

    The pieces of the large one take 10 ms each.
    """

    class Busy(Part):
        def append(self, descriptor: int, piece: Piece) -> None:
            time.sleep(0.01)
            super().append(descriptor, piece)

    async def endless() -> AsyncGenerator[bytes, None]:
        for _ in range(300):
            yield b"x"

    async def run() -> int:
        upload = Upload("0" * 32, 0, 0, 0, 0, 300, "0" * 64, ticket="")
        large = Busy("large", "ada", upload, tmp_path / "large", 0.0, hasher=blake3())
        small = Part("small", "bob", upload, tmp_path / "small", 0.0, hasher=blake3())
        files = [os.open(p.path, os.O_RDWR | os.O_CREAT) for p in (large, small)]
        with ThreadPoolExecutor(1) as pool:
            sending = asyncio.create_task(append_all(large, files[0], endless(), pool))
            while not large.size:
                await asyncio.sleep(0.001)
            await append_all(small, files[1], coming(), pool)
            there = large.size
            await sending
        for file in files:
            os.close(file)
        assert small.path.read_bytes() == b"".join(PIECES)
        assert large.path.read_bytes() == b"x" * 300
        return there

    assert asyncio.run(run()) < 150


def test_a_disk_that_fails_holds_no_buffers(tmp_path: Path) -> None:
    """Not even until garbage is collected: with a full disk every upload ends so."""

    class Buffer(bytearray):
        """That can be watched."""

    watched: list[weakref.ref[Buffer]] = []

    async def from_buffers() -> AsyncGenerator[memoryview, None]:
        for piece in PIECES:
            buffer = Buffer(piece)
            watched.append(weakref.ref(buffer))
            yield memoryview(buffer)

    async def fails(part: Part, descriptor: int, pool: ThreadPoolExecutor) -> str:
        try:
            await append_all(part, descriptor, from_buffers(), pool)
        except OSError as error:
            return str(error)
        return ""

    part = part_of(tmp_path, stops_at=5, fails=True)
    descriptor = os.open(part.path, os.O_RDWR | os.O_CREAT)
    gc.disable()
    try:
        with ThreadPoolExecutor(1) as pool:
            assert asyncio.run(fails(part, descriptor, pool)) == "broken"
        assert len(watched) > 5
        assert [ref() for ref in watched] == [None] * len(watched)
    finally:
        gc.enable()
        os.close(descriptor)
