"""The dashboard's routes, over real sockets."""

import asyncio
import contextlib
import itertools
import json
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import numpy as np
import pytest
import trustme

from spheroid_jax.transport.dashboard import Viewing
from spheroid_jax.transport.dashboard.feed import encode, for_page
from spheroid_jax.transport.dashboard.page import page
from tests.transport.dashboard.fake import (
    HOSTILE,
    FakeCoordinator,
    served,
    status,
    worker,
)

FAST = Viewing(interval=0.02, refresh=5.0, keep_alive=5.0, stall=5.0)


def run(
    test: Callable[[FakeCoordinator, aiohttp.ClientSession, str], Awaitable[Any]],
    viewing: Viewing = FAST,
) -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(status())
        async with (
            served(coordinator, viewing) as url,
            aiohttp.ClientSession() as client,
        ):
            await test(coordinator, client, url)

    asyncio.run(asyncio.wait_for(main(), 30))


async def next_status(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    while True:
        line = await asyncio.wait_for(answer.content.readline(), 5)
        assert line, "the stream ended"
        if line.startswith(b"data: "):
            return json.loads(line[6:])


async def until(true: Callable[[], bool], wait: float = 5.0) -> None:
    async with asyncio.timeout(wait):
        while not true():
            await asyncio.sleep(0.01)


async def all_free(client: aiohttp.ClientSession, url: str, places: int) -> None:
    """Returns when so many viewers are let in at the same time."""
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(5):
        for _ in range(places):
            while True:
                answer = await client.get(f"{url}/events")
                stack.callback(answer.close)
                if answer.status == 200:
                    break
                await asyncio.sleep(0.02)


def test_status_is_the_coordinators_and_json_of_a_strict_reader() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        coordinator.change(time=float("nan"), deadline=float("inf"), round=np.int32(3))
        async with client.get(f"{url}/status") as answer:
            assert answer.status == 200
            assert answer.content_type == "application/json"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            text = await answer.text()

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} isn't JSON")

        said = json.loads(text, parse_constant=refuse)
        assert said["time"] is None
        assert said["deadline"] is None
        assert said["round"] == 3
        assert said["workers"] == status()["workers"]
        assert said["version"] == 2

    run(test)


def test_the_status_of_a_long_run_is_no_longer_than_that_of_a_shorter() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        points = [
            {"round": n, "ce_chain": 2.5, "ce_ensemble": 2.25} for n in range(1, 10_001)
        ]
        log = [{**status()["rounds_log"][0], "round": n} for n in range(1, 10_001)]
        coordinator.change(ce=points, rounds_log=log)
        async with client.get(f"{url}/status") as answer:
            said = await answer.json()
        assert said["rounds_log"] == log[-200:]
        assert len(said["ce"]) <= 400
        assert said["ce"][-1]["round"] == 10_000
        assert said["ce"][0]["round"] <= 25  # from the beginning on
        assert said["workers"] == status()["workers"]

    run(test)


def test_text_that_is_not_unicode_does_not_stop_the_status() -> None:
    said = json.loads(encode({"problems": [{"text": "no such file: \udcff"}]}))
    assert said == {"problems": [{"text": "no such file: ?"}]}


@pytest.mark.parametrize(
    ("facts", "code", "word"),
    [
        ({}, 200, "ok"),
        ({"state": "finished"}, 200, "ok"),
        ({"writable": True}, 200, "ok"),
        ({"state": "draining"}, 503, "draining"),
        ({"writable": False}, 503, "unwritable"),
    ],
)
def test_healthz(facts: dict[str, Any], code: int, word: str) -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        coordinator.change(**facts)
        async with client.get(f"{url}/healthz") as answer:
            assert answer.status == code
            state = facts.get("state", "open")
            assert await answer.json() == {"status": word, "state": state, "round": 12}

    run(test)


def test_healthz_of_a_coordinator_that_cant_tell() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        coordinator.facts = None  # type: ignore[assignment]
        async with client.get(f"{url}/healthz") as answer:
            assert answer.status == 503
            assert (await answer.json())["status"] == "failing"

    run(test)


def test_the_page_is_one_file_whose_policy_allows_no_foreign_code() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        async with client.get(f"{url}/") as answer:
            assert answer.status == 200
            assert answer.content_type == "text/html"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            policy = answer.headers["Content-Security-Policy"]
            text = await answer.text()
        assert text == page()[0]
        rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
        assert rules["default-src"] == "'none'"
        assert rules["frame-ancestors"] == rules["base-uri"] == "'none'"
        for rule in ("script-src", "style-src"):
            assert rules[rule].startswith("'sha256-")
            assert len(rules[rule].split()) == 1
        assert "unsafe" not in policy
        # What workers say is nowhere made into elements.
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"):
            assert way not in text

    run(test)


def test_an_event_tells_of_every_change() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        async with client.get(f"{url}/events") as answer:
            assert answer.status == 200
            assert answer.content_type == "text/event-stream"
            assert (await next_status(answer))["round"] == 12
            for number in range(13, 17):
                coordinator.change(round=number)
                while (said := await next_status(answer))["round"] < number:
                    pass
                assert said["round"] == number

    run(test)


def test_text_with_line_ends_stays_one_event() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        text = "a\r\n\r\nevent: status\ndata: {}\n\n\u2028" + HOSTILE
        coordinator.change(why=text)
        async with client.get(f"{url}/events") as answer:
            assert (await next_status(answer))["why"] == text

    run(test)


def test_many_changes_are_few_events_and_the_last_one_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = []
    write = aiohttp.web.StreamResponse.write

    async def noting(self: Any, data: Any) -> None:
        sent.append(time.monotonic())
        await write(self, data)

    monkeypatch.setattr(aiohttp.web.StreamResponse, "write", noting)

    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        async with client.get(f"{url}/events") as answer:
            start, last, events = time.monotonic(), 0, 0
            await next_status(answer)

            async def change() -> None:
                for number in range(200):
                    coordinator.change(round=number)
                    await asyncio.sleep(0.005)

            task = asyncio.create_task(change())
            while last < 199:
                last = (await next_status(answer))["round"]
                events += 1
            await task
            assert events >= 3
            assert len(sent) == events + 1
            # The clock of the event loop is of coarser grain than ours.
            assert min(b - a for a, b in itertools.pairwise(sent)) > 0.19
            # Nor is the coordinator asked more often: at the start, for the first, then
            # by the feed.
            assert coordinator.asked <= 3 + (time.monotonic() - start) / 0.19

    run(test, FAST._replace(interval=0.2))


def test_a_viewer_of_a_quiet_run_gets_fresh_ages_and_keep_alives() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        async with client.get(f"{url}/events") as answer:
            await next_status(answer)
            coordinator.facts["time"] = 999.0  # time passes; that's no change
            while (await next_status(answer))["time"] != 999.0:
                pass

    run(test, FAST._replace(refresh=0.1))

    async def silent(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        async with client.get(f"{url}/events") as answer:
            await next_status(answer)
            async with asyncio.timeout(5):
                while await answer.content.readline() != b": keep-alive\n":
                    pass

    run(silent, FAST._replace(keep_alive=0.1))


def test_a_failing_status_does_not_end_the_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        async with client.get(f"{url}/events") as answer:
            await next_status(answer)
            facts = coordinator.facts
            coordinator.facts = {"bytes": object()}
            coordinator.version += 1
            coordinator.change()
            await until(lambda: "no status to show" in caplog.text)
            coordinator.facts = facts
            coordinator.change(round=15)
            while (await next_status(answer))["round"] != 15:
                pass

    run(test, FAST._replace(refresh=0.1))


def test_viewers_are_limited_and_a_viewer_that_goes_makes_room() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        first = await client.get(f"{url}/events")
        async with client.get(f"{url}/events") as second:
            await next_status(second)
            async with client.get(f"{url}/events") as third:
                assert third.status == 503
                assert int(third.headers["Retry-After"]) > 0
                said = await third.json()
                assert said["code"] == "busy"
                assert "2 watch" in said["error"]
            # Others are still served.
            async with client.get(f"{url}/status") as answer:
                assert answer.status == 200
        first.close()
        # Both went without a change that could have told the server.
        await all_free(client, url, 2)

    run(test, FAST._replace(viewers=2))


def test_one_address_leaves_places_to_others() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        first = await client.get(f"{url}/events")
        await next_status(first)
        async with client.get(f"{url}/events") as second:
            assert second.status == 429
            assert int(second.headers["Retry-After"]) > 0
            assert second.headers["X-Content-Type-Options"] == "nosniff"
            said = await second.json()
            assert said["code"] == "busy"
            assert "an address" in said["error"]
        async with (
            aiohttp.ClientSession(connector=elsewhere) as other,
            other.get(f"{url}/events") as third,
        ):
            assert third.status == 200
            await next_status(third)
        first.close()
        await all_free(client, url, 1)

    run(test, FAST._replace(viewers=4, each=1))


def test_without_viewers_the_coordinator_is_not_asked() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        coordinator.change()
        await asyncio.sleep(0.1)
        assert coordinator.asked == 1  # as the server started
        async with client.get(f"{url}/events") as answer:
            await next_status(answer)
        asked = -1
        while asked != coordinator.asked:  # until the server saw that it went
            asked = coordinator.asked
            coordinator.change()
            await asyncio.sleep(0.2)

    run(test)


def test_viewers_share_one_reading_of_the_status() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        async with contextlib.AsyncExitStack() as stack:
            answers = [
                await stack.enter_async_context(client.get(f"{url}/events"))
                for _ in range(8)
            ]
            for answer in answers:
                await next_status(answer)
            await asyncio.sleep(0.1)  # the first change is told of
            asked = coordinator.asked
            coordinator.change(round=14)
            for answer in answers:
                while (await next_status(answer))["round"] != 14:
                    pass
            assert coordinator.asked == asked + 1

    run(test)


def slow_viewer(url: str) -> socket.socket:
    port = int(url.rsplit(":", 1)[1])
    viewer = socket.socket()
    viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    viewer.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        viewer.connect(("127.0.0.1", port))
    return viewer


@pytest.mark.parametrize("size", [60_000, 12_000_000])
def test_a_viewer_that_reads_nothing_is_cut_and_costs_one_event_at_most(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    requests, waiting = [], []
    prepare = aiohttp.web.StreamResponse.prepare
    write = aiohttp.web.StreamResponse.write

    async def noting_request(self: Any, request: Any) -> Any:
        requests.append(request)
        return await prepare(self, request)

    async def noting_buffer(self: Any, data: Any) -> None:
        waiting.append(requests[-1].transport.get_write_buffer_size())
        await write(self, data)

    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        coordinator.change(why="x" * size)
        viewer = slow_viewer(url)
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patch:
            patch.setattr(aiohttp.web.StreamResponse, "prepare", noting_request)
            patch.setattr(aiohttp.web.StreamResponse, "write", noting_buffer)
            await loop.sock_sendall(viewer, b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: bool(requests))
            transport = requests[0].transport
            most = 0
            async with asyncio.timeout(20):
                while not transport.is_closing():
                    most = max(most, transport.get_write_buffer_size())
                    coordinator.change()
                    await asyncio.sleep(0.002)
        # Nothing was sent while something waited, and what waits is one event.
        assert len(waiting) >= 1
        assert not any(waiting)
        assert 0 < most < size + 10_000
        # It's cut, not kept: its place is free, and the rest never comes.
        coordinator.change(why="")
        await all_free(client, url, 2)
        tail = b""
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                while part := await loop.sock_recv(viewer, 1 << 20):
                    tail = (tail + part)[-5:]
        assert tail != b"0\r\n\r\n"
        viewer.close()

    run(test, FAST._replace(interval=0.005, viewers=2, stall=0.5))


def test_the_server_ends_though_somebody_watches() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(status())
        async with aiohttp.ClientSession() as client:
            async with served(coordinator, FAST._replace(keep_alive=60)) as url:
                answer = await client.get(f"{url}/events")
                await next_status(answer)
                start = time.monotonic()
            assert time.monotonic() - start < 3
            rest = await asyncio.wait_for(answer.content.read(), 5)
            assert b"\n\n" in rest + b"\n\n"

    asyncio.run(asyncio.wait_for(main(), 30))


def test_events_over_tls() -> None:
    authority = trustme.CA()
    mine = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(mine)
    theirs = ssl.create_default_context()
    authority.configure_trust(theirs)

    async def main() -> None:
        coordinator = FakeCoordinator(status())
        async with (
            served(coordinator, FAST, tls=mine) as url,
            aiohttp.ClientSession() as client,
            client.get(f"{url}/events", ssl=theirs) as answer,
        ):
            assert url.startswith("https:")
            await next_status(answer)
            coordinator.change(round=13)
            while (await next_status(answer))["round"] != 13:
                pass

    asyncio.run(asyncio.wait_for(main(), 20))


def test_methods_that_make_no_sense_are_refused() -> None:
    async def test(
        coordinator: FakeCoordinator, client: aiohttp.ClientSession, url: str
    ) -> None:
        async with client.head(f"{url}/events") as answer:
            assert answer.status == 405
        async with client.post(f"{url}/status") as answer:
            assert answer.status == 405
        async with client.head(f"{url}/healthz") as answer:
            assert answer.status == 200

    run(test)


@pytest.mark.parametrize("count", [0, 1, 399, 400, 401, 5000])
def test_an_event_stays_small_and_keeps_the_newest(count: int) -> None:
    ce = [{"round": i} for i in range(count)]
    said = for_page({"ce": ce, "rounds_log": ce, "round": 7})
    assert said["round"] == 7
    assert len(said["ce"]) <= 400
    assert len(said["ce"]) >= min(count, 200)
    assert said["ce"][-1:] == ce[-1:]
    assert said["rounds_log"] == ce[-20:]
    rounds = [point["round"] for point in said["ce"]]
    assert rounds == sorted(set(rounds))


def test_an_event_of_very_many_workers_is_small_and_holds_who_matters() -> None:
    facts = status()
    facts["workers"] = [worker(f"w{i}", i % 3, "training") for i in range(5000)]
    facts["workers"] += [
        worker("old", 0, "gone", seen_seconds=1e6),
        worker("tardy", 1, "late"),
        worker("unseen", 1, "gone", seen_seconds=None),
        worker("lost", 2, "gone", seen_seconds=30.0),
    ]
    said = for_page(facts)
    names = [w["name"] for w in said["workers"]]
    assert names[:2] == ["tardy", "lost"]
    assert not {"old", "unseen"} & {*names}
    assert said["worker_states"] == {"training": 5000, "gone": 3, "late": 1}
    assert len(encode(said)) < 100_000
