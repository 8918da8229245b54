"""A worker's local phase, from arrays on disk to a pseudo-gradient: no network here."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from spheroid_jax import manifests
from spheroid_jax.checkpoints.leaves import named
from spheroid_jax.partition import difference
from spheroid_jax.rounds import Engine, local_phase, placed, worker_keys


class Trained(NamedTuple):
    """What came of a local phase.

    Attributes:
      delta: {name: float32 array}, sent - returned.
      loss: mean over the steps.
      state: the inner optimizer's, to go on from.
    """

    delta: dict[str, np.ndarray]
    loss: float
    state: Any

    @property
    def is_finite(self) -> bool:
        """Whether the loss and every element of the pseudo-gradient are numbers."""
        return bool(
            np.isfinite(self.loss)
            and all(np.isfinite(leaf).all() for leaf in self.delta.values())
        )


class Trainer:
    """Compiles the local phase once, and runs it for any slot."""

    def __init__(
        self,
        engine: Engine,
        init: Callable[[Array], Any],
        key: Array,
        windows: Callable[[int, int, int], np.ndarray],
        local_steps: int,
    ) -> None:
        """Compiles nothing yet.

        Args:
          engine: of the round; its outer optimizer is the coordinator's affair.
          init: ``key -> params``, for their shapes.
          key: the run's random key.
          windows: ``(round, block, replica)`` to bytes, uint8 (H, N, T+1).
          local_steps: H.
        """
        self._engine, self._key, self._windows = engine, key, windows
        self._local_steps = local_steps
        parts = jax.eval_shape(lambda: engine.partition.take(init(jax.random.key(0))))
        self.abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), parts
        )
        self.shapes = {n: leaf.shape for n, leaf in named(self.abstract).items()}
        self._fresh: Any = jax.jit(engine.inner.init)
        self._phase = jax.jit(self._train, donate_argnums=(1,))
        self._compiled: Callable[..., Any] | None = None

    def train(
        self, part: Any, state: Any, round_: int, block: int, replica: int
    ) -> Trained:
        """One local phase.

        Args:
          part: ``{"block", "interface"}``, as the coordinator sent it.
          state: of the inner optimizer, donated; None for a fresh one.
          round_: rounds done.
          block: b.
          replica: k; with b it decides windows and random key.
        """
        keys = worker_keys(
            jax.random.fold_in(self._key, round_),
            self._engine.partition.count,
            self._engine.replicas,
        )
        windows = jnp.asarray(self._windows(round_, block, replica))
        state = self._fresh(part) if state is None else state
        phase = self._compiled or self._phase
        delta, state, loss = phase(
            part,
            state,
            windows,
            jnp.int32(block),
            keys[block, replica],
            jnp.int32(round_ * self._local_steps),
        )
        flat = {name: np.asarray(leaf) for name, leaf in named(delta).items()}
        return Trained(flat, float(loss), state)

    def compile(self, round_: int = 0) -> None:
        """Compiles the local phase, so that the first round doesn't wait for it."""
        windows = self._windows(round_, 0, 0)
        state = jax.eval_shape(self._engine.inner.init, self.abstract)
        scalar = jax.ShapeDtypeStruct((), jnp.int32)
        self._fresh = self._fresh.lower(self.abstract).compile()
        self._compiled = self._phase.lower(
            self.abstract,
            state,
            jax.ShapeDtypeStruct(windows.shape, windows.dtype),
            scalar,
            jax.eval_shape(lambda: jax.random.key(0)),
            scalar,
        ).compile()

    def save(self, path: Path, state: Any, round_: int) -> None:
        """Keeps an inner optimizer's state after ``round_``, and the one before it.

        Whole or not at all.

        Raises:
          OSError: it can't be written.
        """
        leaves = {f"leaf.{n}": np.asarray(x) for n, x in named(state).items()}
        part = path.with_name(path.name + ".part")
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            np.savez(file, allow_pickle=False, round=np.int64(round_), **leaves)
        manifests.sync(part)
        if self._read(path, round_) is not None:
            os.replace(path, _before(path))
        os.replace(part, path)

    def load(self, path: Path, round_: int) -> Any:
        """The newest state that :meth:`save` kept before ``round_``.

        A process that was killed after it trained a round trains it again, from where
        it was. None where there is no state that fits.
        """
        for place in (path, _before(path)):
            state = self._read(place, round_)
            if state is not None:
                return state
        return None

    def forget(self, path: Path) -> None:
        """Deletes what :meth:`save` keeps: the next :meth:`load` finds nothing.

        Raises:
          OSError: it can't be deleted.
        """
        for place in (_before(path), path):
            place.unlink(missing_ok=True)

    def _read(self, path: Path, before: int) -> Any:
        abstract = jax.eval_shape(self._engine.inner.init, self.abstract)
        wanted = named(abstract)
        try:
            with np.load(path, allow_pickle=False) as stored:
                if int(stored["round"]) >= before:
                    return None
                leaves = [
                    _typed(stored[f"leaf.{name}"], like)
                    for name, like in wanted.items()
                ]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        for leaf, like in zip(leaves, wanted.values(), strict=True):
            if leaf.shape != like.shape or leaf.dtype != like.dtype:
                return None
        return jax.tree.unflatten(
            jax.tree.structure(abstract), [jnp.asarray(leaf) for leaf in leaves]
        )

    def _train(
        self,
        part: Any,
        state: Any,
        windows: Array,
        block: Array,
        key: Array,
        steps: Array,
    ) -> tuple[Any, Any, Array]:
        engine = self._engine
        returned, state, metrics = local_phase(
            engine.objective,
            engine.inner,
            part,
            placed(state, steps),
            windows,
            block,
            key,
        )
        return jax.tree.map(difference, part, returned), state, metrics["loss"]


def _typed(leaf: np.ndarray, like: jax.ShapeDtypeStruct) -> np.ndarray:
    """NumPy's files keep bfloat16 as bytes without a type."""
    untyped = leaf.dtype.kind == "V" and leaf.dtype.itemsize == like.dtype.itemsize
    return leaf.view(like.dtype) if untyped else leaf


def _before(path: Path) -> Path:
    return path.with_name(f"before.{path.name}")
