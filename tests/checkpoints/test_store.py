"""Checkpoints: bit-exact, complete or absent, and never wrong in silence."""

import errno
import logging
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax import manifests
from spheroid_jax.checkpoints import FORMAT_VERSION, CheckpointError, Checkpoints
from spheroid_jax.checkpoints import store as store_module
from tests.checkpoints.states import assert_same, files_of, open_


def worker_state(layers: int = 3, seed: int = 0) -> dict[str, Any]:
    """A worker as the engine has it: stacked leaves, AdamW state, keys, counters."""
    keys = jax.random.split(jax.random.key(seed), 3)
    params = {
        "blocks": {"w": jax.random.normal(keys[0], (2, layers, 8, 4))},
        "bias": jax.random.normal(keys[1], (4,), jnp.bfloat16),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return {
        "params": params,
        "optimizer": jax.vmap(optimizer.init)(jax.tree.map(lambda x: x[None], params)),
        "key": keys[2],
        "round": jnp.int32(seed),
    }


def test_restores_every_kind_of_leaf_bit_for_bit(tmp_path: Path) -> None:
    odd = np.array([0x7FC00001, 0x80000000, 0x00000001, 0xFF800000], np.uint32)
    state = worker_state() | {
        "odd floats": jnp.asarray(odd.view(np.float32)),  # NaN payload, -0, denormal
        "keys": jax.random.split(jax.random.key(3), (2, 3)),
        "rbg": jax.random.key(1, impl="rbg"),
        "python": {"int": 7, "float": 1.5, "bool": True},
        "numpy": np.arange(3, dtype=np.int64),
        "empty": {},
    }
    host = {"data": {"next_index": 41}, "seconds": 1.25, "note": "naïve"}
    with open_(tmp_path) as store:
        store.save(4, state, host)
    with open_(tmp_path) as store:
        assert store.latest() == 4
        restored, restored_host = store.restore(state)
    assert_same(restored, state)
    assert restored_host == host


def test_restores_from_shapes_alone(tmp_path: Path) -> None:
    state = worker_state(seed=5)
    with open_(tmp_path) as store:
        store.save(1, state, {})
        restored, _ = store.restore(jax.eval_shape(lambda: state))
    assert_same(restored, state)


def test_numpy_scalars_come_back_as_arrays_of_no_dimension(tmp_path: Path) -> None:
    with open_(tmp_path) as store:
        store.save(1, {"x": np.float32(0.1)}, {})
        restored, _ = store.restore({"x": np.float32(0)})
    assert_same(restored, {"x": np.array(0.1, np.float32)})


def test_a_saved_buffer_may_be_donated_at_once(tmp_path: Path) -> None:
    state = {"w": jnp.arange(200_000, dtype=jnp.float32)}
    expected = np.asarray(state["w"]).copy()
    overwrite = jax.jit(lambda w: w * 0 - 1, donate_argnums=0)
    with open_(tmp_path) as store:
        store.save(1, state, {})
        jax.block_until_ready(overwrite(state["w"]))
        assert state["w"].is_deleted()
        restored, _ = store.restore({"w": jax.ShapeDtypeStruct((200_000,), "float32")})
    np.testing.assert_array_equal(restored["w"], expected)


def test_a_copied_directory_still_restores(tmp_path: Path) -> None:
    state = worker_state()
    with open_(tmp_path / "a") as store:
        store.save(1, state, {})
    shutil.move(tmp_path / "a", tmp_path / "b")
    with open_(tmp_path / "b") as store:
        assert_same(store.restore(state)[0], state)


def test_keeps_the_newest_and_refuses_to_go_back(tmp_path: Path) -> None:
    with open_(tmp_path, keep=2) as store:
        for round_ in (1, 2, 3, 5):
            store.save(round_, {"x": jnp.float32(round_)}, {})
        with pytest.raises(CheckpointError, match=r"round 5 not saved.*holds round 5"):
            store.save(5, {"x": jnp.float32(0)}, {})
        with pytest.raises(CheckpointError, match=r"round 4 not saved.*holds round 5"):
            store.save(4, {"x": jnp.float32(0)}, {})
        for round_ in (3, 5):
            assert store.restore({"x": jnp.float32(0)}, round_)[0]["x"] == round_
        with pytest.raises(CheckpointError, match=r"round 2 .*complete rounds: 3, 5"):
            store.restore({"x": jnp.float32(0)}, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "5"]
    with pytest.raises(CheckpointError, match="at least 1, not 0"):
        open_(tmp_path, keep=0)


def test_nothing_to_restore_is_an_error(tmp_path: Path) -> None:
    with open_(tmp_path) as store:
        assert store.latest() is None
        with pytest.raises(CheckpointError, match=r"no complete checkpoint .*none"):
            store.restore({"x": jnp.float32(0)})


@pytest.mark.parametrize(("saved", "wanted"), [(3, 4), (4, 3)])
def test_another_number_of_layers_is_refused(
    tmp_path: Path, saved: int, wanted: int
) -> None:
    """Both as a stacked axis (shape) and as separate entries (structure)."""
    with open_(tmp_path / "stacked") as store:
        store.save(1, worker_state(saved), {})
        expected = rf"params\.blocks\.w is float32\[2, {saved}, 8, 4\] there and .*4\]"
        with pytest.raises(CheckpointError, match=expected):
            store.restore(worker_state(wanted))
    listed = [[{"w": jnp.ones(2)} for _ in range(n)] for n in (saved, wanted)]
    with open_(tmp_path / "listed") as store:
        store.save(1, listed[0], {})
        with pytest.raises(CheckpointError, match=r"3\.w is .*absent"):
            store.restore(listed[1])


def test_another_dtype_is_refused_not_cast(tmp_path: Path) -> None:
    with open_(tmp_path) as store:
        store.save(1, {"w": jnp.ones(3), "key": jax.random.key(0)}, {})
        for name, other in (
            ("w", jnp.ones(3, jnp.bfloat16)),
            ("key", jax.random.key(0, impl="rbg")),
            ("key", jax.random.PRNGKey(0)),
        ):
            wanted = {"w": jnp.ones(3), "key": jax.random.key(0)} | {name: other}
            with pytest.raises(CheckpointError, match=f"state: {name} is "):
                store.restore(wanted)


def test_an_int64_that_jax_would_narrow_is_refused(tmp_path: Path) -> None:
    with open_(tmp_path) as store:
        store.save(1, {"n": np.arange(3, dtype=np.int64)}, {})
        with pytest.raises(CheckpointError, match="n is int64"):
            store.restore({"n": jax.ShapeDtypeStruct((3,), np.dtype("int64"))})


def test_another_identity_names_every_difference(tmp_path: Path) -> None:
    with open_(tmp_path, identity={"seed": 1}) as store:
        store.save(1, {"x": jnp.ones(1)}, {})
    changed = {"model": {"layers": 4, "width": 8}, "corpus": "other"}
    with (
        Checkpoints(tmp_path, keep=1, identity=changed) as store,
        pytest.raises(CheckpointError) as error,
    ):
        store.restore({"x": jnp.ones(1)})
    message = str(error.value)
    assert "model.layers is 3 there and 4 here" in message
    assert 'corpus is "sha-of-the-corpus" there and "other" here' in message
    assert "seed is 1 there and absent here" in message
    assert "width" not in message
    assert "\n" not in message


def test_another_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "FORMATS", {"xxh3": 99})
    with open_(tmp_path) as store:
        store.save(1, {"x": jnp.ones(1)}, {})
    monkeypatch.undo()
    assert FORMAT_VERSION == 4
    expected = "format 99.*reads formats 2, 3 and 4;"
    with open_(tmp_path) as store, pytest.raises(CheckpointError, match=expected):
        store.restore({"x": jnp.ones(1)})


@pytest.mark.parametrize("digest", ["xxh3", "sha256", "blake3"])
def test_a_flipped_bit_in_any_file_is_refused(tmp_path: Path, digest: str) -> None:
    state = worker_state()
    with open_(tmp_path, digest=digest) as store:
        store.save(1, state, {})
        store.save(2, state, {"position": 3})
        store.wait()
        paths = files_of(tmp_path / "2")
        assert len(paths) > 5
        for path in paths:
            original = path.read_bytes()
            for where in {0, len(original) // 2, len(original) - 1}:
                flipped = bytearray(original)
                flipped[where] ^= 1
                path.write_bytes(flipped)
                with pytest.raises(CheckpointError) as error:
                    store.restore(state)
                assert str(path) in str(error.value)
                assert f"delete {tmp_path / '2'} to go on from round 1" in str(
                    error.value
                )
            path.write_bytes(original)
        assert_same(store.restore(state)[0], state)


def test_a_lost_or_truncated_file_is_refused(tmp_path: Path) -> None:
    state = worker_state()
    with open_(tmp_path) as store:
        for round_ in (1, 2, 3):
            store.save(round_, state, {})
        store.wait()
        for round_ in (2, 3):
            (tmp_path / str(round_) / "params" / "index.0.json").unlink()
        with pytest.raises(CheckpointError, match=r"missing; .*go on from round 1$"):
            store.restore(state)
        data = tmp_path / "1" / "params" / "data.0"
        os.truncate(data, 10)
        with pytest.raises(
            CheckpointError, match=r"has 10 bytes where .*nothing older"
        ):
            store.restore(state, 1)


def test_leftovers_are_not_checkpoints(tmp_path: Path) -> None:
    state = worker_state()
    with open_(tmp_path) as store:
        for round_ in (1, 2, 3):
            store.save(round_, state, {"round": round_})
    (tmp_path / "3" / manifests.MANIFEST).unlink()  # killed between Orbax and us
    (tmp_path / "2" / "commit_success.txt").unlink()  # killed within Orbax
    (tmp_path / "7").mkdir()
    (tmp_path / "8.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "8.orbax-checkpoint-tmp" / "half").write_bytes(b"\0")
    (tmp_path / "notes.txt").write_text("mine")
    with open_(tmp_path) as store:
        assert store.latest() == 1
        restored, host = store.restore(state)
        assert_same(restored, state)
        assert host == {"round": 1}
        for round_ in (2, 3, 7, 8):  # and they are no obstacle
            store.save(round_, state, {"round": round_})
            assert store.restore(state)[1] == {"round": round_}
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_previous_round_outlives_a_save_that_fails_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_(tmp_path, keep=1) as store:
        store.save(1, {"x": jnp.float32(1)}, {})
        store.wait()
        monkeypatch.setattr(manifests, "write", full)
        store.save(2, {"x": jnp.float32(2)}, {})
        with pytest.raises(CheckpointError, match=r"round 2 not saved .*No space left"):
            store.wait()
        monkeypatch.undo()
        assert store.latest() == 1
        assert store.restore({"x": jnp.float32(0)})[0]["x"] == 1
        store.save(2, {"x": jnp.float32(2)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_a_round_half_deleted_is_a_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while an old round goes: it counts as absent, not as damaged."""

    def killed(step: Path, **_: Any) -> None:
        if step.is_dir():
            next(step.glob("rest/data.0")).unlink()
            raise OSError("killed")

    with open_(tmp_path, keep=1) as store:
        store.save(1, {"x": jnp.float32(1)}, {})
        store.wait()
        monkeypatch.setattr(shutil, "rmtree", killed)
        store.save(2, {"x": jnp.float32(2)}, {})
        with pytest.raises(CheckpointError, match="round 2 is saved, but older rounds"):
            store.wait()
        monkeypatch.undo()
        with pytest.raises(CheckpointError, match="complete rounds: 2"):
            store.restore({"x": jnp.float32(0)}, 1)
        store.save(3, {"x": jnp.float32(3)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_a_disk_that_takes_no_more_is_an_error(tmp_path: Path) -> None:
    big = {"w": jax.random.normal(jax.random.key(0), (250_000,))}  # 1 MB
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_(tmp_path) as store:
        store.save(1, big, {})
        store.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            store.save(2, big, {})
            with pytest.raises(CheckpointError, match=r"round 2 not saved .*too large"):
                store.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert store.latest() == 1
        assert_same(store.restore(big)[0], big)


def test_a_directory_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, not a directory")
    with pytest.raises(CheckpointError, match=f"directory {blocked} can't be used"):
        open_(blocked)
    store = open_(tmp_path / "run")
    store.save(1, {"x": jnp.ones(1)}, {})
    store.wait()
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("replaced while running")
    with pytest.raises(CheckpointError, match="round 2 not saved") as error:
        store.save(2, {"x": jnp.ones(1)}, {})
    assert "\n" not in str(error.value)


def test_what_json_can_not_hold_is_an_error(tmp_path: Path) -> None:
    with open_(tmp_path) as store:
        with pytest.raises(CheckpointError, match=r"round 1 not saved.*not JSON"):
            store.save(1, {"x": jnp.ones(1)}, {"array": jnp.ones(1)})
        assert store.latest() is None


def test_orbax_stays_off_the_screen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    absl = logging.getLogger("absl")
    caplog.set_level(logging.DEBUG, logger="absl")
    with open_(tmp_path) as store:
        store.save(1, {"x": jnp.ones(1)}, {})
        store.restore({"x": jnp.ones(1)})
        absl.warning("a line of the caller's own")
    assert [record.message for record in caplog.records if record.name == "absl"] == [
        "a line of the caller's own"
    ]
