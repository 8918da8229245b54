"""Tiny models, and the chain of blocks as it is written down: whole, and no cache."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spheroid_jax.diffusion import run_chain
from spheroid_jax.models import (
    VOCABULARY,
    Autoregressive,
    BlockDenoiser,
    InterfaceShape,
    TransformerShape,
)
from spheroid_jax.serving import draws
from spheroid_jax.serving.stages import Drawn, Passed, Rows, Stage
from tests.models.conftest import fill

WIDTH, PLACES, SLOTS = 16, 12, 5
GRID = (7.0, 3.5, 1.5)

step = jax.jit(Stage.step, static_argnames=("self", "fill", "answer"))


def shapes(
    layers: int, *, rotary: bool, head: str, noisy: bool
) -> tuple[TransformerShape, InterfaceShape]:
    return (
        TransformerShape(WIDTH, 2, 2 * WIDTH, layers, rotary=rotary),
        InterfaceShape(WIDTH, PLACES, noisy=noisy, head=head, noisy_input_std=1.0),
    )


def denoiser(rotary: bool = True, head: str = "tied") -> BlockDenoiser:
    return BlockDenoiser(*shapes(1, rotary=rotary, head=head, noisy=True))


def reference(layers: int) -> Autoregressive:
    return Autoregressive(*shapes(layers, rotary=True, head="tied", noisy=False))


@functools.cache
def params(model: Any, blocks: int = 0) -> Any:
    """Random numbers of a trained model's size, and beliefs that are far from flat.

    So the mean embedding of an unknown byte matters: it isn't near zero.
    """
    counts = (blocks,) if blocks else ()
    whole = fill(
        jax.eval_shape(lambda key: model.init(key, *counts), jax.random.key(0))
    )
    interface = dict(whole["interface"])
    interface["table"] *= 4.0
    name = "head" if "head" in interface else "head_scale"
    interface[name] *= 8.0
    return {**whole, "interface": interface}


class Chain:
    """Stages and their caches, which start full of NaN, as a broken text left them."""

    def __init__(self, stages: tuple[Stage, ...], whole: Any):
        self.stages = stages
        self.parts = [stage.part(whole) for stage in stages]
        self.caches = [
            jax.tree.map(
                lambda leaf: jnp.full_like(leaf, jnp.nan), stage.init_cache(SLOTS)
            )
            for stage in stages
        ]
        self.passed: list[Passed] = []

    def sweep(self, rows: Rows, fill: str = "given", answer: str = "last") -> Drawn:
        """Crosses all stages; what is passed at padding is replaced by NaN."""
        out: Any = None
        self.passed = []
        padding = (
            np.arange(rows.bytes.shape[1])[None] >= np.asarray(rows.count)[:, None]
        )
        for i, stage in enumerate(self.stages):
            self.caches[i], out = step(
                stage,
                self.parts[i],
                self.caches[i],
                rows,
                out,
                fill=fill,
                answer=answer,
            )
            if isinstance(out, Passed):
                self.passed.append(out)
                spoilt = jnp.where(padding[..., None], jnp.nan, out.state)
                out = out._replace(state=spoilt)
        return out


class Ask(NamedTuple):
    """What one row asks for."""

    slot: int
    start: int
    bytes: list[int]
    known: int
    seed: int = 0
    temperature: float = 1.0
    offset: int = 0  # index minus place
    top_k: int = 0


def batch(asks: list[Ask], size: int) -> Rows:
    """Rows of ``size`` positions; what pads them isn't a byte."""
    count = [len(ask.bytes) for ask in asks]
    read = [ask.bytes + [999] * (size - len(ask.bytes)) for ask in asks]
    whole = functools.partial(jnp.array, dtype=jnp.int32)
    return Rows(
        slot=whole([ask.slot for ask in asks]),
        start=whole([ask.start for ask in asks]),
        index=whole([ask.start + ask.offset for ask in asks]),
        known=whole([ask.known for ask in asks]),
        count=whole(count),
        bytes=whole(read),
        seed=jnp.array([ask.seed for ask in asks], jnp.uint32),
        temperature=jnp.array([ask.temperature for ask in asks], jnp.float32),
        top_k=whole([ask.top_k for ask in asks]),
        top_p=jnp.ones(len(asks), jnp.float32),
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def teacher_forced(
    model: BlockDenoiser,
    grid: tuple[float, ...],
    params: Any,
    x: jax.Array,
    seeds: jax.Array,
    indices: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Logits of every block, (B, N, T, V), and the last state, for known bytes x."""
    interface, levels = params["interface"], jnp.array(grid)
    z = levels[0] * draws.eps(seeds, indices, WIDTH)

    def denoise(block: Any, z: jax.Array, sigma: jax.Array) -> jax.Array:
        return model.logits(block, interface, x, z, sigma)

    out = run_chain(denoise, params["blocks"], z, levels, model.targets(interface))
    return out.logits, out.z


@functools.partial(jax.jit, static_argnums=0)
def block_logits(
    model: BlockDenoiser,
    block: Any,
    interface: Any,
    x: jax.Array,
    z: jax.Array,
    sigma: jax.Array,
    present: jax.Array,
    guess: jax.Array,
) -> jax.Array:
    return model.logits(block, interface, x, z, sigma, present, guess)


class Sweep(NamedTuple):
    """What a sweep should draw; float64 (T, V) logs, int (T,) context and bytes.

    ``margin`` (T,) is how near the choice of a byte was to another.
    """

    logs: np.ndarray
    context: np.ndarray
    bytes: np.ndarray
    margin: np.ndarray


class Dice(NamedTuple):
    """The randomness of T indices: chances (T,), the others (T, V)."""

    choice: np.ndarray
    chance: np.ndarray
    rest: np.ndarray


def dice(seed: int, indices: np.ndarray) -> Dice:
    """By the documented keys."""
    key = jax.random.key(np.uint32(seed))

    def each(purpose: int, noise: Any) -> np.ndarray:
        own = jax.random.fold_in(key, purpose)
        keys = jax.vmap(lambda i: jax.random.fold_in(own, i))(jnp.asarray(indices))
        return np.asarray(jax.vmap(noise)(keys), np.float64)

    def gumbel(key: jax.Array) -> jax.Array:
        return jax.random.gumbel(key, (VOCABULARY,))

    return Dice(each(1, gumbel), each(2, jax.random.uniform), each(3, gumbel))


def best(scores: np.ndarray) -> tuple[int, float]:
    """The byte of the highest score, and how far the next one is."""
    order = np.argsort(scores)
    return int(order[-1]), float(scores[order[-1]] - scores[order[-2]])


def naive_draw(
    last: np.ndarray, first: np.ndarray | None, temperature: float, dice: Dice, t: int
) -> tuple[int, float]:
    """The byte after position t, and the margin, from logs (V,) of two blocks.

    The first block's own draw stands with probability min(1, p / q), and else one from
    the positive part of p - q does.
    """
    if temperature == 0:
        return best(last)
    own, margin = best(
        (last if first is None else first) / temperature + dice.choice[t]
    )
    if first is None:
        return own, margin
    p, q = probabilities(last / temperature), probabilities(first / temperature)
    accept = np.log(p[own] / q[own]) - np.log(dice.chance[t])
    if accept > 0:
        return own, min(margin, accept)
    with np.errstate(divide="ignore"):
        other, gap = best(np.log(np.maximum(p - q, 0)) + dice.rest[t])
    return other, min(margin, -accept, gap)


def naive_sweep(
    model: BlockDenoiser,
    grid: tuple[float, ...],
    whole: Any,
    text: list[int],
    known: int,
    end: int,
    fill: str,
    *,
    ensemble: bool,
    seed: int,
    temperature: float,
    offset: int,
) -> Sweep:
    """One sweep over a whole text of T bytes, of which the first ``known`` are decided.

    Those up to ``end`` are asked for, the rest is padding. Written from the rules, a
    block and a position at a time.
    """
    total, interface = len(text), whole["interface"]
    indices = np.arange(total) + offset
    seeds = jnp.array([seed], jnp.uint32)
    noise = np.asarray(draws.eps(seeds, jnp.asarray(indices)[None], WIDTH))[0]
    random = dice(seed, indices)
    table = np.asarray(interface["table"], np.float64)
    targets = np.asarray(model.targets(interface), np.float64)
    blocks = [
        jax.tree.map(lambda leaf, b=b: leaf[b], whole["blocks"])
        for b in range(len(grid))
    ]

    def pass_(b: int, x: Any, z: Any, present: Any, guess: Any) -> np.ndarray:
        logits = block_logits(
            model,
            blocks[b],
            interface,
            jnp.asarray(x)[None],
            jnp.asarray(z, jnp.float32)[None],
            jnp.array([grid[b]]),
            jnp.asarray(present)[None],
            jnp.asarray(guess, jnp.float32)[None],
        )
        return np.asarray(logits[0], np.float64)

    def choose(logits: np.ndarray, t: int) -> int:
        return naive_draw(logits[t], None, temperature, random, t)[0]

    x, z = np.array(text), grid[0] * np.asarray(noise, np.float64)
    everything, nothing = np.ones(total, bool), np.zeros((total, WIDTH))
    decided = np.arange(total) < known
    if fill in ("drafted", "written"):
        for t in range(known, total):
            x[t] = choose(pass_(0, x, z, everything, nothing), t - 1)
    logs, before = [], np.zeros((total, VOCABULARY))
    for b in range(len(grid)):
        present, guess = everything, nothing.copy()
        if fill == "expected" or (fill == "drawn" and b == 0):
            present = decided
        if fill == "expected" and b > 0:
            guess[1:] = (probabilities(before) @ table)[:-1]
        if fill == "drawn" and b > 0:
            for t in range(known, total):
                x[t] = choose(before, t - 1)
        before = pass_(b, x, z, present, guess)
        logs.append(np.log(probabilities(before)))
        if b + 1 < len(grid):
            ratio = grid[b + 1] / grid[b]
            z = ratio * z + (1 - ratio) * probabilities(before) @ targets
    answer = np.log(probabilities(np.mean(logs, axis=0))) if ensemble else logs[-1]
    # Of one block, and where what the first wrote is the text, nothing is coupled.
    alone = len(grid) == 1 or fill == "written"
    out = [
        naive_draw(answer[t], None if alone else logs[0][t], temperature, random, t)
        for t in range(total)
    ]
    drawn, margin = (np.array(column) for column in zip(*out, strict=True))
    if fill == "written":
        drawn[known - 1 : end - 1] = x[known:end]
    return Sweep(answer, x, drawn, margin)


def probabilities(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
