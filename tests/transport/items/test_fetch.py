"""Only what isn't here comes over the wire, and only what is right stays."""

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spheroid_jax.transport.items import fetch, pieces
from spheroid_jax.transport.items.index import Piece
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import Item
from tests.transport.items.making import Source, item_of, layout, numbers, write_item

# Gaps in these small items count as large ones.
GAP = 10


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_GAP", GAP)
    monkeypatch.setattr(pieces, "_BATCH", 2500)


def made(leaves: dict[str, np.ndarray], **how: Any) -> tuple[Item, Source]:
    index, data = layout(leaves)
    item, content = item_of(index, len(data))
    return item, Source(content, data, **how)


def get(source: Source, item: Item, target: Path, **how: Any) -> int:
    doing = fetch.fetch(source, item, target, **how)
    return asyncio.run(asyncio.wait_for(doing, 20))


def data_of(target: Path) -> bytes:
    return (target / "data.0").read_bytes()


LEAVES = {"w": numbers(2000), "b": numbers(3, seed=1), "v": numbers(501, seed=2)}


def test_all_of_it_by_one_request_and_then_none(tmp_path: Path) -> None:
    item, source = made(LEAVES)
    told: list[tuple[int, int]] = []
    target = tmp_path / "items" / item.digest
    moved = get(source, item, target, progress=lambda *now: told.append(now))
    assert moved == len(source.content) + len(source.data)
    assert source.asked == [(0, item.bytes)]
    assert data_of(target) == source.data
    assert (target / "index.0.json").read_bytes() == source.content
    assert told[0] == (0, item.bytes)
    assert told[-1] == (item.bytes, item.bytes)
    assert told == sorted(told)
    assert os.listdir(target.parent) == [item.digest]
    assert get(source, item, target) == 0
    assert (source.indexes, len(source.asked)) == (1, 1)


def test_an_item_without_bytes(tmp_path: Path) -> None:
    item, source = made({"none": np.zeros((0, 4), np.float32)})
    get(source, item, tmp_path / "a")
    assert source.asked == []
    assert data_of(tmp_path / "a") == b""


def test_equal_pieces_of_older_items_are_taken(tmp_path: Path) -> None:
    write_item(tmp_path / "old", {"first": numbers(9, seed=7), **LEAVES})
    new = {name: array.copy() for name, array in LEAVES.items()}
    new["w"][600] = 5.0  # byte 2400, in the third piece
    item, source = made(new)
    moved = get(source, item, tmp_path / "new")
    assert source.asked == [(2000, 3000)]
    assert moved == len(source.content) + 1000
    assert data_of(tmp_path / "new") == source.data


def test_a_rotten_older_item_is_not_taken_from(tmp_path: Path) -> None:
    write_item(tmp_path / "old", LEAVES)
    data = bytearray(data_of(tmp_path / "old"))
    data[10] ^= 1
    (tmp_path / "old" / "data.0").write_bytes(data)
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "index.0.json").write_text("[]")
    (tmp_path / "junk" / "data.0").write_text("")
    new = LEAVES | {"v": numbers(501, seed=3)}
    item, source = made(new)
    get(source, item, tmp_path / "new")
    assert source.asked == [(0, 1000), (8012, item.bytes)]
    assert data_of(tmp_path / "new") == source.data


class Broken(Exception):
    pass


class Breaking(Source):
    """Breaks after some bytes, once."""

    async def read_data(self, item: Item, start: int, stop: int) -> Any:
        sent = 0
        async for chunk in super().read_data(item, start, stop):
            yield chunk
            sent += len(chunk)
            if sent >= item.bytes // 2 and len(self.asked) == 1:
                raise Broken


def test_cut_in_the_middle_it_goes_on_from_there(tmp_path: Path) -> None:
    index, data = layout(LEAVES)
    item, content = item_of(index, len(data))
    source = Breaking(content, data)
    target = tmp_path / "a"
    with pytest.raises(Broken):
        get(source, item, target)
    assert not target.exists()
    moved = get(source, item, target)
    # Half of 10016 bytes are two batches of 2000 bytes.
    assert source.asked[1:] == [(4000, item.bytes)]
    assert moved == item.bytes - 4000
    assert source.indexes == 1
    assert data_of(target) == data


def test_what_was_left_is_checked(tmp_path: Path) -> None:
    item, source = made(LEAVES)
    part = tmp_path / "a.part"
    part.mkdir()
    left = bytearray(source.data[:5500] + b"x" * 9000)
    left[1500] ^= 1
    (part / "data.0").write_bytes(left)
    (part / "index.0.json").write_bytes(b"{}")
    get(source, item, tmp_path / "a")
    assert source.asked == [(1000, 2000), (5000, item.bytes)]
    assert data_of(tmp_path / "a") == source.data


def test_a_corrupt_piece_is_fetched_again(tmp_path: Path) -> None:
    def spoil(data: bytes, number: int) -> bytes:
        return data if number > 2 else data[:4500] + b"?" + data[4501:]

    item, source = made(LEAVES, spoil=spoil)
    get(source, item, tmp_path / "a")
    assert source.asked == [(0, item.bytes), (4000, 5000), (4000, 5000)]
    assert data_of(tmp_path / "a") == source.data


def test_content_that_stays_corrupt_is_refused(tmp_path: Path) -> None:
    item, source = made(LEAVES, spoil=lambda data, number: b"?" * len(data))
    with pytest.raises(LinkError, match="12 of 12 pieces .* 4 times") as said:
        get(source, item, tmp_path / "a")
    assert said.value.code == "corrupted"
    assert len(source.asked) == 4
    assert not (tmp_path / "a").exists()


def test_a_truncated_answer_is_asked_for_again(tmp_path: Path) -> None:
    item, source = made(LEAVES, spoil=lambda d, n: d[:4200] if n == 1 else d)
    get(source, item, tmp_path / "a")
    # The batch that was coming in is lost: two pieces are.
    assert source.asked == [(0, item.bytes), (4000, item.bytes)]
    assert data_of(tmp_path / "a") == source.data


def test_a_wrong_index_is_fetched_again_and_refused(tmp_path: Path) -> None:
    item, source = made(LEAVES)
    source.content = source.content[:-1]
    with pytest.raises(LinkError, match="another SHA-256") as said:
        get(source, item, tmp_path / "a")
    assert said.value.code == "corrupted"
    assert (source.indexes, source.asked) == (4, [])


def test_a_damaged_item_is_fetched_anew(tmp_path: Path) -> None:
    item, source = made(LEAVES)
    get(source, item, tmp_path / "a")
    (tmp_path / "a" / "data.0").write_bytes(b"short")
    get(source, item, tmp_path / "a")
    assert data_of(tmp_path / "a") == source.data


def test_a_disk_without_room_is_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, source = made(LEAVES)
    usage = shutil.disk_usage(tmp_path)._replace(free=item.bytes - 1)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(LinkError, match=f"{item.bytes} bytes .*make room") as said:
        get(source, item, tmp_path / "a")
    assert said.value.code == "disk_full"
    assert source.asked == []


def test_a_disk_that_fills_is_told_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, source = made(LEAVES)
    pwritev = os.pwritev

    def full(descriptor: int, parts: list[memoryview], at: int) -> int:
        if at >= 4000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(descriptor, parts, at)

    monkeypatch.setattr(pieces.os, "pwritev", full)
    with pytest.raises(LinkError, match="No space left on device") as said:
        get(source, item, tmp_path / "a")
    assert said.value.code == "disk_full"
    assert "\n" not in str(said.value)
    monkeypatch.undo()
    get(source, item, tmp_path / "a")
    assert source.asked[1] == (4000, item.bytes)
    assert data_of(tmp_path / "a") == source.data


def test_an_error_of_the_disk_that_comes_late_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells of a failed write once, when the file is flushed."""
    item, source = made(LEAVES)
    fsync, calls = os.fsync, []

    def first_fails(descriptor: int) -> None:
        calls.append(descriptor)
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("data.0"):
            monkeypatch.setattr(fetch.os, "fsync", fsync)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(fetch.os, "fsync", first_fails)
    with pytest.raises(LinkError, match="Input/output error.*check that disk") as said:
        get(source, item, tmp_path / "a")
    assert said.value.code == "disk"
    assert not (tmp_path / "a").exists()


def test_cancelled_it_leaves_no_thread_at_the_file(tmp_path: Path) -> None:
    item, source = made(LEAVES)
    started = asyncio.Event()

    class Hanging(Source):
        async def read_data(self, item: Item, start: int, stop: int) -> Any:
            yield self.data[:5000]
            started.set()
            await asyncio.Event().wait()

    async def scenario() -> None:
        hanging = Hanging(source.content, source.data)
        task = asyncio.create_task(fetch.fetch(hanging, item, tmp_path / "a"))
        await asyncio.wait_for(started.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)

    open_before = len(os.listdir("/proc/self/fd"))
    asyncio.run(scenario())
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert data_of(tmp_path / "a.part")[:4000] == source.data[:4000]


def test_cancelled_while_it_looks_it_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, source = made(LEAVES)
    (tmp_path / "a.part").mkdir()
    (tmp_path / "a.part" / "data.0").write_bytes(source.data)
    looking, go_on = threading.Event(), threading.Event()
    looked: list[Piece] = []
    still_open: list[Piece] = []
    read = pieces.read

    def slowly(descriptor: int, piece: Piece) -> bytes | None:
        looked.append(piece)
        looking.set()
        assert go_on.wait(10)
        os.fstat(descriptor)  # is still open
        still_open.append(piece)
        return read(descriptor, piece)

    monkeypatch.setattr(pieces, "read", slowly)

    async def scenario() -> None:
        task = asyncio.create_task(fetch.fetch(source, item, tmp_path / "a"))
        await asyncio.to_thread(looking.wait, 10)
        task.cancel()
        threading.Timer(0.1, go_on.set).start()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)

    asyncio.run(scenario())
    assert 0 < len(looked) < 10  # of twelve; as many as there are threads
    assert sorted(still_open) == sorted(looked)


def test_runs_join_over_small_gaps_only() -> None:
    sizes = [100, GAP, 100, GAP + 1, 100, 100]
    whole, at = [], 0
    for size in sizes:
        whole.append(Piece(at, size, ""))
        at += size
    missing = {p.offset: p for i, p in enumerate(whole) if i in (0, 2, 4, 5)}
    assert pieces.runs(whole, missing) == [whole[:3], whole[4:]]
    assert pieces.runs(whole, {}) == []


@pytest.mark.parametrize("most", [10**6, 7])
def test_a_short_write_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    pwritev, pwrite = os.pwritev, os.pwrite
    monkeypatch.setattr(
        pieces.os,
        "pwritev",
        lambda file, parts, at: pwritev(file, [b"".join(parts)[:most]], at),
    )
    monkeypatch.setattr(
        pieces.os, "pwrite", lambda file, view, at: pwrite(file, view[:most], at)
    )
    content = bytes(range(100))
    parts = [content[at : at + 1] for at in range(100)]
    monkeypatch.setattr(pieces, "_VECTORS", 50)
    for some in (parts, [content[:9], content[9:]]):
        with (tmp_path / "file").open("wb") as file:
            pieces.write(file.fileno(), some, 5)
        assert (tmp_path / "file").read_bytes() == bytes(5) + content
