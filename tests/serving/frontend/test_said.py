"""What a front end says of stages that it can't use."""

import asyncio
import dataclasses
import json
import socket
import ssl
import urllib.request
from pathlib import Path

import pytest
import trustme

from spheroid_jax.serving.frontend.said import told, why
from spheroid_jax.serving.wire.auth import Credentials, Identity
from spheroid_jax.serving.wire.dialling import dial
from spheroid_jax.serving.wire.limits import WireError
from spheroid_jax.transport.http.tls import Token, client_context
from tests.serving.frontend.fakes import CREDENTIALS, QUICK, house

STRANGE = Credentials.shared(Token("spheroid_of_somebody_else"))


def test_a_stage_that_is_not_there_is_said_in_plain_words() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"

    async def main() -> WireError:
        with pytest.raises(WireError) as raised:
            await dial(address, CREDENTIALS, identity=Identity("frontend"))
        return raised.value

    error = asyncio.run(main())
    assert why(error, address) == (
        "it can't be reached: connection refused; is it running, and is the address "
        "right?"
    )
    assert told(error) == "it can't be reached"


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("a:1 is of version 2", "version", "it is of version 2"),
        ("a:1: a frame was damaged", "corrupt", "a frame was damaged"),
        ("no word of it", "lost", "no word of it"),
    ],
)
def test_the_address_is_said_once(text: str, code: str, expected: str) -> None:
    assert why(WireError(text, code), "a:1") == expected


def test_what_tls_says_is_kept() -> None:
    error = WireError("a:1 has a certificate that isn't trusted (expired)", "untrusted")
    error.__context__ = ssl.SSLError(1, "[SSL] odd")
    assert why(error, "a:1") == "it has a certificate that isn't trusted (expired)"


def test_a_certificate_of_another_name_is_told_with_the_cure(tmp_path: Path) -> None:
    authority, file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("elsewhere.example").configure_cert(server)
    ours = dataclasses.replace(CREDENTIALS, client=client_context(file))

    async def main() -> tuple[WireError, str]:
        listener = await asyncio.start_server(
            lambda reader, writer: None, "127.0.0.1", 0, ssl=server
        )
        address = f"localhost:{listener.sockets[0].getsockname()[1]}"
        with pytest.raises(WireError) as raised:
            await dial(address, ours, identity=Identity("frontend"))
        listener.close()
        return raised.value, address

    error, address = asyncio.run(main())
    cure = "call it by a name that is in the certificate, or make one for this name"
    assert str(error) == f"the certificate of {address} isn't for that name: {cure}"
    assert why(error, address) == f"its certificate isn't for that name: {cure}"


def test_a_block_that_nobody_has_shown_yet_may_still_be_starting() -> None:
    async def main() -> None:
        async with house((1, 1), start=False) as it:
            await it.stages[0].start()
            stages = it.frontend.stages
            await it.until(lambda: stages.missing == [1])
            assert stages.absent() == (
                "block 1 has no stage (no stage of it was reached yet: it may still be "
                "starting)"
            )

    asyncio.run(main())


def test_a_wrong_token_is_one_line_a_stage_and_known_at_once() -> None:
    async def main() -> None:
        settings = dataclasses.replace(QUICK, rejected=60.0)
        async with house((1, 1), settings, start=False, credentials=STRANGE) as it:
            stages = it.frontend.stages
            await it.stages[0].start()
            await asyncio.sleep(0.3)
            assert not stages.rejected.is_set()  # the other one may know it
            await it.stages[1].start()
            await asyncio.wait_for(stages.rejected.wait(), 10)
            said = [line for line in it.lines if "token" in line]
            assert said == [
                f"our token isn't the one of {stage.address}: give both the same "
                "--token-file"
                for stage in it.stages
            ]

    asyncio.run(main())


def test_health_and_errors_name_no_address_and_nothing_of_pythons() -> None:
    async def main() -> None:
        async with house((1, 1), start=False) as it:

            def ask() -> str:
                with pytest.raises(urllib.error.HTTPError) as raised:
                    urllib.request.urlopen(f"{it.url}/healthz", timeout=10)
                return str(json.loads(raised.value.read())["why"])

            await it.until(lambda: len(it.lines) == 2)
            said = await asyncio.to_thread(ask)
            assert said.count("it can't be reached") == 2
            for text in ("127.0.0.1", "Errno", "call failed"):
                assert text not in said
            for stage, line in zip(it.stages, sorted(it.lines), strict=False):
                assert line.count("127.0.0.1") == 1, stage

    asyncio.run(main())


def test_a_stage_that_does_not_know_the_token_is_left_alone_for_a_while() -> None:
    async def main() -> None:
        settings = dataclasses.replace(QUICK, rejected=60.0)
        dialled = 0
        async with house((1,), settings, start=False, credentials=STRANGE) as it:
            link = it.frontend.stages.links[0]
            before = link._dial

            async def counted(*args):  # type: ignore[no-untyped-def]
                nonlocal dialled
                dialled += 1
                return await before(*args)

            link._dial = counted
            await it.stages[0].start()
            await it.until(lambda: link.rejected)
            there = dialled
            await asyncio.sleep(0.5)
            assert dialled == there

    asyncio.run(main())
