"""Tokens let in whom they should, and nobody else."""

import hashlib
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spheroid_jax.transport import tokens
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.tokens import Tokens, digest, mint


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "exchange" / "ledger.db"


def test_a_token_is_256_random_bits_known_by_its_digest() -> None:
    several = [mint() for _ in range(200)]
    assert len({token for token, _ in several}) == 200
    for token, found in several:
        # 43 characters of 6 bits hold 256.
        assert re.fullmatch(r"spheroid_[A-Za-z0-9_-]{43}", token)
        assert found == hashlib.sha256(token.encode()).hexdigest() == digest(token)


def test_a_token_has_a_name_and_nothing_else_does(path: Path) -> None:
    with Ledger.open(path) as ledger:
        minted = {f"w{i}": mint() for i in range(5)}
        for name, (_, found) in minted.items():
            ledger.add_token(name, found)
        who = Tokens(ledger)
        for name, (token, found) in minted.items():
            assert who.name_of(token) == name
            for wrong in (token[:-1], token + "A", token.upper(), found, name):
                assert who.name_of(wrong) is None
        for odd in ("", " ", "\0", "ä", "\udc80", "\ud800", "x" * 100_000):
            assert who.name_of(odd) is None


def test_no_token_is_in_the_files(path: Path) -> None:
    token, found = mint()
    with Ledger.open(path) as ledger:
        ledger.add_token("w0", found)
        assert Tokens(ledger).name_of(token) == "w0"
        texts = [p.read_bytes() for p in path.parent.iterdir()]
        assert any(found.encode() in text for text in texts)
        assert not any(token.encode() in text for text in texts)
        assert token not in repr(Tokens(ledger))


def test_every_row_is_compared_whosever_the_token_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    compare = tokens.hmac.compare_digest

    def counted(left: str, right: str) -> bool:
        calls.append((left, right))
        return compare(left, right)

    with Ledger.open(path) as ledger:
        minted = [mint() for _ in range(4)]
        for i, (_, found) in enumerate(minted):
            ledger.add_token(f"w{i}", found)
        ledger.revoke("w3")
        who = Tokens(ledger)
        monkeypatch.setattr(tokens.hmac, "compare_digest", counted)
        for token, found in minted[:3]:
            calls.clear()
            assert who.name_of(token) is not None
            assert calls == [(found, row) for _, row in minted]
        # Unknown and revoked ones take equally long as well.
        for token in ("none", minted[3][0]):
            calls.clear()
            assert who.name_of(token) is None
            assert len(calls) == 8


def revoke(path: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "experiments.tokens", *arguments]
    subprocess.run(
        [*command, f"--workdir={path.parent.parent}"],
        check=True,
        capture_output=True,
        timeout=60,
    )


def test_another_process_shuts_a_token_out_within_a_second(path: Path) -> None:
    with Ledger.open(path) as ledger:
        token, found = mint()
        ledger.add_token("w0", found)
        who = Tokens(ledger)
        assert who.name_of(token) == "w0"
        revoke(path, "--revoke=w0")
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and who.name_of(token) is not None:
            time.sleep(0.02)
        assert who.name_of(token) is None


def test_a_revoked_token_works_for_a_moment_only(path: Path) -> None:
    clock = Clock()
    with Ledger.open(path) as ledger:
        token, found = mint()
        ledger.add_token("w0", found)
        who = Tokens(ledger, clock)
        assert who.name_of(token) == "w0"
        ledger.revoke("w0")
        clock.now += tokens.REFRESH_SECONDS
        assert tokens.REFRESH_SECONDS < 1.0
        assert who.name_of(token) is None


def test_a_new_token_works_at_once(path: Path) -> None:
    with Ledger.open(path) as ledger:
        who = Tokens(ledger, Clock())
        old, new = mint(), mint()
        assert who.name_of(old[0]) is None
        ledger.add_token("w0", old[1])
        assert who.name_of(old[0]) == "w0"
        ledger.add_token("w0", new[1], replace=True)
        assert who.name_of(new[0]) == "w0"
        assert who.name_of(old[0]) is None


def test_the_ledger_is_read_when_it_changed_and_not_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, reads = Clock(), [0]
    with Ledger.open(path) as ledger:
        read = ledger.tokens

        def counted() -> object:
            reads[0] += 1
            return read()

        monkeypatch.setattr(ledger, "tokens", counted)
        token, found = mint()
        ledger.add_token("w0", found)
        who = Tokens(ledger, clock)
        for _ in range(50):
            clock.now += 1.0
            assert who.name_of(token) == "w0"
            assert who.name_of("wrong") is None
        assert reads == [1]
        ledger.note("key", 1)
        clock.now += 1.0
        assert who.name_of(token) == "w0"
        assert reads == [2]
