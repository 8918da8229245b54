"""A worker's folder: of one run, one name and one process, and not for ever."""

import asyncio
import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spheroid_jax.transport import own_folder as module
from spheroid_jax.transport.items.cache import ItemCache
from spheroid_jax.transport.lock import Lock, LockError
from spheroid_jax.transport.own_folder import lock_token, own_folder, prune
from spheroid_jax.transport.protocol import Upload, Verdict
from spheroid_jax.transport.updates import Encoding
from tests.transport.coordinator.puppets import running
from tests.transport.tiny import DirectLink, TinyRun, same

INT8 = Encoding("int8", 0)
RUN, OTHER = "0" * 32, "1" * 32
DAY = 86400.0


def nothing(line: str) -> None:
    raise AssertionError(line)


def left(base: Path, worker: str, run: str, days: float) -> Path:
    """A folder that a worker left so long ago."""
    folder = base / worker / run
    (folder / "slots").mkdir(parents=True)
    (folder / "slots" / "inner.npz").write_bytes(b"state")
    (folder / "lock").touch()
    when = time.time() - days * DAY
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (when, when))
    return folder


def alone(directory: Path, recipe: str) -> TinyRun:
    return TinyRun(
        directory, blocks=1, replicas=1, rounds=3, encoding=INT8, recipe=recipe
    )


async def one_round(run: TinyRun, base: Path) -> None:
    """A process of worker "a" that leaves after a round."""

    class Leaving(DirectLink):
        async def submit(self, upload: Upload, *given: Any) -> Verdict:
            worker.stop()
            return await super().submit(upload, *given)

    own = own_folder(base, "a", run.ledger.run, nothing)
    with own.lock:
        worker = run.worker("a", link=Leaving(run, "a"), folder=own.path)
        done = run.coordinator.board.round + 1
        await worker.register()
        assert await worker.run() == "left"
        while run.coordinator.board.round < done:
            await asyncio.sleep(0.002)


def in_turn(runs: list[TinyRun], base: Path) -> list[dict[str, np.ndarray]]:
    """Each run's rounds, one process a round, and the runs in turn."""

    async def rounds() -> None:
        async with contextlib.AsyncExitStack() as stack:
            tasks = [await stack.enter_async_context(running(run)) for run in runs]
            for _ in range(3):
                for run in runs:
                    await one_round(run, base)
            await asyncio.gather(*tasks)

    asyncio.run(rounds())
    states = [run.state() for run in runs]
    for run in runs:
        run.close()
    return states


def test_two_runs_in_turn_never_mix(tmp_path: Path) -> None:
    """Inner optimizer, error feedback, items: as if each run had its own folder."""
    recipes = ("sgd", "nesterov")
    apart = [
        in_turn([alone(tmp_path / "apart" / recipe, recipe)], tmp_path / recipe)[0]
        for recipe in recipes
    ]
    together = in_turn(
        [alone(tmp_path / "together" / recipe, recipe) for recipe in recipes],
        tmp_path / "one",
    )
    assert not same(*apart)
    assert all(same(one, other) for one, other in zip(apart, together, strict=True))


def test_workers_and_runs_have_folders_of_their_own(tmp_path: Path) -> None:
    owns = [
        own_folder(tmp_path, worker, run, nothing)
        for worker in ("ann", "bob")
        for run in (RUN, OTHER)
    ]
    assert len({own.path for own in owns}) == 4
    for own in owns:
        assert own.path.is_relative_to(tmp_path)
        own.lock.release()


def test_a_second_process_is_told_who_is_there_and_what_to_do(tmp_path: Path) -> None:
    own = own_folder(tmp_path, "ann", RUN, nothing)
    for take in (
        lambda: own_folder(tmp_path, "ann", RUN, nothing),
        lambda: lock_token(tmp_path, "secret"),
    ):
        with lock_token(tmp_path, "secret"), pytest.raises(LockError) as error:
            take()
        assert error.value.taken
        said = str(error.value)
        assert f"another worker process (process {os.getpid()})" in said
        assert "end it first, or give this one a token of its own" in said
        assert "\n" not in said
    own.lock.release()
    own_folder(tmp_path, "ann", RUN, nothing).lock.release()


def test_a_token_is_nowhere_on_the_disk(tmp_path: Path) -> None:
    with lock_token(tmp_path, "secret"), lock_token(tmp_path, "another"):
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(files) == 2
        for path in files:
            assert "secret" not in f"{path.name} {path.read_text()}"


def test_what_releases_before_left_by_default_is_taken_up(tmp_path: Path) -> None:
    before = tmp_path / f"ann-{RUN[:8]}" / "slots"
    before.mkdir(parents=True)
    (before / "inner.npz").write_bytes(b"state")
    own = own_folder(tmp_path, "ann", RUN, nothing)
    assert (own.path / "slots" / "inner.npz").read_bytes() == b"state"
    assert not before.parent.exists()
    own.lock.release()


def test_what_a_release_before_left_stays_while_it_is_used(tmp_path: Path) -> None:
    before = tmp_path / f"ann-{RUN[:8]}"
    (before / "slots").mkdir(parents=True)
    with ItemCache(before / "items"):
        with pytest.raises(LockError) as error:
            own_folder(tmp_path, "ann", RUN, nothing)
        assert error.value.taken
        assert (before / "slots").exists()
    own = own_folder(tmp_path, "ann", RUN, nothing)
    assert (own.path / "slots").exists()
    own.lock.release()


def test_what_a_release_before_left_and_cant_be_moved_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tmp_path / f"ann-{RUN[:8]}" / "slots"
    before.mkdir(parents=True)

    def refused(path: Path, to: Path) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    lines: list[str] = []
    own_folder(tmp_path, "ann", RUN, lines.append).lock.release()
    assert len(lines) == 1
    assert f"{before.parent}, of an older release, can't be renamed" in lines[0]
    assert "Permission denied" in lines[0]
    assert before.exists()


def test_what_releases_before_left_in_the_folder_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "items").mkdir()
    (tmp_path / "items" / ".lock").touch()
    (tmp_path / "slots").mkdir()
    lines: list[str] = []
    own = own_folder(tmp_path, "ann", RUN, lines.append)
    assert len(lines) == 1
    assert "of an older release" in lines[0]
    assert "not used, delete them" in lines[0]
    assert (tmp_path / "slots").exists()
    assert not list(own.path.glob("slots"))
    own.lock.release()


def test_runs_of_long_ago_are_deleted_and_told(tmp_path: Path) -> None:
    old = left(tmp_path, "bob", OTHER, days=31)
    recent = left(tmp_path, "bob", RUN, days=29)
    foreign = tmp_path / "mine" / "precious"
    foreign.mkdir(parents=True)
    os.utime(foreign, (0, 0))
    lines: list[str] = []
    own = own_folder(tmp_path, "ann", RUN, lines.append)
    assert [f"deleted what a worker kept of runs long ago: {old}"] == lines
    assert (old.exists(), recent.exists(), foreign.exists()) == (False, True, True)
    assert sorted(path.name for path in old.parent.iterdir()) == [RUN]
    own.lock.release()


def test_of_a_worker_the_newest_few_runs_are_kept(tmp_path: Path) -> None:
    kept = module.KEPT_RUNS
    paths = [left(tmp_path, "ann", str(n) * 32, days=n) for n in range(1, kept + 3)]
    other = left(tmp_path, "bob", RUN, days=20)
    gone = prune(tmp_path, "ann", tmp_path / "ann" / RUN)
    assert sorted(gone) == paths[kept:]
    assert all(path.exists() for path in (*paths[:kept], other))


@pytest.mark.parametrize("besides", ["updates", "ledger.db", "whatever"])
def test_folders_of_others_are_left_even_if_they_have_a_lock(
    tmp_path: Path, besides: str
) -> None:
    """Such as DIR/RUN/exchange of a coordinator, where a worker's base is DIR."""
    foreign = left(tmp_path, "wan", "exchange", days=400)
    (foreign / besides).mkdir()
    only_lock = left(tmp_path, ".config", "program", days=400)
    shutil.rmtree(only_lock / "slots")
    for path in (*tmp_path.rglob("*"),):
        os.utime(path, (0, 0))
    assert prune(tmp_path, "wan", tmp_path / "wan" / RUN) == []
    assert (foreign / "slots" / "inner.npz").exists()
    assert only_lock.exists()


def test_a_worker_whose_name_is_like_an_old_folders_keeps_its_own(
    tmp_path: Path,
) -> None:
    theirs = left(tmp_path, f"ann-{RUN[:8]}", OTHER, days=0)
    own = own_folder(tmp_path, "ann", RUN, nothing)
    assert (theirs / "slots" / "inner.npz").exists()
    assert [path.name for path in own.path.iterdir()] == ["lock"]
    own.lock.release()


def test_who_comes_back_while_others_are_deleted_keeps_his_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting the first takes long; the second one's worker works and ends then."""
    folders = [left(tmp_path, name, OTHER, days=31) for name in ("bob", "eve")]
    delete = shutil.rmtree
    came_back: list[Path] = []

    def slow(path: Path) -> None:
        if not came_back:
            came_back.extend(f for f in folders if f.exists())
            own = own_folder(tmp_path, came_back[0].parent.name, OTHER, nothing)
            (own.path / "slots" / "inner.npz").write_bytes(b"new")
            own.lock.release()
        delete(path)

    monkeypatch.setattr(shutil, "rmtree", slow)
    assert len(prune(tmp_path, "ann", tmp_path / "ann" / RUN)) == 1
    assert (came_back[0] / "slots" / "inner.npz").read_bytes() == b"new"


def test_folders_that_vanish_while_they_are_looked_at_are_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As others, that start at the same moment, may delete them."""
    left(tmp_path, "bob", OTHER, days=31)
    find = Path.glob

    def vanishing(path: Path, pattern: str) -> Iterator[Path]:
        yield from find(path, pattern)
        raise FileNotFoundError(pattern)

    monkeypatch.setattr(Path, "glob", vanishing)
    lines: list[str] = []
    own_folder(tmp_path, "ann", RUN, lines.append).lock.release()
    assert len(lines) == 1


def test_a_folder_that_was_about_to_be_deleted_is_waited_for(tmp_path: Path) -> None:
    other = Lock(tmp_path / "ann" / RUN / "lock")
    threading.Timer(0.05, other.release).start()
    own_folder(tmp_path, "ann", RUN, nothing).lock.release()


def test_who_is_at_work_keeps_his_folder_however_old(tmp_path: Path) -> None:
    path = left(tmp_path, "bob", OTHER, days=400)
    own = own_folder(tmp_path, "bob", OTHER, nothing)
    for found in (*path.rglob("*"), path):
        os.utime(found, (0, 0))
    assert prune(tmp_path, "ann", tmp_path / "ann" / RUN) == []
    own.lock.release()
    assert prune(tmp_path, "ann", tmp_path / "ann" / RUN) == [path]


def test_a_deletion_that_was_killed_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left(tmp_path, "ann", OTHER, days=31)

    def killed(folder: Path) -> None:
        (folder / "lock").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        prune(tmp_path, "ann", tmp_path / "ann" / RUN)
    monkeypatch.undo()
    prune(tmp_path, "ann", tmp_path / "ann" / RUN)
    assert list(path.parent.iterdir()) == []


def test_locks_of_tokens_long_ago_are_deleted(tmp_path: Path) -> None:
    lock_token(tmp_path, "old").release()
    (old,) = (tmp_path / ".tokens").iterdir()
    os.utime(old, (0, 0))
    with lock_token(tmp_path, "new"):
        prune(tmp_path, "ann", tmp_path / "ann" / RUN)
        (there,) = (tmp_path / ".tokens").iterdir()
        assert there != old
