"""What a worker says arrives, and what goes wrong is tried again or told."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from spheroid_jax.transport import protocol
from spheroid_jax.transport.http.asking import Timeouts
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.retry import Pace, retry_after
from spheroid_jax.transport.http.tls import Token, read_token
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import (
    Heartbeat,
    Leave,
    Pulse,
    Register,
    Work,
    WorkRequest,
)
from tests.transport.http.client_server import (
    SECRET,
    SESSION,
    Fault,
    answer,
    cut,
    no_http,
    plain,
    problem,
    registered,
    run,
    setting,
)

REGISTER = Register(protocol.VERSION, SESSION, "1.0", "cpu")
BEAT = Heartbeat(SESSION, "training", 3)


def test_every_message_and_its_answer() -> None:
    async def scenario() -> None:
        async with setting() as s:
            assert await s.link.register(REGISTER) == registered()
            asked = WorkRequest(SESSION, after=2, wait=1.0)
            assert await s.link.work(asked) == Work("wait", why="nothing yet")
            assert await s.link.heartbeat(BEAT) == Pulse(3, True)
            await s.link.leave(Leave(SESSION))
            assert s.coordinator.bodies == [REGISTER, asked, BEAT, Leave(SESSION)]
            assert s.notices == []

    run(scenario())


async def _stream(request: web.Request, size: int) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        for _ in range(size >> 16):
            await response.write(b" " * (1 << 16))
    return response


async def endless(request: web.Request) -> web.StreamResponse:
    return await _stream(request, 8 << 20)


async def breaking_off(request: web.Request) -> web.StreamResponse | None:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"round"')
    return await cut(request)


PAGE = b"<html><body>Please log in to the hotel's network</body></html>"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (cut, "closed without an answer"),
        (breaking_off, "broke off"),
        (no_http, "isn't HTTP"),
        (endless, "more than 1048576 bytes"),
        (plain(200, PAGE, content_type="text/html"), "a web page"),
        (plain(200, b'{"round": 1, "wan'), "not a Pulse message"),
        (plain(200, b'{"round": "x", "wanted": true}'), r"\$.round"),
        (plain(200, b"\xff\x00\x1b[2J"), "not a Pulse message"),
        (plain(200, b"{}", headers={"Content-Encoding": "br"}), "unknown encoding"),
        (plain(204), "not a Pulse message"),
        (plain(404, PAGE), "answer 404 Not Found"),
        (plain(502, PAGE), "answer 502 Bad Gateway"),
        (problem(400, "malformed"), "told"),
        (problem(408, "too_slow"), "told"),
        (problem(429, "busy"), "told"),
        (problem(500, "internal"), "told"),
        (problem(503, "busy"), "told"),
        (problem(507, "disk_full"), "told"),
        (
            problem(400, "malformed", "two\nlines\x1b[2J" + "x" * 900),
            "two lines .2Jxxx",
        ),
    ],
)
def test_what_passes_is_tried_again(fault: Fault, said: str) -> None:
    async def scenario() -> None:
        async with setting(fault) as s:
            assert await s.link.heartbeat(BEAT) == Pulse(3, True)
            assert s.coordinator.asked == ["POST /v2/heartbeat"] * 2
            assert s.clock.slept == [0.5]
            (line,) = s.notices
            assert line.startswith(f"{s.link.url}: a heartbeat failed: ")
            with_cause = pytest.raises(AssertionError, match=said)
            with with_cause:
                raise AssertionError(line)
            assert line.isprintable()
            assert len(line) < 500

    run(scenario())


@pytest.mark.parametrize(
    ("fault", "code", "status"),
    [
        (problem(401, "unauthorized"), "unauthorized", 401),
        (problem(403, "forbidden"), "forbidden", 403),
        (problem(404, "unknown"), "unknown", 404),
        (problem(409, "superseded"), "superseded", 409),
        (problem(409, "version"), "version", 409),
        (problem(409, "unknown"), "unknown", 409),
        (plain(401), "unauthorized", 401),
        (plain(403), "forbidden", 403),
        (plain(301, headers={"Location": "http://127.0.0.1:1/"}), "garbled", 301),
        (plain(307, headers={"Location": "/v2/heartbeat"}), "garbled", 307),
    ],
)
def test_a_refusal_is_final(fault: Fault, code: str, status: int) -> None:
    async def scenario() -> None:
        async with setting(fault) as s:
            with pytest.raises(LinkError) as said:
                await s.link.heartbeat(BEAT)
            assert (said.value.code, said.value.status) == (code, status)
            assert s.link.url in str(said.value)
            assert len(s.coordinator.asked) == 1

    run(scenario())


def test_another_version_is_refused() -> None:
    async def newer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return answer(registered(version=protocol.VERSION + 1))

    async def scenario() -> None:
        async with setting(newer) as s:
            with pytest.raises(LinkError, match="install the same release") as said:
                await s.link.register(REGISTER)
            assert said.value.code == "version"

    run(scenario())


def test_nonsense_ends_after_a_few_tries() -> None:
    async def scenario() -> None:
        faults = [plain(200, PAGE, content_type="text/html")] * 9
        async with setting(*faults, pace=Pace(garbled=3)) as s:
            with pytest.raises(
                LinkError, match="a web page .3 tries.*is it the"
            ) as said:
                await s.link.heartbeat(BEAT)
            assert said.value.code == "garbled"
            assert len(s.coordinator.asked) == 3

    run(scenario())


def test_pauses_grow_up_to_a_bound_and_then_patience_ends() -> None:
    pace = Pace(patience=20.0, first_delay=0.5, longest_delay=4.0)

    async def scenario() -> None:
        async with setting(pace=pace) as s:
            await s.link.heartbeat(BEAT)  # met once, so it is worth to be patient
            s.coordinator.faults = [plain(503)] * 99
            with pytest.raises(LinkError, match="9 tries in 20 s.*running") as said:
                await s.link.heartbeat(BEAT)
            assert said.value.code == "unreachable"
            assert s.clock.slept == [0.5, 1, 2, 4, 4, 4, 4, 0.5]

    run(scenario())


def test_a_coordinator_that_was_never_met_is_given_up_earlier() -> None:
    async def scenario() -> None:
        async with setting(*[cut] * 99, pace=Pace(first_patience=3.0)) as s:
            with pytest.raises(LinkError, match="in 3 s"):
                await s.link.register(REGISTER)

    run(scenario())


def test_a_token_that_isnt_known_is_told_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "wrong.token"
    path.write_text(SECRET)
    path.chmod(0o600)

    async def scenario() -> None:
        async with (
            setting(problem(401, "unauthorized")) as s,
            HttpLink(s.link.url, read_token(path)) as link,
        ):
            with pytest.raises(LinkError) as said:
                await link.heartbeat(BEAT)
            assert str(said.value) == (
                f"the coordinator at {s.link.url} doesn't know the token in {path}, or "
                "it was revoked: ask who runs it for a new one"
            )

    run(scenario())


def test_what_to_do_is_told_at_once_if_nobody_was_ever_met() -> None:
    async def scenario() -> None:
        async with setting(cut, cut) as s:
            await s.link.heartbeat(BEAT)
            s.coordinator.faults = [cut]  # later it is there: it only broke off
            await s.link.heartbeat(BEAT)
            said = ["is it https://?; next try" in line for line in s.notices]
            assert said == [True, False, False]

    run(scenario())


def test_patience_can_be_cut_in_the_midst_of_a_call() -> None:
    pace = Pace(first_patience=600.0)

    async def scenario() -> None:
        async with setting(*[cut] * 99, pace=pace) as s:

            async def hurry() -> None:
                if s.clock.now > 200.0:  # it began at 100
                    s.link.hurry(130.0)

            s.clock.on_sleep = hurry
            with pytest.raises(LinkError, match="in 130 s"):
                await s.link.heartbeat(BEAT)
            assert s.clock.now == 230.0

    run(scenario())


def test_for_how_long_there_are_tries_is_told_once() -> None:
    pace = Pace(first_patience=600.0)

    async def scenario() -> None:
        async with setting(*[cut] * 9, pace=pace) as s:
            await s.link.heartbeat(BEAT)
            assert len(s.notices) == 9
            assert s.notices[0].endswith("; tries for 600 s (--patience)")
            assert not [line for line in s.notices[1:] if "600" in line]
            # A coordinator that is back is noticed soon.
            assert max(s.clock.slept) == 10.0

    run(scenario())


@pytest.mark.parametrize(("after", "waits"), [("7", 7.5), ("99999999999", 900.0)])
def test_retry_after_is_waited_for(after: str, waits: float) -> None:
    async def scenario() -> None:
        async with setting() as s:
            await s.link.heartbeat(BEAT)
            s.coordinator.faults = [problem(503, "busy", Retry_After=after)]
            await s.link.heartbeat(BEAT)
            assert s.clock.slept == [waits]

    run(scenario())


def test_being_put_off_never_ends_the_tries_and_is_obeyed() -> None:
    """More often, and for longer, than patience would last for anything else."""
    pace = Pace(patience=20.0, first_patience=20.0, first_delay=0.5, longest_delay=4.0)

    async def scenario() -> None:
        async with setting(pace=pace) as s:
            s.coordinator.faults = [problem(429, "busy", Retry_After="30")] * 12
            assert await s.link.heartbeat(BEAT) == Pulse(3, True)
            assert s.clock.slept == [30.5, 31, 32, *[34] * 9]
            assert len(s.coordinator.asked) == 13

    run(scenario())


def test_patience_begins_anew_when_it_was_put_off() -> None:
    pace = Pace(first_patience=6.0, first_delay=2.0, longest_delay=2.0)
    put_off = problem(429, "busy", Retry_After="1")

    async def scenario() -> None:
        async with setting(pace=pace) as s:
            s.coordinator.faults = [cut, cut, put_off, *[cut] * 9]
            with pytest.raises(LinkError, match="unreachable|closed"):
                await s.link.heartbeat(BEAT)
            assert s.clock.slept == [2, 2, 3, 2, 1]  # 6 s since it was put off

    run(scenario())


def test_retry_after_in_all_its_forms() -> None:
    date = "Mon, 30 Nov 2026 01:00:00 GMT"
    later = "Mon, 30 Nov 2026 01:00:09 GMT"
    assert retry_after({}) == 0
    assert retry_after({"Retry-After": "12"}) == 12
    assert retry_after({"Retry-After": later, "Date": date}) == 9
    assert retry_after({"Retry-After": date, "Date": later}) == 0
    assert retry_after({"Retry-After": later}) == 0
    for nonsense in ("-5", "soon", "١٢", "1e9", "nan"):
        assert retry_after({"Retry-After": nonsense, "Date": date}) == 0


def test_jitter_is_over_all_of_the_pause() -> None:
    async def scenario() -> None:
        async with setting(cut, cut) as s:
            drawn = []

            def uniform(low: float, high: float) -> float:
                drawn.append((low, high))
                return 0.25

            s.link._tools = s.clock.tools()._replace(uniform=uniform)
            await s.link.heartbeat(BEAT)
            assert drawn == [(0.0, 0.5), (0.0, 1.0)]
            assert s.clock.slept == [0.25, 0.25]

    run(scenario())


def test_a_restarted_coordinator_is_met_again() -> None:
    async def scenario() -> None:
        async with setting() as s:
            await s.link.heartbeat(BEAT)
            await s.coordinator.stop()

            async def restart() -> None:
                if len(s.clock.slept) == 3:
                    await s.coordinator.start()

            s.clock.on_sleep = restart
            assert await s.link.heartbeat(BEAT) == Pulse(3, True)
            assert len(s.clock.slept) == 3
            assert "refused" in s.notices[-1]

    run(scenario())


def test_nobody_there() -> None:
    async def scenario() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
            async with setting(port=port, pace=Pace(first_patience=1.0)) as s:
                with pytest.raises(LinkError, match="refused.*running, and at") as said:
                    await s.link.register(REGISTER)
        assert "\n" not in str(said.value)
        assert SECRET not in str(said.value)

    run(scenario())


def test_no_such_name() -> None:
    async def scenario() -> None:
        pace = Pace(first_patience=0.0)
        async with HttpLink("https://no.invalid", Token(SECRET), pace=pace) as link:
            with pytest.raises(LinkError, match="the name no.invalid isn't known"):
                await link.heartbeat(BEAT)

    run(scenario())


@contextlib.asynccontextmanager
async def _silent() -> AsyncIterator[int]:
    """A server that takes connections and says nothing."""
    held = []

    def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in held:
            writer.transport.abort()


@pytest.mark.parametrize("short", [True, False])
def test_sock_read_bounds_the_wait_for_an_answer(short: bool) -> None:
    times = Timeouts(sock_read=0.1 if short else 60.0)

    async def scenario() -> None:
        async with (
            _silent() as port,
            setting(port=port, timeouts=times, pace=Pace(first_patience=0.0)) as s,
        ):
            with pytest.raises(LinkError if short else TimeoutError) as said:
                await asyncio.wait_for(s.link.heartbeat(BEAT), 1.0)
            assert not short or "took too long" in str(said.value)

    run(scenario())


def test_a_long_poll_may_take_as_long_as_it_was_asked_to() -> None:
    async def slow(request: web.Request) -> web.StreamResponse | None:
        await asyncio.sleep(0.6)
        return None

    async def scenario() -> None:
        async with setting(slow, slow, timeouts=Timeouts(sock_read=0.2)) as s:
            await s.link.work(WorkRequest(SESSION, wait=20.0))
            assert s.notices == []
            await s.link.work(WorkRequest(SESSION, wait=0.1))
            assert len(s.notices) == 1

    run(scenario())


@pytest.mark.parametrize("short", [True, False])
def test_sock_connect_bounds_the_wait_for_tcp(short: bool) -> None:
    async def scenario() -> None:
        with socket.socket() as full, contextlib.ExitStack() as stack:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(3):  # the queue is full: further ones get no answer
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    waiting.connect(full.getsockname())
            times = Timeouts(sock_connect=0.1 if short else 60.0)
            pace = Pace(first_patience=0.0)
            port = full.getsockname()[1]
            async with setting(port=port, timeouts=times, pace=pace) as s:
                with pytest.raises(LinkError if short else TimeoutError):
                    await asyncio.wait_for(s.link.heartbeat(BEAT), 0.7)

    run(scenario())
