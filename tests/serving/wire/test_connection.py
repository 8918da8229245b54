"""Connections: order, back-pressure, ends; nothing is held for ever."""

import asyncio
import logging
import socket
import ssl
import tracemalloc

import numpy as np
import pytest
import trustme

from spheroid_jax.serving.wire import (
    Credentials,
    Limits,
    OneToken,
    Sizes,
    WireError,
    split_address,
)
from spheroid_jax.serving.wire.messages import (
    Close,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Welcome,
)
from spheroid_jax.transport.http.tls import client_context
from tests.serving.wire.hosts import (
    BYTES,
    HOST,
    SHARED,
    SWEEP,
    TOKEN,
    Heard,
    Raw,
    call,
    echo,
    framed,
    host,
)
from tests.serving.wire.test_auth import NONCE, lines, proof_of, refused
from tests.transport.shaping_links import now, run

MIB = 1 << 20


def big(value: int = 0, size: int = MIB) -> dict[str, np.ndarray]:
    return {"state": np.full(size, value, np.uint8)}


async def proven(port: int) -> Raw:
    """A peer that says what it likes, after a right handshake."""
    raw, hello = await Raw.connect(port), Hello(NONCE)
    raw.say(hello)
    _, challenge = await raw.hear()
    raw.say(proof_of(TOKEN, hello, challenge))
    await raw.hear()
    return raw


def test_messages_of_many_callers_cross_whole_and_each_in_order():
    async def test():
        async with host() as (listener, _):
            heard = Heard()
            connection = await call(listener.port, heard)
            sizes = [0, 1, 5000, 70_000, 300_000]

            async def one(caller: int) -> None:
                for number in range(20):
                    array = np.full(sizes[number % 5], number + caller, np.uint8)
                    await connection.send(Ping(100 * caller + number), {"x": array})

            await asyncio.gather(*map(one, range(10)))
            order: dict[int, list[int]] = {caller: [] for caller in range(10)}
            for _ in range(200):
                message, arrays = await heard.messages.get()
                caller, number = divmod(message.number, 100)
                order[caller].append(number)
                assert arrays["x"].size == sizes[number % 5]
                assert (arrays["x"] == number + caller).all()
            assert all(numbers == list(range(20)) for numbers in order.values())
            await connection.close()

    run(test())


def test_who_waits_to_send_isnt_overtaken():
    """A task for each message; the peer makes them wait again and again."""

    async def test():
        heard = Heard()
        async with host(heard.take, limits=Limits(buffered=MIB)) as (listener, _):
            connection = await call(listener.port, limits=Limits(buffered=200_000))
            sends = []
            for number in range(60):
                sent = connection.send(Ping(number), big(size=150_000))
                sends.append(asyncio.create_task(sent))
                await asyncio.sleep(0)
            await asyncio.gather(*sends)
            numbers = [(await heard.messages.get())[0].number for _ in range(60)]
            assert numbers == list(range(60))
            await connection.close()

    run(test())


def test_who_comes_just_when_there_is_room_doesnt_overtake_either():
    async def test():
        heard = Heard()
        async with host(heard.take) as (listener, _):
            connection = await call(listener.port)
            connection._stream.pause_writing()
            first = asyncio.create_task(connection.send(Ping(1)))
            await asyncio.sleep(0)
            connection._stream.resume_writing()
            await connection.send(Ping(2))
            await first
            numbers = [(await heard.messages.get())[0].number for _ in range(2)]
            assert numbers == [1, 2]
            await connection.close()

    run(test())


def test_a_close_doesnt_wait_for_a_handler_that_hangs():
    """Nor for what the peer still sends, which nobody reads."""
    cancelled = []

    async def hangs(connection, message, arrays) -> None:
        try:
            await asyncio.sleep(1000.0)
        except asyncio.CancelledError:
            cancelled.append(message.number)
            raise

    async def test():
        async with host(hangs) as (listener, heard):
            connection = await call(listener.port)
            await connection.send(Ping(5))
            for _ in range(4):
                await connection.send(Ping(6), big(size=100_000))
            await asyncio.sleep(1.0)
            (there,) = heard.opened
            begun = now()
            await there.close("it ends")
            assert now() - begun == pytest.approx(2.0, abs=0.2)
            assert cancelled == [5]
            assert "it ends" in str(await connection.wait_closed())
            assert [error.code for error in heard.closed] == ["closed"]

    run(test())


def test_arrays_that_came_stay_as_they_are():
    """A frame's memory is its own, whatever comes after it."""

    async def test():
        async with host() as (listener, _):
            heard = Heard()
            connection = await call(listener.port, heard)
            for number in range(200):
                await connection.send(Ping(number), big(number, 50))
            kept = [await heard.messages.get() for _ in range(200)]
            assert all((a["state"] == m.number).all() for m, a in kept)
            await connection.close()

    run(test())


def test_each_end_learns_why_it_is_over():
    async def test():
        async with host() as (listener, heard):
            mine = Heard()
            connection = await call(listener.port, mine)
            (there,) = heard.opened
            await there.close("it is updated")
            error = await connection.wait_closed()
            assert (error.code, connection.closed) == ("closed", True)
            assert "it is updated" in str(error)
            assert mine.closed == [error]
            assert [one.code for one in heard.closed] == ["closed"]
            with pytest.raises(WireError, match="it is updated"):
                await connection.send(Ping(1))
            with pytest.raises(WireError, match="is closed"):
                await there.send(Ping(1))

    run(test())


def test_what_was_sent_before_the_close_arrives():
    async def test():
        async with host() as (listener, heard):
            mine = Heard()
            connection = await call(listener.port, mine)
            (there,) = heard.opened
            for number in range(8):
                await there.send(Ping(number), big(number, 100_000))
            await there.close()
            await connection.wait_closed()
            numbers = [mine.messages.get_nowait()[0].number for _ in range(8)]
            assert numbers == list(range(8))

    run(test())


@pytest.mark.parametrize("seconds", [2.0, 9.0])
def test_a_peer_that_doesnt_close_is_cut_after_the_last_word(seconds):
    async def test():
        async with host(limits=Limits(close_seconds=seconds)) as (listener, heard):
            raw = await proven(listener.port)
            (there,) = heard.opened
            begun = now()
            await there.close()
            assert now() - begun == pytest.approx(seconds, abs=0.1)
            assert (await raw.rest())[-1].code == "closed"
            raw.close()

    run(test())


def test_a_peer_that_vanishes():
    async def test():
        async with host() as (listener, heard):
            raw = await proven(listener.port)
            raw.close()  # as when a process is killed
            (there,) = heard.opened
            error = await there.wait_closed()
            assert error.code in ("closed", "lost")
            assert heard.closed == [error]
            assert not listener.connections

    run(test())


def test_a_peer_that_stops_reading_is_cut_and_memory_is_bounded(caplog):
    async def test():
        limits = Limits(buffered=2 * MIB, send_seconds=7.0)
        async with host(limits=limits) as (listener, heard):
            raw = await proven(listener.port)
            raw.writer.transport.pause_reading()
            (there,) = heard.opened
            begun, sent, ends = now(), 0, []

            async def flood() -> None:
                nonlocal sent
                while True:
                    try:
                        await there.send(Ping(0), big())
                    except WireError as error:
                        ends.append(error)
                        return
                    sent += 1

            tracemalloc.start()
            await asyncio.gather(*(flood() for _ in range(20)))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert now() - begun == pytest.approx(7.0, abs=0.5)
            assert {error.code for error in ends} == {"slow"}
            # The kernel's buffers take a few MiB; ours are what is bounded. Each of
            # the callers holds one message besides.
            assert sent < 20
            assert peak < (2 + 20 + 4) * MIB
            raw.close()

    run(test())
    assert "within 7 s of what it was sent" in caplog.text


def test_a_peer_that_reads_slower_than_the_least_is_cut():
    async def test():
        limits = Limits(buffered=MIB, send_seconds=0.3, rate=1e9)
        async with host(limits=limits) as (listener, heard):
            raw = await proven(listener.port)
            (there,) = heard.opened
            sends = [asyncio.create_task(there.send(Ping(0), big())) for _ in range(24)]
            for _ in range(40):
                await asyncio.sleep(0.025)
                await raw.reader.read(MIB)
            ends = await asyncio.gather(*sends, return_exceptions=True)
            assert isinstance(ends[-1], WireError)
            assert ends[-1].code == "slow"
            raw.close()

    asyncio.run(test())


def test_a_peer_that_reads_slowly_isnt_cut():
    """In true time: the kernel's windows don't know of our clock."""
    seconds, size = 0.4, 24 * (MIB + 100)

    async def test():
        limits = Limits(buffered=MIB, send_seconds=seconds)
        async with host(limits=limits) as (listener, heard):
            raw = await proven(listener.port)
            (there,) = heard.opened
            sends = [asyncio.create_task(there.send(Ping(0), big())) for _ in range(24)]
            begun, came = now(), 0
            while came < 24 * MIB and not there.closed:
                came += len(await raw.reader.read(MIB))
                await asyncio.sleep(0.025)
            await asyncio.gather(*sends)
            assert came <= size
            assert now() - begun > 2 * seconds
            raw.close()

    asyncio.run(test())


def test_half_a_frame_and_then_silence_is_cut():
    async def test():
        async with host(limits=Limits(frame_seconds=6.0)) as (listener, heard):
            whole = framed(SWEEP, big())
            for size in (1, 31, 40, 200, 5000, len(whole) - 1):
                raw = await proven(listener.port)
                begun = now()
                raw.say(whole[:size])
                assert (await raw.rest())[-1].code == "slow"
                # Much that came at once buys one look more, no two.
                assert 6.0 <= now() - begun < 2 * 6.0 + 2.5
                raw.close()
            assert {error.code for error in heard.closed} == {"slow"}

    run(test())


def test_a_frame_that_drips_is_cut_and_one_that_flows_isnt():
    async def test():
        limits = Limits(frame_seconds=4.0, rate=1000.0)
        async with host(limits=limits) as (listener, heard):
            whole = framed(SWEEP, big(size=100_000))
            for rate, fine in ((100, False), (5000, True)):
                raw = await proven(listener.port)
                ended = asyncio.create_task(raw.hear())
                for start in range(0, len(whole), rate):
                    if ended.done():
                        break
                    raw.say(whole[start : start + rate])
                    await asyncio.sleep(1.0)
                message, _ = await ended
                assert isinstance(message, Goodbye) is not fine
                raw.close()
            assert heard.closed[0].code == "slow"

    run(test())


def test_silence_between_frames_is_nobodys_fault():
    async def test():
        async with host() as (listener, _):
            heard = Heard()
            connection = await call(listener.port, heard)
            await asyncio.sleep(200.0)
            await connection.send(SWEEP, BYTES)
            assert (await heard.messages.get())[0] == SWEEP
            await connection.close()

    run(test())


def test_a_slow_handler_makes_the_peer_wait_and_isnt_held_against_it():
    """It is not read meanwhile, be it in the middle of a frame."""
    handled = []

    async def slow(connection, message, arrays) -> None:
        await asyncio.sleep(25.0)
        handled.append(message.number)

    async def test():
        limits = Limits(buffered=MIB, send_seconds=60.0)
        async with host(slow, limits=limits) as (listener, _):
            connection = await call(listener.port, limits=limits)
            for number in range(4):
                await connection.send(Ping(number), big(size=90_000))
            await asyncio.sleep(110.0)
            assert handled == [0, 1, 2, 3]
            assert not connection.closed
            await connection.close()

    run(test())


def test_a_corrupt_frame_ends_that_connection_with_one_line_and_no_other(caplog):
    async def test():
        async with host() as (listener, heard):
            mine = Heard()
            other = await call(listener.port, mine)
            raw = await proven(listener.port)
            bad = bytearray(framed(SWEEP, BYTES))
            bad[-1] ^= 4
            raw.say(bytes(bad))
            (last,) = await raw.rest()
            assert (last.code, "corrupted" in last.text) == ("corrupt", True)
            assert [error.code for error in heard.closed] == ["corrupt"]
            await other.send(SWEEP, BYTES)
            await mine.messages.get()
            raw.close()
            await other.close()

    run(test())
    warned = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert "\n" not in warned[0].getMessage()


def test_a_handler_that_fails_ends_its_connection_alone(caplog):
    async def fails(connection, message, arrays) -> None:
        if isinstance(message, Close):
            raise RuntimeError("a bug")
        await echo(connection, message, arrays)

    async def test():
        async with host(fails) as (listener, heard):
            mine = Heard()
            one, other = await call(listener.port), await call(listener.port, mine)
            await one.send(Close(b"r" * 16, 0))
            assert (await one.wait_closed()).code == "internal"
            await other.send(Ping(1))
            assert (await mine.messages.get())[0] == Ping(1)
            assert [error.code for error in heard.closed] == ["internal"]
            await other.close()

    run(test())
    assert "a bug" in caplog.text


def test_messages_that_are_too_large_arent_sent():
    async def test():
        limits = Limits(sizes=Sizes(payload=1000))
        async with host() as (listener, _):
            heard = Heard()
            connection = await call(listener.port, heard, limits=limits)
            with pytest.raises(ValueError, match="at most 65536 and 1000"):
                await connection.send(Ping(0), big())
            with pytest.raises(ValueError, match="isn't sent"):
                await connection.send(Ping(0), {"x": np.zeros(1, complex)})
            await connection.send(Pong(1))
            assert (await heard.messages.get())[0] == Pong(1)
            await connection.close()

    run(test())


def test_a_stranger_is_cut_after_a_few_seconds_whatever_it_does(caplog):
    async def test():
        async with host(limits=Limits(handshake_seconds=5.0)) as (listener, heard):
            silent = await Raw.connect(listener.port)
            chatty = await Raw.connect(listener.port)
            chatty.say(Hello(NONCE))
            begun = now()
            chatty_said = await chatty.rest()
            assert now() - begun < 8.0
            assert (await silent.rest())[-1].code == "slow"
            assert chatty_said[-1].code == "slow"
            dripping = await Raw.connect(listener.port)
            ended = asyncio.create_task(dripping.rest())
            begun = now()
            for byte in framed(Hello(NONCE)):
                if ended.done():
                    break
                dripping.say(bytes([byte]))
                await asyncio.sleep(1.0)
            await ended
            assert now() - begun < 9.0
            assert not heard.opened
            for raw in (silent, chatty, dripping):
                raw.close()

    run(test())


def test_a_stranger_cant_make_us_hold_much():
    """Neither in one flood, nor in many at once."""

    async def test():
        async with host(limits=Limits(strangers=20, strangers_each=20)) as (
            listener,
            heard,
        ):
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            raws = [await Raw.connect(listener.port) for _ in range(20)]
            mine = tracemalloc.get_traced_memory()[0] - before
            await asyncio.sleep(0.5)
            held = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert held - mine < 20 * (16 << 10)
            late = await Raw.connect(listener.port)
            assert await raws[0].rest() == []  # one too many: the oldest
            for raw in raws:
                raw.close()
            await asyncio.sleep(1.0)
            flood = await Raw.connect(listener.port)
            flood.say(framed(Ping(0), big(size=50 * MIB)))
            said = await flood.rest()
            assert not said or said[-1].code == "too_large"
            await (await call(listener.port)).close()  # there is room again
            assert len(heard.opened) == 1
            for raw in (late, flood):
                raw.close()

    run(test())


def test_connections_that_are_too_many():
    async def test():
        async with host(limits=Limits(connections=2)) as (listener, _):
            kept = [await call(listener.port) for _ in range(2)]
            assert (await refused(listener.port, SHARED)).code in ("closed", "lost")
            await kept[0].close()
            await (await call(listener.port)).close()
            await kept[1].close()

    run(test())


def test_nobody_there_and_nobody_who_answers():
    async def test():
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
            limits = Limits(connect_seconds=3.0)
            begun = now()
            error = await refused(port, SHARED, limits=limits)  # nobody accepts
            assert error.code == "unreachable"
            assert "didn't answer within 3 s" in str(error)
            assert now() - begun == pytest.approx(3.0, abs=0.2)
        error = await refused(port, SHARED)
        assert error.code == "unreachable"
        assert f"{HOST}:{port} can't be reached" in str(error)

    run(test())


def test_a_port_that_is_taken():
    async def test():
        async with host() as (listener, _):
            with pytest.raises(ValueError, match="choose another --listen"):
                await listener.open(HOST, listener.port)

    run(test())


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "host:0", "host:65536", "host:x", "::1:80"]
)
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_address(text)


def test_addresses():
    assert split_address("a.example:8471") == ("a.example", 8471)
    assert split_address("[fe80::1]:1") == ("fe80::1", 1)


@pytest.fixture(scope="module")
def tls(tmp_path_factory) -> tuple[Credentials, Credentials]:
    """What a host listens with, and what who trusts it dials with."""
    authority = trustme.CA()
    ca = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(server)
    listening = Credentials(admits=OneToken(TOKEN), server=server)
    return listening, Credentials(TOKEN, client=client_context(ca))


def test_tls_carries_the_same(tls):
    listening, dialling = tls

    async def test():
        async with host(credentials=listening) as (listener, _):
            heard = Heard()
            connection = await call(listener.port, heard, dialling)
            assert connection.facts["block"] == 1
            for number in range(5):
                await connection.send(Ping(number), big(number, 3 * MIB))
            for number in range(5):
                message, arrays = await heard.messages.get()
                assert message.number == number
                assert (arrays["state"] == number).all()
                assert arrays["state"].size == 3 * MIB
            await connection.close()

    run(test())


def test_tls_on_one_side_only_is_one_line(tls, caplog):
    listening, dialling = tls

    async def test():
        async with host(credentials=listening) as (listener, _):
            error = await refused(listener.port, SHARED)
            assert "TLS" in str(error)
        async with host() as (listener, _):
            error = await refused(listener.port, dialling)
            assert error.code == "untrusted"
            assert "has it a certificate" in str(error)

    run(test())
    assert "didn't come through TLS" in caplog.text
    assert "speaks TLS, this side doesn't" in caplog.text


def test_a_certificate_that_isnt_trusted(tls):
    untrusting = Credentials(TOKEN, client=client_context(None))

    async def test():
        async with host(credentials=tls[0]) as (listener, _):
            error = await refused(listener.port, untrusting)
            assert error.code == "untrusted"
            assert "--ca=FILE" in str(error)

    run(test())


def test_a_stranger_who_dawdles_in_tls_is_cut_too(tls):
    async def test():
        limits = Limits(handshake_seconds=4.0, strangers=3)
        async with host(credentials=tls[0], limits=limits) as (listener, _):
            raws = [await Raw.connect(listener.port) for _ in range(3)]
            await asyncio.sleep(0.1)
            late = await Raw.connect(listener.port)
            begun = now()
            assert await raws[0].reader.read() == b""
            assert now() - begun < 2.0  # the oldest goes at once
            assert await raws[2].reader.read() == b""
            assert now() - begun == pytest.approx(4.0, abs=0.9)
            await (await call(listener.port, credentials=tls[1])).close()
            for raw in (*raws, late):
                raw.close()

    run(test())


def test_silent_strangers_dont_delay_who_has_a_token(tls):
    """Neither from the same address nor from many, with TLS or without."""

    async def test(listening: Credentials, calling: Credentials):
        limits = Limits(handshake_seconds=20.0)
        async with host(credentials=listening, limits=limits) as (listener, _):
            raws = [await Raw.connect(listener.port) for _ in range(100)]
            raws += [
                await Raw.connect(listener.port, f"127.0.1.{number}")
                for number in range(1, 100)
            ]
            begun = now()
            for _ in range(3):
                await (await call(listener.port, credentials=calling)).close()
            assert now() - begun < 10.0
            assert len(listener._strangers) <= limits.strangers
            for raw in raws:
                raw.close()

    run(test(SHARED, SHARED))
    run(test(*tls))


def test_one_addresss_strangers_are_a_part_of_all(caplog):
    async def test():
        limits = Limits(handshake_seconds=20.0, strangers=12, strangers_each=4)
        async with host(limits=limits) as (listener, _):
            lone = await Raw.connect(listener.port, "127.0.0.3")
            crowd = [await Raw.connect(listener.port, "127.0.0.2") for _ in range(20)]
            hello = Hello(NONCE)
            for raw in (lone, crowd[-1]):  # are still there
                raw.say(hello)
                _, challenge = await raw.hear()
                raw.say(proof_of(TOKEN, hello, challenge))
                assert isinstance((await raw.hear())[0], Welcome)
            for raw in crowd[:16]:
                assert await raw.reader.read() == b""
            for raw in (lone, *crowd):
                raw.close()

    run(test())
    said = [line for line in lines(caplog) if "one too many" in line]
    assert 1 <= len(said) <= 10
