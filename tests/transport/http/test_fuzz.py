"""Whatever is sent to the server, it answers 4xx or hangs up, and goes on."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.transport.http.fuzzed_server import DIGEST
from tests.transport.http.server_fakes import SESSION, announce, bearer

UPLOAD = "3-1-ada-0"
ENDPOINTS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/v2/workers", {"protocol": 2, "session": SESSION, "device": "cpu"}),
    ("POST", "/v2/work", {"session": SESSION, "after": 1, "wait": 0}),
    ("POST", "/v2/heartbeat", {"session": SESSION, "round": 1, "train_seconds": 1.5}),
    ("POST", "/v2/leave", {"session": SESSION}),
    ("POST", "/v2/uploads", announce(b"data", attempt=1)),
    ("POST", f"/v2/uploads/{UPLOAD}/commit", {}),
    ("PATCH", f"/v2/uploads/{UPLOAD}", None),
    ("HEAD", f"/v2/uploads/{UPLOAD}", None),
    ("GET", f"/v2/items/{DIGEST}/data", None),
    ("GET", f"/v2/items/{DIGEST}/index", None),
    ("HEAD", f"/v2/items/{DIGEST}/data", None),
]


class Target(NamedTuple):
    """The server's process."""

    port: int
    pid: int
    log: Path

    def logged(self) -> int:
        """Bytes of log so far."""
        return self.log.stat().st_size

    def memory(self) -> int:
        """The most bytes it has held."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if not Path("/proc/self/status").exists():
        pytest.skip("the memory of a process can't be told here")
    home = tmp_path_factory.mktemp("fuzz")
    log = home / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.transport.http.fuzzed_server", str(home)],
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        assert process.stdout is not None
        yield Target(int(process.stdout.readline()), process.pid, log)
    finally:
        process.kill()
        process.wait()


# Pieces of requests: right ones, broken ones, and noise.
noise = st.binary(max_size=60)
odd_numbers = st.sampled_from(
    [0, 1, -1, "+5", "2e3", "0x10", 10**20, 2**63, 2**20 + 1, "1_0", "NaN", "5,5"]
).map(str) | st.sampled_from(["\u0661", "\u00b2"])
odd_texts = st.sampled_from(
    [
        "",
        "\0",
        "..",
        "%2e%2e%2f",
        "%00",
        "\u0661",
        "a" * 5000,
        "\r\nX: y",
        "\ud7ff",
        "/",
    ]
) | st.text(max_size=20)
odd_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, 2**64, -1, 1e308, float("nan"), float("inf")])
    | odd_texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
bad_bodies = st.sampled_from(
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"\0" * 50,
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"session":"' + b"0" * 31 + b'\\u0661"}',
        b'{"session":"\\ud800"}',
        b'{"round":' + b"9" * 10_000 + b"}",
        b'{"round":1e999}',
        b'{"round":NaN}',
        b'{"round":Infinity}',
        b" " * (1 << 20) + b"{}",
    ]
)
bad_chunks = st.sampled_from(
    [
        b"0\r\n\r\n",
        b"5\r\nab\r\n0\r\n\r\n",
        b"zz\r\nab\r\n0\r\n\r\n",
        b"-1\r\nab\r\n",
        b"ffffffffffffffffffff\r\nab\r\n",
        b"2;" + b"x" * 5000 + b"\r\nab\r\n0\r\n\r\n",
        b"2\nab\n0\n\n",
        b"2\r\nab\r\n0\r\nTrailer: x\r\n\r\n",
        b"2\r\nab\r\n" * 2000 + b"0\r\n\r\n",
    ]
)


@st.composite
def paths(draw: st.DrawFn, path: str) -> str:
    """A path, mostly with one of its segments replaced."""
    if draw(st.integers(0, 3)) == 0:
        return path
    segments = path.split("/")
    at = draw(st.integers(0, len(segments) - 1))
    segments[at] = draw(odd_texts)
    return "/".join(segments)


@st.composite
def bodies(draw: st.DrawFn, message: dict[str, Any] | None) -> bytes:
    """A message with odd fields, or no message at all."""
    if message is None or draw(st.booleans()):
        return draw(noise | bad_bodies)
    changed = dict(message)
    if changed:
        changed[draw(st.sampled_from(sorted(changed)))] = draw(odd_values)
    return json.dumps(changed).encode("utf-8", "surrogatepass")


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request that has something wrong, most often."""
    method, path, message = draw(st.sampled_from(ENDPOINTS))
    if draw(st.integers(0, 5)) == 0:
        method = draw(st.sampled_from(["TRACE", "CONNECT", "get", "PUT", "X" * 300]))
    version = draw(st.sampled_from(["HTTP/1.1"] * 6 + ["HTTP/1.0", "HTTP/9.9", ""]))
    token = draw(st.sampled_from(["token-a"] * 6 + ["", "token-x", "\u00e9\0"]))
    head = f"{method} {draw(paths(path))} {version}\r\nHost: x\r\n"
    head += f"Authorization: Bearer {token}\r\n"
    if draw(st.booleans()):
        head += f"Upload-Offset: {draw(odd_numbers)}\r\n"
    name = draw(
        st.sampled_from(
            ["X", "Range", "If-Range", "Expect", "Upgrade", "Content-Encoding", "Host"]
        )
    )
    if draw(st.booleans()):
        head += f"{name}: {draw(odd_texts | odd_numbers)}\r\n"
    if draw(st.integers(0, 9)) == 0:
        head += "Upgrade: websocket\r\nConnection: upgrade\r\n"
    else:
        head += "Connection: close\r\n"
    if draw(st.integers(0, 3)) == 0:
        body = draw(bad_chunks)
        head += "Transfer-Encoding: chunked\r\n"
    else:
        body = draw(bodies(message))
    if draw(st.integers(0, 3)) == 0:
        head += f"Content-Length: {draw(odd_numbers)}\r\n"
    elif b"chunked" not in head.encode("utf-8", "replace"):
        head += f"Content-Length: {len(body)}\r\n"
    whole = head.encode("utf-8", "replace") + b"\r\n" + body
    if draw(st.integers(0, 4)) == 0:  # cut, or with something in the middle
        at = draw(st.integers(0, min(len(whole), 400)))
        whole = whole[:at] + draw(noise) + whole[at + draw(st.integers(0, 50)) :]
    return whole


async def throw(port: int, data: bytes) -> bytes:
    """Sends it and reads until the server hangs up, which it has to do."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = bytearray()
    try:
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(8):
            while piece := await reader.read(65536):
                answer += piece
    except TimeoutError:
        pytest.fail(f"the server doesn't hang up on {data[:1000]!r}: {answer[:500]!r}")
    except ConnectionError:
        pass
    finally:
        writer.close()
    return bytes(answer)


async def leave(port: int, data: bytes) -> None:
    """Sends it and is gone, sooner or later."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await asyncio.sleep(len(data) % 3 * 0.02)
    writer.transport.abort()


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]


async def works(port: int) -> None:
    """A good request is still answered."""
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
        http.post(
            "/v2/heartbeat", json={"session": SESSION}, headers=bearer("token-b")
        ) as answer,
    ):
        assert answer.status == 200


async def throw_all(target: Target, thrown: list[bytes]) -> list[bytes]:
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*(throw(target.port, one) for one in thrown))
        await asyncio.gather(*(leave(target.port, one) for one in thrown))
        await works(target.port)
    for one, answer in zip(thrown, answers, strict=True):
        assert all(status < 500 for status in statuses(answer)), (one[:500], answer)
        assert b"Traceback" not in answer
    return answers


def check_log(target: Target, since: int) -> None:
    with target.log.open("rb") as file:
        file.seek(since)
        log = file.read().decode(errors="replace")
    assert "Traceback" not in log, log[max(0, log.index("Traceback") - 500) :][:3000]
    for level in ("ERROR", "CRITICAL", "never retrieved", "was never awaited"):
        assert level not in log


# Without shrinking, which would take minutes: a failure names the request.
fuzz = settings(
    deadline=None,
    suppress_health_check=[*HealthCheck],
    database=None,
    phases=[Phase.explicit, Phase.generate],
)


@settings(fuzz, max_examples=18)
@given(st.lists(requests(), min_size=15, max_size=25))
@example(
    [b"\0" * 100, b"\r\n" * 5000, b"\x16\x03\x01\x02\x00\x01\x00\x01", b"a" * 70_000]
)
@example([b"CONNECT \r\n\r\n", b"CONNECT  HTTP/1.1\r\n\r\n", b"\r\nCONNECT x\r\n\r\n"])
def test_requests_of_any_kind(target: Target, thrown: list[bytes]) -> None:
    since = target.logged()
    asyncio.run(throw_all(target, thrown))
    check_log(target, since)


@settings(fuzz, max_examples=10)
@given(
    st.lists(noise | st.binary(min_size=200, max_size=3000), min_size=20, max_size=20)
)
def test_bytes_of_any_kind(target: Target, thrown: list[bytes]) -> None:
    since = target.logged()
    asyncio.run(throw_all(target, thrown))
    check_log(target, since)


@pytest.mark.parametrize(
    "method_path_message", ENDPOINTS, ids=lambda e: f"{e[0]}{e[1]}"
)
def test_every_endpoint_refuses_what_is_wrong(
    target: Target, method_path_message: tuple[str, str, dict[str, Any] | None]
) -> None:
    """For these 4xx is the only answer there is."""
    method, path, message = method_path_message
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n"
    token = "Authorization: Bearer token-a\r\n"
    close = "Connection: close\r\n"
    garbage = b"[" * 100_000 if message is not None else b"x" * 2_000_000
    wrong = [
        f"{head}{close}\r\n".encode(),
        f"{head}{close}Authorization: Bearer token-x\r\n\r\n".encode(),
        f"{head}{token}Content-Length: x\r\n\r\n".encode(),
        f"{head}{token}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab".encode(),
        f"{head}{token}Content-Length: -1\r\n\r\n".encode(),
        f"{head}{token}A\0B: x\r\n\r\n".encode(),
        f"{head}{token}{close}Big: {'x' * 9000}\r\n\r\n".encode(),
        (head + token + "".join(f"X{i}: y\r\n" for i in range(500)) + "\r\n").encode(),
        f"{head}{token}{close}\r\n".replace(path, path + "%2e%2e%2f").encode(),
        f"{head}{token}{close}\r\n".replace(path, "/v2/../../etc/passwd").encode(),
        f"{head}{token}{close}\r\n".replace(method, "PUT", 1).encode(),
        f"{head}{token}{close}\r\n".replace(path, path + "/\u0661").encode(),
    ]
    if method in ("POST", "PATCH") and message != {}:
        offset = "Upload-Offset: 0\r\n"
        wrong += [
            f"{head}{token}{close}{offset}"
            f"Content-Length: {len(garbage)}\r\n\r\n".encode()
            + garbage,
            f"{head}{token}{offset}Content-Length: 2000000000000\r\n\r\n{{".encode(),
            f"{head}{token}{offset}Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode(),
            f"{head}{token}{offset}{close}Content-Encoding: gzip\r\n"
            "Content-Length: 2\r\n\r\n{}".encode(),
        ]
    since = target.logged()
    answers = asyncio.run(throw_all(target, wrong))
    for one, answer in zip(wrong, answers, strict=True):
        said = statuses(answer)
        assert said, f"no answer to {one[:200]!r}"
        assert all(400 <= status < 500 for status in said), (one[:300], answer[:500])
        if method != "HEAD":
            assert set(json.loads(answer.split(b"\r\n\r\n", 1)[1])) == {"error", "code"}
    check_log(target, since)


def test_its_memory_is_bounded_and_it_works_as_before(target: Target) -> None:
    """After all that was thrown, and large ones, many at once."""
    before, since = target.memory(), target.logged()
    head = "POST /v2/heartbeat HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-a\r\n"
    deep = b"[" * ((1 << 20) - 10)
    heavy = [
        f"{head}Connection: close\r\nContent-Length: {len(deep)}\r\n\r\n".encode()
        + deep,
        f"{head}Content-Length: 99999999999\r\n\r\n".encode() + bytes(1 << 20),
        f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\nx\r\n" * 50_000,
    ]

    async def heavy_ones() -> None:
        for _ in range(2):
            await throw_all(target, heavy * 7)

    asyncio.run(heavy_ones())
    assert target.memory() - before < 100 << 20

    async def good() -> None:
        data = bytes(range(256)) * 100
        url = f"http://127.0.0.1:{target.port}"
        async with aiohttp.ClientSession(url, headers=bearer("token-b")) as http:
            async with http.post("/v2/uploads", json=announce(data)) as answer:
                part = "/v2/uploads/" + (await answer.json())["upload"]
            offset = {"Upload-Offset": "0"}
            async with http.patch(part, data=data, headers=offset) as answer:
                assert answer.status == 204
            async with http.post(f"{part}/commit", json={}) as answer:
                assert (await answer.json())["verdict"] == "accepted"
            async with http.get(f"/v2/items/{DIGEST}/data") as answer:
                assert len(await answer.read()) == 5000

    asyncio.run(asyncio.wait_for(good(), 20))
    check_log(target, since)
