"""Parts of updates: they grow, go on where they broke off, and are handed over once."""

import asyncio
import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from blake3 import blake3

from spheroid_jax.transport import protocol
from spheroid_jax.transport.http.bodies import Body
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.parts import UPLOAD_NAME, Part, WrongOffset
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.protocol import ProtocolError, Upload, Verdict
from tests.transport.http.server_fakes import (
    Served,
    announce,
    bearer,
    raw,
    refused,
    run,
    served,
)

DATA = random.Random(5).randbytes(100_000)
LARGE = random.Random(6).randbytes(9_000_001)
NAME = "3-1-ada-0"
PART = f"/v2/uploads/{NAME}"


async def post(there: Served, data: bytes = DATA, **changed: Any) -> dict[str, Any]:
    async with there.http.post("/v2/uploads", json=announce(data, **changed)) as answer:
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


async def patch(there: Served, offset: int, data: Any) -> tuple[int, str | None]:
    headers = {"Upload-Offset": str(offset)}
    async with there.http.patch(PART, data=data, headers=headers) as answer:
        return answer.status, answer.headers.get("Upload-Offset")


async def commit(there: Served) -> dict[str, Any]:
    async with there.http.post(f"{PART}/commit", json={}) as answer:
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


async def head(there: Served) -> int:
    async with there.http.head(PART) as answer:
        assert answer.status == 200
        return int(answer.headers["Upload-Offset"])


def message(data: bytes = DATA, **changed: Any) -> Upload:
    return msgspec.convert(announce(data, **changed), Upload)


async def pieces(*data: bytes) -> AsyncGenerator[bytes, None]:
    for piece in data:
        yield piece


def nothing() -> None:
    """Cuts nothing."""


def test_an_update_comes_in_pieces_and_is_accepted_once(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        assert await post(there) == {"upload": NAME, "offset": 0, "verdict": None}
        assert await patch(there, 0, DATA[:30_000]) == (204, "30000")
        assert await head(there) == 30_000
        assert await patch(there, 30_000, DATA[30_000:]) == (204, "100000")
        first = await commit(there)
        assert (first["verdict"], first["applies_in"]) == ("accepted", 3)
        assert there.coordinator.contents[NAME] == DATA
        # Nothing of it happens twice.
        assert await commit(there) == first
        assert (await post(there))["verdict"] == first
        assert await commit(there) == first
        assert there.coordinator.commits == 1
        assert there.coordinator.up["ada"] >= len(DATA)
        assert [path.suffix for path in (tmp_path / "parts").iterdir()] == [".json"]

    run(tmp_path, test)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_arrives_as_it_was_while_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunked: bool
) -> None:
    write = os.pwrite
    slow = random.Random(7)

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        time.sleep(slow.choice([0.0, 0.02, 0.05]))
        # Not all at once, as a full pipe or a signal would have it.
        return write(
            descriptor, data[: 700_000 if slow.random() < 0.3 else None], offset
        )

    monkeypatch.setattr(os, "pwrite", pwrite)

    async def body() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(LARGE), 77_777):
            yield LARGE[start : start + 77_777]

    async def test(there: Served) -> None:
        await post(there, LARGE)
        whole = body() if chunked else LARGE
        assert await patch(there, 0, whole) == (204, str(len(LARGE)))
        assert (await commit(there))["verdict"] == "accepted"
        assert there.coordinator.contents[NAME] == LARGE

    run(tmp_path, test)


def test_curl_is_asked_for_the_body_before_it_sends_it(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there, LARGE)
        file = tmp_path / "large"
        file.write_bytes(LARGE)
        curl = await asyncio.create_subprocess_exec(
            *("curl", "-sS", "-T", str(file), "-X", "PATCH", "-D", "-"),
            *("-H", "Upload-Offset: 0", "-H", "Authorization: Bearer token-a"),
            *("-H", "Expect: 100-continue", there.url + PART),
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await asyncio.wait_for(curl.communicate(), 20)
        assert b"100 Continue" in said
        assert b"204" in said
        assert (await commit(there))["verdict"] == "accepted"

    run(tmp_path, test)


def test_what_wont_be_taken_isnt_asked_for(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there, LARGE)
        for offset, length, status in ((1, 9_000_000, 409), (0, 9_000_002, 413)):
            got = await raw(
                there,
                f"PATCH {PART} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-a"
                f"\r\nUpload-Offset: {offset}\r\nContent-Length: {length}\r\n"
                "Expect: 100-continue\r\nConnection: close\r\n\r\n".encode(),
            )
            assert int(got.split()[1]) == status
            assert b"100 Continue" not in got

    run(tmp_path, test, Limits(linger=0.1, shutdown=0.2))


@pytest.mark.parametrize("data", [DATA, LARGE])
def test_what_came_of_a_cut_transfer_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    half = len(data) // 2
    moved, came = Body._moved, [0]

    def count(self: Body, size: int) -> None:
        came[0] += size
        moved(self, size)

    monkeypatch.setattr(Body, "_moved", count)

    async def test(there: Served) -> None:
        await post(there, data)
        _, writer = await asyncio.open_connection("127.0.0.1", there.running.port)
        writer.write(
            f"PATCH {PART} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-a\r\n"
            f"Upload-Offset: 0\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        )
        came[0] = 0
        writer.write(data[:half])
        while came[0] < half:
            await asyncio.sleep(0.005)
        writer.close()
        while await head(there) < half:
            await asyncio.sleep(0.005)
        assert (await post(there, data))["offset"] == half
        assert await patch(there, half, data[half:]) == (204, str(len(data)))
        assert (await commit(there))["verdict"] == "accepted"
        assert there.coordinator.contents[NAME] == data

    run(tmp_path, test)


def test_a_transfer_goes_on_after_the_coordinator_was_started_anew(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with served(tmp_path) as there:
            await post(there)
            await patch(there, 0, DATA[:60_000])
        (tmp_path / "parts" / "junk.part").write_bytes(b"without a record")
        (tmp_path / "parts" / "3-1-ada-7.json").write_bytes(b"{")
        (tmp_path / "parts" / "9-9-eve-0.json").write_bytes(
            (tmp_path / "parts" / f"{NAME}.json").read_bytes()
        )
        async with served(tmp_path) as there:
            assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
                f"{NAME}.json",
                f"{NAME}.part",
            ]
            assert (await post(there))["offset"] == 60_000
            assert await patch(there, 60_000, DATA[60_000:]) == (204, "100000")
            verdict = await commit(there)
            assert there.coordinator.contents[NAME] == DATA
            verdicts = there.coordinator.verdicts
        async with served(tmp_path) as there:
            # Committed; the answer got lost, and the coordinator was started anew.
            there.coordinator.verdicts = verdicts
            assert await commit(there) == verdict
        async with served(tmp_path) as there:
            # Handed over, and the coordinator died before it accepted.
            async with there.http.post(f"{PART}/commit", json={}) as answer:
                await refused(answer, 404, "unknown")
            assert (await post(there))["offset"] == 0

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_wrong_offset_is_told_the_right_one(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there)
        await patch(there, 0, DATA[:1000])
        assert await patch(there, 0, DATA[:1000]) == (409, "1000")
        assert await patch(there, 1001, DATA[1001:2000]) == (409, "1000")
        for offset in ("-1", "", "1e3", "0x10", "\u0661\u0660", "1000, 1000", "9" * 17):
            headers = {"Upload-Offset": offset}
            async with there.http.patch(PART, data=b"x", headers=headers) as answer:
                await refused(answer, 400, "malformed")
        async with there.http.patch(PART, data=b"x") as answer:
            await refused(answer, 400, "malformed")
        async with there.http.post(f"{PART}/commit", json={}) as answer:
            await refused(answer, 409, "conflict")
            assert answer.headers["Upload-Offset"] == "1000"
        assert await head(there) == 1000

    run(tmp_path, test)


def test_wrong_bytes_are_deleted_and_may_come_again(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there)
        await patch(there, 0, b"x" + DATA[1:])
        async with there.http.post(f"{PART}/commit", json={}) as answer:
            await refused(answer, 422, "corrupted")
        assert list((tmp_path / "parts").iterdir()) == []
        assert (await post(there))["offset"] == 0
        await patch(there, 0, DATA)
        assert (await commit(there))["verdict"] == "accepted"

    run(tmp_path, test)


def test_an_upload_is_of_the_worker_that_announced_it(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there)
        other = bearer("token-b")
        offset = other | {"Upload-Offset": "0"}
        for method, path, headers in (
            ("PATCH", PART, offset),
            ("HEAD", PART, other),
            ("POST", f"{PART}/commit", other),
        ):
            body = None if method == "HEAD" else b"{}"
            async with there.http.request(
                method, path, headers=headers, data=body
            ) as answer:
                assert answer.status == 404
        assert await head(there) == 0

    run(tmp_path, test)


def test_no_name_leaves_the_directory(tmp_path: Path) -> None:
    (tmp_path / "secret.part").write_bytes(b"secret")
    (tmp_path / "secret.json").write_bytes(b"secret")

    async def test(there: Served) -> None:
        for name in (
            "%2e%2e%2fsecret",
            "..%2fsecret",
            "%2e%2e",
            ".",
            "3-1-ada-0%00",
            "3-1-ada-0%0a",
            "3-1-%2e%2e%2fada-0",
            "\u0663-1-ada-0",
            "3-1-ada-0.json",
        ):
            for method, path in (
                ("PATCH", f"/v2/uploads/{name}"),
                ("HEAD", f"/v2/uploads/{name}"),
                ("POST", f"/v2/uploads/{name}/commit"),
            ):
                got = await raw(
                    there,
                    f"{method} {path} HTTP/1.1\r\nHost: x\r\nUpload-Offset: 0\r\n"
                    "Authorization: Bearer token-a\r\nContent-Length: 2\r\n"
                    "Connection: close\r\n\r\n{}".encode(),
                )
                assert got.split()[1] in (b"404", b"405", b"400"), (name, got)

    run(tmp_path, test)
    assert (tmp_path / "secret.part").read_bytes() == b"secret"
    assert list((tmp_path / "parts").iterdir()) == []


def test_names_are_those_of_the_protocol() -> None:
    for worker in ("a", "a-b", "A.b_c-9", "x" * 64):
        made = protocol.upload_name(worker, message(round=2**53, attempt=0))
        assert UPLOAD_NAME.fullmatch(made)
    for wrong in ("1-1-a", "1-1-a-x", "1-1--0", "1-1-a/b-0", "1-1-a-0\n", "1-1-é-0"):
        assert not UPLOAD_NAME.fullmatch(wrong)


def test_another_content_is_another_attempt(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there)
        await patch(there, 0, DATA[:10])
        other = announce(DATA[:-1])
        async with there.http.post("/v2/uploads", json=other) as answer:
            await refused(answer, 409, "conflict")
        assert (await post(there))["offset"] == 10
        assert (await post(there, DATA[:-1], attempt=1))["upload"] == "3-1-ada-1"

    run(tmp_path, test)


@pytest.mark.parametrize("data", [DATA, LARGE])
def test_the_newer_of_two_transfers_goes_on(tmp_path: Path, data: bytes) -> None:
    async def test(there: Served) -> None:
        await post(there, data)
        reader, writer = await asyncio.open_connection("127.0.0.1", there.running.port)
        writer.write(
            f"PATCH {PART} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-a\r\n"
            f"Upload-Offset: 0\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        )
        writer.write(data[:5000])
        await writer.drain()
        offset = 0
        while True:  # the old connection hangs; the worker doesn't know what arrived
            status, at = await patch(there, offset, data[offset:])
            if status == 204:
                break
            offset = int(at or 0)
        assert at == str(len(data))
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert (await commit(there))["verdict"] == "accepted"
        assert there.coordinator.contents[NAME] == data

    run(tmp_path, test)


def test_the_quota_holds_before_a_body_is_read(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there, DATA)
        there.uploads.quota = 150_000
        for size, status, code in (
            (50_001, 507, "disk_full"),
            (150_001, 413, "too_large"),
        ):
            wanted = announce(bytes(size), attempt=1)
            async with there.http.post(
                "/v2/uploads", json=wanted, headers=bearer("token-b")
            ) as answer:
                await refused(answer, status, code)
        wanted = announce(bytes(50_000), attempt=1)
        async with there.http.post(
            "/v2/uploads", json=wanted, headers=bearer("token-b")
        ) as answer:
            assert answer.status == 200
        assert there.uploads.held == 150_000
        await patch(there, 0, DATA)
        await commit(there)
        assert there.uploads.held == 50_000

    run(tmp_path, test)


def test_an_update_longer_than_announced_is_refused_unread(tmp_path: Path) -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        while True:
            yield bytes(50_000)
            await asyncio.sleep(0)

    async def test(there: Served) -> None:
        await post(there)
        await patch(there, 0, DATA[:90_000])
        assert (await patch(there, 90_000, bytes(10_001)))[0] == 413
        assert await head(there) == 90_000
        with contextlib.suppress(aiohttp.ClientError):  # it hangs up in the middle
            assert (await patch(there, 90_000, endless()))[0] == 413
        assert 90_000 <= await head(there) <= 100_000
        async with there.http.post(
            "/v2/uploads", json=announce(b"", bytes=2**40)
        ) as answer:
            await refused(answer, 413, "too_large")

    run(tmp_path, test, Limits(linger=0.2, shutdown=0.2, upload=2**39))


@pytest.mark.parametrize("data", [DATA, LARGE])
def test_a_full_disk_is_told_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    write, room = os.pwrite, [len(data) // 3]

    def pwrite(descriptor: int, piece: memoryview, offset: int) -> int:
        if offset >= room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, piece[: room[0] - offset], offset)

    async def test(there: Served) -> None:
        await post(there, data)
        monkeypatch.setattr(os, "pwrite", pwrite)
        # The server may hang up before all was sent, as the answer is known.
        with contextlib.suppress(aiohttp.ClientError):
            assert (await patch(there, 0, data))[0] == 507
        there_are = await head(there)
        assert there_are <= room[0]
        file = tmp_path / "parts" / f"{NAME}.part"
        while file.stat().st_size != there_are:
            await asyncio.sleep(0.005)
        room[0] = len(data)  # somebody has made room
        status, at = await patch(there, there_are, data[there_are:])
        assert (status, at) == (204, str(len(data)))
        assert (await commit(there))["verdict"] == "accepted"
        assert there.coordinator.contents[NAME] == data

    run(tmp_path, test)


def test_a_disk_without_room_is_told_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(there: Served) -> None:
        from spheroid_jax.transport.http import uploads

        usage = uploads.shutil.disk_usage(tmp_path)
        monkeypatch.setattr(
            uploads.shutil, "disk_usage", lambda path: usage._replace(free=99_999)
        )
        async with there.http.post("/v2/uploads", json=announce(DATA)) as answer:
            await refused(answer, 507, "disk_full")
        monkeypatch.setattr(
            uploads.shutil, "disk_usage", lambda path: usage._replace(free=100_000)
        )
        assert (await post(there))["offset"] == 0

    run(tmp_path, test)


def test_parts_that_dont_grow_expire(tmp_path: Path) -> None:
    async def main() -> None:
        now = [0.0]
        uploads = Uploads(tmp_path, 10**9, expire=100, clock=lambda: now[0])
        await uploads.begin("ada", message())
        await uploads.begin("bob", message())
        now[0] = 60.0
        await uploads.receive("ada", NAME, 0, pieces(DATA[:10]), nothing)
        now[0] = 101.0
        assert uploads.drop_expired() == 1
        assert uploads.offset("ada", NAME) == 10
        with pytest.raises(ProtocolError, match="no upload"):
            uploads.offset("bob", "3-1-bob-0")
        now[0] = 161.0
        assert uploads.drop_expired() == 1
        assert list(tmp_path.iterdir()) == []
        uploads.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_the_parts_of_rounds_that_are_over_are_dropped(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there, LARGE)
        await post(there, DATA, round=4)
        sent = asyncio.Event()

        async def body() -> AsyncGenerator[bytes, None]:
            yield LARGE[:2_000_000]
            sent.set()
            await asyncio.sleep(60)

        sending = asyncio.create_task(patch(there, 0, body()))
        await sent.wait()
        while await head(there) == 0:
            await asyncio.sleep(0.005)
        assert there.uploads.drop(4) == 1
        with pytest.raises(aiohttp.ClientError):
            await sending
        assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
            "4-1-ada-0.json",
            "4-1-ada-0.part",
        ]
        async with there.http.head(PART) as answer:
            assert answer.status == 404

    run(tmp_path, test)


def test_a_worker_has_a_few_parts_only(tmp_path: Path) -> None:
    async def main() -> None:
        now = [0.0]
        uploads = Uploads(tmp_path, 10**9, each=2, clock=lambda: now[0])
        await uploads.begin("bob", message())
        for attempt in range(4):
            now[0] += 1
            await uploads.begin("ada", message(attempt=attempt))
        assert sorted(path.stem for path in tmp_path.glob("*.part")) == [
            "3-1-ada-2",
            "3-1-ada-3",
            "3-1-bob-0",
        ]
        uploads.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_part_that_another_hand_cut_goes_on_from_there(tmp_path: Path) -> None:
    async def main() -> None:
        uploads = Uploads(tmp_path, 10**9)
        await uploads.begin("ada", message())
        await uploads.receive("ada", NAME, 0, pieces(DATA[:500]), nothing)
        os.truncate(tmp_path / f"{NAME}.part", 100)
        with pytest.raises(WrongOffset) as caught:
            await uploads.receive("ada", NAME, 500, pieces(DATA[500:]), nothing)
        assert caught.value.headers == {"Upload-Offset": "100"}
        size = await uploads.receive("ada", NAME, 100, pieces(DATA[100:]), nothing)
        assert size == len(DATA)
        assert (tmp_path / f"{NAME}.part").read_bytes() == DATA
        uploads.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_two_commits_at_once_are_one(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there)
        await patch(there, 0, DATA)
        first, second = await asyncio.gather(commit(there), commit(there))
        assert first == second
        assert there.coordinator.commits == 1

    run(tmp_path, test)


def test_a_commit_goes_on_when_the_worker_hangs_up(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there)
        await patch(there, 0, DATA)
        _, writer = await asyncio.open_connection("127.0.0.1", there.running.port)
        writer.write(
            f"POST {PART}/commit HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
            "Authorization: Bearer token-a\r\n\r\n{}".encode()
        )
        writer.close()
        while not there.coordinator.verdicts:
            await asyncio.sleep(0.005)
        assert (await commit(there))["verdict"] == "accepted"
        assert there.coordinator.commits == 1

    run(tmp_path, test)


def test_a_coordinator_that_fails_within_a_commit_leaves_the_part(
    tmp_path: Path,
) -> None:
    async def test(there: Served) -> None:
        await post(there)
        await patch(there, 0, DATA)
        there.coordinator.fails = ProtocolError("draining", status=503, code="busy")
        async with there.http.post(f"{PART}/commit", json={}) as answer:
            await refused(answer, 503, "busy")
        there.coordinator.fails = None
        assert (await commit(there))["verdict"] == "accepted"

    run(tmp_path, test)


def test_an_update_without_bytes(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there, b"")
        assert (await commit(there))["verdict"] == "accepted"
        assert there.coordinator.contents[NAME] == b""

    run(tmp_path, test)


def test_more_than_two_gibibytes(tmp_path: Path) -> None:
    """Offsets beyond 2**31; the file is sparse, only its end is sent."""
    start = 2**31 + 5

    async def main() -> None:
        async with served(tmp_path, quota=2**33) as there:
            await post(there, DATA, bytes=start + len(DATA))
        os.truncate(tmp_path / "parts" / f"{NAME}.part", start)
        async with served(tmp_path, quota=2**33) as there:
            assert await head(there) == start
            assert await patch(there, start, DATA) == (204, str(start + len(DATA)))
            assert await head(there) == start + len(DATA)
        with (tmp_path / "parts" / f"{NAME}.part").open("rb") as file:
            file.seek(start)
            assert file.read() == DATA

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_part_that_is_being_committed_isnt_dropped(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        await post(there)
        await patch(there, 0, DATA)
        looks, go_on = asyncio.Event(), asyncio.Event()
        take = there.coordinator.commit

        async def slow(worker: str, request: Upload, path: Path) -> Verdict:
            looks.set()
            await go_on.wait()
            return await take(worker, request, path)

        there.coordinator.commit = slow  # type: ignore[method-assign]
        committing = asyncio.create_task(commit(there))
        await looks.wait()
        assert there.uploads.drop(100) == 0
        go_on.set()
        assert (await committing)["verdict"] == "accepted"
        assert there.uploads.drop(100) == 1
        assert list((tmp_path / "parts").iterdir()) == []

    run(tmp_path, test)


def test_a_part_that_is_dropped_while_it_is_hashed_isnt_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(there: Served) -> None:
        await post(there)
        await patch(there, 0, DATA)

        def digest(part: Part) -> str:
            assert there.uploads.drop(100) == 1  # its round ends at this moment
            return blake3(DATA).hexdigest()

        monkeypatch.setattr(Part, "digest", digest)
        async with there.http.post(f"{PART}/commit", json={}) as answer:
            await refused(answer, 404, "unknown")
        assert there.coordinator.commits == 0

    run(tmp_path, test)


def test_nobody_waits_for_the_files_of_others_to_be_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart, when all that came before it is read once more."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow(part: Part) -> str:
        begun.release()
        assert go_on.wait(20)
        return blake3(DATA).hexdigest()

    async def test(there: Served) -> None:
        for attempt in range(4):
            await post(there, attempt=attempt)
            part = f"/v2/uploads/3-1-ada-{attempt}"
            headers = {"Upload-Offset": "0"}
            async with there.http.patch(part, data=DATA, headers=headers) as answer:
                assert answer.status == 204
            there.uploads._parts[f"3-1-ada-{attempt}"].hasher = None
        monkeypatch.setattr(Part, "digest", slow)

        async def commit(attempt: int) -> int:
            part = f"/v2/uploads/3-1-ada-{attempt}"
            async with there.http.post(f"{part}/commit", json={}) as answer:
                return answer.status

        commits = [asyncio.create_task(commit(attempt)) for attempt in range(4)]
        try:
            await asyncio.to_thread(begun.acquire, timeout=10)
            await asyncio.to_thread(begun.acquire, timeout=10)
            as_bob = bearer("token-b")
            async with asyncio.timeout(5):
                async with there.http.post(
                    "/v2/uploads", json=announce(DATA), headers=as_bob
                ) as answer:
                    assert answer.status == 200
        finally:
            go_on.set()
        assert await asyncio.gather(*commits) == [200] * 4

    run(tmp_path, test)
