"""Saves go on beside training: errors, deadlines, donated buffers and kills."""

import errno
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.checkpoints import CheckpointError, Checkpoints, blobs
from tests.checkpoints.states import assert_same, blocks_state, open_, run_python


class Gate:
    """Holds writes of data until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        original = blobs.write

        def held(*args: Any) -> None:
            self.reached.set()
            assert self.open.wait(30)
            original(*args)

        monkeypatch.setattr(blobs, "write", held)


def test_save_returns_before_the_round_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a half checkpoint isn't the latest for another process meanwhile."""
    state = {"w": jnp.arange(200_000, dtype=jnp.float32)}
    expected = np.asarray(state["w"]).copy()
    overwrite = jax.jit(lambda w: w * 0 - 1, donate_argnums=0)
    with open_(tmp_path) as store, open_(tmp_path) as other:
        store.save(1, state, {})
        store.wait()
        gate = Gate(monkeypatch)
        store.save(2, state, {})
        assert gate.reached.wait(30)
        jax.block_until_ready(overwrite(state["w"]))
        assert state["w"].is_deleted()
        assert other.latest() == 1
        gate.open.set()
        assert store.latest() == 2
        assert other.latest() == 2
        restored, _ = store.restore({"w": jax.ShapeDtypeStruct((200_000,), "float32")})
    np.testing.assert_array_equal(restored["w"], expected)


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_error_is_raised_at_the_next_save_and_names_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"x": jnp.float32(1)}
    with open_(tmp_path) as store:
        store.save(1, state, {})
        store.wait()
        with monkeypatch.context() as broken:
            broken.setattr(blobs, "write", full)
            store.save(2, state, {})
            with pytest.raises(CheckpointError, match=r"round 2 not saved .*No space"):
                store.save(3, state, {})
        assert store.latest() == 1
        store.save(3, state, {})  # the disk is fine again
        assert store.latest() == 3


def test_an_error_is_raised_at_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "write", full)
    store = open_(tmp_path)
    store.save(5, {"x": jnp.float32(1)}, {})
    with pytest.raises(CheckpointError, match=r"round 5 not saved .*No space"):
        store.close()


def test_the_callers_own_error_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "write", full)

    def fail() -> None:
        with open_(tmp_path) as store:
            store.save(5, {"x": jnp.float32(1)}, {})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        fail()
    assert "round 5 not saved" in error.value.__notes__[0]


@pytest.mark.parametrize("fails_within", [True, False])
def test_a_save_that_hangs_is_an_error_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_within: bool
) -> None:
    """The same delay with a longer timeout is no error."""
    gate = Gate(monkeypatch)
    timeout = 0.3 if fails_within else 30.0
    threading.Timer(1.0, gate.open.set).start()
    store = open_(tmp_path, timeout=timeout)
    began = time.monotonic()
    store.save(1, {"x": jnp.float32(1)}, {})
    if not fails_within:
        assert store.latest() == 1
        store.close()
        return
    message = r"round 1 not saved in .* within 0\.3 s; .*checkpoint\.timeout"
    with pytest.raises(CheckpointError, match=message):
        store.wait()
    assert time.monotonic() - began < 1.0
    store.close()  # doesn't hang either
    assert gate.open.wait(5)
    time.sleep(0.3)
    with open_(tmp_path) as again:
        assert again.latest() is None  # what was given up doesn't count later


SAVE_FOR_EVER = """
    import itertools, sys
    from pathlib import Path
    import jax.numpy as jnp
    from spheroid_jax.checkpoints import Checkpoints

    wait = sys.argv[2] == "True"
    store = Checkpoints(Path(sys.argv[1]), keep=1, identity={}, wait=wait)
    for round_ in itertools.count((store.latest() or 0) + 1):
        if wait:
            print(round_, flush=True)  # the round begins
        w = jnp.full((2, 50_000), round_, jnp.int32)
        params = {"blocks": {"w": w}, "interface": {"n": jnp.int32(round_)}}
        store.save(round_, {"params": params}, {"round": round_})
        if not wait:
            print(round_, flush=True)  # its save has begun
    """


def kill_while_saving(
    directory: Path, after: float, previous: int, *, wait: bool
) -> int:
    """SIGKILL ``after`` seconds into saving in a loop; checks what is left."""
    process = run_python(SAVE_FOR_EVER, directory, wait)
    assert process.stdout is not None
    announced = [int(process.stdout.readline()) for _ in range(3)]
    assert announced == list(range(previous + 1, previous + 4))  # it resumed
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(after)
    process.send_signal(signal.SIGKILL)
    announced += map(int, process.stdout.read().split())
    process.wait()
    process.stdout.close()
    shape = {
        "blocks": {"w": jax.ShapeDtypeStruct((2, 50_000), "int32")},
        "interface": {"n": jnp.int32(0)},
    }
    with Checkpoints(directory, keep=1, identity={}) as store:
        latest = store.latest()
        assert latest is not None
        # With wait, a round begins when the one before it is on disk; without, its
        # save does, so that a round in training may be lost besides.
        assert latest >= announced[-1] - 1
        state, host = store.restore({"params": shape})
    assert host == {"round": latest}
    assert state["params"]["interface"]["n"] == latest
    assert (np.asarray(state["params"]["blocks"]["w"]) == latest).all()
    return latest


@pytest.mark.parametrize("wait", [True, False])
def test_a_kill_loses_the_round_in_progress_at_most(tmp_path: Path, wait: bool) -> None:
    kill_while_saving(tmp_path, 0.05, previous=0, wait=wait)


@pytest.mark.slow
@pytest.mark.parametrize("wait", [True, False])
def test_a_kill_at_any_moment(tmp_path: Path, wait: bool) -> None:
    """On one directory, so that leftovers of kills add up."""
    moments, previous = random.Random(0), 0
    for _ in range(12):
        after = moments.uniform(0.0, 0.15)
        previous = kill_while_saving(tmp_path, after, previous, wait=wait)


STOP_AT = """
    import os, signal, sys
    from pathlib import Path
    import jax.numpy as jnp
    from spheroid_jax import manifests
    from spheroid_jax.checkpoints import Checkpoints, blobs, writer, retention

    def killed(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    store = Checkpoints(Path(sys.argv[1]), keep=1, identity={})
    state = {"params": {"blocks": {"w": jnp.ones((2, 3))}, "interface": jnp.ones(2)}}
    store.save(1, state, {})
    store.wait()
    module, name = sys.argv[2].split(".")
    setattr(globals()[module], name, killed)
    store.save(2, state, {})
    store.wait()
    """


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "latest"),
    [
        ("blobs.write", 1),  # before a byte is written
        ("blobs._start_flush", 1),  # in the middle of the data
        ("manifests.digests", 1),  # committed by Orbax, without a manifest
        ("manifests.write", 1),
        ("retention.prune", 2),  # complete, the one before not yet deleted
    ],
)
def test_a_kill_at_each_step_of_a_save(tmp_path: Path, point: str, latest: int) -> None:
    process = run_python(STOP_AT, tmp_path, point)
    assert process.wait(60) == -signal.SIGKILL
    expected = {"params": {"blocks": {"w": jnp.ones((2, 3))}, "interface": jnp.ones(2)}}
    with Checkpoints(tmp_path, keep=1, identity={}) as store:
        assert store.latest() == latest
        assert_same(store.restore(expected)[0], expected)
        store.save(3, expected, {})
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_saves_in_turn_hold_what_each_was_given(tmp_path: Path) -> None:
    states = [blocks_state(seed=seed) for seed in range(4)]
    with open_(tmp_path) as store:
        for round_, state in enumerate(states):
            store.save(round_, state, {})
        for round_, state in enumerate(states):
            assert_same(store.restore(state, round_)[0], state)
