"""CE_chain and its companions, on a fixed slice of validation text.

All cross-entropies are in nats per byte, teacher-forced: the clean bytes of a window
are given, the noisy input is not.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from spheroid_jax.diffusion import NoiseLevels, run_chain, sample_sigma
from spheroid_jax.models import BlockDenoiser
from spheroid_jax.objectives import (
    LanguageModel,
    cross_entropy,
    noisy_target,
    split_windows,
)

Results = dict[str, Array]
Evaluator = Callable[[Any, Array, Array], Results]


def ensemble_log_probabilities(logits: Array) -> Array:
    """Mean log-probability over axis 0, renormalised: a product of experts.

    Free in the chain, which meets the logits of all blocks anyway.
    """
    return jax.nn.log_softmax(jnp.mean(jax.nn.log_softmax(logits), axis=0))


def chain(
    model: BlockDenoiser, params: Any, grid: Array, x: Array, key: Array
) -> Array:
    """Logits of every block met from pure noise, (B, N, T, V), for bytes x (N, T)."""
    interface = params["interface"]
    width = model.transformer.width
    z = grid[0] * jax.random.normal(key, (*x.shape, width))

    def denoise(block: Any, z: Array, sigma: Array) -> Array:
        return model.logits(block, interface, x, z, sigma)

    targets = model.targets(interface)
    return run_chain(denoise, params["blocks"], z, grid, targets).logits


def evaluate_chain(
    model: BlockDenoiser, params: Any, grid: Array, windows: Array, key: Array
) -> Results:
    """CE of the chain's last logits, of its first block and of all blocks together."""
    x, y = split_windows(windows)
    logits = chain(model, params, grid, x, key)
    return {
        "ce_chain": jnp.mean(cross_entropy(logits[-1], y)),
        "ce_first": jnp.mean(cross_entropy(logits[0], y)),
        "ce_ensemble": jnp.mean(cross_entropy(ensemble_log_probabilities(logits), y)),
    }


def evaluate_mix(
    model: BlockDenoiser,
    params: Any,
    grid: Array,
    windows: Array,
    key: Array,
    draws: int,
) -> Results:
    """CE_mix: minus the log of the mean probability of y over ``draws`` noise draws."""
    x, y = split_windows(windows)

    def log_probability(key: Array) -> Array:
        return -cross_entropy(chain(model, params, grid, x, key)[-1], y)

    logs = jax.lax.map(log_probability, jax.random.split(key, draws))
    mixed = jax.nn.logsumexp(logs, axis=0) - jnp.log(float(draws))
    return {"ce_mix": -jnp.mean(mixed)}


def evaluate_local(
    model: BlockDenoiser,
    params: Any,
    noise: NoiseLevels,
    sigma_ranges: Array,
    windows: Array,
    scrambled: Array,
    key: Array,
) -> Results:
    """Each block on truly noised targets, with its context and with another's.

    A block that reads its target out of z does not miss its context: its gap is near
    zero (target leakage). ``scrambled`` are the windows that lend their context.

    Returns:
      ``local_ce`` (B,) and ``scrambled_gap`` (B,), unweighted.
    """
    x, y = split_windows(windows)
    other, _ = split_windows(scrambled)
    interface = params["interface"]
    targets = model.targets(interface)
    sigma_key, noise_key = jax.random.split(key)

    def one(block_and_range: tuple[Any, Array]) -> tuple[Array, Array]:
        block, own_range = block_and_range
        sigma = sample_sigma(noise, sigma_key, own_range, x.shape[:1])
        z = noisy_target(targets, y, sigma, noise_key)

        def ce(context: Array) -> Array:
            logits = model.logits(block, interface, context, z, sigma)
            return jnp.mean(cross_entropy(logits, y))

        own = ce(x)
        return own, ce(other) - own

    local, gap = jax.lax.map(one, (params["blocks"], sigma_ranges))
    return {"local_ce": local, "scrambled_gap": gap}


def _batched(
    evaluate: Callable[[Any, Any, Array], Results], batch: int
) -> Callable[[Any, Any, Array], Results]:
    """Runs ``evaluate`` over batches of windows under one ``lax.map``, and averages."""

    def run(params: Any, windows: Any, key: Array) -> Results:
        batches = jax.tree.map(
            lambda leaf: leaf.reshape(-1, batch, *leaf.shape[1:]), windows
        )
        count = jax.tree.leaves(batches)[0].shape[0]
        keys = jax.random.split(key, count)
        results = jax.lax.map(
            lambda item: evaluate(params, item[0], item[1]), (batches, keys)
        )
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), results)

    return run


def chain_evaluator(model: BlockDenoiser, grid: Array, batch: int) -> Evaluator:
    """``(params, windows (M, T+1), key) -> results`` for the curves.

    M must be a multiple of ``batch``.
    """
    return _batched(
        lambda params, windows, key: evaluate_chain(model, params, grid, windows, key),
        batch,
    )


def full_evaluator(
    model: BlockDenoiser,
    noise: NoiseLevels,
    grid: Array,
    sigma_ranges: Array,
    batch: int,
    mix_draws: int,
) -> Evaluator:
    """``(params, windows (M, T+1), key) -> results`` with every metric of BlockTrain.

    The chain is evaluated with the same keys as by :func:`chain_evaluator`.
    """

    def everything(params: Any, pair: tuple[Array, Array], key: Array) -> Results:
        windows, scrambled = pair
        mix_key, local_key = jax.random.split(jax.random.fold_in(key, 1))
        return {
            **evaluate_chain(model, params, grid, windows, key),
            **evaluate_mix(model, params, grid, windows, mix_key, mix_draws),
            **evaluate_local(
                model, params, noise, sigma_ranges, windows, scrambled, local_key
            ),
        }

    run = _batched(everything, batch)
    # Every window borrows the context of the one before it in the whole slice.
    return lambda params, windows, key: run(
        params, (windows, jnp.roll(windows, 1, axis=0)), key
    )


def reference_evaluator(model: LanguageModel, batch: int) -> Evaluator:
    """``(params, windows (M, T+1), key) -> {"ce"}`` for the references."""

    def evaluate(params: Any, windows: Array, key: Array) -> Results:
        del key
        x, y = split_windows(windows)
        return {"ce": jnp.mean(cross_entropy(model.logits(params, x), y))}

    return _batched(evaluate, batch)
