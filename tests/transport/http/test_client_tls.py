"""Who is trusted, what goes where, and what never shows."""

import asyncio
import logging
import pickle
import ssl
import traceback
from pathlib import Path

import pytest
import trustme

from spheroid_jax.transport.http.asking import Timeouts
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.retry import Pace
from spheroid_jax.transport.http.tls import Token, address, client_context, read_token
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import Heartbeat, Pulse
from tests.transport.http.client_server import (
    SECRET,
    SESSION,
    Clock,
    Coordinator,
    cut,
    no_http,
    plain,
    problem,
    run,
    setting,
)

BEAT = Heartbeat(SESSION)
QUICK = Pace(first_patience=0.0)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def served_by(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def ask(
    context: ssl.SSLContext | None, scheme: str, ca: Path | None
) -> tuple[Pulse | LinkError, int]:
    """The answer or error, and how many requests arrived."""

    async def scenario() -> tuple[Pulse | LinkError, int]:
        coordinator = Coordinator()
        await coordinator.start(context)
        url = f"{scheme}://127.0.0.1:{coordinator.port}"
        link = HttpLink(url, Token(SECRET), ca, pace=QUICK, tools=Clock().tools())
        try:
            async with link:
                return await link.heartbeat(BEAT), len(coordinator.asked)
        except LinkError as error:
            return error, len(coordinator.asked)
        finally:
            await coordinator.stop()

    result: tuple[Pulse | LinkError, int] = run(scenario())
    return result


def test_a_trusted_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    assert ask(served_by(authority, "127.0.0.1"), "https", ca)[0] == Pulse(3, True)


def test_an_untrusted_one_is_refused_with_the_cure(authority: trustme.CA) -> None:
    error, arrived = ask(served_by(authority, "127.0.0.1"), "https", None)
    assert isinstance(error, LinkError)
    assert error.code == "untrusted"
    assert "--ca=FILE" in str(error)
    assert "\n" not in str(error)
    assert arrived == 0


def test_a_certificate_of_another_name(authority: trustme.CA, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    error, arrived = ask(served_by(authority, "10.0.0.1"), "https", ca)
    assert isinstance(error, LinkError)
    assert error.code == "untrusted"
    assert str(error).startswith("the certificate of 127.0.0.1:")
    assert "call it by a name that is in the certificate" in str(error)
    assert "--ca" not in str(error)
    assert arrived == 0


def test_the_wrong_scheme_is_told(authority: trustme.CA) -> None:
    error, _ = ask(None, "https", None)
    assert "is it http://?" in str(error)
    error, _ = ask(served_by(authority, "127.0.0.1"), "http", None)
    assert "is it https://" in str(error)


@pytest.mark.parametrize("short", [True, False])
def test_connect_bounds_tls_too(short: bool) -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        times = Timeouts(connect=0.1 if short else 60.0)
        async with HttpLink(url, Token(SECRET), timeouts=times, pace=QUICK) as link:
            with pytest.raises(LinkError if short else TimeoutError) as said:
                await asyncio.wait_for(link.heartbeat(BEAT), 0.7)
        assert not short or "took too long" in str(said.value)
        server.close()

    run(scenario())


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--ca=.*No such file"):
        client_context(tmp_path / "none.pem")
    (tmp_path / "junk.pem").write_text("junk")
    with pytest.raises(ValueError, match="--ca=.*no certificate"):
        client_context(tmp_path / "junk.pem")


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://host:8470", "https://host:8470"),
        ("https://host:8470/", "https://host:8470"),
        ("https://host/behind/proxy/", "https://host/behind/proxy"),
        ("http://127.0.0.1:8470", "http://127.0.0.1:8470"),
        ("http://127.8.8.8:1", "http://127.8.8.8:1"),
        ("http://[::1]:8470", "http://[::1]:8470"),
        ("http://localhost:8470", "http://localhost:8470"),
    ],
)
def test_addresses_that_are_fine(url: str, clean: str) -> None:
    assert str(address(url)).rstrip("/") == clean


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://10.0.0.1:8470", "in clear"),
        ("http://host:8470", "in clear"),
        ("http://localhost.evil.org", "in clear"),
        ("http://127.0.0.1.evil.org", "in clear"),
        ("host:8470", "like https"),
        ("", "like https"),
        ("ftp://host", "like https"),
        ("https://", "like https"),
        ("https://host:99999", "like https"),
        ("https://host:x", "like https"),
        ("https://me:hunter2@host", "no user"),
        ("https://hunter2@host:bad", "like https"),
        ("https://host/?token=hunter2", "no user"),
    ],
)
def test_addresses_that_are_not(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        address(url)
    assert "hunter2" not in str(raised.value)


def test_insecure_is_asked_for() -> None:
    assert str(address("http://10.0.0.1:8470", insecure=True)).startswith("http://10")


def token_file(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
def test_a_token_is_the_only_line(tmp_path: Path, end: bytes) -> None:
    path = token_file(tmp_path / "token", SECRET.encode() + end)
    assert read_token(path).reveal() == SECRET


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (SECRET.encode() + b"\nmore\n", "more than one line"),
        (b"x" * 5000, "more than one line"),
        (SECRET.encode() + b" " + SECRET.encode(), "isn't"),
        (b"short", "isn't"),
        (SECRET.encode() + b"\x00", "isn't"),
        (SECRET.encode() + "é".encode(), "isn't"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        read_token(token_file(tmp_path / "token", content))
    text = "".join(traceback.format_exception(raised.value))
    assert "\n" not in str(raised.value)
    assert SECRET not in text


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        read_token(tmp_path / "none")


def test_a_file_for_everybody_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read_token(token_file(tmp_path / "a", SECRET.encode(), 0o600))
    assert caplog.text == ""
    read_token(token_file(tmp_path / "b", SECRET.encode(), 0o644))
    assert "chmod 600" in caplog.text
    assert SECRET not in caplog.text


def all_of(error: BaseException) -> list[str]:
    """What an error holds and shows, with those that it came of."""
    shown = [repr(error), repr(error.args), repr(vars(error))]
    shown += traceback.format_exception(error)
    for before in (error.__cause__, error.__context__):
        shown += all_of(before) if before is not None else []
    return shown


def test_the_token_shows_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """Not in logs, notices, reprs, messages or what exceptions hold."""
    echo = f"token {SECRET} is unknown"
    faults = [
        cut,
        plain(200, b"junk"),
        problem(503, SECRET, echo),
        plain(302, headers={"Location": f"http://127.0.0.1:1/?t={SECRET}"}),
        problem(401, "unauthorized", echo),
    ]
    shown = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_debug(True)
        async with setting(*faults) as s:
            for _ in range(2):
                with pytest.raises(LinkError) as raised:
                    await s.link.heartbeat(BEAT)
                shown.extend(all_of(raised.value))
            shown.extend([repr(s.link), str(s.link), *s.notices])
            assert "token (token) is unknown" in s.notices[-1]
        for last in (no_http, cut):
            async with setting(last, pace=QUICK) as s:
                with pytest.raises(LinkError) as raised:
                    await s.link.heartbeat(BEAT)
                shown.extend(all_of(raised.value))

    with caplog.at_level(logging.DEBUG):
        run(scenario())
    shown.extend([caplog.text, repr(Token(SECRET)), str(Token(SECRET))])
    assert SECRET not in "\n".join(shown)
    with pytest.raises(TypeError):
        pickle.dumps(Token(SECRET))
