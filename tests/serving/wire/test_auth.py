"""The handshake: who knows a token comes in, and nobody else, however they try."""

import asyncio
import logging

import pytest

from spheroid_jax.serving.wire import (
    Connection,
    Credentials,
    Identity,
    LedgerTokens,
    Limits,
    OneToken,
    WireError,
    dial,
    listen,
)
from spheroid_jax.serving.wire.auth import Transcript, key_of, prove
from spheroid_jax.serving.wire.frames import HEAD_BYTES
from spheroid_jax.serving.wire.messages import (
    Challenge,
    Goodbye,
    Hello,
    Ping,
    Proof,
    Welcome,
)
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.ledger import Ledger, LedgerError
from spheroid_jax.transport.tokens import mint
from tests.serving.wire.hosts import (
    BYTES,
    FRONTEND,
    HOST,
    OTHER,
    SHARED,
    STAGE,
    SWEEP,
    TOKEN,
    Heard,
    Raw,
    call,
    echo,
    framed,
    host,
)
from tests.transport.shaping_links import now, run

NONCE = bytes(32)


async def refused(port: int, credentials: Credentials, **options) -> WireError:
    with pytest.raises(WireError) as caught:
        await call(port, credentials=credentials, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def lines(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def proof_of(token: Token, hello: Hello, challenge: bytes, side="dialler") -> Proof:
    who = Identity("frontend", {}, b"i" * 16)
    seen = Transcript(framed(hello)[HEAD_BYTES:], challenge)
    return Proof(who.id, who.role, {}, prove(key_of(token), side, seen, who))


def test_both_learn_who_the_other_is():
    async def test():
        async with host() as (listener, heard):
            connection = await call(listener.port)
            (there,) = heard.opened
            assert (connection.id, connection.role) == (STAGE.id, "stage")
            assert connection.facts == STAGE.facts
            assert (there.id, there.role) == (FRONTEND.id, "frontend")
            assert there.facts == FRONTEND.facts
            assert there.peer.name == "shared"
            assert there.peer.software.startswith("spheroid_jax ")
            await connection.close()

    run(test())


def test_the_token_never_crosses_nor_does_its_digest():
    said = bytearray()

    async def test():
        async with host() as (listener, _):

            async def pass_on(reader, writer):
                there = await asyncio.open_connection(HOST, listener.port)

                async def way(source, sink):
                    while data := await source.read(1 << 16):
                        said.extend(data)
                        sink.write(data)
                    sink.close()

                await asyncio.gather(way(reader, there[1]), way(there[0], writer))

            between = await asyncio.start_server(pass_on, HOST, 0)
            connection = await call(between.sockets[0].getsockname()[1])
            await connection.send(SWEEP, BYTES)
            await connection.close()
            between.close()
            await asyncio.sleep(0.1)

    run(test())
    assert len(said) > 500
    assert TOKEN.reveal().encode() not in said
    assert key_of(TOKEN) not in said


def test_a_wrong_token_is_one_line_on_both_sides(caplog):
    async def test():
        async with host() as (listener, heard):
            error = await refused(listener.port, Credentials.shared(OTHER))
            assert error.code == "unauthorized"
            assert "same token file" in str(error)
            assert not heard.opened

    run(test())
    (line,) = lines(caplog)
    assert "token that isn't known here" in line
    assert OTHER.reveal() not in caplog.text


def test_strangers_cant_fill_the_log(caplog):
    async def test():
        async with host() as (listener, _):
            for _ in range(30):
                await refused(listener.port, Credentials.shared(OTHER))

    run(test())
    assert 1 <= len(lines(caplog)) <= 10


def test_a_listener_that_doesnt_know_the_token_is_found_out(caplog):
    """It lets everybody in, to hear what they have to say."""

    async def test():
        heard = []

        async def impostor(reader, writer):
            raw = Raw(reader, writer)
            await raw.hear()
            raw.say(Challenge(b"c" * 32))
            await raw.hear()
            raw.say(Welcome(STAGE.id, "stage", {}, bytes(32)))
            heard.extend(await raw.rest())
            raw.close()

        server = await asyncio.start_server(impostor, HOST, 0)
        error = await refused(server.sockets[0].getsockname()[1], SHARED)
        assert error.code == "unauthorized"
        assert "isn't who it should be" in str(error)
        await asyncio.sleep(3.0)  # the dialler waits for us to close first
        (last,) = heard
        assert isinstance(last, Goodbye)
        assert last.code == "unauthorized"
        server.close()

    run(test())


def test_a_proof_works_once():
    """What was heard of an earlier handshake opens nothing."""

    async def test():
        async with host() as (listener, heard):
            hello = Hello(NONCE)
            first = await Raw.connect(listener.port)
            first.say(hello)
            _, challenge = await first.hear()
            proof = proof_of(TOKEN, hello, challenge)
            first.say(proof)
            assert isinstance((await first.hear())[0], Welcome)
            assert len(heard.opened) == 1
            again = await Raw.connect(listener.port)
            again.say(hello)
            await again.hear()
            again.say(proof)
            (last,) = await again.rest()
            assert last.code == "unauthorized"
            assert len(heard.opened) == 1
            first.close()
            again.close()

    run(test())


def test_a_proof_of_the_other_side_opens_nothing():
    async def test():
        async with host() as (listener, heard):
            hello = Hello(NONCE)
            raw = await Raw.connect(listener.port)
            raw.say(hello)
            _, challenge = await raw.hear()
            raw.say(proof_of(TOKEN, hello, challenge, side="listener"))
            (last,) = await raw.rest()
            assert last.code == "unauthorized"
            assert not heard.opened
            raw.close()

    run(test())


def test_who_echoes_our_own_words_gets_nowhere():
    """A mirror: every frame of the dialler comes back as it was, or as an answer."""

    async def mirror(reader, writer):
        while data := await reader.read(4096):
            writer.write(data)

    async def liar(reader, writer):
        raw = Raw(reader, writer)
        hello, _ = await raw.hear()
        raw.say(Challenge(hello.nonce))
        if (found := await raw.hear()) is not None and isinstance(found[0], Proof):
            proof = found[0]
            raw.say(Welcome(proof.id, proof.role, proof.facts, proof.mac))
            await raw.rest()
        raw.close()

    async def echoer(reader, writer):
        raw = Raw(reader, writer)
        await raw.hear()
        raw.say(Challenge(b"c" * 32))
        proof, _ = await raw.hear()
        raw.say(Welcome(proof.id, proof.role, proof.facts, proof.mac))
        await raw.rest()
        raw.close()

    async def test():
        codes = []
        for peer in (mirror, liar, echoer):
            server = await asyncio.start_server(peer, HOST, 0)
            error = await refused(server.sockets[0].getsockname()[1], SHARED)
            codes.append(error.code)
            server.close()
        assert codes == ["malformed", "unauthorized", "unauthorized"]

    run(test())


def test_a_man_in_the_middle_who_leads_us_to_ourselves():
    """All proofs are right then; but nobody is his own peer."""

    async def test():
        opened: list[Connection] = []
        listener = await listen(
            *(HOST, 0, SHARED, echo), identity=FRONTEND, opened=opened.append
        )
        error = await refused(listener.port, SHARED, identity=FRONTEND)
        assert not opened
        assert "this process itself" in str(error)
        await listener.close()

    run(test())


@pytest.mark.parametrize("field", ["id", "role", "facts", "mac"])
def test_a_proof_covers_what_it_says_of_its_sender(field):
    changed = {"id": b"x" * 16, "role": "stage", "facts": {"a": 1}, "mac": b"m" * 32}

    async def test():
        async with host() as (listener, heard):
            hello = Hello(NONCE)
            raw = await Raw.connect(listener.port)
            raw.say(hello)
            _, challenge = await raw.hear()
            right = proof_of(TOKEN, hello, challenge)
            said = {name: getattr(right, name) for name in changed}
            raw.say(Proof(**{**said, field: changed[field]}))
            (last,) = await raw.rest()
            assert last.code == "unauthorized"
            assert not heard.opened
            raw.close()

    run(test())


def test_another_version_is_one_line_on_both_sides(caplog, monkeypatch):
    """The dialler is of a newer version; its frames differ in that number."""
    newer = framed(Hello(NONCE))
    newer = newer[:4] + b"\x02\x00" + newer[6:]

    async def test():
        async with host() as (listener, _):
            raw = await Raw.connect(listener.port)
            raw.say(newer)
            (last,) = await raw.rest()  # as an old peer reads it
            assert (last.code, "version 2" in last.text) == ("version", True)
            raw.close()

        async def newer_host(reader, writer):
            await reader.read(100)
            writer.write(newer)

        server = await asyncio.start_server(newer_host, HOST, 0)
        error = await refused(server.sockets[0].getsockname()[1], SHARED)
        assert error.code == "version"
        assert "speaks version 2 of the protocol, this side version 1" in str(error)
        server.close()

    run(test())
    (line,) = lines(caplog)
    assert "speaks version 2" in line


def test_nothing_but_the_handshake_is_heard_before_it_and_no_handshake_after():
    async def test():
        async with host() as (listener, heard):
            raw = await Raw.connect(listener.port)
            raw.say(Ping(1))
            (last,) = await raw.rest()
            assert last.code == "malformed"
            raw.close()
            connection = await call(listener.port)
            await connection.send(Hello(NONCE))
            error = await connection.wait_closed()
            assert error.code == "malformed"
            assert [one.code for one in heard.closed] == ["malformed"]

    run(test())


def test_a_ledgers_names_and_what_becomes_of_revoked_ones(tmp_path):
    token, sha256 = mint()
    other, other_sha256 = mint()
    limits = Limits(revocation_seconds=1.0)

    async def test():
        with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
            ledger.add_token("alice", sha256)
            admits = Credentials(admits=LedgerTokens(ledger))
            async with host(credentials=admits, limits=limits) as (listener, heard):
                alice, bob = Credentials(Token(token)), Credentials(Token(other))
                assert (await refused(listener.port, bob)).code == "unauthorized"
                ledger.add_token("bob", other_sha256)  # counts at once
                lost = await call(listener.port, credentials=alice)
                kept = await call(listener.port, credentials=bob)
                names = [one.peer.name for one in heard.opened]
                assert names == ["alice", "bob"]
                with Ledger.open(tmp_path / "ledger.sqlite") as another:
                    another.revoke("alice")
                error = await lost.wait_closed()
                assert error.code == "revoked"
                assert "token of alice was revoked" in str(error)
                assert (await refused(listener.port, alice)).code == "unauthorized"
                await kept.send(Ping(1))
                assert not kept.closed
                assert [one.code for one in heard.closed] == ["revoked"]

    run(test())


@pytest.mark.parametrize("seconds", [1.0, 40.0])
def test_how_long_a_revoked_token_goes_unseen(tmp_path, seconds):
    token, sha256 = mint()
    limits = Limits(revocation_seconds=seconds)

    async def test():
        with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
            ledger.add_token("alice", sha256)
            admits = Credentials(admits=LedgerTokens(ledger))
            async with host(credentials=admits, limits=limits) as (listener, _):
                alice = Credentials(Token(token))
                connection = await call(listener.port, credentials=alice)
                begun = now()
                ledger.revoke("alice")
                await connection.wait_closed()
                assert now() - begun == pytest.approx(seconds, abs=0.2)

    run(test())


def test_a_token_that_was_replaced_is_another_one(tmp_path):
    (token, sha256), (_, newer) = mint(), mint()

    async def test():
        with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
            ledger.add_token("alice", sha256)
            admits = Credentials(admits=LedgerTokens(ledger))
            async with host(credentials=admits) as (listener, _):
                alice = Credentials(Token(token))
                connection = await call(listener.port, credentials=alice)
                ledger.add_token("alice", newer, replace=True)
                assert (await connection.wait_closed()).code == "revoked"

    run(test())


def test_tokens_that_cant_be_looked_up_let_nobody_in(caplog):
    class Broken:
        def __init__(self):
            self.error: Exception | None = None

        def current(self):
            if self.error is not None:
                raise self.error
            return {"alice": key_of(TOKEN)}

    async def test():
        keys = Broken()
        async with host(credentials=Credentials(admits=keys)) as (listener, _):
            connection = await call(listener.port)
            for error in (LedgerError("the disk is gone"), RuntimeError("a bug")):
                keys.error = error
                await refused(listener.port, SHARED)
                await asyncio.sleep(3.0)
                assert not connection.closed  # nobody knows that it was revoked
            keys.error = None
            await (await call(listener.port)).close()
            keys.current = dict  # all are gone
            assert (await connection.wait_closed()).code == "revoked"

    run(test())
    assert "the disk is gone" in caplog.text


@pytest.mark.parametrize(
    ("credentials", "said"),
    [
        (SHARED, "plain TCP can be read and changed"),
        (Credentials(admits=OneToken(TOKEN)), "needs a token"),
    ],
)
def test_what_isnt_dialled(credentials, said):
    async def test():
        with pytest.raises(ValueError, match=said):
            await dial("192.0.2.1:8471", credentials, identity=FRONTEND)

    run(test())


@pytest.mark.parametrize(
    ("credentials", "address", "said"),
    [
        (SHARED, "0.0.0.0", "lets other machines in"),
        (Credentials(TOKEN), HOST, "whom to let in"),
    ],
)
def test_what_isnt_listened_to(credentials, address, said):
    async def test():
        with pytest.raises(ValueError, match=said):
            await listen(address, 0, credentials, identity=STAGE)

    run(test())


def test_plain_tcp_is_fine_where_it_is_asked_for():
    async def test():
        insecure = Credentials(TOKEN, OneToken(TOKEN), insecure=True)
        listener = await listen("0.0.0.0", 0, insecure, echo, identity=STAGE)
        heard = Heard()
        connection = await call(listener.port, heard, insecure)
        await connection.send(Ping(1))
        assert await heard.messages.get() == (Ping(1), {})
        await connection.close()
        await listener.close()

    run(test())


def test_an_identity_that_says_too_much():
    with pytest.raises(ValueError, match="at most 3072"):
        Identity("stage", {f"fact{n}": "x" * 200 for n in range(20)})
