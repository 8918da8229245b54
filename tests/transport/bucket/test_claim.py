"""One prefix belongs to one run."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.worker_side import BucketLink
from spheroid_jax.transport.http.retry import Pace
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import VERSION, Register

OTHER = {
    "protocol": VERSION,
    "run": "abcd1234\x1b[31mffff",
    "epoch": "ee" * 16,
    "poll_seconds": 2.0,
    "signed": True,
}


@pytest.fixture
def folder(tmp_path: Path, bench: Any) -> Path:
    """The bench's bucket, as files."""
    path = tmp_path / "bucket"
    path.mkdir()
    bench.store = BlobStore(f"file://{path}")
    return path


def of(**changes: Any) -> bytes:
    return msgspec.json.encode({**OTHER, **changes})


def files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not true():
            await asyncio.sleep(0.01)


def test_another_runs_prefix_is_left_alone(folder: Path, bench: Any) -> None:
    (folder / "run.json").write_bytes(of())
    there = files(folder)

    async def ended() -> None:
        async with bench.serving():
            await asyncio.sleep(0.5)

    with pytest.raises(BucketError) as caught:
        asyncio.run(ended())
    assert caught.value.code == "taken"
    said = str(caught.value)
    assert said == (
        f"file://{folder}/ holds run abcd1234, and this is run run: one prefix belongs "
        "to one run; take another --bucket prefix, or delete what is there"
    )
    assert files(folder) == there


@pytest.mark.parametrize(
    "before", [of(run="run"), b"no run", b" " * (2 << 20)], ids=["same", "junk", "long"]
)
def test_what_is_no_other_runs_is_written_over(
    before: bytes, folder: Path, bench: Any
) -> None:
    (folder / "run.json").write_bytes(before)

    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada")
            assert (await link.register(Register(VERSION, "1" * 32))).run == "run"
            # An old content that is shown once more is nothing to speak of.
            (folder / "run.json").write_bytes(of(run="run"))
            await asyncio.sleep(0.4)

    asyncio.run(work())
    told = [line for line in bench.said if "run.json" in line]
    assert len(told) == (0 if before == of(run="run") else 1)


def test_a_prefix_that_is_taken_over_is_told_once(folder: Path, bench: Any) -> None:
    path = folder / "run.json"

    async def work() -> None:
        async with bench.serving():
            await until(path.exists)
            own = path.read_bytes()
            path.write_bytes(of())
            await until(lambda: bool(bench.said))
            await asyncio.sleep(0.4)  # more looks find it, too
            assert path.read_bytes() == of()
            # The cure that is named works.
            path.unlink()
            await until(path.exists)
            await until(lambda: path.read_bytes() == own)

    asyncio.run(work())
    (line,) = bench.said
    assert line.startswith(f"file://{folder}/run.json is of run abcd1234 now")
    assert "delete that object" in line


def test_a_worker_at_a_wrong_address_is_asked_about_it(tmp_path: Path) -> None:
    (tmp_path / "mistyped").mkdir()
    heard: list[str] = []
    pace = Pace(0.1, 0.1, 0.01, 0.05)
    store = BlobStore(f"file://{tmp_path}/mistyped")
    link = BucketLink(store, "ada", pace=pace, notice=heard.append)
    with pytest.raises(LinkError, match="no coordinator has begun there") as caught:
        asyncio.run(link.register(Register(VERSION, "1" * 32)))
    assert "is the coordinator running?" in str(caught.value)
    assert "(is the address right?); next try in" in heard[0]
