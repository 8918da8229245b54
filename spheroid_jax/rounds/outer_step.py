"""The engine, and its outer step: what arrived becomes the next parameters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from spheroid_jax.objectives import Objective
from spheroid_jax.optim.blockwise import by_block
from spheroid_jax.partition import Params, Partition, masked_mean


class Engine(NamedTuple):
    """The four choices that make a method, and its number of replicas.

    ``keep_inner`` says whether a worker's optimizer state outlives a round.
    """

    partition: Partition
    objective: Objective
    inner: optax.GradientTransformation
    outer: optax.GradientTransformation
    replicas: int
    keep_inner: bool = True


def init_outer(engine: Engine, params: Params) -> optax.OptState:
    """State of the outer optimizer before the first round."""
    return _outer(engine).init(params)


def step_outer(
    engine: Engine,
    gradient: Params,
    state: optax.OptState,
    params: Params,
    present: Array,
    age: Array | None = None,
) -> tuple[Params, optax.OptState, Array]:
    """Steps what something arrived for; the rest stays, state included, bit for bit.

    Args:
      engine: its partition says whether parts are stepped each by itself.
      gradient: mean pseudo-gradient, like the parameters.
      state: of the outer optimizer.
      params: the assembled model.
      present: which parts something arrived for, bool (B,).
      age: mean age of it in rounds, float32 (B,); None where nothing is late.

    Returns:
      The next parameters and state, and the norm of the update.
    """
    outer = _outer(engine)
    extra = {} if age is None else {"age": age}
    if engine.partition.separate:
        extra["present"] = present
    elif age is not None:
        extra["age"] = masked_mean(age, present)

    def step(params: Params, state: optax.OptState) -> Any:
        updates, after = outer.update(gradient, state, params, **extra)
        return optax.apply_updates(params, updates), after, optax.tree.norm(updates)

    def stay(params: Params, state: optax.OptState) -> Any:
        return params, state, jnp.zeros(())

    if engine.partition.separate:
        return step(params, state)
    # A branch and no selection, which would need a copy of the outer optimizer's
    # state. Vmapped over runs it becomes one.
    return jax.lax.cond(jnp.any(present), step, stay, params, state)


def step_block(
    engine: Engine,
    gradient: Params,
    state: optax.OptState,
    params: Params,
    block: Array,
    age: Array,
) -> tuple[Params, optax.OptState]:
    """Steps one block, as :func:`step_outer` does where only it is present.

    So that a coordinator holds the pseudo-gradient of one block at a time. Params and
    state may be donated.

    Args:
      engine: its parts are stepped each by itself.
      gradient: mean pseudo-gradient of the block, leaves without the axis of blocks.
      state: of the outer optimizer, from :func:`init_outer`.
      params: the assembled model.
      block: which block, int32 scalar.
      age: mean age of what arrived for it in rounds, float32 scalar.
    """
    outer = optax.with_extra_args_support(engine.outer)
    stacked = (params["blocks"], state["blocks"])
    own, own_state = jax.tree.map(lambda leaf: leaf[block], stacked)
    updates, after = outer.update(gradient, own_state, own, age=age)
    own = optax.apply_updates(own, updates)
    blocks, states = jax.tree.map(
        lambda whole, part: whole.at[block].set(part.astype(whole.dtype)),
        stacked,
        (own, after),
    )
    return {**params, "blocks": blocks}, {**state, "blocks": states}


def step_shared(
    engine: Engine,
    gradient: Params,
    state: optax.OptState,
    params: Params,
    age: Array,
) -> tuple[Params, optax.OptState]:
    """Steps what all blocks share, as :func:`step_outer` does; see ``step_block``.

    Args:
      engine: as for ``step_block``.
      gradient: mean over blocks, like the parameters without ``"blocks"``.
      state: of the outer optimizer.
      params: the assembled model.
      age: mean over blocks of the mean age of what arrived, float32 scalar.
    """
    outer = optax.with_extra_args_support(engine.outer)
    own = {name: leaf for name, leaf in params.items() if name != "blocks"}
    updates, after = outer.update(gradient, state["shared"], own, age=age)
    own = optax.apply_updates(own, updates)
    return {**params, **own}, {**state, "shared": after}


def _outer(engine: Engine) -> optax.GradientTransformationExtraArgs:
    if engine.partition.separate:
        return by_block(engine.outer)
    return optax.with_extra_args_support(engine.outer)
