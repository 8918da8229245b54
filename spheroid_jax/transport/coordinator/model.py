"""The model at the coordinator: stepped by what arrived, saved, served, evaluated.

The maths is that of every other round (:mod:`spheroid_jax.rounds`); what differs is
that pseudo-gradients come from files, and that one block is aggregated at a time.
"""

import contextlib
import itertools
from collections.abc import Callable, Sequence
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
from spheroid_jax.transport.coordinator.broadcast import Broadcast
from spheroid_jax.transport.items.published import Published
from spheroid_jax.transport.protocol import Item
from spheroid_jax.transport.updates import (
    Encoding,
    UpdateError,
    UpdateReader,
    Weighted,
    aggregate,
    screen,
)

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


class Arrival(NamedTuple):
    """An accepted update on disk, ``age`` rounds old when it is applied.

    ``worker`` sent it; those of one worker count as one where updates are voted on.
    """

    path: Path
    block: int
    age: int
    worker: str = ""


class Rules(NamedTuple):
    """How updates of a block's replicas become one pseudo-gradient.

    Attributes:
      weigh: ages (float32) to weights; None for one.
      rule: ``mean``, ``trimmed_mean`` or ``median``.
      trim: share left out at each end; ``trimmed_mean`` only.
    """

    weigh: Callable[[Array], Array] | None = None
    rule: str = "mean"
    trim: float = 0.2


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
        self._engine, self._rules, self._judge = engine, rules, judge
        self._weights: dict[int, float] = {}  # by age
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
        ordered = sorted(arrivals, key=lambda a: a.block)  # stable: order of slots
        for block, group in itertools.groupby(ordered, key=lambda a: a.block):
            ups, gradient, wrong = self._sound(list(group))
            damaged += wrong
            if gradient is None:
                continue
            present.append(block)
            ages.append(float(np.mean([a.age for a in ups], dtype=np.float32)))
            own = self._tree(params["blocks"], BLOCK, gradient)
            params, outer = self._step_block(
                own, outer, params, jnp.int32(block), jnp.float32(ages[-1])
            )
            for name, leaf in gradient.items():
                if name.startswith(INTERFACE):
                    shared[name] = shared[name] + leaf if name in shared else leaf
        if ages:
            mean = {n: leaf / np.float32(len(ages)) for n, leaf in shared.items()}
            tree = {INTERFACE: self._tree(params[INTERFACE], INTERFACE, mean)}
            params, outer = self._step_shared(
                tree, outer, params, jnp.float32(np.mean(ages, dtype=np.float32))
            )
        ahead = self._state.ahead
        if self._broadcast is not None:
            params, ahead = self._broadcast.step(
                self._state.params, params, present, self._saved
            )
        self._state = ExchangeState(
            params, ahead, outer, self._state.round + 1, self._state.key
        )
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

    def _sound(
        self, arrivals: list[Arrival]
    ) -> tuple[list[Arrival], dict[str, np.ndarray] | None, list[str]]:
        """A block's pseudo-gradient, of those updates that the disk still has whole.

        Parameters are donated to the step, so nothing may go wrong once it began.
        """
        try:
            return arrivals, self._aggregate(arrivals), []
        except UpdateError:
            wrong = {a: why for a in arrivals if (why := self._damage(a))}
            rest = [a for a in arrivals if a not in wrong]
            lines = [
                f"{a.path.name} was accepted, and is left out as the disk has damaged "
                f"it: {why}"
                for a, why in wrong.items()
            ]
            return rest, self._aggregate(rest) if rest else None, lines

    def _damage(self, arrival: Arrival) -> str:
        try:
            with UpdateReader(arrival.path) as reader:
                return screen(reader, self.expected, None).why
        except UpdateError as error:
            return str(error)

    def _aggregate(self, arrivals: Sequence[Arrival]) -> dict[str, np.ndarray]:
        """One pseudo-gradient of a block's part, float32 by leaf."""
        with contextlib.ExitStack() as stack:
            weighted = [
                Weighted(
                    stack.enter_context(UpdateReader(a.path)),
                    self._weight(a.age),
                    a.worker,
                )
                for a in arrivals
            ]
            whole = {n: np.zeros(s, np.float32) for n, s in self.expected.items()}
            for name, start, piece in aggregate(
                weighted, self._rules.rule, trim=self._rules.trim
            ):
                whole[name].reshape(-1)[start : start + piece.size] = piece
        return whole

    def _weight(self, age: int) -> float:
        weigh = self._rules.weigh
        if weigh is None:
            return 1.0
        if (
            age not in self._weights
        ):  # many updates are of an age, and JAX takes its time
            self._weights[age] = float(weigh(jnp.float32(age)))
        return self._weights[age]

    @staticmethod
    def _tree(like: Any, prefix: str, leaves: dict[str, np.ndarray]) -> Any:
        """Leaves put into the structure of ``like``, which the model has under it."""
        names = list(named({prefix: like}))
        return jax.tree.unflatten(
            jax.tree.structure(like), [jnp.asarray(leaves[n]) for n in names]
        )


def _sum(params: Params, ahead: Params) -> Params:
    """The outer optimizer's model."""
    return jax.tree.map(jnp.add, params, ahead) if ahead else params


@jax.jit
def _part_norms(params: Params) -> Array:
    def square(leaf: Array) -> Array:
        return jnp.sum(jnp.square(leaf.astype(jnp.float32)))

    blocks = jax.vmap(lambda b: sum(map(square, jax.tree.leaves(b))))(params["blocks"])
    shared = sum(map(square, jax.tree.leaves(params[INTERFACE])))
    return jnp.sqrt(blocks + shared)
