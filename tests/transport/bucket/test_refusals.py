"""What stores say when they refuse, and what becomes of it: a line, or another try."""

import asyncio
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.transport.bucket import address
from spheroid_jax.transport.bucket.errors import BucketError, explain
from spheroid_jax.transport.bucket.store import BlobStore

LIMIT = 20.0  # seconds of a test's work


def run(work: Any) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(LIMIT):
            return await work

    return asyncio.run(limited())


class _Server:
    """Answers every request with one status, or never."""

    def __init__(self) -> None:
        self.status: int | None = 200
        self.body = b"<html>hello</html>"
        self.asked = 0
        self.end = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                outer.asked += 1
                if outer.status is None:
                    outer.end.wait(LIMIT)
                    return
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            do_GET = do_PUT = do_DELETE = answer

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    made = _Server()
    yield made
    made.end.set()
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        (500, "unreachable", "busy"),
        (503, "unreachable", "busy"),
        (403, "forbidden", "check the credentials"),
        (401, "forbidden", "check the credentials"),
        (200, "missing", "no object store"),
    ],
)
def test_a_server_that_refuses(
    server: _Server, status: int, code: str, why: str
) -> None:
    server.status = status
    store = BlobStore(f"s3://models/p?endpoint={server.url}")

    async def work() -> None:
        for try_it in (store.check(), store.put("k", b"x")):
            with pytest.raises(BucketError, match=why) as caught:
                await try_it
            assert caught.value.code == code
            assert "\n" not in str(caught.value)

    run(work())
    assert server.asked <= 2 * address.ATTEMPTS  # an end is in sight


def test_a_server_that_never_answers_is_given_up(server: _Server) -> None:
    server.status = None
    store = BlobStore(f"s3://models/p?endpoint={server.url}", seconds=0.2)

    async def work() -> None:
        # More than there are places for requests: none of them is held for ever.
        for _ in range(address.AT_ONCE + 2):
            with pytest.raises(BucketError, match="didn't answer within 0 s"):
                await store.list("k")

    run(work())
    assert server.asked == address.AT_ONCE + 2


@pytest.mark.parametrize(
    ("status", "said", "message", "code", "why"),
    [
        (503, "SlowDown", "Please reduce your request rate.", "unreachable", "busy"),
        (429, "TooManyRequests", "", "unreachable", "busy"),
        (500, "InternalError", "We encountered an error", "unreachable", "busy"),
        (400, "RequestTimeout", "Your socket was idle", "unreachable", "busy"),
        (409, "OperationAborted", "A conflicting operation", "failed", "conflicting"),
        (400, "ExpiredToken", "The token has expired", "credentials", "renew them"),
        (403, "RequestTimeTooSkewed", "too large", "forbidden", "set the clock"),
        (403, "AccessDenied", "Access Denied", "forbidden", "check the credentials"),
        (403, "InvalidAccessKeyId", "no such key", "forbidden", "check the cred"),
        (403, "SignatureDoesNotMatch", "check it", "forbidden", "check the cred"),
        (301, "PermanentRedirect", "use the other one", "missing", "region=NAME"),
        (
            400,
            "AuthorizationHeaderMalformed",
            "the region 'us-east-1' is wrong; expecting 'eu-central-1'",
            "missing",
            r"eu-central-1.*region=NAME",
        ),
        (507, "InsufficientStorage", "full", "failed", "no room left"),
        (403, "QuotaExceeded", "full", "failed", "no room left"),
        (404, "NoSuchBucket", "there is none", "missing", "no such bucket"),
    ],
)
def test_what_s3_says_is_told_in_a_line(
    server: _Server, status: int, said: str, message: str, code: str, why: str
) -> None:
    server.status = status
    server.body = (
        f"<?xml version='1.0'?><Error><Code>{said}</Code><Message>{message}</Message>"
        "<RequestId>1</RequestId></Error>"
    ).encode()
    store = BlobStore(f"s3://models/p?endpoint={server.url}")
    with pytest.raises(BucketError, match=why) as caught:
        run(store.put("k", b"x"))
    text = str(caught.value)
    assert caught.value.code == code
    assert "\n" not in text
    assert "s3://models/p/k" in text
    assert len(text) < 300
    assert server.asked <= address.ATTEMPTS


@pytest.mark.parametrize(
    ("number", "code", "why"),
    [
        (28, "failed", "no room"),
        (122, "failed", "no room"),
        (30, "forbidden", "mount"),
        (13, "forbidden", "check"),
        (116, "failed", "Stale file handle"),
    ],
)
def test_what_a_folder_says_is_told_in_a_line(number: int, code: str, why: str) -> None:
    """In TensorStore's words; of a full disk, a quota, a mount, rights, and NFS."""
    there = address.parse("file:///shared/run")
    said = f"UNKNOWN: Failed to write file: {os.strerror(number)} "
    error = explain("write", "k", there, f"{said}[os_error_code='{number}']")
    assert error.code == code
    assert why in str(error)


def test_a_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o555)
    with pytest.raises(BucketError, match="check") as caught:
        run(BlobStore(f"file://{tmp_path}/run").put("k", b"x"))
    assert caught.value.code == "forbidden"


def test_what_a_killed_writer_left_in_a_folder_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "k.__lock").write_bytes(b"half of wha")
    store = BlobStore(f"file://{tmp_path}/run")

    async def work() -> None:
        assert await store.list() == []
        assert await store.read("k") is None
        await store.put("k", b"whole")
        assert await store.list() == ["k"]
        found = await store.read("k")
        assert found is not None
        assert found.content == b"whole"

    run(work())


def test_an_answer_without_the_bytes_is_none(server: _Server) -> None:
    """Not an object of fewer bytes: nobody asked whether it has changed."""
    server.status = 412
    store = BlobStore(f"s3://models/p?endpoint={server.url}")
    with pytest.raises(BucketError, match="other bytes") as caught:
        run(store.get("k", 0, 3))
    assert caught.value.code == "short"
