"""A stage: the part of a model that one host of a pipeline computes.

A model of BlockTrain has a stage a block. A sweep sends positions of a text through
stages 0 to B - 1 once: stage b takes the noisy state z from noise level b to b + 1, as
``diffusion.run_chain`` does, and the last one draws the byte after each position. The
autoregressive references are cut into stages of consecutive layers. Keys and values of
earlier positions stay where they were computed.

Dimensions: N rows (texts) of a batch, S positions of a sweep, T places of a model, d
width, V bytes.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from spheroid_jax.diffusion import euler_step
from spheroid_jax.models import Autoregressive, BlockDenoiser, TransformerShape
from spheroid_jax.models.cached import Cache, apply_layers_cached, init_cache
from spheroid_jax.models.flops import layers_flops
from spheroid_jax.models.interface import VOCABULARY, Interface, InterfaceShape
from spheroid_jax.serving import draws
from spheroid_jax.serving.errors import ServingError

Params = Any

BLOCKTRAIN, AUTOREGRESSIVE = "blocktrain", "autoregressive"
FILLS = ("expected", "drawn", "given", "drafted")
ANSWERS = ("last", "ensemble")


class Rows(NamedTuple):
    """What the rows of a batch ask for; the same at every stage.

    Attributes:
      slot: which slot of the cache is the row's, int32 (N,), different from each other.
        A row whose slot is negative or beyond the cache is padding.
      start: place of the first position, int32 (N,).
      index: of the first position's byte in the text, int32 (N,).
      known: bytes decided, from the first position on, int32 (N,); at least 1.
      count: positions of the row, known and unknown, int32 (N,); those from there to S
        are padding.
      bytes: decided bytes, then guesses, int32 (N, S). Only the first stage reads them.
      seed: uint32 (N,).
      temperature: float32 (N,); this and the next two are explained in ``draws``.
      top_k: int32 (N,).
      top_p: float32 (N,).
    """

    slot: Array
    start: Array
    index: Array  # type: ignore[assignment]  # tuple.index isn't used
    known: Array
    count: Array  # type: ignore[assignment]
    bytes: Array
    seed: Array
    temperature: Array
    top_k: Array
    top_p: Array


class Passed(NamedTuple):
    """What a stage passes to the next.

    Attributes:
      state: z, or the residual stream of the autoregressive kind, float32 (N, S, d).
      bytes: the context that the next stage is to use, int32 (N, S).
      guess: embeddings for the unknown bytes, float32 (N, S, d); with ``expected``.
      logs: sum of the log-probabilities of the stages so far, float32 (N, S, V); with
        ``ensemble``.
    """

    state: Array
    bytes: Array
    guess: Array | None = None
    logs: Array | None = None


class Drawn(NamedTuple):
    """What the last stage returns.

    Attributes:
      bytes: drawn at every position, to follow it, int32 (N, S).
      logprob: of them before temperature and filters, in nats, float32 (N, S).
      context: bytes that it took as context, int32 (N, S).
    """

    bytes: Array
    logprob: Array
    context: Array


class _Input(NamedTuple):
    """One pass of a block: its arguments but for parameters and cache."""

    x: Array
    z: Array
    places: Array
    present: Array | None = None
    guess: Array | None = None


@dataclasses.dataclass(frozen=True)
class Stage:
    """Pure functions of one stage's parameters and its cache.

    Attributes:
      model: the whole model; layout ``concat`` has no cache of keys and values.
      index: which stage, from 0.
      count: B for a block denoiser; for a reference as many as its layers are cut into.
      grid: descending noise levels of all blocks, (B,); none for a reference.

    Raises:
      ServingError: there is no such stage of such a model.
    """

    model: BlockDenoiser | Autoregressive
    index: int
    count: int
    grid: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ServingError(
                f"stage is {self.index}, but there are stages 0 to {self.count - 1}"
            )
        if isinstance(self.model, Autoregressive):
            if self.count > self.transformer.layers:
                raise ServingError(
                    f"{self.count} stages can't share {self.transformer.layers} "
                    "layers; use fewer stages"
                )
            return
        if self.model.layout != "aligned":
            raise ServingError(
                f"model.layout is {self.model.layout!r}, which can't be served "
                "position by position; train with model.layout='aligned'"
            )
        if len(self.grid) != self.count:
            raise ServingError(
                f"{self.count} blocks need as many noise levels, not {len(self.grid)}"
            )

    @property
    def kind(self) -> str:
        """``blocktrain`` or ``autoregressive``."""
        reference = isinstance(self.model, Autoregressive)
        return AUTOREGRESSIVE if reference else BLOCKTRAIN

    @property
    def first(self) -> bool:
        """Whether sweeps start here."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether bytes are drawn here."""
        return self.index == self.count - 1

    @property
    def transformer(self) -> TransformerShape:
        """Shape of the layers."""
        return self.model.transformer

    @property
    def interface(self) -> InterfaceShape:
        """Shape of the interface."""
        return self.model.interface

    @property
    def width(self) -> int:
        """d."""
        return self.transformer.width

    @property
    def places(self) -> int:
        """T."""
        return self.interface.seq_len

    @property
    def layers(self) -> slice:
        """Which of the reference's layers are here, or all of the block's."""
        total = self.transformer.layers
        if self.kind == BLOCKTRAIN:
            return slice(0, total)
        return slice(
            total * self.index // self.count, total * (self.index + 1) // self.count
        )

    def part(self, params: Params) -> Params:
        """This stage's part of the whole model's parameters, which it shares."""
        if self.kind == BLOCKTRAIN:
            block = jax.tree.map(lambda leaf: leaf[self.index], params["blocks"])
            return {"block": block, "interface": params["interface"]}
        layers = jax.tree.map(lambda leaf: leaf[self.layers], params["layers"])
        return {"layers": layers, "interface": params["interface"]}

    def init_cache(self, slots: int) -> Cache:
        """An empty cache for ``slots`` texts."""
        here = self.layers.stop - self.layers.start
        return init_cache(self.transformer, here, slots, self.places)

    def flops(self, positions: int) -> float:
        """Matmul FLOPs of a step on one row, attention to all T places at most."""
        d, here = self.width, self.layers.stop - self.layers.start
        # layers_flops attends to as many places as there are positions.
        layers = layers_flops(self.transformer, here, 1) - here * 4.0 * d
        layers += here * 4.0 * d * (self.places + positions)
        enter, leave = 2.0 * d**2, 2.0 * d * VOCABULARY
        if self.kind == BLOCKTRAIN:
            # Byte and z enter; the head, and but for the last block the mean target.
            return positions * (layers + 2 * enter + leave * (1 if self.last else 2))
        ends = enter * self.first + leave * self.last
        return positions * (layers + ends)

    def step(
        self,
        params: Params,
        cache: Cache,
        rows: Rows,
        passed: Passed | None = None,
        *,
        fill: str = "given",
        answer: str = "last",
    ) -> tuple[Cache, Passed | Drawn]:
        """Computes S positions of N rows.

        Jit it with ``fill`` and ``answer`` static, and donate the cache. Rows and
        positions of padding change nothing, and what comes back there means nothing.
        NaN in parameters or in what is passed shows as NaN in ``state`` or ``logprob``
        of that row alone.

        Args:
          params: this stage's ``part`` of the parameters.
          cache: of this stage.
          rows: what is asked for.
          passed: from the stage before; None at the first.
          fill: what stands for an unknown byte, one of ``FILLS``. ``expected``: at the
            first block nothing, at a later one the mean embedding under the block
            before; ``drawn``: the byte which that one drew; ``given``: the guesses in
            ``rows.bytes``; ``drafted``: what the first block draws byte by byte.
          answer: ``last`` draws from the last block's distribution, ``ensemble`` from
            the product of all (``evaluation.ensemble_log_probabilities``).

        Raises:
          ServingError: a name that there isn't, or that the kind doesn't know.
        """
        self._check(fill, answer, passed)
        position = jnp.arange(rows.bytes.shape[1])[None]
        index = rows.index[:, None] + position
        places = jnp.where(
            position < rows.count[:, None], rows.start[:, None] + position, self.places
        )
        if self.kind == BLOCKTRAIN:
            return self._block(
                params, cache, rows, passed, index, places, fill=fill, answer=answer
            )
        return self._slice(params, cache, rows, passed, index, places)

    def _check(self, fill: str, answer: str, passed: Passed | None) -> None:
        if fill not in FILLS:
            raise ServingError(f"fill is {fill!r}; use one of {', '.join(FILLS)}")
        if answer not in ANSWERS:
            raise ServingError(f"answer is {answer!r}; use one of {', '.join(ANSWERS)}")
        if self.kind == AUTOREGRESSIVE and (fill, answer) != ("given", "last"):
            raise ServingError(
                f"fill {fill!r} with answer {answer!r} needs a model of blocks; a "
                "reference knows given and last"
            )
        if self.first != (passed is None):
            raise ServingError(
                f"stage {self.index} takes "
                f"{'nothing' if self.first else 'a state'} from a stage before it"
            )

    def _call(self, params: Params, method: str, *args: Any, **kwargs: Any) -> Array:
        phi = {"params": params["interface"]}
        module = Interface(self.interface)
        return module.apply(phi, *args, **kwargs, method=method)

    def _block(
        self,
        params: Params,
        cache: Cache,
        rows: Rows,
        passed: Passed | None,
        index: Array,
        places: Array,
        *,
        fill: str,
        answer: str,
    ) -> tuple[Cache, Passed | Drawn]:
        known = jnp.arange(index.shape[1])[None] < rows.known[:, None]
        if passed is None:
            z = self._level(0) * draws.eps(rows.seed, index, self.width)
            passed = Passed(z, rows.bytes)
            absent = fill in ("expected", "drawn")
        else:
            absent = fill == "expected"
        present = known if absent else None
        given = _Input(passed.bytes, passed.state, places, present, passed.guess)
        logits, cache = self._forward(params, cache, rows.slot, given)
        if self.first and fill == "drafted":
            given, logits, cache = self._draft(params, cache, rows, given, logits)
        context = given.x
        logs = jax.nn.log_softmax(logits) if answer == "ensemble" else None
        if logs is not None and passed.logs is not None:
            logs = passed.logs + logs
        if self.last:
            if logs is not None:
                logits = jax.nn.log_softmax(logs / self.count)
            return cache, _drawn(logits, rows, index, context)
        mean = jax.nn.softmax(logits) @ self._call(params, "targets")
        ratio = self._level(self.index + 1) / self._level(self.index)
        guess = None
        if fill == "expected":
            guess = _after(self._call(params, "expected", logits))
        if fill == "drawn":
            context = jnp.where(known, context, _after(_draw(logits, rows, index)))
        state = euler_step(passed.state, mean, ratio)
        return cache, Passed(state, context, guess, logs)

    def _level(self, block: int) -> Array:
        return jnp.asarray(np.float32(self.grid[block]))

    def _forward(
        self, params: Params, cache: Cache, slots: Array, given: _Input
    ) -> tuple[Array, Cache]:
        sigma = jnp.full(given.x.shape[:1], self._level(self.index))
        clean = self._call(
            params, "enter", given.x, given.present, given.guess, given.places
        )
        noisy = self._call(params, "enter_noisy", given.z, sigma)
        h, cache = apply_layers_cached(
            params["block"],
            self.transformer,
            clean + noisy,
            given.places,
            cache,
            slots,
        )
        return self._call(params, "leave_noisy", h, given.z, sigma), cache

    def _draft(
        self, params: Params, cache: Cache, rows: Rows, given: _Input, logits: Array
    ) -> tuple[_Input, Array, Cache]:
        """Decides the unknown bytes one by one, after a pass that knew only the known.

        Returns what the block has read, its logits, and its cache, all as if the bytes
        had been given.
        """
        total, size = self.places, rows.bytes.shape[1]
        row = jnp.arange(rows.bytes.shape[0])
        real = (rows.slot >= 0) & (rows.slot < cache.keys.shape[1])
        unknown = jnp.where(real, rows.count - rows.known, 0)
        turns = jnp.minimum(jnp.max(unknown), size)

        def decide(turn: Array, carry: tuple[Array, Array, Cache]) -> Any:
            x, logits, cache = carry
            at = rows.known + turn
            here = jnp.where(at < rows.count, at, size)
            before = logits.at[row, at - 1].get(mode="clip")[:, None]
            byte = _draw(before, rows, rows.index[:, None] + at[:, None] - 1)
            one = _Input(
                byte,
                given.z.at[row, at].get(mode="clip")[:, None],
                given.places.at[row, here].get(mode="fill", fill_value=total)[:, None],
            )
            fresh, cache = self._forward(params, cache, rows.slot, one)
            x = x.at[row, here].set(byte[:, 0], mode="drop")
            logits = logits.at[row, here].set(fresh[:, 0], mode="drop")
            return x, logits, cache

        x, logits, cache = jax.lax.fori_loop(0, turns, decide, (given.x, logits, cache))
        return given._replace(x=x), logits, cache

    def _slice(
        self,
        params: Params,
        cache: Cache,
        rows: Rows,
        passed: Passed | None,
        index: Array,
        places: Array,
    ) -> tuple[Cache, Passed | Drawn]:
        if passed is None:
            h = self._call(params, "enter", rows.bytes, places=places)
            passed = Passed(h, rows.bytes)
        h, cache = apply_layers_cached(
            params["layers"],
            self.transformer,
            passed.state,
            places,
            cache,
            rows.slot,
        )
        if not self.last:
            return cache, passed._replace(state=h.astype(jnp.float32))
        logits = self._call(params, "leave", h)
        return cache, _drawn(logits, rows, index, passed.bytes)


def block_stages(model: BlockDenoiser, grid: Any) -> tuple[Stage, ...]:
    """The stages of a block denoiser; ``grid`` (B,) as from ``chain_grid``."""
    levels = tuple(float(level) for level in grid)
    return tuple(Stage(model, i, len(levels), levels) for i in range(len(levels)))


def layer_stages(model: Autoregressive, count: int) -> tuple[Stage, ...]:
    """A reference cut into ``count`` stages of consecutive layers."""
    return tuple(Stage(model, i, count) for i in range(count))


def _draw(logits: Array, rows: Rows, index: Array) -> Array:
    return draws.draw(
        logits, rows.seed, index, rows.temperature, rows.top_k, rows.top_p
    )


def _drawn(logits: Array, rows: Rows, index: Array, context: Array) -> Drawn:
    chosen = _draw(logits, rows, index)
    logs = jax.nn.log_softmax(logits)
    logprob = jnp.take_along_axis(logs, chosen[..., None], axis=-1)[..., 0]
    return Drawn(chosen, logprob, context)


def _after(x: Array) -> Array:
    """What belongs to the position before, at every position but the first."""
    return jnp.roll(x, 1, axis=1).at[:, 0].set(0)
