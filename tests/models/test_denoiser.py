"""The block denoiser: what it computes, and what each position can know."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.models import BlockDenoiser, concat_mask
from spheroid_jax.models.interface import Interface
from spheroid_jax.objectives import cross_entropy

WIDTH, LENGTH, VOCABULARY = 16, 8, 256
Make = Callable[..., BlockDenoiser]


@pytest.fixture(scope="module")
def x() -> jax.Array:
    return jax.random.randint(jax.random.key(10), (LENGTH, LENGTH), 0, VOCABULARY)


@pytest.fixture(scope="module")
def z() -> jax.Array:
    return 2.0 * jax.random.normal(jax.random.key(11), (LENGTH, LENGTH, WIDTH))


SIGMA = jnp.geomspace(1.0, 10.0, LENGTH)


def block_of(params: Any, index: int = 0) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], params["blocks"])


@functools.partial(jax.jit, static_argnums=0)
def logits_of(
    model: BlockDenoiser, params: Any, x: jax.Array, z: jax.Array, sigma: jax.Array
) -> jax.Array:
    return model.logits(block_of(params), params["interface"], x, z, sigma)


def changed(params: Any, **interface: Any) -> Any:
    """The same parameters but for some of the interface."""
    return {**params, "interface": {**params["interface"], **interface}}


@pytest.mark.parametrize(
    ("layout", "head"), [("aligned", "untied"), ("aligned", "tied"), ("concat", "tied")]
)
def test_logits_equal_the_equations_in_plain_numpy(
    layout: str,
    head: str,
    denoiser: Make,
    randomised: Callable[..., Any],
    oracle: Any,
    as_float64: Callable[[Any], Any],
    x: jax.Array,
    z: jax.Array,
) -> None:
    """h_0 = W_x e(x) + W_z c_in z + pos + g; logits = head(c_out LN(h) + c_skip z).

    The sigma embedding g is left out here, by a zero table; it has a test of its own.
    """
    model = denoiser(layout, head=head)
    params = randomised(model)
    silent = jnp.zeros_like(params["interface"]["sigma_embedding"])
    params = changed(params, sigma_embedding=silent)
    got = logits_of(model, params, x, z, SIGMA)

    p, zz = as_float64(params["interface"]), as_float64(z)
    s, sd = np.asarray(SIGMA, np.float64)[:, None, None], 0.5
    root = np.sqrt(s**2 + sd**2)
    clean = p["table"][np.asarray(x)] @ p["w_x"] + p["positions"]
    noisy = (zz / root) @ (p["w_z"] / np.sqrt(WIDTH))  # kept in units of 1/sqrt(d)
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    layers, places = as_float64(block_of(params)), np.arange(LENGTH)
    if layout == "aligned":
        h = oracle.layers(layers, clean + noisy, causal, places)
    else:
        none = np.zeros_like(causal)
        allowed = np.block([[causal, none], [causal, np.eye(LENGTH, dtype=bool)]])
        both = np.concatenate([clean, noisy + p["positions"]], axis=1)
        h = oracle.layers(layers, both, allowed, np.tile(places, 2))[:, LENGTH:]
    normed = oracle.layer_norm(h, p["norm"]["scale"], p["norm"]["bias"])
    out = s * sd / root * normed + sd**2 / root**2 * zz
    if head == "untied":
        expected = out @ p["head"] + p["head_bias"]
    else:
        rows = p["table"] / np.linalg.norm(p["table"], axis=-1, keepdims=True)
        expected = p["head_scale"] * (out @ (0.45 * rows).T) + p["head_bias"]
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def dependencies(
    model: BlockDenoiser, params: Any, what: str, x: jax.Array, z: jax.Array
) -> np.ndarray:
    """Which logits move, bool (s, t), when x or z is changed at position s only."""
    x, z = jnp.tile(x[:1], (LENGTH, 1)), jnp.tile(z[:1], (LENGTH, 1, 1))
    places = jnp.eye(LENGTH, dtype=bool)
    changed_x = jnp.where(places, (x + 77) % VOCABULARY, x) if what == "x" else x
    changed_z = jnp.where(places[..., None], -z, z) if what == "z" else z
    sigma = jnp.full(LENGTH, 1.5)
    before = logits_of(model, params, x, z, sigma)
    after = logits_of(model, params, changed_x, changed_z, sigma)
    return np.asarray(jnp.max(jnp.abs(after - before), axis=-1) > 1e-6)


AFTERWARDS = np.triu(np.ones((LENGTH, LENGTH), bool))  # s <= t
ITSELF = np.eye(LENGTH, dtype=bool)


@pytest.mark.parametrize(
    ("layout", "what", "expected"),
    [
        ("aligned", "x", AFTERWARDS),
        ("aligned", "z", AFTERWARDS),
        ("concat", "x", AFTERWARDS),
        ("concat", "z", ITSELF),
    ],
)
def test_a_position_knows_its_past_and_present_and_nothing_else(
    layout: str,
    what: str,
    expected: np.ndarray,
    denoiser: Make,
    randomised: Callable[..., Any],
    x: jax.Array,
    z: jax.Array,
) -> None:
    """Aligned, z_s of an earlier s may matter: it is a noisy copy of x_{s+1}."""
    model = denoiser(layout)
    params = randomised(model)
    np.testing.assert_array_equal(dependencies(model, params, what, x, z), expected)


def test_with_a_zero_projection_z_reaches_only_its_own_position(
    denoiser: Make, randomised: Callable[..., Any], x: jax.Array, z: jax.Array
) -> None:
    model = denoiser()
    params = changed(randomised(model), w_z=jnp.zeros((WIDTH, WIDTH)))
    np.testing.assert_array_equal(dependencies(model, params, "z", x, z), ITSELF)


def test_concat_mask_in_full_for_three_bytes() -> None:
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 0, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 1, 0, 0, 1],
    ]
    np.testing.assert_array_equal(concat_mask(3), np.array(expected, bool))


@pytest.mark.parametrize("radius", [0.45, 1.0])
def test_target_embeddings_are_table_rows_of_norm_r(
    radius: float, denoiser: Make, randomised: Callable[..., Any]
) -> None:
    model = denoiser(target_radius=radius)
    interface = randomised(model)["interface"]
    targets = np.asarray(model.targets(interface), np.float64)
    table = np.asarray(interface["table"], np.float64)
    assert targets.shape == (VOCABULARY, WIDTH)
    np.testing.assert_allclose(np.linalg.norm(targets, axis=-1), radius, rtol=1e-5)
    cosine = np.sum(targets * table, -1) / radius / np.linalg.norm(table, axis=-1)
    np.testing.assert_allclose(cosine, 1.0, rtol=1e-5)


def test_noisy_projection_starts_at_zero_and_its_first_gradient_is_not(
    denoiser: Make,
    fresh: Callable[..., Any],
    randomised: Callable[..., Any],
    x: jax.Array,
    z: jax.Array,
) -> None:
    model = denoiser()
    start, block = fresh(model), block_of(randomised(model))
    assert not np.any(start["w_z"])

    @jax.jit
    @jax.grad
    def gradient(w_z: jax.Array) -> jax.Array:
        logits = model.logits(block, {**start, "w_z": w_z}, x, z, SIGMA)
        return jnp.mean(cross_entropy(logits, jnp.roll(x, -1, axis=1)))

    assert np.count_nonzero(gradient(start["w_z"])) == WIDTH**2


def test_noisy_projection_starts_random_when_asked(
    denoiser: Make, fresh: Callable[..., Any]
) -> None:
    """At deviation 1 it maps noise of unit size to noise of unit size."""
    model = denoiser(noisy_input_std=1.0)
    phi = fresh(model)
    phi = {**phi, "sigma_embedding": jnp.zeros_like(phi["sigma_embedding"])}
    z = 10.0 * jax.random.normal(jax.random.key(0), (20, LENGTH, WIDTH))
    entered = Interface(model.interface).apply(
        {"params": phi}, z, jnp.full(20, 10.0), method="enter_noisy"
    )
    assert float(jnp.std(entered)) == pytest.approx(1.0, rel=0.15)


def test_noise_level_conditions_every_position(
    denoiser: Make, randomised: Callable[..., Any], x: jax.Array
) -> None:
    """Through g alone: z is zero, and c_out only scales what the norm returns."""
    model, nothing = denoiser(), jnp.zeros((LENGTH, LENGTH, WIDTH))
    params = changed(randomised(model), head_bias=jnp.zeros(VOCABULARY))

    def normed(sigma: float) -> np.ndarray:
        logits = logits_of(model, params, x, nothing, jnp.full(LENGTH, sigma))
        return np.asarray(logits) / (0.5 * sigma / np.sqrt(sigma**2 + 0.25))

    low, near, high = normed(1.0), normed(1.02), normed(10.0)
    assert np.all(np.abs(low - high).max(-1) > 1e-2)
    # And smoothly: near levels are treated alike.
    assert np.abs(low - near).mean() < 0.3 * np.abs(low - high).mean()


def test_tied_head_is_the_table_with_a_learnable_scale(
    denoiser: Make,
    randomised: Callable[..., Any],
    fresh: Callable[..., Any],
    x: jax.Array,
    z: jax.Array,
) -> None:
    model = denoiser(head="tied")
    params, untied = randomised(model), randomised(denoiser())
    phi = params["interface"]
    assert set(untied["interface"]) - set(phi) == {"head"}
    assert set(phi) - set(untied["interface"]) == {"head_scale"}
    assert phi["head_scale"].shape == ()

    before = logits_of(model, params, x, z, SIGMA)
    # A byte that is nobody's input: its row acts as a column of the head alone.
    unseen = int(np.setdiff1d(np.arange(VOCABULARY), np.asarray(x))[0])
    table = phi["table"].at[unseen].multiply(-1.0)
    bias = phi["head_bias"]
    after = logits_of(model, changed(params, table=table), x, z, SIGMA)
    np.testing.assert_allclose(
        after[..., unseen] - bias[unseen],
        bias[unseen] - before[..., unseen],
        rtol=1e-4,
        atol=1e-5,
    )
    others = np.arange(VOCABULARY) != unseen
    np.testing.assert_array_equal(after[..., others], before[..., others])

    scale = 2.0 * phi["head_scale"]
    doubled = logits_of(model, changed(params, head_scale=scale), x, z, SIGMA)
    np.testing.assert_allclose(
        doubled, 2.0 * before - bias[None, None], rtol=1e-4, atol=1e-4
    )

    # Rows of norm R alone would start with logits of deviation c_out R, about 0.2.
    started = logits_of(model, {**params, "interface": fresh(model)}, x, z, SIGMA)
    assert 0.5 < float(jnp.mean(jnp.std(started, axis=-1))) < 3.0


def test_blocks_start_different_and_share_one_interface(denoiser: Make) -> None:
    model = denoiser()
    shapes = jax.eval_shape(lambda key: model.init(key, 3), jax.random.key(0))
    for leaf in jax.tree.leaves(shapes["blocks"]):
        assert leaf.shape[:2] == (3, 2)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}
    assert shapes["interface"]["table"].shape == (VOCABULARY, WIDTH)

    kernel = jax.jit(lambda key: model.init(key, 3)["blocks"]["qkv"]["kernel"])(
        jax.random.key(0)
    )
    first, second, third = np.asarray(kernel)
    assert not np.any(first == second)
    assert not np.any(second == third)


def test_bfloat16_compute_keeps_float32_parameters_and_close_logits(
    denoiser: Make, randomised: Callable[..., Any], x: jax.Array, z: jax.Array
) -> None:
    exact, half = denoiser(), denoiser(layers={"compute_dtype": "bfloat16"})
    begun = jax.eval_shape(lambda key: half.init(key, 1), jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(begun)} == {jnp.dtype("float32")}
    params = randomised(exact)
    expected = logits_of(exact, params, x, z, SIGMA)
    got = logits_of(half, params, x, z, SIGMA)
    assert got.dtype == jnp.float32
    error = jnp.linalg.norm(got - expected) / jnp.linalg.norm(expected)
    assert 1e-5 < float(error) < 0.02


def test_sequences_of_a_batch_do_not_see_each_other(
    denoiser: Make, randomised: Callable[..., Any], x: jax.Array, z: jax.Array
) -> None:
    model = denoiser()
    params = randomised(model)
    turned = jnp.roll(jnp.arange(LENGTH), 1)
    expected = logits_of(model, params, x, z, SIGMA)[turned]
    got = logits_of(model, params, x[turned], z[turned], SIGMA[turned])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
