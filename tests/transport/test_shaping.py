"""The proxy as a link: its times, its order, its bounds."""

import asyncio
import hashlib
import random
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.transport.shaping import Shape, shaped
from spheroid_jax.transport.shaping.connection import BUFFER, WINDOW
from spheroid_jax.transport.shaping.link import DEPTH, rate_bound
from tests.transport.shaping_links import HOST, link, now, run, say


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
        # Set up after 5 s, and the first byte is there after 10.
        async with link(Shape(5.0, 1e9), back=Shape()) as (_, proxy):
            _, writer = await asyncio.open_connection(HOST, proxy.port)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            piece, sent = bytes(1 << 16), 0

            async def send() -> None:
                nonlocal sent
                while sent < 64 << 20:
                    writer.write(piece)
                    await writer.drain()
                    sent += len(piece)

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(send(), 9.0)
            # The window, and what two sockets and two streams hold; the kernel takes
            # up to twice what it is asked for.
            assert WINDOW <= sent <= WINDOW + 8 * BUFFER
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
