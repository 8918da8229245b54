"""Tiny models, and a NumPy reading of the specification to hold them against."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from spheroid_jax.models import (
    Autoregressive,
    BlockDenoiser,
    InterfaceShape,
    TransformerShape,
)

WIDTH, HEADS, LAYERS, LENGTH, BLOCKS = 16, 2, 2, 8, 3


def shapes(
    layers: dict[str, Any] | None, interface: dict[str, Any]
) -> tuple[TransformerShape, InterfaceShape]:
    tiny = {"width": WIDTH, "heads": HEADS, "mlp_width": 4 * WIDTH, "layers": LAYERS}
    return (
        TransformerShape(**tiny | (layers or {})),
        InterfaceShape(**{"width": WIDTH, "seq_len": LENGTH} | interface),
    )


@pytest.fixture(scope="session")
def denoiser() -> Callable[..., BlockDenoiser]:
    """Makes a tiny denoiser; arguments change its shapes and its layout."""

    def make(
        layout: str = "aligned", layers: dict[str, Any] | None = None, **interface: Any
    ) -> BlockDenoiser:
        return BlockDenoiser(*shapes(layers, interface), layout)

    return make


@pytest.fixture(scope="session")
def autoregressive() -> Callable[..., Autoregressive]:
    """Makes a tiny reference; arguments change its shapes."""

    def make(layers: dict[str, Any] | None = None, **interface: Any) -> Autoregressive:
        return Autoregressive(*shapes(layers, {"noisy": False} | interface))

    return make


@pytest.fixture(scope="session")
def fresh() -> Callable[[Any], Any]:
    """The interface as it starts. Compiled without the layers, which is fast."""

    @functools.cache
    def interface(model: Any) -> Any:
        counts = (1,) if isinstance(model, BlockDenoiser) else ()
        return jax.jit(lambda key: model.init(key, *counts)["interface"])(
            jax.random.key(0)
        )

    return interface


@pytest.fixture(scope="session")
def randomised() -> Callable[[Any], Any]:
    """Parameters of a model with noise in every leaf, so that none hides a term."""

    @functools.cache
    def params(model: Any) -> Any:
        counts = (BLOCKS,) if isinstance(model, BlockDenoiser) else ()
        return fill(
            jax.eval_shape(lambda key: model.init(key, *counts), jax.random.key(0))
        )

    return params


def fill(shapes: Any) -> Any:
    """Random numbers of a trained model's size, drawn by NumPy: nothing to compile."""
    rng = np.random.default_rng(5)

    def leaf(path: tuple[Any, ...], shape: jax.ShapeDtypeStruct) -> jax.Array:
        centre = 1.0 if path[-1].key in ("scale", "head_scale") else 0.0
        return jax.numpy.asarray(
            centre + 0.25 * rng.standard_normal(shape.shape), shape.dtype
        )

    return jax.tree_util.tree_map_with_path(leaf, shapes)


@pytest.fixture(scope="session")
def filled() -> Callable[[Any], Any]:
    return fill


class Oracle:
    """Float64 NumPy, written from the specification and not from the code."""

    heads = HEADS

    @staticmethod
    def layer_norm(h: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        centred = h - h.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return centred / deviation * scale + bias

    @staticmethod
    def gelu(h: np.ndarray) -> np.ndarray:
        return 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))

    @staticmethod
    def rotate(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """RoFormer: channels i and i + half are one complex number, turned."""
        half = x.shape[-1] // 2
        turn = np.exp(1j * np.outer(positions, 10_000.0 ** (-np.arange(half) / half)))
        turned = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def layer(
        self, p: Any, h: np.ndarray, allowed: np.ndarray, positions: np.ndarray | None
    ) -> np.ndarray:
        """One pre-LN layer on h (N, S, d); ``allowed`` is (S, S).

        Attention is rotary when it is told the positions (S,).
        """

        def dense(name: str, x: np.ndarray) -> np.ndarray:
            return x @ p[name]["kernel"] + p[name]["bias"]

        x = self.layer_norm(
            h, p["attention_norm"]["scale"], p["attention_norm"]["bias"]
        )
        q, k, v = np.split(dense("qkv", x), 3, axis=-1)
        size = h.shape[-1] // self.heads
        attended = np.zeros_like(h)
        for head in range(self.heads):
            part = slice(head * size, (head + 1) * size)
            query, key = q[..., part], k[..., part]
            if positions is not None:
                query, key = (self.rotate(a, positions) for a in (query, key))
            scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(size)
            scores = np.where(allowed, scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            attended[..., part] = weights @ v[..., part]
        h = h + dense("attention_out", attended)
        x = self.layer_norm(h, p["mlp_norm"]["scale"], p["mlp_norm"]["bias"])
        return h + dense("mlp_out", self.gelu(dense("mlp_in", x)))

    def layers(
        self,
        stack: Any,
        h: np.ndarray,
        allowed: np.ndarray,
        positions: np.ndarray | None,
    ) -> np.ndarray:
        for i in range(jax.tree.leaves(stack)[0].shape[0]):
            layer = jax.tree.map(lambda leaf, i=i: leaf[i], stack)
            h = self.layer(layer, h, allowed, positions)
        return h


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="session")
def as_float64() -> Callable[[Any], Any]:
    return lambda tree: jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)
