"""The proxy's faults: each does what it says, at the byte that it names."""

import asyncio
import contextlib
import random

import pytest

from spheroid_jax.transport.shaping import Fault, Shape, listed, seeded
from spheroid_jax.transport.shaping.connection import reset
from tests.transport.shaping_links import HOST, link, now, run, say


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


@pytest.mark.parametrize("goes", ["close", "reset"])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_stall_lets_nothing_pass_and_tells_nobody(direction, goes):
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
            if goes == "reset":
                reset(writer)
            writer.close()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(target.ended(1), 60)
            # Other connections go on.
            assert await say(proxy, b"and you?") == b"and you?"
            # Once the target has given up too, there is nothing left to keep.
            for task in target.tasks:
                task.cancel()
            while proxy.connected:
                await asyncio.sleep(0.1)

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
