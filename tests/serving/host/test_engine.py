"""Batches in and out of compiled programs: padding, damage, a step that fails."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.serving.host import engine as module
from spheroid_jax.serving.host.engine import CacheLost, Engine, Made, Work
from spheroid_jax.serving.host.serve import shapes
from spheroid_jax.serving.stages import Drawn, Passed, Rows

WIDTH, PLACES, SLOTS = 2, 12, 4


def _fail(flag: np.ndarray) -> np.ndarray:
    if flag:
        raise RuntimeError("the device is on fire")
    return flag


@dataclasses.dataclass(frozen=True)
class CountingStage:
    """Adds bytes, and 1 each, to its cache, and answers with that and ``params``.

    A temperature of 99 makes the step fail while it runs.
    """

    index: int = 0
    count: int = 2
    kind: str = "blocktrain"
    width: int = WIDTH
    places: int = PLACES

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1

    def init_cache(self, slots: int) -> jax.Array:
        return jnp.zeros((slots, PLACES))

    def step(
        self,
        params: Any,
        cache: jax.Array,
        rows: Rows,
        passed: Passed | None,
        *,
        fill: str,
        answer: str,
    ) -> Any:
        burns = jnp.any(rows.temperature == 99.0)
        wanted = jax.ShapeDtypeStruct((), bool)
        burns = jax.pure_callback(_fail, wanted, burns)
        place = rows.start[:, None] + jnp.arange(rows.bytes.shape[1])[None]
        inside = jnp.arange(rows.bytes.shape[1])[None] < rows.count[:, None]
        place = jnp.where(inside, place, PLACES)
        slot = rows.slot[:, None]
        cache = cache.at[slot, place].add(rows.bytes + 1 + burns, mode="drop")
        found = cache.at[slot, place].get(mode="fill", fill_value=-1.0) + params
        if passed is not None:
            found = found + passed.state[..., 0]
        if self.last:
            bytes_ = found.astype(jnp.int32) % 256
            return cache, Drawn(bytes_, -found, rows.bytes)
        state = jnp.stack([found, found], axis=-1)
        guess = state if fill == "expected" else None
        logs = None
        if answer == "ensemble":
            logs = jnp.zeros((*found.shape, 256)) + found[..., None]
        return cache, Passed(state, rows.bytes, guess, logs)


def _engine(index: int = 0, params: float = 0.0, max_batch: int = 4) -> Engine:
    stage: Any = CountingStage(index)
    return Engine(stage, jnp.float32(params), slots=SLOTS, max_batch=max_batch)


def _programs() -> int:
    step: Any = module._step
    return step._cache_size()


def _work(slot: int, text: bytes, **changes: Any) -> Work:
    fields = {
        "slot": slot,
        "start": 0,
        "index": 0,
        "known": len(text),
        "count": len(text),
        "bytes": np.frombuffer(text, np.uint8),
    }
    return Work(**{**fields, **changes})


def _state(made: Made) -> list[float]:
    assert made.state is not None
    return made.state[:, 0].tolist()


def test_rows_of_other_lengths_come_back_in_their_own() -> None:
    made = _engine().compute(
        [_work(0, b"\1\2\3"), _work(2, b"\4\5\6\7"), _work(3, b"\x08\x09\x0a")],
        "given",
        "last",
    )
    assert [_state(row) for row in made] == [[2, 3, 4], [5, 6, 7, 8], [9, 10, 11]]
    assert made[0].bytes.tolist() == [1, 2, 3]
    assert made[0].bytes.dtype == np.uint8
    assert all(row.guess is None and row.logs is None for row in made)


def test_padding_touches_no_slot() -> None:
    engine = _engine()
    engine.compute([_work(s, b"\1\1\1") for s in range(3)], "given", "last")
    # One row more, and one position more, than there are.
    made = engine.compute(
        [_work(s, b"\0\0\0\0\0") for s in range(SLOTS)], "given", "last"
    )
    assert [_state(row) for row in made] == [[3, 3, 3, 1, 1]] * 3 + [[1] * 5]


def test_the_last_stage_draws() -> None:
    work = _work(1, b"\1\2", state=np.full((2, WIDTH), 10.0, np.float32))
    (made,) = _engine(1).compute([work], "given", "last")
    assert made.bytes.tolist() == [12, 13]
    assert made.state is None
    assert made.logprob is not None
    assert made.logprob.tolist() == [-12, -13]
    assert made.context is not None
    assert made.context.tolist() == [1, 2]


def test_what_the_next_stage_needs_comes_along() -> None:
    made = _engine().compute([_work(0, b"\1\2\3")], "expected", "ensemble")
    assert made[0].guess is not None
    assert made[0].guess.shape == (3, WIDTH)
    assert made[0].logs is not None
    assert made[0].logs.shape == (3, 256)


def test_damage_shows_in_its_own_row() -> None:
    good = np.ones((2, WIDTH), np.float32)
    bad = np.array([[1, 1], [np.inf, np.inf]], np.float32)
    works = [_work(0, b"\1\2", state=good), _work(1, b"\1\2", state=bad)]
    made = _engine(1).compute(works, "given", "last")
    assert [bool(row.fault) for row in made] == [False, True]


def test_parameters_that_are_not_finite_show() -> None:
    (made,) = _engine(params=float("nan")).compute([_work(0, b"\1")], "given", "last")
    assert "finite" in made.fault
    assert "\n" not in made.fault


def test_a_step_that_fails_takes_the_cache_and_the_engine_goes_on() -> None:
    engine = _engine()
    engine.compute([_work(0, b"\5\5")], "given", "last")
    with pytest.raises(CacheLost, match="on fire"):
        engine.compute([_work(1, b"\1\1", temperature=99.0)], "given", "last")
    (made,) = engine.compute([_work(0, b"\1\1")], "given", "last")
    assert _state(made) == [2, 2]


def test_a_batch_that_cannot_be_built_leaves_the_cache() -> None:
    engine = _engine()
    engine.compute([_work(0, b"\5\5")], "given", "last")
    with pytest.raises(ValueError, match="count=13"):
        engine.compute([_work(1, bytes(13))], "given", "last")
    (made,) = engine.compute([_work(0, b"\1\1")], "given", "last")
    assert _state(made) == [8, 8]


def test_warming_compiles_what_is_used_and_changes_nothing() -> None:
    engine = _engine(1)
    engine.compute(
        [_work(0, b"\5\5\5", state=np.zeros((3, 2), np.float32))], "given", "last"
    )
    engine.warm(1, 3, "given", "last")
    compiled = _programs()
    (made,) = engine.compute(
        [_work(0, b"\1\1\1", state=np.zeros((3, 2), np.float32))], "given", "last"
    )
    assert made.bytes.tolist() == [8, 8, 8]
    assert _programs() == compiled


def test_few_programs_for_all_sizes() -> None:
    engine = _engine(max_batch=4)
    before = _programs()
    for count in (5, 6, 7, 8):
        for rows in (1, 2, 3, 4):
            works = [_work(s, bytes(count)) for s in range(rows)]
            engine.compute(works, "drawn", "last")
    assert _programs() - before == 3  # of 1, 2 and 4 rows


def test_shapes_to_warm() -> None:
    stage: Any = CountingStage()
    found = shapes(stage, [(1, "given"), (7, "drawn"), (8, "drawn"), (99, "given")], 6)
    assert {(s.positions, s.fill) for s in found} == {
        (1, "given"),
        (8, "drawn"),
        (12, "given"),
    }
    assert sorted({s.rows for s in found}) == [1, 2, 4, 6]
    reference: Any = CountingStage(kind="autoregressive")
    assert {s.fill for s in shapes(reference, [(1, "given"), (8, "drawn")], 2)} == {
        "given"
    }
