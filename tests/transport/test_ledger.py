"""What was promised is there exactly once, whatever happens to process and disk."""

import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.transport import database, database_errors
from spheroid_jax.transport.ledger import (
    AcceptedUpdate,
    Duplicate,
    Ledger,
    LedgerError,
    RoundRow,
)
from spheroid_jax.transport.ledger_rows import STEPS

DIGEST = "ab" * 32


def update(
    round: int, worker: str = "w0", block: int = 0, replica: int = 0, late: int = 0
) -> AcceptedUpdate:
    return AcceptedUpdate(
        name=f"{round}-{block}-{worker}-0",
        worker=worker,
        block=block,
        replica=replica,
        round=round,
        applies_in=round + late,
        bytes=1000 + round,
        norm=0.5,
        loss=1.25,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "exchange" / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.open(path) as found:
        yield found


def line(error: pytest.ExceptionInfo[LedgerError], *parts: str) -> None:
    said = str(error.value)
    assert "\n" not in said
    for part in parts:
        assert part in said


# What it keeps.


def test_everything_is_there_after_reopening(path: Path) -> None:
    with Ledger.open(path) as ledger:
        run = ledger.run
        ledger.accept(update(3), {"bound": [1.5, None]})
        ledger.note("bytes", {"up": 2**53})
        ledger.record_round(3, {"heard": 1})
        ledger.record_round(2, {"heard": 2})
        ledger.add_token("w0", DIGEST, now=lambda: 5.0)
    with Ledger.open(path) as ledger:
        assert ledger.run == run
        assert len(run) == 32
        assert ledger.accepted() == [update(3)]
        assert ledger.find("3-0-w0-0") == update(3)
        assert ledger.find("3-0-w0-1") is None
        assert ledger.noted("bound") == [1.5, None]
        assert ledger.noted("bytes") == {"up": 2**53}
        assert ledger.noted("nothing", 7) == 7
        two, three = RoundRow(2, {"heard": 2}), RoundRow(3, {"heard": 1})
        assert ledger.rounds() == [two, three]
        assert ledger.rounds(last=1) == [three]
        assert ledger.tokens() == {"w0": (DIGEST, 5.0, None)}


def test_notes_and_rounds_give_way_to_newer_ones(ledger: Ledger) -> None:
    for value in (1, 2):
        ledger.note("key", value)
        ledger.record_round(0, value)
    assert ledger.noted("key") == 2
    assert ledger.rounds() == [RoundRow(0, 2)]


def test_updates_come_by_block_replica_round_and_worker(ledger: Ledger) -> None:
    several = [
        update(4, "b", 1, 0),
        update(4, "a", 0, 1),
        update(4, "c", 0, 0),
        update(2, "d", 0, 0, late=2),
        update(3, "d", 1, 1, late=2),
    ]
    for one in several:
        ledger.accept(one)
    in_order = sorted(several, key=lambda u: (u.block, u.replica, u.round, u.worker))
    assert ledger.accepted() == in_order
    assert ledger.accepted(4) == [u for u in in_order if u.applies_in == 4]
    assert [u.age for u in ledger.accepted(4)] == [2, 0, 0, 0]
    assert ledger.accepted(9) == []


def test_numbers_come_back_as_they_are(ledger: Ledger) -> None:
    odd = update(0)._replace(norm=math.inf, loss=math.nan)
    ledger.accept(odd)
    (found,) = ledger.accepted()
    assert found.norm == math.inf
    assert math.isnan(found.loss)
    plain = update(1)._replace(norm=0.1 + 0.2, loss=-0.0, bytes=2**53)
    ledger.accept(plain)
    assert ledger.find(plain.name) == plain
    arrays = update(2)._replace(bytes=np.int64(7), norm=np.float32(0.5))
    ledger.accept(arrays)
    assert ledger.find(arrays.name) == arrays


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block": -1}, "block=-1"),
        ({"bytes": 2**63}, "bytes=9223372036854775808"),
        ({"applies_in": 2}, "applies_in=2"),
    ],
)
def test_what_cannot_be_is_refused(
    ledger: Ledger, change: dict[str, int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        ledger.accept(update(3)._replace(**change))  # type: ignore[arg-type]
    assert ledger.accepted() == []


def test_a_note_must_be_json_and_spoils_nothing(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="bound: not plain JSON"):
        ledger.accept(update(0), {"fine": 1, "bound": {1, 2}})
    assert ledger.accepted() == []
    assert ledger.noted("fine") is None
    ledger.accept(update(0), {"fine": 1})


# Nothing twice.


@pytest.mark.parametrize(
    ("second", "which"),
    [
        (update(3), "name"),
        (update(3)._replace(bytes=1, block=1), "name"),
        (update(3, "w0", 1, 1), "worker"),
        (update(3, "w1", 0, 0), "slot"),
        (update(3, "w1", 0, 0, late=1), "slot"),
    ],
)
def test_a_place_is_taken_once(
    ledger: Ledger, second: AcceptedUpdate, which: str
) -> None:
    ledger.accept(update(3))
    with pytest.raises(Duplicate) as error:
        ledger.accept(second, {"bound": 1})
    assert error.value.which == which
    assert error.value.other == update(3)
    assert ledger.accepted() == [update(3)]
    assert ledger.noted("bound") is None


def test_what_is_not_in_the_way_is_taken(ledger: Ledger) -> None:
    ledger.accept(update(3))
    for other in (update(4), update(3, "w1", 0, 1), update(3, "w2", 1, 0)):
        ledger.accept(other)
    assert len(ledger.accepted()) == 4


def test_forgotten_updates_are_still_duplicates(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for number in range(6):
            ledger.accept(update(number))
        assert ledger.forget(4) == [update(n) for n in range(4)]
        assert ledger.forget(4) == []
        assert ledger.forget(2) == []
    with Ledger.open(path) as ledger:
        assert ledger.accepted() == [update(4), update(5)]
        assert ledger.accepted(3) == []
        assert ledger.find("3-0-w0-0") == update(3)
        with pytest.raises(Duplicate, match="accepted before"):
            ledger.accept(update(3))
        with pytest.raises(Duplicate):
            ledger.accept(update(3, "w1", late=3))
        with pytest.raises(ValueError, match="applies_in=3 is over"):
            ledger.accept(update(3, "w1", 1))


def test_what_is_older_than_its_memory_is_a_duplicate(ledger: Ledger) -> None:
    for number in range(10):
        ledger.accept(update(number))
    assert len(ledger.forget(10, keep_rounds=3)) == 10
    assert ledger.find("6-0-w0-0") is None
    assert ledger.find("7-0-w0-0") == update(7)
    for again in (update(6), update(6, "w9", 1, late=9)):
        with pytest.raises(Duplicate) as error:
            ledger.accept(again)
        assert error.value.which == "old"
        assert error.value.other is None
    # A longer memory doesn't bring back what is gone.
    ledger.forget(11, keep_rounds=100)
    with pytest.raises(Duplicate):
        ledger.accept(update(6, late=9))
    ledger.accept(update(7, "w9", 1, late=4))


moves = st.lists(
    st.one_of(
        st.tuples(
            st.just("accept"),
            st.builds(
                update,
                st.integers(0, 3),
                st.sampled_from("ab"),
                st.integers(0, 1),
                st.integers(0, 1),
                st.integers(0, 2),
            ),
        ),
        st.tuples(st.just("forget"), st.integers(0, 4)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(moves)
def test_it_is_a_set_with_three_keys(
    tmp_path_factory: pytest.TempPathFactory,
    moves: list[tuple[str, AcceptedUpdate | int | None]],
) -> None:
    path = tmp_path_factory.mktemp("model") / "exchange" / "ledger.db"
    ledger = Ledger.open(path)
    model: list[AcceptedUpdate] = []
    gone = 0
    for _, what in moves:
        if isinstance(what, AcceptedUpdate):
            taken = any(
                u.name == what.name
                or (u.worker, u.round) == (what.worker, what.round)
                or u[2:5] == what[2:5]
                for u in model
            )
            try:
                ledger.accept(what)
            except Duplicate:
                assert taken
            except ValueError:
                assert not taken
                assert what.applies_in < gone
            else:
                assert not taken
                assert what.applies_in >= gone
                model.append(what)
        elif isinstance(what, int):
            lost = ledger.forget(what)
            assert sorted(lost) == sorted(
                u for u in model if gone <= u.applies_in < what
            )
            gone = max(gone, what)
        else:
            ledger.close()
            ledger = Ledger.open(path)
        kept = [u for u in model if u.applies_in >= gone]
        assert sorted(ledger.accepted()) == sorted(kept)
    ledger.close()


# Processes and threads.

ACCEPTING = """
import sys
from pathlib import Path
from spheroid_jax.transport.ledger import AcceptedUpdate, Ledger
ledger = Ledger.open(Path(sys.argv[1]))
for i in range(int(sys.argv[2]), 10**6):
    name = f"{i}-0-w0-0"
    ledger.accept(AcceptedUpdate(name, "w0", 0, 0, i, i, 1, 1.0, 1.0), {"newest": i})
    print(i, flush=True)
"""


def test_a_kill_in_the_middle_loses_nothing_and_doubles_nothing(path: Path) -> None:
    """Three processes, killed one after another at moments of their own."""
    expected = 0
    for moment in (0, 7, 40):
        process = subprocess.Popen(
            [sys.executable, "-c", ACCEPTING, str(path), str(expected)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(moment + 1)]
        process.send_signal(signal.SIGKILL)
        said += [int(word) for word in process.stdout.read().split()]
        process.wait(30)
        process.stdout.close()
        with Ledger.open(path) as ledger:
            rounds = sorted(u.round for u in ledger.accepted())
            # All that was told, and at most one that was on the way.
            assert rounds[: said[-1] + 1] == list(range(said[-1] + 1))
            assert len(rounds) - len(set(rounds)) == 0
            assert rounds[-1] - said[-1] in (0, 1)
            assert ledger.noted("newest") == rounds[-1]
            expected = rounds[-1] + 1


WRITING = """
import sys
from pathlib import Path
from spheroid_jax.transport.ledger import Ledger
with Ledger.open(Path(sys.argv[1])) as ledger:
    for i in range(40):
        ledger.add_token(f"{sys.argv[2]}{i}", "ab" * 32)
"""


def test_processes_write_at_the_same_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shortened after every write, so that this too happens beside other writers.
    monkeypatch.setattr(database, "_LOG_LIMIT", 0)
    others = [
        subprocess.Popen([sys.executable, "-c", WRITING, str(path), name])
        for name in "ab"
    ]
    with Ledger.open(path) as ledger:
        run = ledger.run
        number = 0
        while any(other.poll() is None for other in others) or number < 40:
            ledger.accept(update(number))
            number += 1
        assert [other.wait(30) for other in others] == [0, 0]
        assert len(ledger.tokens()) == 80
    with Ledger.open(path) as ledger:
        assert ledger.run == run
        assert len(ledger.accepted()) == number
        assert len(ledger.tokens()) == 80


def test_threads_share_it(ledger: Ledger) -> None:
    problems: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(15):
                ledger.accept(update(number, name, block=ord(name)))
                ledger.tokens()
                ledger.accepted(number)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert len(ledger.accepted()) == 45


def test_who_opens_first_makes_it_and_the_other_finds_it(path: Path) -> None:
    barrier = threading.Barrier(4)
    runs: list[str] = []

    def open_it() -> None:
        barrier.wait(30)
        with Ledger.open(path) as ledger:
            runs.append(ledger.run)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(runs) == 4
    assert len(set(runs)) == 1
    assert [p.name for p in path.parent.iterdir()] == ["ledger.db"]


def test_a_write_that_never_ends_is_told_and_reads_go_on(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_errors, "BUSY_SECONDS", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Ledger.open(path) as impatient:
        with pytest.raises(LedgerError) as error:
            impatient.accept(update(0))
        line(error, "held by another process")
        assert not error.value.disk_full
        assert impatient.tokens() == {}
        other.execute("ROLLBACK")
        impatient.accept(update(0))
    other.close()
    assert ledger.accepted() == [update(0)]


def test_every_commit_is_flushed_to_the_disk(ledger: Ledger) -> None:
    """What a kill can't show: that it would outlast the power."""
    modes = [
        ledger._file._db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("synchronous", "fullfsync", "journal_mode", "wal_autocheckpoint")
    ]
    assert modes == [2, 1, "wal", 0]


def test_its_log_does_not_grow_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LOG_LIMIT", 100_000)
    log = path.with_name("ledger.db-wal")
    with Ledger.open(path) as ledger:
        sizes = []
        for number in range(40):
            ledger.note("key", "x" * 3000 + str(number))
            sizes.append(log.stat().st_size)
        assert max(sizes) < 130_000
        assert sizes[-1] < sum(1 for _ in sizes) * 3000


# A full disk.


def filled(ledger: Ledger) -> int:
    """Fills the ledger up to a size it can't exceed; returns what it refused first."""
    (pages,) = ledger._file._db.execute("PRAGMA page_count").fetchone()
    ledger._file._db.execute(f"PRAGMA max_page_count={pages + 2}")
    for number in range(10_000):
        before = ledger.accepted()
        try:
            ledger.accept(update(number), {"newest": number, "long": "x" * 2000})
        except LedgerError:
            with pytest.raises(LedgerError) as error:
                ledger.accept(update(number), {"newest": number, "long": "x" * 9000})
            line(error, "the disk is full", "free some space")
            assert error.value.disk_full
            assert ledger.accepted() == before
            return number
    raise AssertionError("never full")


def test_a_full_disk_refuses_whole_updates_and_is_survived(path: Path) -> None:
    with Ledger.open(path) as ledger:
        number = filled(ledger)
        assert ledger.noted("newest", -1) == number - 1
        with pytest.raises(LedgerError) as error:
            ledger.note("large", "x" * 50_000)
        assert error.value.disk_full
        assert ledger.noted("large") is None
        assert ledger.tokens() == {}
        ledger._file._db.execute("PRAGMA max_page_count=100000")
        ledger.accept(update(number), {"newest": number})
        expected = [update(n) for n in range(number + 1)]
        assert ledger.accepted() == expected
    with Ledger.open(path) as ledger:
        assert ledger.accepted() == expected
        assert ledger.noted("newest") == number


def test_on_a_full_disk_there_is_no_half_made_ledger(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        with pytest.raises(LedgerError) as error:
            Ledger.open(path)
    line(error, "the disk is full", str(path))
    assert error.value.disk_full
    assert list(path.parent.iterdir()) == []
    Ledger.open(path).close()


# What isn't a ledger.


def alter(path: Path, command: str) -> None:
    db = sqlite3.connect(path)
    db.execute(command)
    db.commit()
    db.close()


def other_program(path: Path) -> None:
    path.unlink()
    alter(path, "CREATE TABLE recipes (name TEXT)")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda p: p.write_bytes(b""), "isn't a ledger of ours"),
    "text": (lambda p: p.write_text("hello " * 1000), "is damaged"),
    "cut": (lambda p: p.write_bytes(p.read_bytes()[:-4096]), "is damaged"),
    "another program's": (other_program, "isn't a ledger of ours"),
    "newer": (lambda p: alter(p, "PRAGMA user_version=3"), "version 3 where"),
    "older": (lambda p: alter(p, "PRAGMA user_version=0"), "version 0 where"),
    "other tables": (lambda p: alter(p, "DROP TABLE rounds"), "its tables aren't"),
    "another value": (
        lambda p: alter(p, "UPDATE updates SET applies_in = 4"),
        "a row isn't what was written",
    ),
    "another note": (
        lambda p: alter(p, "UPDATE notes SET value = '2' WHERE key = 'note.key'"),
        "a row isn't what was written",
    ),
    "no run": (
        lambda p: alter(p, "DELETE FROM notes WHERE key = 'ledger.run'"),
        "names no run",
    ),
    "a directory": (lambda p: (p.unlink(), p.mkdir()), "can't be opened"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_no_whole_ledger_is_refused_with_a_line(path: Path, name: str) -> None:
    spoil, said = SPOILT[name]
    with Ledger.open(path) as ledger:
        ledger.accept(update(3))
        ledger.note("key", 1)
    spoil(path)
    with pytest.raises(LedgerError) as error:
        Ledger.open(path)
    line(error, str(path), said)
    assert not error.value.disk_full


def test_a_lost_file_is_not_begun_anew_beside_its_log(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.accept(update(3))
        path.unlink()
        with pytest.raises(LedgerError) as error:
            Ledger.open(path)
    line(error, "ledger.db-wal is there", "restore")


def test_no_flipped_byte_goes_unseen(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for number in range(12):
            ledger.accept(update(number, "w0", number % 2, 0, number % 3))
            ledger.record_round(number, {"heard": number})
        ledger.add_token("w0", DIGEST, now=lambda: 5.0)
        ledger.note("bound", [1.0, 2.0])

    def all_of_it(ledger: Ledger) -> tuple[object, ...]:
        names = [update(n, "w0", n % 2).name for n in range(12)]
        return (
            ledger.run,
            *(ledger.accepted(), [ledger.find(name) for name in names]),
            *(ledger.rounds(), ledger.tokens(), ledger.noted("bound")),
        )

    whole = path.read_bytes()
    with Ledger.open(path) as ledger:
        expected = all_of_it(ledger)
    said: list[str] = []
    rng = random.Random(0)
    used = [i for i, byte in enumerate(whole) if byte]
    for place in rng.sample(used, 250):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << rng.randrange(8)
        path.write_bytes(spoilt)
        try:
            with Ledger.open(path) as ledger:
                assert all_of_it(ledger) == expected, place
        except LedgerError as error:
            said.append(str(error))
    assert len(said) > 200
    assert not any("\n" in text for text in said)


def test_a_ledger_of_another_run_is_refused(path: Path) -> None:
    with Ledger.open(path, "a" * 32) as ledger:
        assert ledger.run == "a" * 32
    Ledger.open(path, "a" * 32).close()
    with pytest.raises(LedgerError) as error:
        Ledger.open(path, "b" * 32)
    line(error, "a" * 32, "b" * 32)


def test_it_is_only_made_where_that_is_wanted(path: Path) -> None:
    with pytest.raises(LedgerError) as error:
        Ledger.open(path, create=False)
    line(error, "there is no ledger")
    assert not path.parent.exists()


def test_nobody_else_may_read_it(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.accept(update(0))
        modes = {p.name: p.stat().st_mode & 0o777 for p in path.parent.iterdir()}
    assert modes == dict.fromkeys(modes, 0o600)
    assert "ledger.db-wal" in modes


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "exchange").write_text("")
    with pytest.raises(LedgerError) as error:
        Ledger.open(tmp_path / "exchange" / "ledger.db")
    line(error, "name another run directory")


# Tokens in it.


def test_a_name_has_one_token(ledger: Ledger) -> None:
    ledger.add_token("w0", "a" * 64, now=lambda: 1.0)
    with pytest.raises(LedgerError, match="revoke it first"):
        ledger.add_token("w0", "b" * 64)
    assert ledger.tokens() == {"w0": ("a" * 64, 1.0, None)}
    ledger.add_token("w0", "b" * 64, replace=True, now=lambda: 2.0)
    assert ledger.tokens() == {"w0": ("b" * 64, 2.0, None)}
    assert ledger.revoke("w0", now=lambda: 3.0)
    assert not ledger.revoke("w0", now=lambda: 4.0)
    assert ledger.tokens() == {"w0": ("b" * 64, 2.0, 3.0)}
    ledger.add_token("w0", "c" * 64, now=lambda: 5.0)
    assert ledger.tokens() == {"w0": ("c" * 64, 5.0, None)}


def test_names_that_could_be_one_file_are_refused(ledger: Ledger) -> None:
    ledger.add_token("Mars", DIGEST)
    with pytest.raises(LedgerError, match="capitals only"):
        ledger.add_token("mars", DIGEST, replace=True)
    with pytest.raises(LedgerError, match="no token"):
        ledger.revoke("mars")
    assert list(ledger.tokens()) == ["Mars"]


@pytest.mark.parametrize("name", ["", "../x", "-a", "a\n", "a b", "x" * 65, "ä"])
def test_a_name_is_a_name(ledger: Ledger, name: str) -> None:
    with pytest.raises(ValueError, match="isn't one"):
        ledger.add_token(name, DIGEST)


@pytest.mark.parametrize("digest", ["", "ab", "AB" * 32, "ab" * 32 + "\n"])
def test_a_digest_is_a_digest(ledger: Ledger, digest: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        ledger.add_token("w0", digest)


# What it keeps of evaluations, and the ledgers of before.

GOLDEN = Path(__file__).with_name("golden") / "ledger_v1.db"


def test_losses_come_by_round_and_give_way_to_newer_ones(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert ledger.evaluations() == []
        for number in (4, 2, 4):
            ledger.record_losses(number, {"ce_chain": number + 0.5, "ce": 1.0})
    with Ledger.open(path) as ledger:
        assert ledger.evaluations() == [
            {"round": 2, "ce_chain": 2.5, "ce": 1.0},
            {"round": 4, "ce_chain": 4.5, "ce": 1.0},
        ]
        with pytest.raises(ValueError, match="evaluation 5: not plain JSON"):
            ledger.record_losses(5, {"ce": {1}})


def test_an_evaluation_costs_as_much_after_a_thousand_others(path: Path) -> None:
    log = path.with_name("ledger.db-wal")

    def grown(ledger: Ledger, number: int) -> int:
        before = log.stat().st_size
        ledger.record_losses(number, {"ce_chain": 1.0})
        return log.stat().st_size - before

    with Ledger.open(path) as ledger:
        ledger.record_losses(0, {"ce_chain": 1.0})
        few = max(grown(ledger, number) for number in range(1, 10))
        with ledger._file.transaction() as db:
            for number in range(10, 1010):
                ledger._file.put(db, "evaluations", (number, '{"ce_chain": 1.0}'))
        assert grown(ledger, 2000) <= few + 2 * 4200  # two pages of a deeper tree


def test_a_round_and_its_notes_are_written_together(ledger: Ledger) -> None:
    ledger.record_round(1, {"heard": 2}, {"seconds": 5.0, "round": 1})
    assert (ledger.noted("seconds"), ledger.noted("round")) == (5.0, 1)
    with pytest.raises(ValueError, match="bad: not plain JSON"):
        ledger.record_round(2, {"heard": 2}, {"seconds": 6.0, "bad": {1}})
    assert ledger.noted("seconds") == 5.0
    assert ledger.rounds() == [RoundRow(1, {"heard": 2})]


@pytest.fixture
def old(path: Path) -> Path:
    """A ledger as version 1 of the tables has it."""
    path.parent.mkdir(parents=True)
    path.write_bytes(GOLDEN.read_bytes())
    return path


def check_golden(ledger: Ledger) -> None:
    assert ledger.run == "c0ffee" * 5 + "00"
    points = ledger.evaluations()
    assert [(p["round"], p["ce_chain"]) for p in points] == [
        (1, 3.5),
        (2, 2.5),
        (3, 1.5),
    ]
    means = [p["ce_mean"] for p in points]
    assert (means[0], math.isnan(means[1]), means[2]) == (2.0, True, 2.0)
    assert ledger.noted("ce") is None
    assert ledger.noted("held") == {"round": 3, "slots": {"ada": [0, 0]}}
    assert [row.round for row in ledger.rounds()] == [1, 2, 3]
    assert [u.name for u in ledger.accepted()] == ["2-0-ada-7"]
    assert [u.round for u in ledger.remembered()] == [0, 1, 2]
    assert ledger.tokens() == {
        "ada": ("ab" * 32, 5.0, None),
        "bob": ("cd" * 32, 6.0, 7.0),
    }


def test_a_ledger_of_the_version_before_is_taken_up(old: Path) -> None:
    with Ledger.open(old) as ledger:
        check_golden(ledger)
        ledger.record_losses(4, {"ce_chain": 0.5})
    with Ledger.open(old) as ledger:
        assert ledger.evaluations()[3] == {"round": 4, "ce_chain": 0.5}


def test_a_kill_while_it_is_taken_up_leaves_the_one_or_the_other(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(database.Database, "put", full)
        with pytest.raises(LedgerError):
            Ledger.open(old)
    db = sqlite3.connect(old)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    db.close()
    with Ledger.open(old) as ledger:
        check_golden(ledger)


def test_losses_of_an_old_program_that_goes_on_meanwhile_are_taken_up(
    old: Path,
) -> None:
    """A coordinator of the release before, while a token is added by a new one."""
    coordinator = database.Database(old, STEPS[1].schema, 1)
    with Ledger.open(old) as ledger:
        points = [*ledger.evaluations(), {"round": 4, "ce_chain": 0.5}]
    with coordinator.transaction() as db:
        coordinator.put(db, "notes", ("note.ce", json.dumps(points)))
    coordinator.close()
    for _ in range(2):
        with Ledger.open(old) as ledger:
            assert ledger.evaluations()[3] == {"round": 4, "ce_chain": 0.5}
            assert len(ledger.evaluations()) == 4
            assert ledger.noted("ce") is None


def test_several_take_it_up_at_once(old: Path) -> None:
    barrier = threading.Barrier(4)
    problems: list[BaseException] = []

    def open_it() -> None:
        barrier.wait(30)
        try:
            with Ledger.open(old) as ledger:
                check_golden(ledger)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []


def test_a_damaged_one_of_before_is_refused(old: Path) -> None:
    alter(old, "UPDATE notes SET value = '[]' WHERE key = 'note.ce'")
    with pytest.raises(LedgerError) as error:
        Ledger.open(old)
    line(error, "a row isn't what was written")
    db = sqlite3.connect(old)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    db.close()
