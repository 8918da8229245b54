"""The coordinator's routes: who may ask what, and what the answers are."""

import asyncio
import logging
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.server import Running, make_app, serve, tls_context
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.protocol import ProtocolError
from tests.transport.http.server_fakes import (
    SESSION,
    FakeCoordinator,
    Served,
    announce,
    bearer,
    problem_error,
    raw,
    refused,
    run,
)

HEARTBEAT = {"session": SESSION, "round": 2}
ROUTES = [
    ("POST", "/v2/workers"),
    ("POST", "/v2/work"),
    ("POST", "/v2/heartbeat"),
    ("POST", "/v2/leave"),
    ("GET", f"/v2/items/{'0' * 64}/index"),
    ("GET", f"/v2/items/{'0' * 64}/data"),
    ("HEAD", f"/v2/items/{'0' * 64}/data"),
    ("POST", "/v2/uploads"),
    ("PATCH", "/v2/uploads/1-1-ada-0"),
    ("HEAD", "/v2/uploads/1-1-ada-0"),
    ("POST", "/v2/uploads/1-1-ada-0/commit"),
    ("GET", "/v2/nothing"),
    ("GET", "/v2"),
]


def test_the_messages_reach_the_coordinator_under_the_name_of_the_token(
    tmp_path: Path,
) -> None:
    async def test(there: Served) -> None:
        register = {"protocol": 2, "session": SESSION, "device": "cpu"}
        async with there.http.post("/v2/workers", json=register) as answer:
            body = await answer.json()
            assert (answer.status, body["worker"], body["lease"]) == (200, "ada", 30.0)
        async with there.http.post(
            "/v2/heartbeat", json=HEARTBEAT, headers=bearer("token-b")
        ) as answer:
            assert await answer.json() == {"round": 3, "wanted": True}
        work = {"session": SESSION, "wait": 0}
        async with there.http.post("/v2/work", json=work) as answer:
            assert (await answer.json())["do"] == "wait"
        async with there.http.post("/v2/leave", json={"session": SESSION}) as answer:
            assert (answer.status, await answer.read()) == (204, b"")
        assert [worker for worker, _ in there.coordinator.asked] == [
            "ada",
            "bob",
            "ada",
            "ada",
        ]
        assert there.coordinator.asked[0][1].device == "cpu"
        assert there.coordinator.asked[1][1].round == 2

    run(tmp_path, test)


@pytest.mark.parametrize(
    "given",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        ["Bearer token-x"],
        ["Basic token-a"],
        ["Bearer token-a token-b"],
        ["token-a"],
        ["Bearer tokén-a"],
        ["Bearer token-a", "Bearer token-b"],
        ["Bearer " + "a" * 2000],
    ],
)
def test_nothing_is_looked_up_without_a_token(tmp_path: Path, given: list[str]) -> None:
    async def test(there: Served) -> None:
        async with aiohttp.ClientSession(there.url) as stranger:
            headers = [("Authorization", value) for value in given]
            for method, path in ROUTES:
                async with stranger.request(method, path, headers=headers) as answer:
                    assert answer.status == 401
                    assert answer.headers["WWW-Authenticate"] == "Bearer"
                    if method != "HEAD":
                        await refused(answer, 401, "unauthorized")
        assert there.coordinator.asked == []

    run(tmp_path, test)


@pytest.mark.parametrize("path", ["/v1/workers", "/v3/work", "/v22/uploads"])
def test_a_peer_of_another_version_is_told_so(tmp_path: Path, path: str) -> None:
    """Even where its token isn't known: the cure comes first."""

    async def test(there: Served) -> None:
        for headers in (bearer("token-a"), bearer("token-x")):
            async with there.http.post(path, json={}, headers=headers) as answer:
                said = await refused(answer, 409, "version")
                assert "version 2 of the protocol" in said
        assert there.coordinator.asked == []

    run(tmp_path, test)


def test_the_scheme_of_a_token_has_no_case(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        for scheme in ("bearer", "BEARER", "BeArEr"):
            async with there.http.post(
                "/v2/heartbeat",
                json=HEARTBEAT,
                headers={"Authorization": f"{scheme}  token-b"},
            ) as answer:
                assert answer.status == 200
        assert {worker for worker, _ in there.coordinator.asked} == {"bob"}

    run(tmp_path, test)


def test_no_spelling_of_a_path_gets_around_the_token(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        for path in (
            "/v2/heartbeat",
            "/%762/heartbeat",
            "/v%32/heartbeat",
            "//v2/heartbeat",
            "/x/../v2/heartbeat",
            "/v2/./heartbeat",
            "/v2%2fheartbeat",
            "http://other/v2/heartbeat",
        ):
            body = b'{"session":"%s"}' % SESSION.encode()
            got = await raw(
                there,
                f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body,
            )
            assert got.split()[1] in (b"401", b"404", b"400"), (path, got)
        assert there.coordinator.asked == []

    run(tmp_path, test)


def test_errors_of_the_coordinator_and_of_http_are_problems(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        there.coordinator.fails = problem_error()
        async with there.http.post("/v2/heartbeat", json=HEARTBEAT) as answer:
            assert "took over" in await refused(answer, 409, "superseded")
        there.coordinator.fails = ProtocolError("draining", status=503, code="busy")
        async with there.http.post("/v2/heartbeat", json=HEARTBEAT) as answer:
            await refused(answer, 503, "busy")
            assert int(answer.headers["Retry-After"]) > 0
        async with there.http.get("/v2/nothing") as answer:
            await refused(answer, 404, "unknown")
        async with there.http.get("/nothing") as answer:
            await refused(answer, 404, "unknown")
        async with there.http.get("/v2/heartbeat") as answer:
            await refused(answer, 405, "malformed")
            assert answer.headers["Allow"] == "POST"
        async with there.http.post("/v2/heartbeat", data=b"{") as answer:
            assert "Heartbeat" in await refused(answer, 400, "malformed")
        got = await raw(there, b"GARBAGE\r\n\r\n")
        assert b" 400 " in got.splitlines()[0]
        assert b'"code":"malformed"' in got

    run(tmp_path, test)


def test_a_failure_of_ours_is_logged_and_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(there: Served) -> None:
        there.coordinator.fails = RuntimeError("secret of the inside")
        async with there.http.post("/v2/heartbeat", json=HEARTBEAT) as answer:
            assert "secret" not in await refused(answer, 500, "internal")
        there.coordinator.fails = None
        async with there.http.post("/v2/heartbeat", json=HEARTBEAT) as answer:
            assert answer.status == 200

    with caplog.at_level(logging.INFO):
        run(tmp_path, test)
    errors = [record for record in caplog.records if record.exc_info]
    assert len(errors) == 1
    assert "secret of the inside" in (errors[0].exc_text or "")


def test_a_line_of_log_for_each_request_has_no_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(there: Served) -> None:
        async with there.http.post("/v2/heartbeat?x=1", json=HEARTBEAT) as answer:
            assert answer.status == 200

    with caplog.at_level(logging.DEBUG, logger="spheroid_jax"):
        run(tmp_path, test)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rsplit(" ", 1)[0] for line in lines] == ["ada POST /v2/heartbeat 200"]
    assert "token-a" not in caplog.text


def test_a_long_poll_ends_when_the_worker_hangs_up(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        body = b'{"session":"%s","wait":60}' % SESSION.encode()
        _, writer = await asyncio.open_connection("127.0.0.1", there.running.port)
        writer.write(
            b"POST /v2/work HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-a\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        while there.coordinator.polls == 0:
            await asyncio.sleep(0.005)
        writer.close()
        while there.coordinator.polls:
            await asyncio.sleep(0.005)

    run(tmp_path, test)


def test_further_routes_need_no_token(tmp_path: Path) -> None:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    def add(app: web.Application) -> None:
        app.router.add_get("/", hello)

    async def main() -> None:
        app = make_app(
            FakeCoordinator(tmp_path),
            Uploads(tmp_path / "parts", 1000),
            Limits(),
            [add],
        )
        running = await serve(app, "127.0.0.1", 0)
        try:
            url = f"http://127.0.0.1:{running.port}"
            async with aiohttp.ClientSession(url) as http, http.get("/") as answer:
                assert await answer.text() == "hello"
                assert answer.headers["Server"] == "spheroid_jax"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        finally:
            await running.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        app = make_app(there.coordinator, there.uploads, Limits())
        with pytest.raises(ValueError, match=r"can't listen on 127.0.0.1:\d+: [^\n]+"):
            await serve(app, "127.0.0.1", there.running.port)

    run(tmp_path, test)


class _Pem:
    """A certificate for 127.0.0.1 and its key, as files."""

    def __init__(self, directory: Path, name: str) -> None:
        self.authority = trustme.CA()
        made = self.authority.issue_cert("127.0.0.1")
        self.certificate, self.key = directory / f"{name}.pem", directory / f"{name}.k"
        made.private_key_pem.write_to_path(str(self.key))
        for blob in made.cert_chain_pems:
            blob.write_to_path(str(self.certificate), append=True)


def test_tls_serves_who_trusts_the_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pem = _Pem(tmp_path, "server")
    data = bytes(range(256)) * 100_000  # more than all buffers hold
    trust = ssl.create_default_context()
    pem.authority.configure_trust(trust)

    async def main() -> None:
        coordinator = FakeCoordinator(tmp_path)
        limits = Limits(idle=0.5, shutdown=0.3)
        app = make_app(coordinator, Uploads(tmp_path / "parts", 1 << 30), limits)
        context = tls_context(pem.certificate, pem.key)
        running = await serve(app, "127.0.0.1", 0, context)
        directory = tmp_path / "item"
        directory.mkdir()
        (directory / "data.0").write_bytes(data)
        coordinator.items["a" * 64] = directory
        path = f"/v2/items/{'a' * 64}/data"
        url = f"https://127.0.0.1:{running.port}"
        try:
            async with aiohttp.ClientSession(url, headers=bearer("token-a")) as http:
                async with http.get(path, ssl=trust) as answer:
                    assert await answer.read() == data
                with pytest.raises(aiohttp.ClientConnectorCertificateError):
                    await http.get(path)
                await upload(http, coordinator)
            plain = Served(coordinator, None, running, None, url)  # type: ignore[arg-type]
            assert b"HTTP" not in await raw(plain, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            before = coordinator.down["ada"]
            await stop_reading(running, path)
            assert coordinator.down["ada"] - before < len(data)
        finally:
            await running.close()

    async def upload(http: aiohttp.ClientSession, coordinator: FakeCoordinator) -> None:
        async with http.post("/v2/uploads", json=announce(data), ssl=trust) as answer:
            part = "/v2/uploads/" + (await answer.json())["upload"]
        offset = {"Upload-Offset": "0"}
        async with http.patch(part, data=data, headers=offset, ssl=trust) as answer:
            assert answer.status == 204
        async with http.post(f"{part}/commit", json={}, ssl=trust) as answer:
            assert (await answer.json())["verdict"] == "accepted"
        assert coordinator.contents == {"3-1-ada-0": data}

    async def stop_reading(running: Running, path: str) -> None:
        """Who stops to read is cut as without TLS."""
        _, writer = await asyncio.open_connection(
            "127.0.0.1", running.port, ssl=trust, limit=4096
        )
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-a\r\n"
            "\r\n".encode()
        )
        server = running._runner.server
        assert server is not None
        while not any(c._request_in_progress for c in server.connections):
            await asyncio.sleep(0.005)
        while any(c._request_in_progress for c in server.connections):
            await asyncio.sleep(0.005)
        writer.transport.abort()

    with caplog.at_level(logging.INFO):
        asyncio.run(asyncio.wait_for(main(), 20))
    assert [record for record in caplog.records if record.exc_info] == []


def test_what_is_wrong_with_the_files_of_tls_is_one_line(tmp_path: Path) -> None:
    one, other = _Pem(tmp_path, "one"), _Pem(tmp_path, "other")
    garbage = tmp_path / "garbage"
    garbage.write_text("not PEM")
    locked = tmp_path / "locked"
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(one.key.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    for certificate, key_file, said in (
        (tmp_path / "none", one.key, "no certificate"),
        (one.certificate, tmp_path / "none", "no key"),
        (one.certificate, other.key, "isn't that of the certificate"),
        (garbage, one.key, "can't be read"),
        (one.certificate, garbage, "can't be read"),
        (one.certificate, locked, "has a password"),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            tls_context(certificate, key_file)
        assert "\n" not in str(caught.value)
