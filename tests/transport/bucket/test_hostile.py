"""A bucket is written to by others: whatever lies there, the front goes on."""

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.layout import Announced
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    ProtocolError,
    Pulse,
    Register,
    Upload,
    Work,
    WorkRequest,
)

SESSION = "ab" * 16
KEY = layout.key_of("spheroid_a")


def run(work: Any) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(20.0):
            return await work

    return asyncio.run(limited())


def seal(body: msgspec.Struct, kind: layout.Kind = "hello", **other: Any) -> bytes:
    said: dict[str, Any] = {"run": "run", "subject": "s", "key": KEY, **other}
    return layout.seal(body, kind, "ada", SESSION, 3, **said)


def test_a_message_is_read_as_it_was_sealed() -> None:
    body = WorkRequest(SESSION, 4, 5.0)
    envelope = layout.unseal(seal(body), "hello", "run", KEY)
    assert layout.opened(envelope, WorkRequest) == body
    assert (envelope.worker, envelope.session) == ("ada", SESSION)
    assert (envelope.counter, envelope.subject) == (3, "s")


@pytest.mark.parametrize(
    "change",
    [
        {"worker": "bob"},
        {"session": "cd" * 16},
        {"counter": 4},
        {"subject": "t"},
        {"body": msgspec.Raw(b'{"session":"' + b"ef" * 16 + b'"}')},
        {"mac": ""},
        {"mac": "0" * 64},
        {"mac": "ü"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_nothing_signed_can_be_changed(change: dict[str, Any]) -> None:
    envelope = layout.unseal(seal(WorkRequest(SESSION)), "hello", "run", KEY)
    forged = msgspec.json.encode(msgspec.structs.replace(envelope, **change))
    with pytest.raises(ProtocolError, match="wrong signature") as caught:
        layout.unseal(forged, "hello", "run", KEY)
    assert caught.value.code == "unauthorized"


def test_a_signature_is_of_one_run_one_kind_and_one_token() -> None:
    content = seal(WorkRequest(SESSION))
    with pytest.raises(ProtocolError, match="wrong signature"):
        layout.unseal(content, "hello", "another", KEY)
    with pytest.raises(ProtocolError, match="wrong signature"):
        layout.unseal(content, "hello", "run", layout.key_of("spheroid_b"))
    with pytest.raises(ProtocolError, match="kind hello where answer belongs"):
        layout.unseal(content, "answer", "run", KEY)
    # Relabelled as an answer it isn't signed as one.
    relabelled = content.replace(b'"kind":"hello"', b'"kind":"answer"')
    with pytest.raises(ProtocolError, match="wrong signature"):
        layout.unseal(relabelled, "answer", "run", KEY)


def test_the_token_is_in_no_message() -> None:
    assert b"spheroid_a" not in seal(WorkRequest(SESSION))
    assert KEY.hex().encode() not in seal(WorkRequest(SESSION))


@given(st.binary(max_size=300) | st.text(max_size=80).map(str.encode))
@settings(max_examples=200, deadline=None)
def test_garbage_is_a_protocol_error(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        layout.unseal(content, "hello", "run", KEY)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3-0-ada-1", (3, "ada")),
        ("3-0-a-b.c_d-1", (3, "a-b.c_d")),
        ("3-0--1", None),
        ("3-0-../../x-1", None),
        ("x-0-ada-1", None),
        ("3-0-ada", None),
        ("3-0-ada-1\n", None),
        ("\u0663-0-ada-1", None),  # a digit, in Arabic
        ("9" * 40 + "-0-ada-1", None),
    ],
)
def test_names_of_updates(text: str, found: tuple[int, str] | None) -> None:
    assert layout.upload_of(text) == found


_KEYS = [
    "workers/ada/hello.json",
    "workers/ada/pulse.json",
    "workers/zoe/hello.json",
    "workers/../x/hello.json",
    "workers/x",
    "work/ada.json",
    "updates/0-0-ada-0/update.json",
    "updates/0-0-zoe-0/update.json",
    "updates/x",
    "updates/9-9/update.json",
    "updates/a/b/c/d",
    "items/x",
    "items/x/index",
    "verdicts/x",
    "verdicts/0-0-ada-0.json",
]
_UPLOAD = Upload(SESSION, 0, 0, 0, 0, 5, "0" * 64, "t")
_BODIES: list[tuple[layout.Kind, msgspec.Struct]] = [
    ("hello", Register(VERSION, SESSION)),
    ("said", layout.Said(Heartbeat(SESSION))),
    ("update", Announced(_UPLOAD, 0, 1 << 20, ["0" * 64])),
    ("update", Announced(_UPLOAD, 0, 1 << 20, [])),
]
_CONTENTS = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([b"", b"{}", b"[" * 10000, b"null", b"1e999", b"\xff\xfe"]),
    # Signed with Bob's token, or well signed but of another epoch, or of none.
    st.builds(
        lambda pair, key, subject: seal(pair[1], pair[0], key=key, subject=subject),
        st.sampled_from(_BODIES),
        st.sampled_from([None, KEY, layout.key_of("spheroid_b")]),
        st.sampled_from(["", "s", "0-0-ada-0"]),
    ),
)


@given(st.lists(st.tuples(st.sampled_from(_KEYS), _CONTENTS), min_size=1, max_size=12))
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_whatever_lies_there_the_front_goes_on(
    bench: Any, puts: list[tuple[str, bytes]]
) -> None:
    bench.store = BlobStore("memory://")

    async def work() -> None:
        async with bench.serving():
            for key, content in puts:
                await bench.store.put(key, content)
            bob = bench.link("bob")
            await bob.register(Register(VERSION, SESSION))
            got = await bob.heartbeat(Heartbeat(SESSION, round=bench.coordinator.round))
            assert got == Pulse(0, True)

    run(work())
    assert bench.coordinator.commits == []
    assert set(bench.coordinator.sessions) <= {"bob"}


def test_a_huge_message_is_not_read(bench: Any) -> None:
    async def work() -> None:
        async with bench.serving():
            for key in ("workers/ada/hello.json", "updates/0-0-ada-0/update.json"):
                await bench.store.put(key, b" " * (2 << 20))
                while not any(f"{key} has more than" in line for line in bench.said):
                    await asyncio.sleep(0.01)
            bob = bench.link("bob")
            await bob.register(Register(VERSION, SESSION))

    run(work())
    assert len(bench.said) == 2  # and not at every look


def test_an_update_of_several_pieces(bench: Any, tmp_path: Path) -> None:
    size = 2 * layout.PIECE + 12345
    content = os.urandom(size)
    path = tmp_path / "update"
    path.write_bytes(content)

    upload = Upload(SESSION, 0, 0, 0, 0, size, blake3(content).hexdigest(), "t")
    told: list[tuple[int, int]] = []

    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada")
            await link.register(Register(VERSION, SESSION))
            await link.work(WorkRequest(SESSION))
            verdict = await link.submit(upload, path, lambda *n: told.append(n))
            assert verdict.verdict == "accepted"

    run(work())
    assert bench.coordinator.accepted["0-0-ada-0"] == content
    assert [done for done, _ in told] == [layout.PIECE, 2 * layout.PIECE, size]


def test_work_counts_its_deadline_from_when_its_items_are_there(bench: Any) -> None:
    async def work() -> Work:
        async with bench.serving():
            link = bench.link("ada")
            await link.register(Register(VERSION, SESSION))
            return await link.work(WorkRequest(SESSION))

    deadline = run(work()).deadline
    assert deadline is not None
    assert 90.0 < deadline < 100.0
