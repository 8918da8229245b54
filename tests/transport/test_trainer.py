"""The local phase of a worker, and the optimizer state that it keeps."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax import partition
from spheroid_jax.rounds import Engine, init_state
from spheroid_jax.rounds.round import train_workers
from spheroid_jax.transport.trainer import Trained, Trainer
from tests.transport import tiny

B, K = 2, 2


@pytest.fixture(scope="module")
def params() -> Any:
    return jax.jit(tiny.init(B))(jax.random.key(0))


def part_of(params: Any, block: int) -> Any:
    parts = tiny.engine(B, K, "sgd")[0].partition.take(params)
    return jax.tree.map(lambda leaf: leaf[block], parts)


@pytest.mark.parametrize("round_", [0, 5])
def test_it_is_the_simulators_worker(params: Any, round_: int) -> None:
    """Each slot's pseudo-gradient, from its windows and its key."""
    engine, _ = tiny.engine(B, K, "sgd")
    windows = jnp.asarray(
        [[tiny.windows(round_, b, k) for k in range(K)] for b in range(B)]
    )
    state = init_state(engine, params, tiny.KEY())
    sent = engine.partition.take(params)
    key = jax.random.fold_in(tiny.KEY(), round_)
    returned, _, metrics = jax.jit(
        lambda s: train_workers(engine, s, state.workers, windows, key)
    )(sent)
    trainer = tiny.trainer(B, K)
    for block in range(B):
        for replica in range(K):
            found = trainer.train(part_of(params, block), None, round_, block, replica)
            kernel = np.asarray(
                sent["block"]["kernel"][block]
                - returned["block"]["kernel"][block, replica]
            )
            np.testing.assert_allclose(found.delta["block.kernel"], kernel, 1e-5, 1e-7)
            np.testing.assert_allclose(
                found.loss, metrics["loss"][block, replica], 1e-6
            )
            assert found.is_finite


def test_the_state_goes_on(params: Any) -> None:
    """Momentum of the first round is in the second."""
    trainer = tiny.trainer(B, K)
    part = part_of(params, 0)
    state = trainer.train(part, None, 0, 0, 0).state
    fresh = trainer.train(part, None, 1, 0, 0).delta["block.bias"]
    gone_on = trainer.train(part, state, 1, 0, 0).delta["block.bias"]
    assert not np.allclose(fresh, gone_on)


def test_the_schedule_is_at_the_place_of_the_round(params: Any) -> None:
    """Also for who begins in the middle, with a fresh state."""
    steps = tiny.LOCAL_STEPS
    halves = optax.piecewise_constant_schedule(0.1, {2 * steps: 0.0})
    engine = Engine(
        partition.blocks(B), tiny.quadratic, optax.sgd(halves), optax.sgd(1.0), K
    )
    trainer = Trainer(engine, tiny.init(B), tiny.KEY(), tiny.windows, steps)
    part = part_of(params, 0)
    assert np.any(trainer.train(part, None, 1, 0, 0).delta["block.bias"])
    assert not np.any(trainer.train(part, None, 2, 0, 0).delta["block.bias"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite(value: float) -> None:
    fine = {"a": np.ones(3, np.float32)}
    bad = {**fine, "b": np.array([0, value], np.float32)}
    assert Trained(fine, 1.0, None).is_finite
    assert not Trained(fine, value, None).is_finite
    assert not Trained(bad, 1.0, None).is_finite


def states(trainer: Trainer, params: Any, count: int) -> list[Any]:
    part, found, state = part_of(params, 0), [], None
    for round_ in range(count):
        state = trainer.train(part, state, round_, 0, 0).state
        found.append(jax.tree.map(np.array, state))
    return found


def equal(one: Any, other: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), one, other))


def test_a_state_is_kept_and_the_one_before_it(tmp_path: Path, params: Any) -> None:
    """A round that is trained again begins with the state of before, ever again."""
    trainer = tiny.trainer(B, K)
    path = tmp_path / "slots" / "0-0" / "inner.npz"
    assert trainer.load(path, 0) is None
    kept = states(trainer, params, 3)
    for round_, state in enumerate(kept):
        trainer.save(path, state, round_)
    assert equal(trainer.load(path, 3), kept[2])
    assert equal(trainer.load(path, 9), kept[2])
    assert equal(trainer.load(path, 2), kept[1])
    trainer.save(path, kept[2], 2)  # trained again
    assert equal(trainer.load(path, 2), kept[1])
    assert trainer.load(path, 1) is None  # forgotten; a fresh one will do


def test_a_kill_while_a_state_is_kept(
    tmp_path: Path, params: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = tiny.trainer(B, K)
    path = tmp_path / "inner.npz"
    kept = states(trainer, params, 2)
    trainer.save(path, kept[0], 0)
    original = os.replace
    for done in range(2):
        calls: list[Any] = []

        def dies(*given: Any, done: int = done, calls: list[Any] = calls) -> None:
            if len(calls) == done:
                raise KeyboardInterrupt
            calls.append(given)
            original(*given)

        monkeypatch.setattr(os, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            trainer.save(path, kept[1], 1)
        monkeypatch.undo()
        assert equal(trainer.load(path, 1), kept[0])


@pytest.mark.parametrize("what", ["empty", "garbage", "cut", "flipped", "shape"])
def test_a_state_that_does_not_fit_is_none(
    tmp_path: Path, params: Any, what: str
) -> None:
    trainer = tiny.trainer(B, K)
    path = tmp_path / "inner.npz"
    trainer.save(path, states(trainer, params, 1)[0], 0)
    data = bytearray(path.read_bytes())
    if what == "shape":
        with np.load(path) as stored:
            leaves = dict(stored)
        name = next(name for name in leaves if name.endswith("kernel"))
        np.savez(path, **{**leaves, name: leaves[name][:-1]})
    elif what == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes({"empty": b"", "garbage": b"x" * 99}.get(what, data[:-40]))
    found = trainer.load(path, 1)
    assert found is None


def test_a_state_in_half_precision(tmp_path: Path) -> None:
    """NumPy's file keeps no bfloat16; ours does."""

    def half(key: jax.Array) -> Any:
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tiny.init(B)(key))

    engine, _ = tiny.engine(B, K, "sgd")
    trainer = Trainer(engine, half, tiny.KEY(), tiny.windows, tiny.LOCAL_STEPS)
    state = jax.tree.map(
        lambda x: np.full(x.shape, 1.5, x.dtype),
        jax.eval_shape(engine.inner.init, trainer.abstract),
    )
    trainer.save(tmp_path / "inner.npz", state, 0)
    assert equal(trainer.load(tmp_path / "inner.npz", 1), state)
