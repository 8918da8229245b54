"""One process a directory."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spheroid_jax.transport.ledger import LedgerError
from spheroid_jax.transport.lock import Lock, LockError, Wording

HOLDING = """
import sys, time
from pathlib import Path
from spheroid_jax.transport.lock import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "exchange" / "coordinator.lock"


def test_a_second_one_is_refused_until_the_first_lets_go(path: Path) -> None:
    with Lock(path):
        for _ in range(2):
            with pytest.raises(LedgerError) as error:
                Lock(path)
            said = str(error.value)
            assert "\n" not in said
            assert f"another coordinator (process {os.getpid()})" in said
            assert str(path) in said
    Lock(path).release()


def test_a_killed_process_holds_nothing(path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(LedgerError, match=f"process {other.pid}"):
        Lock(path)
    other.send_signal(signal.SIGKILL)
    other.wait(30)
    other.stdout.close()
    Lock(path).release()


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_child_that_outlives_its_parent_holds_nothing(path: Path) -> None:
    """One that forked, and one that runs another program."""
    lock = Lock(path)
    reading, writing = os.pipe()
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.write(there, b"!")
        os.read(reading, 1)  # until the parent says so
        os._exit(0)
    os.read(here, 1)  # the child has begun, and so has let go
    sleeper = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        # As the end of this process would: without an unlock.
        lock.release()
        Lock(path).release()
    finally:
        for end in (writing, reading, here, there):
            os.close(end)
        os.waitpid(child, 0)
        sleeper.kill()
        sleeper.wait(30)


def test_where_nothing_can_be_locked_is_told(tmp_path: Path) -> None:
    (tmp_path / "exchange").write_text("")
    with pytest.raises(LedgerError, match="can't be locked"):
        Lock(tmp_path / "exchange" / "coordinator.lock")


def test_a_lock_whose_directory_was_deleted_meanwhile_is_one_of_the_new_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the file and locking it; else two would hold a lock each."""
    original = fcntl.flock
    deleted = []

    def slow(descriptor: int, how: int) -> None:
        if not deleted:
            deleted.append(path)
            path.unlink()
            path.parent.rmdir()
        original(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with Lock(path):
        assert deleted
        with pytest.raises(LockError) as error:
            Lock(path)
        assert error.value.taken


def test_what_a_link_leads_to_is_left_as_it_is(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "lock").symlink_to(precious)
    with pytest.raises(LockError, match="can't be locked"):
        Lock(tmp_path / "lock")
    assert precious.read_text() == "kept"


def test_the_words_of_an_error_are_those_of_who_locks(path: Path) -> None:
    words = Wording("another cook", "use the other kitchen", "a kitchen")
    with Lock(path, words), pytest.raises(LockError) as error:
        Lock(path, words)
    said = str(error.value)
    assert said.startswith(f"another cook (process {os.getpid()}) holds {path}")
    assert said.endswith("end it first, or use the other kitchen")
