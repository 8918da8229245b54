"""A store that waits: ``save`` returns when the round is on disk, without a copy."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.checkpoints import CheckpointError, blobs, retention
from tests.checkpoints.states import assert_same, blocks_state, open_
from tests.checkpoints.test_background import Gate, full


def test_a_round_counts_when_save_returns(tmp_path: Path) -> None:
    with open_(tmp_path, wait=True) as store:
        for round_ in (1, 2):
            store.save(round_, blocks_state(seed=round_), {})
            assert max(retention.complete(tmp_path)) == round_
        assert_same(store.restore(blocks_state())[0], blocks_state(seed=2))


def test_an_error_is_raised_by_the_save_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_(tmp_path, wait=True) as store:
        store.save(1, {"x": jnp.ones(1)}, {})
        with monkeypatch.context() as broken:
            broken.setattr(blobs, "write", full)
            with pytest.raises(CheckpointError, match=r"round 2 not saved .*No space"):
                store.save(2, {"x": jnp.ones(1)}, {})
        store.save(2, {"x": jnp.ones(1)}, {})
        assert store.latest() == 2


def test_a_save_that_hangs_is_an_error_of_that_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    store = open_(tmp_path, wait=True, timeout=0.3)
    with pytest.raises(CheckpointError, match=r"round 1 not saved .* within 0\.3 s"):
        store.save(1, {"x": jnp.ones(1)}, {})
    gate.open.set()
    store.close()


@pytest.mark.parametrize("wait", [True, False])
def test_only_a_store_that_does_not_wait_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    """And afterwards nothing holds the state: donated, its memory is used again."""
    w = jnp.arange(20_000, dtype=jnp.float32).reshape(2, -1)
    address, original = w.unsafe_buffer_pointer(), blobs.write
    inside = []

    def write(directory: Path, item: Any, digest: str) -> None:
        for box in item.boxes:
            at = box.data.ctypes.data - address
            inside.append(0 <= at < w.nbytes)
        original(directory, item, digest)

    monkeypatch.setattr(blobs, "write", write)
    overwrite = jax.jit(lambda w: w * 0 - 1, donate_argnums=0)
    with open_(tmp_path, wait=wait) as store:
        state = {"params": {"blocks": {"w": w}, "interface": {}}}
        state["params"]["interface"] = {"head": jnp.ones(3)}
        expected = jax.tree.map(np.array, state)
        store.save(1, state, {})
        store.wait()
        assert inside.count(True) == (2 if wait else 0)  # the blocks
        assert overwrite(w).unsafe_buffer_pointer() == address
        restored, _ = store.restore(jax.eval_shape(lambda: expected))
    jax.tree.map(np.testing.assert_array_equal, restored, expected)
