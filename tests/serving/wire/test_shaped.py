"""Over a link with delay and faults: one message takes one way, and damage shows."""

import asyncio
import random
import socket

import numpy as np
import pytest

from spheroid_jax.serving.wire import Limits, WireError
from spheroid_jax.serving.wire.messages import Ping
from spheroid_jax.transport.shaping import Fault, Shape, listed, shaped
from tests.serving.wire.hosts import BYTES, HOST, SHARED, SWEEP, Heard, call, host
from tests.serving.wire.test_auth import refused
from tests.transport.shaping_links import now, run

DELAY = 0.04


def test_a_message_takes_one_way_and_no_more():
    """Of all sizes that a sweep has; 300 kB are still within one window."""

    async def test():
        heard = Heard()
        async with (
            host(heard.take) as (listener, _),
            shaped(HOST, 0, HOST, listener.port, Shape(DELAY)) as proxy,
        ):
            connection = await call(proxy.port)
            for size in (0, 200, 2000, 20_000, 100_000, 300_000):
                begun = now()
                await connection.send(SWEEP, {"x": np.zeros(size, np.uint8)})
                await heard.messages.get()
                assert now() - begun == pytest.approx(DELAY, abs=0.002), size
            await connection.close()

    run(test())


def test_dialling_takes_two_round_trips_and_that_of_tcp():
    async def test():
        async with (
            host() as (listener, _),
            shaped(HOST, 0, HOST, listener.port, Shape(DELAY)) as proxy,
        ):
            begun = now()
            connection = await call(proxy.port)
            assert now() - begun == pytest.approx(6 * DELAY, abs=0.01)
            await connection.close()

    run(test())


def test_small_messages_dont_wait_for_an_acknowledgement():
    """In true time: Nagle's algorithm holds a second small write back until the first
    is acknowledged, which a peer that has nothing to say delays by 40 ms."""

    async def test():
        heard = Heard()
        async with host(heard.take) as (listener, opened):
            connection = await call(listener.port)
            both = [connection, *opened.opened]
            for one in both:
                sock = one._stream._transport.get_extra_info("socket")
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            took = []
            for number in range(25):
                begun = now()
                await connection.send(Ping(number))
                await connection.send(Ping(number), BYTES)
                await heard.messages.get()
                await heard.messages.get()
                took.append(now() - begun)
                await asyncio.sleep(0.002)
            assert sorted(took)[12] < 0.02
            await connection.close()

    asyncio.run(test())


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_bit_that_flips_on_the_way_ends_the_connection(direction):
    rng = random.Random(direction)

    async def test():
        async with host() as (listener, _):
            places = [(rng.randrange(900, 30_000), rng.randrange(8)) for _ in range(12)]
            plan = listed(
                [
                    Fault("flip", number, after, direction, bit=bit)
                    for number, (after, bit) in enumerate(places)
                ]
            )
            async with shaped(HOST, 0, HOST, listener.port, plan=plan) as proxy:
                for _ in places:
                    mine = Heard()
                    connection = await call(proxy.port, mine)
                    sent = {"x": np.arange(30_000, dtype=np.uint8)}
                    await connection.send(SWEEP, sent)
                    error = await connection.wait_closed()
                    assert error.code in ("corrupt", "foreign", "version", "closed")
                    assert mine.messages.empty()  # nothing damaged is handed on
                assert proxy.counts.faults == {"flip": len(places)}

    run(test())


def test_a_bit_that_flips_in_the_handshake_is_one_line():
    async def test():
        async with host(limits=Limits(handshake_seconds=3.0)) as (listener, _):
            # A tenth of all bits, in both directions.
            places = [(d, n) for d in ("up", "down") for n in range(0, 200, 9)]
            plan = listed(
                [Fault("flip", i, n, d, bit=n % 8) for i, (d, n) in enumerate(places)]
            )
            async with shaped(HOST, 0, HOST, listener.port, plan=plan) as proxy:
                for _ in places:
                    await refused(proxy.port, SHARED)
                assert proxy.counts.faults == {"flip": len(places)}

    run(test())


@pytest.mark.parametrize("kind", ["cut", "reset", "stall"])
def test_a_link_that_breaks_in_the_middle_of_a_frame(kind):
    async def test():
        limits = Limits(frame_seconds=5.0, send_seconds=5.0)
        async with host(limits=limits) as (listener, heard):
            plan = listed([Fault(kind, 0, 10_000)])
            async with shaped(HOST, 0, HOST, listener.port, plan=plan) as proxy:
                connection = await call(proxy.port, limits=limits)
                await connection.send(SWEEP, {"x": np.zeros(50_000, np.uint8)})
                (there,) = heard.opened
                error = await there.wait_closed()
                assert (
                    error.code
                    in {
                        "cut": ("short",),
                        "reset": ("short", "lost"),
                        "stall": ("slow",),
                    }[kind]
                )
                await connection.close()
                other = Heard()
                again = await call(proxy.port, other)  # the link is fine again
                await again.send(SWEEP, BYTES)
                await other.messages.get()
                await again.close()

    run(test())


def test_a_link_that_stalls_in_the_handshake():
    async def test():
        async with host() as (listener, _):
            plan = listed([Fault("stall", 0, 50, "down")])
            async with shaped(HOST, 0, HOST, listener.port, plan=plan) as proxy:
                begun = now()
                error = await refused(proxy.port, SHARED, limits=Limits())
                # The listener gives it 5 s, the dialler 10 s.
                assert error.code in ("unreachable", "slow", "closed")
                assert now() - begun <= 10.1

    run(test())


def test_many_that_talk_over_a_narrow_link_all_get_through():
    async def test():
        link = Shape(DELAY, rate_bytes=250_000, jitter_seconds=0.01)
        async with (
            host() as (listener, _),
            shaped(HOST, 0, HOST, listener.port, link) as proxy,
        ):

            async def one(caller: int) -> None:
                heard = Heard()
                connection = await call(proxy.port, heard)
                for number in range(5):
                    await connection.send(Ping(number), {"x": np.full(1000, caller)})
                for number in range(5):
                    message, arrays = await heard.messages.get()
                    assert message.number == number
                    assert (arrays["x"] == caller).all()
                await connection.close()

            await asyncio.gather(*map(one, range(6)))

    run(test())


def test_a_link_that_goes_down_and_comes_back():
    async def test():
        async with (
            host() as (listener, _),
            shaped(HOST, 0, HOST, listener.port, Shape(DELAY)) as proxy,
        ):
            connection = await call(proxy.port)
            proxy.partition()
            assert (await connection.wait_closed()).code in ("lost", "closed")
            with pytest.raises(WireError):
                await connection.send(SWEEP)
            await refused(proxy.port, SHARED)
            proxy.heal()
            await (await call(proxy.port)).close()
            await asyncio.sleep(1.0)
            assert not listener.connections

    run(test())
