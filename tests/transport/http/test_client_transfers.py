"""Items and updates over lines and past coordinators that break."""

import asyncio
import itertools
import os
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from spheroid_jax.transport.http import sending
from spheroid_jax.transport.http.asking import Timeouts
from spheroid_jax.transport.http.retry import Pace
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import (
    Heartbeat,
    Problem,
    Upload,
    Uploading,
    Verdict,
)
from tests.transport.http.client_server import (
    ACCEPTED,
    Setting,
    answer,
    cut,
    fine,
    other,
    plain,
    problem,
    run,
    setting,
    update,
)

MIB = 1 << 20


def test_an_item_is_fetched_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting() as s:
            told: list[tuple[int, int]] = []
            item, target = s.coordinator.item, tmp_path / "item"
            moved = await s.link.fetch(item, target, lambda *now: told.append(now))
            assert moved == len(s.coordinator.index) + item.bytes
            assert (target / "data.0").read_bytes() == s.coordinator.data
            assert told[-1] == (item.bytes, item.bytes)
            asked = list(s.coordinator.asked)
            assert asked == [
                f"GET /v2/items/{item.digest}/{x}" for x in ("index", "data")
            ]
            assert await s.link.fetch(item, target) == 0
            assert s.coordinator.asked == asked

    run(scenario())


def halfway(content: bytes) -> Any:
    """Says to send all of it, sends half, and breaks."""
    size = len(content)

    async def fault(request: web.Request) -> web.StreamResponse | None:
        headers = {
            "Content-Length": str(size),
            "Content-Range": f"bytes 0-{size - 1}/{size}",
        }
        response = web.StreamResponse(status=206, headers=headers)
        await response.prepare(request)
        await response.write(content[: size // 2])
        await asyncio.sleep(0.05)  # or what was written is thrown away
        return await cut(request)

    return fault


def test_a_download_cut_at_half_goes_on_from_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting(fine) as s:
            item = s.coordinator.item
            s.coordinator.faults.append(halfway(s.coordinator.data))
            moved = await s.link.fetch(item, tmp_path / "item")
            assert (tmp_path / "item" / "data.0").read_bytes() == s.coordinator.data
            assert s.coordinator.ranges == [f"bytes={item.bytes // 2}-{item.bytes - 1}"]
            assert moved == len(s.coordinator.index) + item.bytes

    run(scenario())


def test_patience_is_for_standing_still(tmp_path: Path) -> None:
    """Ten cuts take a minute in all, yet the item comes nearer with every one."""

    async def some(request: web.Request) -> web.StreamResponse:
        first, last = map(int, request.headers["Range"][6:].split("-"))
        said = f"bytes {first}-{last}/{last + 1}"
        headers = {"Content-Length": str(last + 1 - first), "Content-Range": said}
        response = web.StreamResponse(status=206, headers=headers)
        await response.prepare(request)
        await response.write(bytes(12_000))
        await asyncio.sleep(0.02)  # or what was written is thrown away
        return await cut(request)

    async def scenario() -> None:
        async with setting(fine, pace=Pace(patience=10.0)) as s:

            async def pass_time() -> None:
                s.clock.now += 6.0

            s.clock.on_sleep = pass_time
            s.coordinator.faults += [some] * 9
            chunks = []
            await s.link.heartbeat(Heartbeat("0" * 32))
            async for chunk in s.link.read_data(s.coordinator.item, 0, 120_000):
                chunks.append(chunk)
            assert sum(map(len, chunks)) == 120_000
            assert len(s.clock.slept) == 9

    run(scenario())


@pytest.mark.parametrize(
    "fault",
    [
        cut,
        plain(200, b"<html>", content_type="text/html"),
        plain(206, b"x" * 120_000, headers={"Content-Range": "bytes 0-119999/120000"}),
        plain(206, b"x", headers={"Content-Range": "bytes 0-0/120000"}),
        plain(206, b"", headers={"Content-Range": "bytes 0-119999/120000"}),
        plain(206, b"x" * 200_000, headers={"Content-Range": "bytes 0-119999/120000"}),
        plain(206, b"x"),
        plain(204),
        problem(503, "busy"),
        problem(416, "malformed"),
    ],
)
def test_a_bad_answer_for_an_items_data(tmp_path: Path, fault: Any) -> None:
    async def scenario() -> None:
        async with setting(fine, fault) as s:
            await s.link.fetch(s.coordinator.item, tmp_path / "item")
            assert (tmp_path / "item" / "data.0").read_bytes() == s.coordinator.data

    run(scenario())


def test_an_item_that_is_no_longer_there_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting(problem(404, "unknown", "no such item")) as s:
            with pytest.raises(LinkError, match="no such item") as said:
                await s.link.fetch(other(s.coordinator.item), tmp_path / "item")
            assert (said.value.code, said.value.status) == ("unknown", 404)
            assert s.clock.slept == []

    run(scenario())


def test_an_index_without_end_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spheroid_jax.transport.http.client.INDEX_LIMIT", 1000)

    async def scenario() -> None:
        async with setting(*[plain(200, b"x" * 5000)] * 9, pace=Pace(garbled=2)) as s:
            with pytest.raises(LinkError, match="more than 1000 bytes"):
                await s.link.fetch(s.coordinator.item, tmp_path / "item")

    run(scenario())


async def submit(s: Setting, path: Path, size: int, **how: Any) -> Verdict:
    s.link._speed.size = MIB  # small requests from the start
    return await s.link.submit(update(path, size), path, **how)


def whole(s: Setting, path: Path) -> bool:
    """Whether the coordinator took all of it, byte by byte, just once."""
    spans = [span for span in s.coordinator.patched if span[1] > span[0]]
    return (
        spans[0][0] == 0
        and spans[-1][1] == path.stat().st_size
        and all(a[1] == b[0] for a, b in itertools.pairwise(spans))
        and list(s.coordinator.verdicts.values()) == [ACCEPTED]
    )


@pytest.mark.parametrize("size", [0, 1, 5 * MIB + 3])
def test_an_update_arrives(tmp_path: Path, size: int) -> None:
    async def scenario() -> None:
        async with setting() as s:
            told: list[int] = []
            path = tmp_path / "update"
            verdict = await submit(s, path, size, progress=lambda a, b: told.append(a))
            assert verdict == ACCEPTED
            assert (told[0], told[-1]) == (0, size)
            assert s.coordinator.asked[0] == "POST /v2/uploads"
            assert s.coordinator.asked[-1] == "POST /v2/uploads/6-1-w-0/commit"
            assert size == 0 or whole(s, path)
            assert s.notices == []

    run(scenario())


def test_a_verdict_that_is_known_ends_it(tmp_path: Path) -> None:
    async def late(request: web.Request) -> web.StreamResponse:
        await request.read()
        return answer(Uploading("6-1-w-0", verdict=Verdict("late", "closed")))

    async def scenario() -> None:
        async with setting(late) as s:
            assert await submit(s, tmp_path / "u", 99) == Verdict("late", "closed")
            assert len(s.coordinator.asked) == 1

    run(scenario())


def half_read(s_parts: list[Any]) -> Any:
    async def fault(request: web.Request) -> web.StreamResponse | None:
        coordinator = s_parts[0]
        part = next(iter(coordinator.parts.values()))
        start, half = len(part), int(request.headers["Content-Length"]) // 2
        async for chunk in request.content.iter_any():
            part += chunk[: start + half - len(part)]
            if len(part) == start + half:
                break
        coordinator.patched.append((start, len(part)))
        return await cut(request)

    return fault


def test_the_first_attempt_cut_at_half_goes_on_from_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting() as s:
            s.coordinator.faults = [fine, half_read([s.coordinator])]
            path = tmp_path / "update"
            assert await submit(s, path, 3 * MIB) == ACCEPTED
            assert s.coordinator.patched[0] == (0, MIB // 2)
            assert whole(s, path)

    run(scenario())


def test_an_answer_lost_after_the_commit_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting() as s:

            async def committed(request: web.Request) -> web.StreamResponse | None:
                s.coordinator._commit("6-1-w-0")
                return await cut(request)

            s.coordinator.faults = [fine, fine, committed]
            path = tmp_path / "update"
            assert await submit(s, path, MIB) == ACCEPTED
            assert whole(s, path)
            assert s.coordinator.asked.count("PATCH /v2/uploads/6-1-w-0") == 1

    run(scenario())


def test_a_restart_between_pieces(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting() as s:
            stopping: list[asyncio.Task[None]] = []

            async def die(request: web.Request) -> web.StreamResponse | None:
                stopping.append(asyncio.create_task(s.coordinator.stop()))
                return await cut(request)

            async def restart() -> None:
                if stopping:
                    await stopping.pop()
                    await s.coordinator.start()

            s.coordinator.faults = [fine, fine, die]
            s.clock.on_sleep = restart
            path = tmp_path / "update"
            assert await submit(s, path, 4 * MIB) == ACCEPTED
            assert whole(s, path)
            assert len(s.coordinator.patched) >= 2

    run(scenario())


def test_another_offset_is_gone_on_from_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting() as s:
            path = tmp_path / "update"
            upload = update(path, 2 * MIB)

            async def shorter(request: web.Request) -> web.StreamResponse | None:
                await request.read()
                del s.coordinator.parts["6-1-w-0"][1000:]
                s.coordinator.patched[:] = [(0, 1000)]
                return None  # answers 409, as the offset is another

            async def ahead(request: web.Request) -> web.StreamResponse:
                s.coordinator.parts["6-1-w-0"] += path.read_bytes()[:500]
                s.coordinator.patched.append((0, 500))
                await request.read()
                where = len(s.coordinator.parts["6-1-w-0"])
                said = Problem("no", "conflict")
                return answer(said, 409, Upload_Offset=str(where))

            s.link._speed.size = MIB
            s.coordinator.faults = [fine, ahead, fine, shorter]
            assert await s.link.submit(upload, path) == ACCEPTED
            assert s.clock.slept == []

    run(scenario())


@pytest.mark.parametrize("said", ["-1", "1e9", "99999999999", "", "٣"])
def test_offsets_that_cannot_be(tmp_path: Path, said: str) -> None:
    async def scenario() -> None:
        odd = plain(204, headers={"Upload-Offset": said})
        async with setting(fine, odd) as s:
            assert await submit(s, tmp_path / "u", MIB) == ACCEPTED
            assert "doesn't say how much" in s.notices[0]

    run(scenario())


def test_a_coordinator_that_has_more_than_there_is(tmp_path: Path) -> None:
    async def more(request: web.Request) -> web.StreamResponse:
        await request.read()
        return answer(Uploading("6-1-w-0", 100))

    async def outside(request: web.Request) -> web.StreamResponse:
        await request.read()
        return answer(Uploading("../../etc", 0))

    async def scenario() -> None:
        async with setting(more, outside) as s:
            assert await submit(s, tmp_path / "u", 99) == ACCEPTED
            assert len(s.notices) == 2

    run(scenario())


def test_a_corrupted_update_is_sent_from_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting() as s:

            async def flip(request: web.Request) -> web.StreamResponse | None:
                s.coordinator.parts["6-1-w-0"][7] ^= 1
                return None

            path = tmp_path / "update"
            s.coordinator.faults = [fine, fine, flip]
            assert await submit(s, path, MIB) == ACCEPTED
            assert s.coordinator.patched == [(0, MIB), (0, MIB)]

            upload = changed(update(path, MIB), attempt=1, blake3="0" * 64)
            with pytest.raises(LinkError, match="corrupted 3 times") as said:
                await s.link.submit(upload, path)
            assert said.value.code == "corrupted"

    run(scenario())


def changed(upload: Upload, **changes: Any) -> Upload:
    return msgspec.structs.replace(upload, **changes)


def test_patience_begins_anew_with_a_corrupted_update(tmp_path: Path) -> None:
    """What comes through once more is progress, though that much was there before."""

    async def scenario() -> None:
        async with setting(pace=Pace(patience=10.0)) as s:

            async def pass_time() -> None:
                s.clock.now += 6.0

            async def flip(request: web.Request) -> web.StreamResponse | None:
                s.coordinator.parts["6-1-w-0"][7] ^= 1
                return None

            path = tmp_path / "update"
            upload = update(path, 2 * MIB)
            s.link._speed.learn = lambda sent, seconds: None  # type: ignore[method-assign]
            s.link._speed.size = MIB
            s.clock.on_sleep = pass_time
            await s.link.heartbeat(Heartbeat("0" * 32))
            first = [fine, fine, fine, flip]
            s.coordinator.faults = [*first, fine, fine, cut, cut]
            assert await s.link.submit(upload, path) == ACCEPTED
            assert len(s.clock.slept) == 3

    run(scenario())


def test_a_part_that_was_lost_is_announced_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting() as s:

            async def lose(request: web.Request) -> web.StreamResponse:
                await request.read()
                s.coordinator.parts.clear()
                return await problem(404, "unknown")(request)  # type: ignore[return-value]

            s.coordinator.faults = [fine, fine, lose]
            path = tmp_path / "update"
            assert await submit(s, path, 2 * MIB) == ACCEPTED
            assert s.coordinator.patched[1][0] == 0

    run(scenario())


def test_a_commit_of_what_is_no_longer_whole_goes_on(tmp_path: Path) -> None:
    """As after a crash of the coordinator's machine."""

    async def scenario() -> None:
        async with setting() as s:

            async def shorter(request: web.Request) -> web.StreamResponse:
                await request.read()
                del s.coordinator.parts["6-1-w-0"][5000:]
                s.coordinator.patched[:] = [(0, 5000)]
                return answer(Problem("short", "conflict"), 409, Upload_Offset="5000")

            s.coordinator.faults = [fine, fine, shorter]
            path = tmp_path / "update"
            assert await submit(s, path, MIB) == ACCEPTED
            assert s.coordinator.patched == [(0, 5000), (5000, MIB)]
            assert whole(s, path)

    run(scenario())


def test_a_coordinator_that_always_loses_it_is_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting(pace=Pace(garbled=3)) as s:
            s.coordinator.faults = [fine, problem(404, "unknown")] * 9
            with pytest.raises(LinkError) as said:
                await submit(s, tmp_path / "u", MIB)
            assert said.value.code == "unknown"
            assert s.coordinator.asked.count("POST /v2/uploads") == 3

    run(scenario())


@pytest.mark.parametrize("code", ["superseded", "conflict", "unknown"])
def test_a_refused_update_is_told(tmp_path: Path, code: str) -> None:
    async def scenario() -> None:
        async with setting(problem(409, code)) as s:
            with pytest.raises(LinkError) as said:
                await submit(s, tmp_path / "u", MIB)
            assert said.value.code == code

    run(scenario())


def test_a_slow_upload_outlasts_the_time_out_of_reading(tmp_path: Path) -> None:
    """No answer comes while a body goes out, for longer than ``sock_read``."""

    async def slowly(request: web.Request) -> web.StreamResponse | None:
        await asyncio.sleep(0.6)
        return None

    async def scenario() -> None:
        async with setting(fine, slowly, timeouts=Timeouts(sock_read=0.2)) as s:
            assert await submit(s, tmp_path / "u", MIB) == ACCEPTED
            assert s.notices == []

    run(scenario())


def test_a_slow_upload_that_moves_is_not_cut(tmp_path: Path) -> None:
    async def trickle(request: web.Request) -> web.StreamResponse:
        size = 0
        while chunk := await request.content.read(2 * MIB):
            size += len(chunk)
            await asyncio.sleep(len(chunk) / (32 * MIB))
        return web.Response(status=204, headers={"Upload-Offset": str(size)})

    async def accept(request: web.Request) -> web.StreamResponse:
        await request.read()
        return answer(ACCEPTED)

    async def scenario() -> None:
        async with setting(fine, trickle, accept, timeouts=Timeouts(stall=0.7)) as s:
            path = tmp_path / "u"
            upload = update(path, 48 * MIB)
            s.link._speed.size = 64 * MIB
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert await s.link.submit(upload, path) == ACCEPTED
            assert loop.time() - began > 1.0
            assert s.notices == []

    run(scenario())


@pytest.mark.parametrize("size", [1000, 32 * MIB])
def test_an_upload_that_stands_still_is_cut(tmp_path: Path, size: int) -> None:
    """While sending, as nothing is read, and when all is sent and no answer comes."""

    async def stuck(request: web.Request) -> web.StreamResponse | None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1.0)
        return await cut(request)

    async def scenario() -> None:
        async with setting(fine, stuck, timeouts=Timeouts(stall=0.3)) as s:
            path = tmp_path / "u"
            upload = update(path, size)
            s.link._speed.size = 64 * MIB
            loop = asyncio.get_running_loop()
            began = loop.time()

            async def note() -> None:
                s.clock.on_sleep = None
                assert 0.2 < loop.time() - began < 0.9

            s.clock.on_sleep = note
            assert await s.link.submit(upload, path) == ACCEPTED
            assert "took too long" in s.notices[0]
            assert s.link._speed.size >= 32 * MIB or size < MIB

    run(scenario())


def test_a_file_that_is_not_what_was_announced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting() as s:
            path = tmp_path / "update"
            upload = update(path, 3 * MIB)
            with pytest.raises(LinkError, match="No such file") as said:
                await s.link.submit(upload, tmp_path / "none")
            assert said.value.code == "disk"
            os.truncate(path, MIB)
            with pytest.raises(LinkError, match=f"{MIB} bytes, not {3 * MIB}"):
                await s.link.submit(upload, path)
            assert s.coordinator.asked == []

            async def shorten(request: web.Request) -> web.StreamResponse | None:
                os.truncate(path, MIB + 5)
                return None

            upload = update(path, 3 * MIB)
            s.coordinator.faults = [fine, shorten]
            s.link._speed.size = MIB
            with pytest.raises(LinkError, match="ends early"):
                await s.link.submit(upload, path)

    run(scenario())


def test_a_request_is_as_long_as_the_line_is_fast() -> None:
    speed = sending.Speed()
    speed.learn(speed.size, 0.01)  # as fast as may be: it grows, but not at once
    assert speed.size == 16 * MIB
    speed.learn(speed.size, 0.01)
    speed.learn(speed.size, 0.01)
    assert speed.size == 64 * MIB
    speed.learn(64 * MIB, 40.0)
    assert speed.size == 16 * MIB  # takes 10 s at that speed
    speed.learn(16 * MIB, 1000.0)
    assert speed.size == MIB
    speed.failed()
    assert speed.size == MIB
    speed.size = 32 * MIB
    speed.learn(1000, 0.5)  # the end of a file tells of the delay, not of the speed
    assert speed.size == 32 * MIB


def test_memory_does_not_grow_with_the_update(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting() as s:
            path = tmp_path / "update"
            upload = update(path, 48 * MIB)
            s.link._speed.size = 64 * MIB

            async def swallow(request: web.Request) -> web.StreamResponse:
                async for _ in request.content.iter_any():
                    pass
                return web.Response(
                    status=204, headers={"Upload-Offset": str(upload.bytes)}
                )

            async def accept(request: web.Request) -> web.StreamResponse:
                await request.read()
                return answer(ACCEPTED)

            s.coordinator.faults = [fine, swallow, accept]
            tracemalloc.start()
            try:
                await s.link.submit(upload, path)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < 12 * MIB

    run(scenario())
