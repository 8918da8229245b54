"""The Llama-style decoder against plain NumPy, published sizes and its own claims."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.data import load_corpus
from spheroid_jax.models import (
    SIZES,
    Llama,
    LlamaShape,
    abstract_params,
    llama,
    parameter_count,
)
from spheroid_jax.models.flops import llama_window_flops
from spheroid_jax.models.transformer import rotation, turn
from spheroid_jax.objectives import next_byte
from spheroid_jax.rounds import inner_optimizer, local_phase
from spheroid_jax.rounds.worker import decays

LENGTH, VOCABULARY = 8, 19
# Neither base nor epsilon at its default, and no two sizes alike.
TOY = LlamaShape(
    width=16,
    layers=2,
    heads=4,
    kv_heads=2,
    mlp_width=24,
    vocabulary=VOCABULARY,
    rope_theta=50.0,
    norm_eps=0.1,
)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model: Llama, params: Any, x: jax.Array) -> jax.Array:
    return model.logits(params, x)


@pytest.fixture(scope="module")
def params_of(filled: Callable[[Any], Any]) -> Callable[[LlamaShape], Any]:
    """Noise in every leaf, and a table of its usual size."""

    def make(shape: LlamaShape) -> Any:
        params = filled(abstract_params(Llama(shape)))
        table = 0.08 * params["embedding"]["table"]
        return {**params, "embedding": {"table": table}}

    return make


@pytest.fixture(scope="module")
def x() -> jax.Array:
    return jax.random.randint(jax.random.key(3), (LENGTH, LENGTH), 0, VOCABULARY)


def rms_norm(h: np.ndarray, scale: np.ndarray, eps: float) -> np.ndarray:
    return h / np.sqrt((h * h).mean(-1, keepdims=True) + eps) * scale


def turned(h: np.ndarray, place: int, theta: float) -> np.ndarray:
    """Channels i and i + half as one complex number, turned by its frequency."""
    half = len(h) // 2
    z = (h[:half] + 1j * h[half:]) * np.exp(
        1j * place * theta ** (-np.arange(half) / half)
    )
    return np.concatenate([z.real, z.imag])


def attend(shape: LlamaShape, p: Any, h: np.ndarray) -> np.ndarray:
    """Causal attention on h (T, d), one query and one head at a time."""
    size = shape.width // shape.heads
    q, k, v = (h @ p[name]["kernel"] for name in ("query", "key", "value"))
    out = np.zeros((len(h), shape.width))
    for head in range(shape.heads):
        served = head // (shape.heads // shape.kv_heads)
        own = slice(head * size, (head + 1) * size)
        group = slice(served * size, (served + 1) * size)
        for t in range(len(h)):
            query = turned(q[t, own], t, shape.rope_theta)
            scores = np.array(
                [
                    query @ turned(k[s, group], s, shape.rope_theta) / np.sqrt(size)
                    for s in range(t + 1)
                ]
            )
            weights = np.exp(scores - scores.max())
            out[t, own] = weights @ v[: t + 1, group] / weights.sum()
    return out @ p["attention_out"]["kernel"]


def oracle(shape: LlamaShape, params: Any, tokens: np.ndarray) -> np.ndarray:
    """Logits (T, V) of one sequence (T,) in float64."""
    table = params["embedding"]["table"]
    h = table[tokens] / 0.02
    for i in range(shape.layers):
        p = jax.tree.map(lambda leaf, i=i: leaf[i], params["layers"])
        normed = rms_norm(h, p["attention_norm"]["scale"], shape.norm_eps)
        h = h + attend(shape, p, normed)
        normed = rms_norm(h, p["mlp_norm"]["scale"], shape.norm_eps)
        gate = normed @ p["gate"]["kernel"]
        swish = gate / (1 + np.exp(-gate))
        h = h + (swish * (normed @ p["up"]["kernel"])) @ p["down"]["kernel"]
    out = rms_norm(h, params["final_norm"]["scale"], shape.norm_eps)
    return out @ table.T * 4.0 / (0.02 * shape.width)


@pytest.mark.parametrize(
    "kv_heads",
    [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4))],
)
def test_logits_equal_the_equations_in_plain_numpy(
    kv_heads: int,
    params_of: Callable[[LlamaShape], Any],
    as_float64: Callable[[Any], Any],
    x: jax.Array,
) -> None:
    """With as many key heads as query heads the oracle is multi-head attention."""
    shape = dataclasses.replace(TOY, kv_heads=kv_heads)
    params = params_of(shape)
    got = logits_of(Llama(shape), params, x[:2])
    assert got.shape == (2, LENGTH, VOCABULARY)
    assert got.dtype == jnp.float32
    exact = as_float64(params)
    expected = np.stack([oracle(shape, exact, np.asarray(row)) for row in x[:2]])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_a_position_knows_its_past_and_present_and_nothing_else(
    params_of: Callable[[LlamaShape], Any], x: jax.Array
) -> None:
    params = params_of(TOY)
    same = jnp.tile(x[:1], (LENGTH, 1))
    changed = jnp.where(jnp.eye(LENGTH, dtype=bool), (same + 7) % VOCABULARY, same)
    before, after = (logits_of(Llama(TOY), params, a) for a in (same, changed))
    moved = jnp.max(jnp.abs(after - before), axis=-1)
    expected = np.triu(np.ones((LENGTH, LENGTH), bool))
    np.testing.assert_array_equal(moved > 1e-6, expected)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_turned_queries_and_keys_see_distances_only(theta: float) -> None:
    q, k = np.random.default_rng(0).standard_normal((2, 8))
    places = np.array([0, 3, 10, 13])
    by = rotation(jnp.asarray(places), 8, theta)
    turned_q, turned_k = (
        np.asarray(turn(jnp.tile(jnp.asarray(a, jnp.float32), (1, 4, 1, 1)), by))[0]
        for a in (q, k)
    )
    got = turned_q[:, 0] @ turned_k[:, 0].T
    waves = theta ** (-np.arange(4) / 4)
    distance = (places[:, None] - places)[..., None] * waves
    pairs = (q[:4] + 1j * q[4:]) * (k[:4] - 1j * k[4:])
    expected = (pairs * np.exp(1j * distance)).real.sum(-1)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    assert got[1, 0] == pytest.approx(got[3, 2], abs=1e-4)  # both three apart


@pytest.mark.parametrize(
    ("size", "vocabulary", "published", "untied"),
    [
        ("1b", 128_256, 1_235_814_400, 0),  # Llama 3.2 1B
        ("7b", 32_000, 6_738_415_616, 32_000 * 4096),  # Llama 2 7B, whose head is free
    ],
)
def test_sizes_are_the_published_models_at_their_vocabulary(
    size: str, vocabulary: int, published: int, untied: int
) -> None:
    model = llama(size, vocabulary=vocabulary)
    assert parameter_count(model) + untied == published


@pytest.mark.parametrize(
    ("size", "d", "layers", "kv", "mlp", "millions"),
    [
        ("tiny", 128, 5, 128, 320, 0.98),
        ("25m", 320, 8, 320, 832, 25.8),
        ("1b", 2048, 16, 512, 8192, 1076.1),
        ("7b", 4096, 32, 4096, 11_008, 6682.1),
    ],
)
def test_parameters_counted_by_hand(
    size: str, d: int, layers: int, kv: int, mlp: int, millions: float
) -> None:
    vocabulary = 256 if size == "tiny" else 50_257
    layer = 2 * d * d + 2 * d * kv + 3 * d * mlp + 2 * d
    by_hand = layers * layer + vocabulary * d + d
    assert parameter_count(llama(size)) == by_hand
    assert by_hand / 1e6 == pytest.approx(millions, rel=0.005)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(llama("tiny"), id="tiny"),
        pytest.param(llama("25m", layers=2), id="25m", marks=pytest.mark.slow),
        # Width alone must not make an untrained model sure of itself.
        pytest.param(
            llama(
                "tiny",
                width=1024,
                heads=8,
                kv_heads=8,
                mlp_width=512,
                vocabulary=8_192,
            ),
            id="wide",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_untrained_decoder_knows_nothing(model: Llama) -> None:
    @jax.jit
    def fresh_logits(key: jax.Array, x: jax.Array) -> jax.Array:
        return model.logits(model.init(key), x)

    size = model.shape.vocabulary
    x, y = jax.random.randint(jax.random.key(1), (2, 4, 32), 0, size)
    log_p = np.asarray(jax.nn.log_softmax(fresh_logits(jax.random.key(0), x)))
    ce = -np.take_along_axis(log_p, np.asarray(y)[..., None], -1).mean()
    assert ce == pytest.approx(np.log(size), abs=0.2)


def test_half_precision_stays_near_and_finite(
    params_of: Callable[[LlamaShape], Any], x: jax.Array
) -> None:
    half = dataclasses.replace(TOY, compute_dtype="bfloat16", param_dtype="bfloat16")
    shapes = abstract_params(Llama(half))
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("bfloat16")}
    exact_params = params_of(TOY)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), exact_params)
    exact = logits_of(Llama(TOY), exact_params, x)
    got = logits_of(Llama(half), params, x)
    assert got.dtype == jnp.float32
    error = jnp.linalg.norm(got - exact) / jnp.linalg.norm(exact)
    assert 1e-4 < float(error) < 0.05

    gradient = jax.eval_shape(
        jax.grad(lambda p: jnp.sum(Llama(half).logits(p, x))), shapes
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("bfloat16")}


def test_what_is_recomputed_is_not_kept() -> None:
    """The function that jax.vjp returns carries what was kept for it as leaves."""
    tokens = jax.ShapeDtypeStruct((4, 64), jnp.int32)

    def kept(policy: str) -> int:
        model = Llama(dataclasses.replace(TOY, remat=policy))
        _, backward = jax.eval_shape(
            lambda p, x: jax.vjp(lambda p: model.logits(p, x), p),
            abstract_params(model),
            tokens,
        )
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    assert kept("full") < kept("dots") < kept("none")


def test_workers_each_with_their_own_parameters_are_a_vmapped_axis(
    params_of: Callable[[LlamaShape], Any], x: jax.Array
) -> None:
    """As the round engine runs them, recomputation and grouped queries included."""
    model, params = Llama(dataclasses.replace(TOY, remat="full")), params_of(TOY)
    workers = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), params)
    second = jax.tree.map(lambda leaf: 0.5 * leaf, params)
    got = jax.jit(jax.vmap(model.logits))(workers, jnp.stack([x[:2], x[2:4]]))
    expected = [
        logits_of(Llama(TOY), p, a) for p, a in ((params, x[:2]), (second, x[2:4]))
    ]
    np.testing.assert_allclose(got, jnp.stack(expected), rtol=1e-4, atol=1e-4)


def test_weight_decay_touches_the_matrices_of_the_layers_only() -> None:
    shapes = abstract_params(Llama(TOY))
    touched = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, yes in jax.tree_util.tree_leaves_with_path(decays(shapes))
        if yes
    }
    names = ("query", "key", "value", "attention_out", "gate", "up", "down")
    assert touched == {f"layers/{name}/kernel" for name in names}


def test_forty_steps_on_real_text_reduce_the_loss() -> None:
    """By the round's own local phase: a decoder is an objective's model like others."""
    text = np.frombuffer(load_corpus("embedded").train, np.uint8)
    starts = np.random.default_rng(0).integers(0, len(text) - 33, (4, 10, 8))
    windows = text[starts[..., None] + np.arange(33)]
    model: Any = llama("tiny", width=32, layers=2, heads=2, kv_heads=1, mlp_width=64)
    inner = inner_optimizer(3e-3, 40, warmup_steps=4)
    objective = next_byte(model)
    key = jax.random.key(0)

    @jax.jit
    def ten_steps(params: Any, opt_state: Any, windows: jax.Array) -> Any:
        return local_phase(
            objective, inner, params, opt_state, windows, jnp.int32(0), key
        )

    params = jax.jit(model.init)(key)
    opt_state, ce = inner.init(params), []
    for some in windows:
        params, opt_state, metrics = ten_steps(params, opt_state, jnp.asarray(some))
        ce.append(float(metrics["ce"]))
    assert ce[0] < np.log(256)
    assert ce[-1] < ce[0] - 1.0


def test_the_flops_formula_is_what_xla_counts() -> None:
    """One layer: XLA counts the body of a loop once."""
    model = llama("tiny", layers=1, width=64, heads=2, kv_heads=1, mlp_width=96)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(model.logits(params, x) ** 2)

    tokens = jax.ShapeDtypeStruct((1, 256), jnp.int32)
    lowered = jax.jit(jax.grad(loss)).lower(abstract_params(model), tokens)
    cost: Any = lowered.compile().cost_analysis()
    got = float(cost["flops"])
    assert llama_window_flops(model, 256) == pytest.approx(got, rel=0.15)


@pytest.mark.parametrize("size", list(SIZES))
def test_flops_grow_by_the_parameters_of_a_layer(size: str) -> None:
    """Six per weight and token, and twelve T d for attention over the square."""
    d, length = SIZES[size].width, 64
    one, two = (llama(size, layers=n) for n in (1, 2))
    weights = parameter_count(two) - parameter_count(one) - 2 * d
    grown = llama_window_flops(two, length) - llama_window_flops(one, length)
    assert grown == length * (6 * weights + 12 * length * d)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "heads is 3"),
        ({"width": 12}, "heads is 4.*even"),
        ({"kv_heads": 3}, "kv_heads is 3; it must divide heads, 4"),
        ({"kv_heads": 0}, "kv_heads is 0; it must be above 0"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        ({"norm_eps": float("nan")}, "norm_eps is nan"),
        ({"param_dtype": "int8"}, "param_dtype is 'int8'; use one of float32"),
        ({"remat": "some"}, "remat is 'some'; use one of none, dots, full"),
    ],
)
def test_an_impossible_shape_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TOY, **change)


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(ValueError, match="size is '70b'; use one of tiny, 25m, 1b, 7b"):
        llama("70b")
