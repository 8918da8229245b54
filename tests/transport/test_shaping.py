"""The proxy: its times and its faults, over real sockets and a clock that jumps.

The loop's clock goes on only where nothing is left to do, so seconds of a slow link
take none, and what is measured doesn't hang on how busy the machine is. A test that
waits for what never comes fails by its time-out at once.
"""

import asyncio
import contextlib
import hashlib
import random
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.transport.shaping import Fault, Shape, listed, seeded, shaped
from spheroid_jax.transport.shaping.connection import BUFFER, WINDOW
from spheroid_jax.transport.shaping.link import DEPTH, rate_bound

HOST = "127.0.0.1"
LIMIT = 300.0  # seconds of the loop's clock


class _Selector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout=None):
        # A moment for the kernel to pass on what was just written.
        ready = super().select(0) or super().select(0.001)
        if not ready and timeout is None:
            ready = super().select(10)
            assert ready, "nothing will ever happen"
        elif not ready:
            self.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._times = _Selector()
        super().__init__(self._times)

    def time(self):
        return self._times.now


def run(test: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT):
            await test

    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(limited())


def now() -> float:
    return asyncio.get_running_loop().time()


class Target:
    """What the proxy connects to; notes what every connection said.

    Attributes:
      heard: bytes of each connection.
      ends: how each one ended: "end", "reset", or "" while it's open.
    """

    def __init__(self, answer: Callable[[bytes], bytes], at_end: bool = False):
        self._answer, self._at_end = answer, at_end
        self.heard: list[bytearray] = []
        self.ends: list[str] = []
        self.over = asyncio.Condition()
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self, reader, writer) -> None:
        self.heard.append(bytearray())
        self.ends.append("")
        task = asyncio.create_task(self._serve(len(self.ends) - 1, reader, writer))
        self.tasks.add(task)

    async def _serve(self, number: int, reader, writer) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.heard[number] += data
                if not self._at_end:
                    writer.write(self._answer(data))
                    await writer.drain()
            if self._at_end:
                writer.write(self._answer(bytes(self.heard[number])))
                await writer.drain()
            self.ends[number] = "end"
        except ConnectionError:
            self.ends[number] = "reset"
        finally:
            writer.close()
            async with self.over:
                self.over.notify_all()

    async def ended(self, count: int) -> None:
        async with self.over:
            await self.over.wait_for(lambda: sum(map(bool, self.ends)) >= count)


@contextlib.asynccontextmanager
async def link(
    *args, answer=bytes, at_end: bool = False, **kwargs
) -> AsyncIterator[tuple[Target, object]]:
    target = Target(answer, at_end)
    server = await asyncio.start_server(target, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with shaped(HOST, 0, HOST, port, *args, **kwargs) as proxy:
            yield target, proxy
    finally:
        server.close()
        for task in target.tasks:
            task.cancel()
        await asyncio.gather(*target.tasks, return_exceptions=True)


async def say(proxy, data: bytes) -> bytes:
    """Says something and hears all of the answer; a reset raises."""
    reader, writer = await asyncio.open_connection(HOST, proxy.port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


def test_a_round_trip_takes_both_delays_and_no_less():
    async def test():
        async with link(Shape(0.03), back=Shape(0.05)) as (_, proxy):
            reader, writer = await asyncio.open_connection(HOST, proxy.port)
            seconds = []
            for _ in range(6):
                begun = now()
                writer.write(b"ping")
                assert await reader.readexactly(4) == b"ping"
                seconds.append(now() - begun)
            writer.close()
        # The first waits for the connection to be set up, one round trip more.
        assert seconds[0] == pytest.approx(0.16, abs=0.01)
        assert all(0.08 - 1e-9 <= taken < 0.09 for taken in seconds[1:])

    run(test())


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_direction_carries_its_rate(direction):
    size, rate = 300_000, 1e5
    up, down = Shape(0.02, rate), Shape(0.02)
    if direction == "down":
        up, down = down, up

    async def test():
        data = b"x" * size
        answer = (lambda _: b"y") if direction == "up" else (lambda _: data)
        async with link(up, back=down, answer=answer, at_end=True) as (_, proxy):
            begun = now()
            await say(proxy, data if direction == "up" else b"x")
            seconds = now() - begun
        assert seconds == pytest.approx(size / rate + 0.08 - DEPTH, rel=0.02)

    run(test())


def test_connections_share_a_direction_and_leave_the_other_one_alone():
    async def test():
        async with link(Shape(0.01, 1e5), at_end=True) as (_, proxy):
            begun, ends = now(), []

            async def one() -> None:
                data = random.Random(len(ends)).randbytes(100_000)
                assert await say(proxy, data) == data
                ends.append(now() - begun)

            await asyncio.gather(one(), one(), one())
        # 300 kB up in 3 s, at the same time for all, then 300 kB down in 3 s.
        assert min(ends) > 3.0  # nobody was served before the others
        assert max(ends) == pytest.approx(6.06, rel=0.1)

    run(test())


def test_loss_bounds_the_rate_of_each_connection_not_of_the_link():
    size, shape = 600_000, Shape(0.04, 20e6 / 8, 0.01)
    alone = size / rate_bound(0.08, 0.01)  # 2.7 s; 0.24 s without the loss

    async def test():
        async with link(
            shape, back=Shape(0.04), answer=lambda _: b".", at_end=True
        ) as (_, proxy):
            begun = now()
            await asyncio.gather(*(say(proxy, bytes(size)) for _ in range(4)))
            seconds = now() - begun
            assert proxy.counts.lost_segments == pytest.approx(16.6, abs=14)
        # At the end of it a lost segment may hold it up by 0.2 s, or by twice that.
        assert alone < seconds < alone * 1.15 + 0.6

    run(test())


@given(
    sizes=st.lists(st.integers(0, 70_000), max_size=6),
    up=st.builds(
        Shape,
        st.sampled_from([0.0, 0.02]),
        st.sampled_from([1e5, 1e7, float("inf")]),
        st.sampled_from([0.0, 0.05]),
        st.sampled_from([0.0, 0.1]),
    ),
    fast_back=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_bytes_arrive_whole_and_in_order(sizes, up, fast_back, seed):
    data = random.Random(seed).randbytes(sum(sizes))

    async def test():
        back = Shape() if fast_back else up
        async with link(up, back=back, seed=seed) as (target, proxy):
            reader, writer = await asyncio.open_connection(HOST, proxy.port)

            async def write() -> None:
                at = 0
                for size in sizes:
                    writer.write(data[at : at + size])
                    await writer.drain()
                    at += size
                writer.write_eof()

            _, heard = await asyncio.gather(write(), reader.read())
            writer.close()
            assert heard == data  # echoed while the rest was still on its way
            assert target.heard == [data]
            assert proxy.counts.bytes_up == proxy.counts.bytes_down == len(data)

    run(test())


def test_an_answer_after_the_end_of_the_question_is_heard():
    async def test():
        digest = hashlib.sha256
        async with link(
            Shape(0.01), answer=lambda data: digest(data).digest(), at_end=True
        ) as (target, proxy):
            data = random.Random(1).randbytes(3_000_000)
            assert await say(proxy, data) == digest(data).digest()
            await target.ended(1)
            assert target.ends == ["end"]

    run(test())


def test_who_sends_faster_than_the_link_has_to_wait():
    async def test():
        async with link(Shape(5.0, 1e9)) as (_, proxy):
            _, writer = await asyncio.open_connection(HOST, proxy.port)
            piece, sent = bytes(1 << 16), 0

            async def send() -> None:
                nonlocal sent
                while sent < 64 << 20:
                    writer.write(piece)
                    await writer.drain()
                    sent += len(piece)

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(send(), 4.0)
            # The window, and what the sockets hold: 2 x BUFFER in the proxy's by
            # Linux's way of counting, a few MiB in the client's.
            assert WINDOW / 2 < sent < WINDOW + 2 * BUFFER + (12 << 20)
            writer.transport.abort()

    run(test())


def test_a_target_that_is_not_there_resets_the_client():
    async def test():
        async with link() as (_, elsewhere):
            port = elsewhere.port
        async with shaped(HOST, 0, HOST, port, Shape(0.05)) as proxy:
            begun = now()
            with pytest.raises(ConnectionError):
                await say(proxy, b"hello")
            assert now() - begun >= 0.1
            assert proxy.counts.refused == 1

    run(test())


@pytest.mark.parametrize("shape", [Shape(), Shape(0.02, 1e6)])
@pytest.mark.parametrize("after", [0, 7, 99])
def test_a_flip_changes_one_bit(shape, after):
    async def test():
        plan = listed([Fault("flip", 0, after, "up", bit=3)])
        async with link(shape, plan) as (target, proxy):
            data = random.Random(2).randbytes(100)
            heard = [await say(proxy, data) for _ in range(2)]
        changed = data[:after] + bytes([data[after] ^ 8]) + data[after + 1 :]
        assert target.heard == [changed, data] == heard
        assert proxy.counts.faults == {"flip": 1}

    run(test())


def test_a_flip_on_the_way_down_is_not_seen_by_the_target():
    async def test():
        plan = listed([Fault("flip", 0, 1, "down", bit=0)])
        async with link(None, plan) as (target, proxy):
            assert await say(proxy, b"aaa") == b"a`a"
            assert target.heard == [b"aaa"]

    run(test())


def test_a_fault_whose_byte_never_comes_does_not_happen():
    async def test():
        faults = [Fault("reset", 0, 100), Fault("duplicate", 0, 100), Fault("cut", 9)]
        async with link(Shape(), listed(faults)) as (target, proxy):
            assert await say(proxy, bytes(100)) == bytes(100)
            await proxy.settled()
            assert proxy.counts.happened == []
            assert target.heard == [bytes(100)]

    run(test())


def test_a_cut_on_the_way_up_lets_that_many_bytes_pass_and_ends_both_sides():
    async def test():
        plan = listed([Fault("cut", 0, 250_000)])
        async with link(Shape(0.01), plan, at_end=True) as (target, proxy):
            reader, writer = await asyncio.open_connection(HOST, proxy.port)
            writer.write(bytes(250_001))
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass
            await target.ended(1)
            assert len(target.heard[0]) == 250_000
            assert target.ends == ["end"]
            writer.close()

    run(test())


def test_a_cut_on_the_way_down_loses_the_answer_and_not_the_question():
    """The server has done its work and the client doesn't know."""

    async def test():
        async with link(Shape(0.01), listed([Fault("cut", 0, 0, "down")])) as (
            target,
            proxy,
        ):
            assert await say(proxy, b"do it") == b""
            assert target.heard == [b"do it"]
            assert proxy.counts.bytes_down == 0
            assert await say(proxy, b"again") == b"again"

    run(test())


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_reset_is_one_for_both_sides(direction):
    async def test():
        plan = listed([Fault("reset", 0, 2, direction)])
        async with link(Shape(0.01), plan) as (target, proxy):
            reader, writer = await asyncio.open_connection(HOST, proxy.port)
            writer.write(b"hello")
            with pytest.raises(ConnectionResetError):
                await reader.read()
            await target.ended(1)
            assert target.ends == ["reset"]
            assert proxy.counts.faults == {"reset": 1}

    run(test())


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_stall_lets_nothing_pass_and_tells_nobody(direction):
    async def test():
        plan = listed([Fault("stall", 0, 3, direction)])
        async with link(Shape(0.01), plan) as (target, proxy):
            reader, writer = await asyncio.open_connection(HOST, proxy.port)
            writer.write(b"hello")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(), 60)
            heard = {"up": b"hel", "down": b"hello"}[direction]
            assert target.heard == [heard]
            assert target.ends == [""]
            # The client goes, and the target still doesn't hear of it.
            writer.close()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(target.ended(1), 60)
            # Other connections go on.
            assert await say(proxy, b"and you?") == b"and you?"

    run(test())


def test_a_delay_holds_one_direction_up_and_loses_nothing():
    async def test():
        plan = listed([Fault("delay", 0, 4, seconds=7.0)])
        async with link(Shape(), plan) as (_, proxy):
            begun, ends = now(), {}

            async def one(number: int) -> None:
                data = bytes([number]) * 9
                assert await say(proxy, data) == data
                ends[number] = now() - begun

            await asyncio.gather(one(0), one(1))
        # The second one overtakes the first.
        assert list(ends) == [1, 0]
        assert ends[1] < 1
        assert ends[0] == pytest.approx(7, abs=0.1)

    run(test())


def test_a_finished_conversation_is_sent_once_more():
    async def test():
        plan = listed([Fault("duplicate", 0, 2)])
        async with link(Shape(0.01), plan, answer=lambda data: b"ok", at_end=True) as (
            target,
            proxy,
        ):
            assert await say(proxy, b"buy 100 shares") == b"ok"
            await proxy.settled()
            await target.ended(2)
            assert target.heard == [b"buy 100 shares"] * 2
            assert proxy.counts.faults == {"duplicate": 1}
            assert proxy.counts.bytes_up == 14

    run(test())


def test_an_answered_question_is_sent_once_more_while_the_connection_goes_on():
    async def test():
        plan = listed([Fault("duplicate", 0, 5)])
        async with link(Shape(), plan) as (target, proxy):
            reader, writer = await asyncio.open_connection(HOST, proxy.port)
            for question in (b"first", b"second", b"third"):
                writer.write(question)
                assert await reader.readexactly(len(question)) == question
            await proxy.settled()
            # "first" is no more than 5 bytes; after "second" both are sent again.
            assert target.heard == [b"firstsecondthird", b"firstsecond"]
            writer.close()

    run(test())


def test_a_partition_resets_all_and_refuses_until_it_is_healed():
    async def test():
        async with link(Shape(0.01)) as (target, proxy):
            reader, writer = await asyncio.open_connection(HOST, proxy.port)
            writer.write(b"here?")
            assert await reader.readexactly(5) == b"here?"
            proxy.partition()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            await target.ended(1)
            with pytest.raises(ConnectionError):
                await say(proxy, b"here?")
            proxy.heal()
            assert await say(proxy, b"here?") == b"here?"
            assert proxy.counts.refused == 1
            writer.close()

    run(test())


def test_a_proxy_that_closes_takes_its_connections_along():
    async def test():
        async with link(Shape(0.01)) as (target, proxy):
            reader, writer = await asyncio.open_connection(HOST, proxy.port)
            writer.write(b"x")
            await reader.readexactly(1)
            await proxy.close()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            await target.ended(1)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(HOST, proxy.port)
            assert len(asyncio.all_tasks()) <= 2 + len(target.tasks)

    run(test())


@pytest.mark.parametrize("seed", range(4))
def test_under_a_seeded_plan_every_try_ends_and_the_same_faults_happen_again(seed):
    async def once() -> list[Fault]:
        plan = seeded(seed, 0.8, span=2000)
        async with link(Shape(0.005), plan) as (_, proxy):
            for _ in range(12):
                with contextlib.suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout(5):
                        await say(proxy, bytes(1000))
            await proxy.settled()
            return list(proxy.counts.happened)

    seen = []

    async def test():
        seen.append(await once())

    run(test())
    run(test())
    assert seen[0] == seen[1] != []
