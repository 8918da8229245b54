"""What workers minimise, against NumPy on what a recording model was shown."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from spheroid_jax.diffusion import NoiseLevels, block_ranges
from spheroid_jax.models import (
    Autoregressive,
    BlockDenoiser,
    InterfaceShape,
    TransformerShape,
)
from spheroid_jax.objectives import (
    Batch,
    block_denoising,
    cross_entropy,
    next_byte,
    noisy_target,
    split_windows,
)

NOISE, BLOCKS, WIDTH = NoiseLevels(), 3, 16
RANGES = block_ranges(NOISE, BLOCKS, overlap=0.1)
TINY = TransformerShape(width=WIDTH, heads=2, mlp_width=32, layers=1)


class Recorder:
    """Stands in for a denoiser: keeps what it is shown and answers in kind.

    The louder the noise, the surer it is of byte 0, so that cross-entropy and weight
    go together and the mean of their products isn't the product of their means.
    """

    interface = SimpleNamespace(sigma_data=0.5)

    def __init__(self) -> None:
        self.seen: dict[str, np.ndarray] = {}

    def targets(self, interface: Any) -> jax.Array:
        return interface["targets"]

    def logits(
        self, block: Any, interface: Any, x: Any, z: Any, sigma: Any
    ) -> jax.Array:
        del block, interface
        self.seen = {"x": np.asarray(x), "z": np.asarray(z), "sigma": np.asarray(sigma)}
        favourite = jax.nn.one_hot(jnp.zeros_like(x), 256)
        return 6.0 * sigma[:, None, None] * favourite


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    """Text of which about half is byte 0."""
    rng = np.random.default_rng(0)
    text = rng.integers(1, 256, (128, 9)) * (rng.random((128, 9)) < 0.5)
    return text.astype(np.uint8)


def recorded(windows: np.ndarray, block: int, seed: int = 1) -> tuple[Any, Recorder]:
    """Value and metrics of the block objective, with what the model was shown."""
    model = Recorder()
    objective = block_denoising(model, NOISE, jnp.asarray(RANGES, jnp.float32))
    targets = jax.random.normal(jax.random.key(9), (256, WIDTH))
    params = {"block": {}, "interface": {"targets": targets}}
    batch = Batch(jnp.asarray(windows), jnp.int32(block))
    return objective(params, batch, jax.random.key(seed)), model


def test_inputs_and_targets_are_neighbours_in_the_window() -> None:
    x, y = split_windows(jnp.array([[7, 8, 9, 255]], jnp.uint8))
    np.testing.assert_array_equal(x, [[7, 8, 9]])
    np.testing.assert_array_equal(y, [[8, 9, 255]])
    assert x.dtype == y.dtype == jnp.int32


def test_cross_entropy_is_in_nats_at_every_position() -> None:
    rng = np.random.default_rng(1)
    logits, y = rng.normal(size=(2, 3, 5)), rng.integers(0, 5, (2, 3))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(p, y[..., None], -1))[..., 0]
    got = cross_entropy(jnp.asarray(logits), jnp.asarray(y))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    uniform = cross_entropy(jnp.zeros((1, 1, 256)), jnp.zeros((1, 1), jnp.int32))
    assert float(uniform[0, 0]) == pytest.approx(5.545, abs=1e-3)


def test_weight_and_cross_entropy_are_multiplied_per_example(
    windows: np.ndarray,
) -> None:
    (loss, metrics), model = recorded(windows, block=2)
    sigma = model.seen["sigma"].astype(np.float64)[:, None]
    y = windows[:, 1:]
    # -log softmax by hand: the favourite has logit 6 sigma, 255 others have 0.
    normaliser = np.log(np.exp(6 * sigma) + 255)
    ce = np.mean(normaliser - np.where(y == 0, 6 * sigma, 0.0), axis=1)
    weight = (1 / 0.5**2 + 1 / sigma[:, 0] ** 2) * 0.5**2
    assert float(loss) == pytest.approx(np.mean(weight * ce), rel=1e-5)
    assert float(metrics["ce"]) == pytest.approx(np.mean(ce), rel=1e-5)
    # On this batch the known wrong way is far enough to be told apart.
    assert abs(np.mean(weight) * np.mean(ce) / np.mean(weight * ce) - 1) > 1e-3


def test_pure_noise_weighs_one(windows: np.ndarray) -> None:
    """So that losses compare with the references': sd^2 w = 1 + (sd / s)^2."""
    (loss, metrics), model = recorded(windows, block=0)
    ratio = float(loss) / float(metrics["ce"])
    assert 1.0 < ratio < 1.0 + 0.25 / model.seen["sigma"].min() ** 2


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_block_sees_its_own_noise_and_one_level_a_sequence(
    block: int, windows: np.ndarray
) -> None:
    _, model = recorded(windows, block)
    sigma, (low, high) = model.seen["sigma"], RANGES[block]
    assert sigma.shape == (128,)
    assert low - 1e-6 <= sigma.min() < low + 0.1 * (high - low)
    assert sigma.max() <= high + 1e-6
    assert len(np.unique(sigma)) > 100


def test_noisy_target_is_the_target_embedding_with_noise_of_its_level(
    windows: np.ndarray,
) -> None:
    _, model = recorded(windows, block=0)
    targets = np.asarray(jax.random.normal(jax.random.key(9), (256, WIDTH)))
    np.testing.assert_array_equal(model.seen["x"], windows[:, :-1])
    clean, sigma = targets[windows[:, 1:]], model.seen["sigma"][:, None, None]
    noise = (model.seen["z"] - clean) / sigma
    assert scipy.stats.kstest(noise.ravel()[::3], "norm").pvalue > 0.01
    # Drawn anew for every sequence, position and channel.
    assert len(np.unique(np.round(noise, 4))) > 0.5 * noise.size
    flat = noise.reshape(len(windows), -1)
    assert np.abs(np.corrcoef(flat) - np.eye(len(windows))).max() < 0.5


def test_another_key_draws_another_level_and_other_noise(windows: np.ndarray) -> None:
    (first, _), one = recorded(windows, block=0, seed=1)
    (second, _), two = recorded(windows, block=0, seed=2)
    (again, _), _ = recorded(windows, block=0, seed=1)
    assert float(first) == float(again) != float(second)
    assert not np.any(one.seen["sigma"] == two.seen["sigma"])
    assert not np.any(one.seen["z"] == two.seen["z"])


def test_no_gradient_flows_into_the_table_through_the_noisy_target() -> None:
    table = jax.random.normal(jax.random.key(0), (256, WIDTH))

    def through_z(table: jax.Array) -> jax.Array:
        y, sigma = jnp.array([[3, 4]]), jnp.array([2.0])
        return jnp.sum(noisy_target(table, y, sigma, jax.random.key(1)) ** 2)

    assert not np.any(jax.grad(through_z)(table))


def numbers(init: Any) -> Any:
    """Parameters of any initialiser's shapes, drawn by NumPy: nothing to compile."""
    rng = np.random.default_rng(3)
    return jax.tree.map(
        lambda leaf: jnp.asarray(0.25 * rng.standard_normal(leaf.shape), leaf.dtype),
        jax.eval_shape(init, jax.random.key(0)),
    )


@pytest.fixture(scope="module")
def gradient() -> Any:
    """Gradients of the real objective on one window whose last byte is unique."""
    shape = InterfaceShape(width=WIDTH, seq_len=8)
    model = BlockDenoiser(TINY, shape)
    objective = block_denoising(model, NOISE, jnp.asarray(RANGES, jnp.float32))
    text = jnp.array([[10, 11, 12, 13, 10, 11, 12, 13, 200]], jnp.uint8)

    params = numbers(lambda key: model.init(key, BLOCKS))
    part = {
        "block": jax.tree.map(lambda leaf: leaf[1], params["blocks"]),
        "interface": params["interface"],
    }
    value, _ = jax.jit(jax.grad(objective, has_aux=True))(
        part, Batch(text, jnp.int32(1)), jax.random.key(1)
    )
    return value


def test_table_rows_learn_as_inputs_and_not_as_targets(gradient: Any) -> None:
    """Byte 200 is a target only; bytes 10 to 13 are in the context as well."""
    table = np.asarray(gradient["interface"]["table"])
    assert np.all(np.abs(table[10:14]).max(-1) > 0)
    assert not np.any(table[200])


def test_every_other_leaf_of_the_part_gets_a_gradient(gradient: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.all(np.isfinite(leaf)), path
        assert np.any(leaf), path


def test_the_references_minimise_the_mean_cross_entropy_of_the_next_byte() -> None:
    model = Autoregressive(TINY, InterfaceShape(width=WIDTH, seq_len=8, noisy=False))
    params = numbers(model.init)
    windows = jax.random.randint(jax.random.key(1), (3, 9), 0, 256).astype(jnp.uint8)
    objective = jax.jit(next_byte(model))
    loss, metrics = objective(params, Batch(windows, jnp.int32(0)), jax.random.key(2))

    logits = np.asarray(jax.jit(model.logits)(params, windows[:, :-1].astype(int)))
    logits = logits.astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    y = np.asarray(windows[:, 1:], int)[..., None]
    expected = -np.mean(np.take_along_axis(log_p, y, -1))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["ce"]) == float(loss)
    other, _ = objective(params, Batch(windows, jnp.int32(0)), jax.random.key(3))
    assert float(other) == float(loss)
