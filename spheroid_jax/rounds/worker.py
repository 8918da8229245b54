"""A worker's local phase: H optimizer steps on its own part and its own data."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from spheroid_jax.objectives import Batch, Metrics, Objective


def decays(params: Any) -> Any:
    """True for the leaves that weight decay touches: matrices of the layers.

    Names decide, not ranks: stacked over layers, a bias is a matrix too. Tables,
    norms, biases and the interface are left alone.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: getattr(path[-1], "key", None) == "kernel", params
    )


def inner_optimizer(
    learning_rate: float,
    total_steps: int,
    *,
    warmup_steps: int = 0,
    final_lr_fraction: float = 0.1,
    b1: float = 0.9,
    b2: float = 0.95,
    weight_decay: float = 0.1,
    clip: float = 1.0,
    adamw: Callable[..., optax.GradientTransformation] = optax.adamw,
) -> optax.GradientTransformation:
    """AdamW with linear warm-up and cosine decay over all of a worker's local steps.

    Its state stays with the worker and is never sent (arXiv 2606.24722, protocol).

    Args:
      learning_rate: peak.
      total_steps: local steps of the whole run, warm-up included.
      warmup_steps: steps to reach the peak.
      final_lr_fraction: of the peak, where the cosine ends, after ``total_steps``.
      b1: decay of the first moment.
      b2: decay of the second moment.
      weight_decay: decoupled, on the matrices of the layers.
      clip: global gradient norm; zero means no clipping.
      adamw: ``optax.adamw``, or what takes its arguments.
    """
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=learning_rate / (warmup_steps + 1),
        peak_value=learning_rate,
        warmup_steps=warmup_steps,
        # A run may be shorter than its warm-up, and then never reaches the peak.
        decay_steps=max(total_steps, warmup_steps + 1),
        end_value=learning_rate * final_lr_fraction,
    )
    steps = adamw(schedule, b1=b1, b2=b2, weight_decay=weight_decay, mask=decays)
    if not clip:
        return steps
    return optax.chain(optax.clip_by_global_norm(clip), steps)


def _is_schedule(state: Any) -> bool:
    return isinstance(state, optax.ScaleByScheduleState)


def renewed(
    inner: optax.GradientTransformation, part: Any, opt_state: optax.OptState
) -> optax.OptState:
    """A fresh optimizer state that stays at its place in the schedule."""

    return jax.tree.map(
        lambda new, old: old if _is_schedule(new) else new,
        inner.init(part),
        opt_state,
        is_leaf=_is_schedule,
    )


def placed(opt_state: optax.OptState, steps: Array | int) -> optax.OptState:
    """The optimizer state with its schedule after so many local steps.

    Whoever joins late is at the place in the schedule where the others are.
    """

    return jax.tree.map(
        lambda state: (
            optax.ScaleByScheduleState(jnp.asarray(steps, jnp.int32))
            if _is_schedule(state)
            else state
        ),
        opt_state,
        is_leaf=_is_schedule,
    )


def local_phase(
    objective: Objective,
    inner: optax.GradientTransformation,
    part: Any,
    opt_state: optax.OptState,
    windows: Array,
    block: Array,
    key: Array,
) -> tuple[Any, optax.OptState, Metrics]:
    """Runs H local steps in one scan.

    Args:
      objective: what to minimise.
      inner: the worker's optimizer.
      part: the part of the model the worker was sent.
      opt_state: the worker's optimizer state.
      windows: bytes, uint8 (H, N, T + 1).
      block: index of the worker's part, int32 scalar.
      key: randomness of this worker in this round.

    Returns:
      The trained part, the next optimizer state, and metrics averaged over the steps:
      the objective's own, ``loss`` and ``grad_norm``.
    """
    gradient = jax.value_and_grad(objective, has_aux=True)

    def step(carry: tuple[Any, Any], step_input: tuple[Array, Array]) -> Any:
        part, opt_state = carry
        step_windows, step_key = step_input
        (loss, metrics), grads = gradient(part, Batch(step_windows, block), step_key)
        updates, opt_state = inner.update(grads, opt_state, part)
        metrics = {**metrics, "loss": loss, "grad_norm": optax.tree.norm(grads)}
        return (optax.apply_updates(part, updates), opt_state), metrics

    keys = jax.random.split(key, windows.shape[0])
    (part, opt_state), metrics = jax.lax.scan(step, (part, opt_state), (windows, keys))
    return part, opt_state, jax.tree.map(lambda m: jnp.mean(m, axis=0), metrics)
