"""The model at the coordinator: stepped by what arrived, saved, served, evaluated.

The maths is that of every other round (:mod:`spheroid_jax.rounds`); what differs is
that pseudo-gradients come from files, and that one block is aggregated at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.checkpoints.leaves import block_item, named
from spheroid_jax.partition import Params
from spheroid_jax.rounds import Engine, init_outer, step_block, step_shared
from spheroid_jax.transport.coordinator.arrivals import Arrival, Gatherer, Rules
from spheroid_jax.transport.coordinator.broadcast import Broadcast
from spheroid_jax.transport.items.published import Published
from spheroid_jax.transport.protocol import Item
from spheroid_jax.transport.updates import Encoding

__all__ = ["Arrival", "ExchangeState", "Model", "Rules"]

BLOCK, INTERFACE = "block", "interface"


class ExchangeState(NamedTuple):
    """What a coordinator's checkpoint holds.

    Attributes:
      params: the assembled model, as workers have it.
      ahead: how far the outer optimizer's model is from that, like ``params``, because
        what is broadcast is rounded; empty where it isn't.
      outer: state of the outer optimizer.
      round: rounds done, int32 scalar.
      key: the run's random key; round r of a worker uses ``fold_in(key, r)``.
    """

    params: Params
    ahead: Params
    outer: optax.OptState
    round: Array
    key: Array


class Model:
    """The assembled model between two rounds; one thread at a time."""

    def __init__(
        self,
        engine: Engine,
        rules: Rules,
        first: Callable[[], tuple[Params, Array]],
        judge: Callable[[Params], dict[str, float]],
        checkpoints: Checkpoints,
        directory: Path,
        broadcast: Encoding | None = None,
    ) -> None:
        """Takes up the newest checkpoint, or saves a fresh model as round 0.

        Args:
          engine: partition and outer optimizer of the round.
          rules: of aggregation.
          first: the parameters and the random key of a fresh run.
          judge: parameters to losses on validation.
          checkpoints: of the run.
          directory: where they are.
          broadcast: of what changed in a round, for workers who have the round before;
            None: they fetch what changed as it is.

        Raises:
          spheroid_jax.checkpoints.CheckpointError: nothing can be restored or saved.
        """
        self._engine, self._judge = engine, judge
        self._checkpoints, self._directory = checkpoints, directory
        self._broadcast = Broadcast(directory, broadcast) if broadcast else None
        self._step_block: Any = jax.jit(
            lambda *given: step_block(engine, *given), donate_argnums=(1, 2)
        )
        self._step_shared: Any = jax.jit(
            lambda *given: step_shared(engine, *given), donate_argnums=(1, 2)
        )
        self._state = self._start(first)
        self._saved = self.round
        self._norms = _part_norms(self._state.params).tolist()
        shapes = jax.eval_shape(engine.partition.take, self._state.params)
        self.expected = {name: x.shape[1:] for name, x in named(shapes).items()}
        self._gatherer = Gatherer(rules, self.expected)

    @property
    def round(self) -> int:
        """Rounds done."""
        return int(self._state.round)

    @property
    def params(self) -> Params:
        """The assembled model; the next step takes its memory."""
        return self._state.params

    @property
    def state(self) -> ExchangeState:
        """All that a checkpoint holds."""
        return self._state

    def compile(self) -> None:
        """Compiles what a round needs, so that the first one doesn't wait for it."""
        like = jax.eval_shape(lambda: self._state)
        own = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], jnp.float32),
            like.params["blocks"],
        )
        shared = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), like.params[INTERFACE]
        )
        number = jax.ShapeDtypeStruct((), jnp.int32)
        age = jax.ShapeDtypeStruct((), jnp.float32)
        self._step_block = self._step_block.lower(
            own, like.outer, like.params, number, age
        ).compile()
        self._step_shared = self._step_shared.lower(
            {INTERFACE: shared}, like.outer, like.params, age
        ).compile()
        _sum(self._state.params, self._state.ahead)
        self._gatherer.compile()
        self._judge(self._state.params)

    def norms(self) -> list[float]:
        """The Euclidean norm of every block's part; from any thread."""
        return self._norms

    def publish(self, published: Published) -> list[dict[str, Item]]:
        """Offers the newest checkpoint, and goes on offering the one before.

        Returns:
          The items of each block's part.

        Raises:
          spheroid_jax.manifests.Damage: it isn't what was written.
        """
        items = published.publish(self._directory / str(self._saved))
        published.withdraw(self._directory / str(self._saved - 2))
        count = self._engine.partition.count
        return [
            {BLOCK: items[block_item(b)], INTERFACE: items[INTERFACE]}
            for b in range(count)
        ]

    def step(self, arrivals: Sequence[Arrival]) -> list[str]:
        """Applies what arrived: the model of the next round, in memory only.

        Files are read piece by piece, one block after the other, so memory does not
        grow with the number of updates. Blocks that nothing arrived for stay.

        Returns:
          What is wrong with updates that were sound when they were accepted, and are
          left out: a line each.
        """
        shared: dict[str, np.ndarray] = {}
        ages, present, damaged = [], [], list[str]()
        params, outer = _sum(self._state.params, self._state.ahead), self._state.outer
        for block, age, gradient, wrong in self._gatherer.blocks(arrivals):
            damaged += wrong
            if gradient is None:
                continue
            present.append(block)
            ages.append(age)
            own = self._tree(params["blocks"], BLOCK, gradient)
            params, outer = self._step_block(
                own, outer, params, np.int32(block), np.float32(age)
            )
            _add(shared, gradient)
            # The next pseudo-gradient is written over this one, which JAX may read in
            # place.
            jax.block_until_ready(params)
        if ages:
            mean = {n: leaf / np.float32(len(ages)) for n, leaf in shared.items()}
            tree = {INTERFACE: self._tree(params[INTERFACE], INTERFACE, mean)}
            params, outer = self._step_shared(
                tree, outer, params, np.mean(ages, dtype=np.float32)
            )
        ahead = self._state.ahead
        if self._broadcast is not None:
            params, ahead = self._broadcast.step(
                self._state.params, params, present, self._saved
            )
        # Not by adding one: JAX would compile that, in the middle of a round.
        done = jax.device_put(np.int32(self.round + 1))
        self._state = ExchangeState(params, ahead, outer, done, self._state.key)
        self._norms = _part_norms(params).tolist()
        return damaged

    def save(self, *, metric: float | None = None, age: float = 0.0) -> None:
        """Saves the model of :meth:`step`; it counts when this returns.

        May be called again if it failed: the step isn't done twice.

        Raises:
          spheroid_jax.checkpoints.CheckpointError: it isn't saved.
        """
        if self._saved == self.round:
            return
        self._checkpoints.save(self.round, self._state, {}, metric=metric, age=age)
        self._checkpoints.wait()
        if self._broadcast is not None:
            self._broadcast.publish(self.round)
        self._saved = self.round

    def evaluate(self) -> dict[str, float]:
        """Losses on validation."""
        return self._judge(self._state.params)

    def _start(self, first: Callable[[], tuple[Params, Array]]) -> ExchangeState:
        def fresh() -> ExchangeState:
            params, key = first()
            outer = init_outer(self._engine, params)
            ahead = jax.tree.map(jnp.zeros_like, params) if self._broadcast else {}
            return ExchangeState(params, ahead, outer, jnp.int32(0), key)

        if self._checkpoints.latest() is None:
            state = jax.jit(fresh)()
            self._checkpoints.save(0, state, {})
            self._checkpoints.wait()
            return state
        found: ExchangeState = self._checkpoints.restore(jax.eval_shape(fresh))[0]
        return found

    @staticmethod
    def _tree(like: Any, prefix: str, leaves: dict[str, np.ndarray]) -> Any:
        """Leaves put into the structure of ``like``, which the model has under it."""
        names = list(named({prefix: like}))
        return jax.tree.unflatten(jax.tree.structure(like), [leaves[n] for n in names])


def _add(shared: dict[str, np.ndarray], gradient: Mapping[str, np.ndarray]) -> None:
    """Adds what a block's pseudo-gradient says of the interface."""
    for name, leaf in gradient.items():
        if name in shared:
            shared[name] += leaf
        elif name.startswith(INTERFACE):
            shared[name] = leaf.copy()


def _sum(params: Params, ahead: Params) -> Params:
    """The outer optimizer's model."""
    return _add_trees(params, ahead) if ahead else params


@jax.jit
def _add_trees(left: Params, right: Params) -> Params:
    return jax.tree.map(jnp.add, left, right)


@jax.jit
def _part_norms(params: Params) -> Array:
    def square(leaf: Array) -> Array:
        return jnp.sum(jnp.square(leaf.astype(jnp.float32)))

    blocks = jax.vmap(lambda b: sum(map(square, jax.tree.leaves(b))))(params["blocks"])
    shared = sum(map(square, jax.tree.leaves(params[INTERFACE])))
    return jnp.sqrt(blocks + shared)
