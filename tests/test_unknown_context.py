"""Training on text whose rest isn't known: what a block is shown, and what it isn't."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.diffusion import NoiseLevels, block_ranges, precondition, sample_sigma
from spheroid_jax.models import BlockDenoiser, InterfaceShape, TransformerShape
from spheroid_jax.objectives import (
    FILLS,
    Batch,
    Context,
    Inputs,
    UnknownContext,
    block_denoising,
    cross_entropy,
    cut_windows,
    known_places,
    noisy_target,
    split_windows,
    unknown_context,
)

NOISE, BLOCKS, WIDTH, COUNT, LENGTH = NoiseLevels(), 2, 16, 6, 8
RANGES = jnp.asarray(block_ranges(NOISE, BLOCKS, overlap=0.1), jnp.float32)
MODEL = BlockDenoiser(
    TransformerShape(width=WIDTH, heads=2, mlp_width=32, layers=1),
    InterfaceShape(width=WIDTH, seq_len=LENGTH, head="tied"),
)
KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def part() -> Any:
    """A worker's part, drawn by NumPy: every leaf counts."""
    rng = np.random.default_rng(3)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(0.25 * rng.standard_normal(leaf.shape), leaf.dtype),
        jax.eval_shape(lambda key: MODEL.init(key, BLOCKS), jax.random.key(0)),
    )
    first = jax.tree.map(lambda leaf: leaf[1], params["blocks"])
    return {"block": first, "interface": params["interface"]}


@pytest.fixture(scope="module")
def windows() -> jax.Array:
    rng = np.random.default_rng(4)
    return jnp.asarray(rng.integers(0, 256, (COUNT, LENGTH + 1)), jnp.uint8)


@pytest.fixture(scope="module")
def inputs(windows: jax.Array) -> Inputs:
    rng = np.random.default_rng(6)
    z = jnp.asarray(rng.standard_normal((COUNT, LENGTH, WIDTH)), jnp.float32)
    return Inputs(split_windows(windows)[0], z, jnp.linspace(1.0, 5.0, COUNT))


@functools.partial(jax.jit, static_argnames="fill")
def context_of(part: Any, inputs: Inputs, block: Any, key: Any, fill: str) -> Context:
    unknown = UnknownContext(0.5, fill)
    return unknown_context(MODEL, unknown, part, jnp.int32(block), inputs, key)


@jax.jit
def logits_of(part: Any, inputs: Inputs, present: Any, guess: Any = None) -> jax.Array:
    own = (part["block"], part["interface"])
    return MODEL.logits(*own, *inputs, present, guess)


def test_as_many_windows_as_asked_for_are_cut_anywhere_but_at_the_ends() -> None:
    known = jax.vmap(lambda key: known_places(key, 3, COUNT, LENGTH))(
        jax.random.split(KEY, 700)
    )
    places = np.asarray(known.sum(-1))
    assert known.shape == (700, COUNT, LENGTH)
    assert np.all(places[:, 3:] == LENGTH)
    # Known is a beginning, of 1 to T-1 places, each as likely: 300 times on average.
    beginning = np.arange(LENGTH) < places[..., None]
    np.testing.assert_array_equal(known, beginning)
    found, times = np.unique(places[:, :3], return_counts=True)
    assert found.tolist() == list(range(1, LENGTH))
    assert np.abs(times - 300).max() < 80  # five standard deviations


@pytest.mark.parametrize(
    ("share", "batch", "cut"), [(1.0, 8, 8), (0.5, 8, 4), (0.3, 8, 2), (0.01, 8, 0)]
)
def test_the_share_is_of_the_windows_of_a_batch(
    share: float, batch: int, cut: int
) -> None:
    assert cut_windows(share, batch) == cut


def test_left_out_is_a_zero_embedding_with_its_place(part: Any, inputs: Inputs) -> None:
    """As if the table had a row of zeros for it, which is how it is done here."""
    known = np.arange(LENGTH)[None] < np.array([1, 2, 3, 5, 7, 8])[:, None]
    blank = min(set(range(256)) - set(np.asarray(inputs.x).ravel().tolist()))
    table = part["interface"]["table"].at[blank].set(0.0)
    with_blank = {**part, "interface": {**part["interface"], "table": table}}
    shown = inputs._replace(x=jnp.where(known, inputs.x, blank))
    expected = logits_of(with_blank, shown, np.ones_like(known))
    got = logits_of(with_blank, inputs, known)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fill", "block"),
    [
        (fill, block)
        for fill in FILLS
        for block in (0, 1)
        if (fill, block) != ("true", 1)
    ],
)
def test_no_byte_after_the_cut_is_seen(
    fill: str, block: int, part: Any, inputs: Inputs
) -> None:
    """Other bytes there change no logits; the targets and z are the same here."""
    context = context_of(part, inputs, block, KEY, fill)
    assert not np.all(context.known)
    other = inputs._replace(x=jnp.where(context.known, inputs.x, 255 - inputs.x))
    changed = context_of(part, other, block, KEY, fill)

    def answer(shown: Context) -> np.ndarray:
        seen = inputs._replace(x=shown.x)
        return np.asarray(logits_of(part, seen, shown.present, shown.guess))

    np.testing.assert_array_equal(answer(context), answer(changed))
    # The bytes before the cut are seen, as they are.
    np.testing.assert_array_equal(context.x[context.known], inputs.x[context.known])
    assert np.all(context.present[context.known])
    different = answer(context._replace(x=255 - context.x))
    assert not np.allclose(answer(context), different)


def test_expected_is_the_mean_embedding_of_the_first_guess(
    part: Any, inputs: Inputs
) -> None:
    context = context_of(part, inputs, 1, KEY, "expected")
    known = np.asarray(context.known)
    logits = np.asarray(logits_of(part, inputs, known), np.float64)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    mean = p @ np.asarray(part["interface"]["table"], np.float64)
    np.testing.assert_array_equal(context.present, known)
    for n, t in zip(*np.nonzero(~known), strict=True):
        np.testing.assert_allclose(context.guess[n, t], mean[n, t - 1], atol=1e-5)


def test_drawn_bytes_are_draws_from_the_first_guess(part: Any, inputs: Inputs) -> None:
    """At the last place of the first window, over many keys that leave it out."""
    # Flat guesses would pass for any others.
    sharp = {**part["interface"], "head_scale": jnp.float32(60.0)}
    part = {**part, "interface": sharp}
    keys = jax.random.split(KEY, 3000)
    of_keys = jax.jit(
        jax.vmap(lambda key: context_of(part, inputs, 1, key, "drawn")[0:2])
    )
    known, x = (np.asarray(leaf) for leaf in of_keys(keys))
    places = known[:, 0].sum(-1)
    chosen = places == 3
    assert chosen.sum() > 300
    mask = np.ones((COUNT, LENGTH), bool)
    mask[0, 3:] = False
    logits = logits_of(part, inputs, mask)[0, LENGTH - 2]
    p = np.asarray(jax.nn.softmax(logits), np.float64)
    favourite = int(p.argmax())
    assert 0.05 < p[favourite] < 0.95
    share = np.mean(x[chosen, 0, LENGTH - 1] == favourite)
    deviation = np.sqrt(p[favourite] * (1 - p[favourite]) / chosen.sum())
    assert abs(share - p[favourite]) < 4 * deviation


def test_true_leaves_later_blocks_as_they_are(part: Any, inputs: Inputs) -> None:
    context = context_of(part, inputs, 1, KEY, "true")
    assert np.all(context.present)
    assert context.guess is None
    np.testing.assert_array_equal(context.x, inputs.x)


@pytest.mark.parametrize("fill", ["true", "expected", "drawn"])
def test_block_0_has_nobody_who_guesses_before_it(
    fill: str, part: Any, inputs: Inputs
) -> None:
    zero = context_of(part, inputs, 0, KEY, "zero")
    filled = context_of(part, inputs, 0, KEY, fill)
    np.testing.assert_array_equal(filled.present, zero.present)
    if filled.guess is not None:
        assert not np.any(filled.guess)
    assert np.all(context_of(part, inputs, 1, KEY, "drawn").present)


@functools.partial(jax.jit, static_argnames=("fill", "share"))
def valued(
    part: Any, windows: Any, fill: str, share: float
) -> tuple[tuple[jax.Array, dict[str, jax.Array]], Any]:
    """Loss, metrics and gradient of block 1."""
    unknown = UnknownContext(share, fill) if share else None
    objective = block_denoising(MODEL, NOISE, RANGES, unknown)
    gradient = jax.value_and_grad(objective, has_aux=True)
    return gradient(part, Batch(windows, jnp.int32(1)), KEY)


def test_off_is_the_loss_that_it_was_to_the_bit(part: Any, windows: jax.Array) -> None:
    """The formula written out, with the keys that runs before this option used."""

    def before(part: Any) -> jax.Array:
        sigma_key, noise_key = jax.random.split(KEY)
        x, y = split_windows(windows)
        sigma = sample_sigma(NOISE, sigma_key, RANGES[1], x.shape[:1])
        z = noisy_target(MODEL.targets(part["interface"]), y, sigma, noise_key)
        logits = MODEL.logits(part["block"], part["interface"], x, z, sigma)
        ce = jnp.mean(cross_entropy(logits, y), axis=-1)
        return jnp.mean(precondition(sigma, 0.5).weight * 0.5**2 * ce)

    expected, slope = jax.jit(jax.value_and_grad(before))(part)
    (loss, metrics), gradient = valued(part, windows, "zero", 0.0)
    assert set(metrics) == {"ce"}
    assert float(loss) == float(expected)
    jax.tree.map(np.testing.assert_array_equal, gradient, slope)


@pytest.mark.parametrize("fill", FILLS)
def test_every_position_counts_alike(fill: str, part: Any, windows: jax.Array) -> None:
    (loss, metrics), gradient = valued(part, windows, fill, 0.5)
    sigma_key, noise_key = jax.random.split(KEY)
    x, y = split_windows(windows)
    sigma = sample_sigma(NOISE, sigma_key, RANGES[1], x.shape[:1])
    z = noisy_target(MODEL.targets(part["interface"]), y, sigma, noise_key)
    shown = context_of(part, Inputs(x, z, sigma), 1, jax.random.fold_in(KEY, 2), fill)
    seen = Inputs(shown.x, z, sigma)
    logits = logits_of(part, seen, shown.present, shown.guess)
    ce = np.asarray(cross_entropy(logits, y), np.float64)
    weight = 1 + 0.25 / np.asarray(sigma, np.float64) ** 2
    known = np.asarray(shown.known)
    assert float(loss) == pytest.approx(np.mean(weight[:, None] * ce), rel=1e-5)
    assert float(metrics["ce"]) == pytest.approx(ce.mean(), rel=1e-5)
    assert float(metrics["ce_known"]) == pytest.approx(ce[known].mean(), rel=1e-5)
    assert float(metrics["ce_unknown"]) == pytest.approx(ce[~known].mean(), rel=1e-5)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("fill", ["expected", "drawn"])
def test_nothing_learns_through_the_first_guess(
    fill: str, part: Any, inputs: Inputs
) -> None:
    """But the rows of the table do, as those of any context."""

    def shown(part: Any) -> jax.Array:
        context = context_of(part, inputs, 1, KEY, fill)
        return jnp.sum(jnp.zeros(1) if context.guess is None else context.guess**2)

    gradient = jax.jit(jax.grad(shown))(part)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient["block"]))
    learns = {
        k for k, v in gradient["interface"].items() if np.any(jax.tree.leaves(v)[0])
    }
    assert learns == ({"table"} if fill == "expected" else set())
