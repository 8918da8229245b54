"""What a worker minimises: ``loss(params, batch, key) -> (loss, metrics)``.

``params`` is the part of the model that the worker holds, see
:mod:`spheroid_jax.partition`. Losses are in nats per byte.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import Array

from spheroid_jax.diffusion import NoiseLevels, precondition, sample_sigma
from spheroid_jax.models import BlockDenoiser

# What stands for a byte that isn't known.
FILLS = ("true", "zero", "expected", "drawn")

Metrics = dict[str, Array]
Objective = Callable[[Any, "Batch", Array], tuple[Array, Metrics]]


class LanguageModel(Protocol):
    """What predicts the next byte."""

    def logits(self, params: Any, x: Array) -> Array:
        """Logits (N, T, V) of the byte after each of x (N, T)."""


class Batch(NamedTuple):
    """What one local step sees.

    Attributes:
      windows: bytes, uint8 (N, T + 1); inputs are all but the last, targets all but
        the first.
      block: which block this worker holds, int32 scalar.
    """

    windows: Array
    block: Array


def split_windows(windows: Array) -> tuple[Array, Array]:
    """Inputs ``x_t = u_t`` and targets ``y_t = u_{t+1}``, int32 (N, T) each."""
    windows = windows.astype(jnp.int32)
    return windows[:, :-1], windows[:, 1:]


def cross_entropy(logits: Array, y: Array) -> Array:
    """Cross-entropy in nats at every position, (N, T)."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def next_byte(model: LanguageModel) -> Objective:
    """The references' objective: cross-entropy of the next byte."""

    def loss(params: Any, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        del key
        x, y = split_windows(batch.windows)
        ce = jnp.mean(cross_entropy(model.logits(params, x), y))
        return ce, {"ce": ce}

    return loss


def noisy_target(targets: Array, y: Array, sigma: Array, key: Array) -> Array:
    """``z = stop_gradient(Ehat[y]) + sigma eps``, (N, T, d), one sigma per sequence."""
    clean = jax.lax.stop_gradient(targets)[y]
    noise = jax.random.normal(key, clean.shape, clean.dtype)
    return clean + sigma[:, None, None] * noise


@dataclasses.dataclass(frozen=True)
class UnknownContext:
    """How a batch is made to look like text of which only the beginning is known.

    Some windows are cut at a uniform place. After the cut block 0 has the places and
    the noisy targets, and a zero embedding instead of each clean byte: nobody guesses
    before it. Later blocks have one of ``FILLS``:

    * ``true``: the byte, as ever; what blocks before it decide is to be relied on;
    * ``zero``: a zero embedding;
    * ``expected``: the mean embedding by the block's own first guess, which it makes
      with ``zero`` (self-conditioning, arXiv 2208.04202, section 3.2);
    * ``drawn``: a byte drawn from that guess (scheduled sampling, arXiv 1506.03099).

    The guess is made with the block's own parameters, since a worker holds no other's.
    What is drawn by one's own guess says nothing about the target that the rest of the
    context doesn't, so that blocks trained with ``drawn`` learn to distrust it.

    Attributes:
      share: of the windows of a batch, in (0, 1].
      fill: one of ``FILLS``.
    """

    share: float
    fill: str


class Inputs(NamedTuple):
    """What a block sees: bytes x (N, T), noisy targets z (N, T, d), sigma (N,)."""

    x: Array
    z: Array
    sigma: Array


class Context(NamedTuple):
    """What a block is shown as clean input, see ``BlockDenoiser.logits``.

    Attributes:
      known: places before the cut, bool (N, T).
      x: bytes, (N, T).
      present: which of x enter, bool (N, T).
      guess: embeddings for the others, (N, T, d), or None for zero.
    """

    known: Array
    x: Array
    present: Array
    guess: Array | None


def cut_windows(share: float, batch: int) -> int:
    """How many windows of a batch are cut: always as many, so that means are."""
    return round(share * batch)


def known_places(key: Array, cut: int, count: int, length: int) -> Array:
    """Places before the cut, bool (count, length): at least one, and not all.

    The first ``cut`` windows are cut; a batch is shuffled as it is.
    """
    known = jax.random.randint(key, (cut,), 1, length)
    known = jnp.concatenate([known, jnp.full(count - cut, length)])
    return jnp.arange(length)[None] < known[:, None]


def unknown_context(
    model: BlockDenoiser,
    unknown: UnknownContext,
    params: Any,
    block: Array,
    inputs: Inputs,
    key: Array,
) -> Context:
    """Cuts the context of a batch and fills it; see :class:`UnknownContext`.

    Args:
      model: the block denoiser.
      unknown: what to do.
      params: the worker's part.
      block: which block it is.
      inputs: what the block would see if it knew the context.
      key: of the cuts and draws.
    """
    x = inputs.x
    cut = cut_windows(unknown.share, x.shape[0])
    cut_key, draw_key = jax.random.split(key)
    known = known_places(cut_key, cut, *x.shape)
    present = known | (block > 0)
    if unknown.fill == "true":
        return Context(known, x, present, None)
    if unknown.fill == "zero":
        return Context(known, x, known, None)
    own = jax.lax.stop_gradient(params)
    x_cut, z, sigma = (leaf[:cut] for leaf in inputs)
    guess = model.logits(
        own["block"], own["interface"], x_cut, z, sigma, present=known[:cut]
    )
    # The guess at a place is about the next one; the first place is always known.
    if unknown.fill == "drawn":
        drawn = jax.random.categorical(draw_key, guess[:, :-1])
        drawn = jnp.where(known[:cut, 1:], x_cut[:, 1:], drawn)
        return Context(known, x.at[:cut, 1:].set(drawn), present, None)
    mean = model.expected(params["interface"], guess[:, :-1])
    mean = jnp.where(block > 0, mean, 0.0)
    rest = ((0, x.shape[0] - cut), (1, 0), (0, 0))
    return Context(known, x, known, jnp.pad(mean, rest))


def block_denoising(
    model: BlockDenoiser,
    noise: NoiseLevels,
    sigma_ranges: Array,
    unknown: UnknownContext | None = None,
) -> Objective:
    """BlockTrain's local objective: DiffusionBlocks' (arXiv 2506.14202) on bytes.

    Per example the cross-entropy is weighted by ``w(sigma) sigma_data²``, which is 1
    for pure noise and grows where the target is easy to read out of z.

    Args:
      model: the block denoiser.
      noise: distribution of ln sigma.
      sigma_ranges: training range of every block, (B, 2).
      unknown: how much of the context is hidden, and what replaces it; by default
        none is. Every position counts alike in the loss, whatever it is shown.
    """
    sigma_data = model.interface.sigma_data

    def loss(params: Any, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        sigma_key, noise_key = jax.random.split(key)
        x, y = split_windows(batch.windows)
        own_range = sigma_ranges[batch.block]
        sigma = sample_sigma(noise, sigma_key, own_range, x.shape[:1])
        z = noisy_target(model.targets(params["interface"]), y, sigma, noise_key)
        own, metrics = (params["block"], params["interface"]), {}
        if unknown is None:
            each = cross_entropy(model.logits(*own, x, z, sigma), y)
        else:
            # Keys 0 and 1 may be those that were split off.
            context_key = jax.random.fold_in(key, 2)
            inputs = Inputs(x, z, sigma)
            shown = unknown_context(
                model, unknown, params, batch.block, inputs, context_key
            )
            logits = model.logits(*own, shown.x, z, sigma, shown.present, shown.guess)
            each = cross_entropy(logits, y)
            metrics["ce_known"] = jnp.mean(each, where=shown.known)
            metrics["ce_unknown"] = jnp.mean(each, where=~shown.known)
        ce = jnp.mean(each, axis=-1)
        weight = precondition(sigma, sigma_data).weight * sigma_data**2
        return jnp.mean(weight * ce), {**metrics, "ce": jnp.mean(ce)}

    return loss
