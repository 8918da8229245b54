"""Objects in a bucket: memory, a folder, and an S3 server all say the same."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.transport.bucket import address
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.store import BlobStore

LIMIT = 20.0  # seconds of a test's work


def run(work: Any) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(LIMIT):
            return await work

    return asyncio.run(limited())


@pytest.fixture(params=["memory", "file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "memory":
        return BlobStore("memory://x/y")
    if request.param == "file":
        return BlobStore(f"file://{tmp_path}/bucket")
    return BlobStore(request.getfixturevalue("s3")("a/prefix"))


def test_what_is_put_is_read(store: BlobStore) -> None:
    content = os.urandom(3_000_000)

    async def work() -> None:
        assert await store.read("a/b") is None
        assert await store.get("a/b", 0, 1) is None
        await store.put("a/b", content)
        assert await store.get("a/b", 0, len(content)) == content
        assert await store.get("a/b", 10, 12) == content[10:12]
        assert await store.get("a/b", 10, 10) == b""
        await store.put("a/b", b"new")
        found = await store.read("a/b")
        assert found is not None
        assert found.content == b"new"
        await store.delete("a/b")
        await store.delete("a/b")
        assert await store.read("a/b") is None

    run(work())


def test_a_range_past_the_end_is_told(store: BlobStore) -> None:
    async def work() -> None:
        await store.put("k", b"hello")
        for start, stop in ((3, 9), (7, 9)):
            with pytest.raises(BucketError) as caught:
                await store.get("k", start, stop)
            assert caught.value.code == "short"

    run(work())


def test_what_is_too_large_is_not_read(store: BlobStore) -> None:
    async def work() -> None:
        await store.put("k", b"x" * 11)
        with pytest.raises(BucketError, match="more than 10 bytes"):
            await store.read("k", limit=10)
        found = await store.read("k", limit=11)
        assert found is not None
        assert found.content == b"x" * 11

    run(work())


def test_what_did_not_change_is_not_read_again(store: BlobStore) -> None:
    async def work() -> None:
        await store.put("k", b"one")
        found = await store.read("k")
        assert found is not None
        assert await store.read("k", unless=found.generation) is None
        await store.put("k", b"two")
        again = await store.read("k", unless=found.generation)
        assert again is not None
        assert again.content == b"two"

    run(work())


def test_listings_are_by_prefix(store: BlobStore) -> None:
    async def work() -> None:
        for key in ("a/1", "a/2", "ab", "b/1", "b/c/d"):
            await store.put(key, b"x")
        assert await store.list("a/") == ["a/1", "a/2"]
        assert await store.list("a") == ["a/1", "a/2", "ab"]
        assert await store.list() == ["a/1", "a/2", "ab", "b/1", "b/c/d"]
        await store.delete("b/1")
        assert await store.list("b/") == ["b/c/d"]

    run(work())


def test_an_empty_object_is_one(store: BlobStore) -> None:
    async def work() -> None:
        await store.put("k", b"")
        found = await store.read("k")
        assert found is not None
        assert found.content == b""

    run(work())


def test_two_stores_of_one_bucket_see_each_other(s3: Callable[[str], str]) -> None:
    async def work() -> None:
        await BlobStore(s3("p")).put("k", b"x")
        found = await BlobStore(s3("p")).read("k")
        assert found is not None
        assert await BlobStore(s3("q")).list() == []

    run(work())


def test_an_address_and_its_environment() -> None:
    there = address.parse(
        "s3://models/run%201?endpoint=http://127.0.0.1:9000&region=eu-west-1", {}
    )
    assert there.url == "s3://models/run 1/"
    assert there.spec["endpoint"] == "http://127.0.0.1:9000"
    assert there.spec["aws_region"] == "eu-west-1"
    given = {"AWS_ENDPOINT_URL": "http://h:1/", "AWS_DEFAULT_REGION": "r"}
    assert address.parse("s3://models", given).spec["endpoint"] == "http://h:1"
    assert address.parse("s3://models", given).spec["aws_region"] == "r"
    assert address.parse("s3://models", {}).spec["path"] == ""
    assert "endpoint" not in address.parse("s3://models", {}).spec
    credentials = address.parse("s3://m", {"AWS_ACCESS_KEY_ID": "k"}).spec
    assert credentials["aws_credentials"] == {"type": "environment"}
    assert address.parse("gs://m/p/q/").spec["path"] == "p/q/"
    assert address.parse("file:///a/b").spec["path"] == "/a/b/"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://KEY:hush@bucket/p", "credentials don't belong"),
        ("s3://bucket/p?secret_access_key=hush", "doesn't belong there"),
        ("gs://bucket/p?endpoint=http://h", "no options"),
        ("s3://bucket?endpoint=http://KEY:hush@host:1", "credentials don't belong"),
        ("s3://bucket?endpoint=host:9000", "http"),
        ("s3://bucket?hush", "can't be taken apart"),
        ("s3:///p", "names no bucket"),
        ("s3://bucket/a//b", "empty or a dotted"),
        ("file:///a/../b", "empty or a dotted"),
        ("file://host/a", "absolute/path"),
        ("http://host/bucket", "must begin with"),
        ("bucket", "must begin with"),
        ("s3://bucket/a#b", "means nothing"),
    ],
)
def test_bad_addresses_are_refused_in_a_line(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        BlobStore(url)
    text = str(caught.value)
    assert "\n" not in text
    assert "hush" not in text


def test_a_bucket_that_does_not_exist(s3: Callable[[str], str]) -> None:
    url = s3("p").replace("//models/", "//no-such/")
    with pytest.raises(BucketError, match="there is no such bucket at http") as caught:
        run(BlobStore(url).check())
    assert caught.value.code == "missing"
    assert "\n" not in str(caught.value)


def test_an_endpoint_where_nobody_is() -> None:
    store = BlobStore("s3://models/p?endpoint=http://127.0.0.1:9")
    with pytest.raises(BucketError, match="127.0.0.1:9 can't be reached") as caught:
        run(store.check())
    assert caught.value.passing


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    # The address was read while they were there.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    store = BlobStore("s3://models/p?endpoint=http://127.0.0.1:9")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(BucketError, match="set AWS_ACCESS_KEY_ID"):
        run(store.check())
