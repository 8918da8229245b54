"""One step of a stage: positions of a batch through one block, or through some layers.

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
from spheroid_jax.models import Autoregressive, BlockDenoiser, InterfaceShape
from spheroid_jax.models.cached import Cache, apply_layers_cached
from spheroid_jax.models.interface import Interface
from spheroid_jax.serving import draws
from spheroid_jax.serving.rows import Drawn, Passed, Rows

Params = Any


class Where(NamedTuple):
    """Where the positions of a batch are.

    Attributes:
      indices: of each position's byte in the text, int32 (N, S).
      places: int32 (N, S), T for padding.
      known: whether the byte there is decided, bool (N, S).
    """

    indices: Array
    places: Array
    known: Array


class _Input(NamedTuple):
    """One pass of a block: its arguments but for parameters and cache."""

    x: Array
    z: Array
    places: Array
    present: Array | None = None
    guess: Array | None = None


def where(rows: Rows, places: int) -> Where:
    """The positions of ``rows`` in a model of ``places`` places."""
    position = jnp.arange(rows.bytes.shape[1])[None]
    real = position < rows.count[:, None]
    return Where(
        rows.index[:, None] + position,
        jnp.where(real, rows.start[:, None] + position, places),
        position < rows.known[:, None],
    )


@dataclasses.dataclass(frozen=True)
class BlockStep:
    """A step of block ``index`` of a chain with noise levels ``grid`` (B,)."""

    model: BlockDenoiser
    index: int
    grid: tuple[float, ...]

    def __call__(
        self,
        params: Params,
        cache: Cache,
        rows: Rows,
        passed: Passed | None,
        *,
        fill: str,
        answer: str,
    ) -> tuple[Cache, Passed | Drawn]:
        """See ``Stage.step``."""
        at = where(rows, self.model.interface.seq_len)
        first = passed is None
        if passed is None:
            noise = draws.eps(rows.seed, at.indices, self.model.transformer.width)
            passed = Passed(self._level(self.index) * noise, rows.bytes)
        # The first block has nothing to put where a byte is unknown.
        absent = fill == "expected" or (first and fill == "drawn")
        given = _Input(
            passed.bytes,
            passed.state,
            at.places,
            at.known if absent else None,
            passed.guess,
        )
        logits, cache = self._forward(params, cache, rows.slot, given)
        if first and fill in ("drafted", "written"):
            given, logits, cache = self._draft(params, cache, rows, given, logits)
        passed = passed._replace(bytes=given.x)
        if answer == "ensemble":
            logs = jax.nn.log_softmax(logits)
            passed = passed._replace(
                logs=logs if passed.logs is None else passed.logs + logs
            )
        if self.index == len(self.grid) - 1:
            if passed.logs is not None:
                logits = jax.nn.log_softmax(passed.logs / len(self.grid))
            written = fill == "written"
            return cache, _drawn(logits, rows, at, passed, written=written)
        if first and fill != "written":
            passed = passed._replace(draft=logits)
        return cache, self._pass_on(params, rows, at, passed, logits, fill)

    def _pass_on(
        self,
        params: Params,
        rows: Rows,
        at: Where,
        passed: Passed,
        logits: Array,
        fill: str,
    ) -> Passed:
        interface = params["interface"]
        mean = jax.nn.softmax(logits) @ self.model.targets(interface)
        ratio = self._level(self.index + 1) / self._level(self.index)
        passed = passed._replace(state=euler_step(passed.state, mean, ratio))
        if fill == "expected":
            expected = self.model.expected(interface, logits)
            return passed._replace(guess=_after(expected))
        if fill == "drawn":
            drawn = _after(_draw(logits, rows, at.indices))
            return passed._replace(bytes=jnp.where(at.known, passed.bytes, drawn))
        return passed

    def _level(self, block: int) -> Array:
        return jnp.asarray(np.float32(self.grid[block]))

    def _forward(
        self, params: Params, cache: Cache, slots: Array, given: _Input
    ) -> tuple[Array, Cache]:
        shape, phi = self.model.interface, params["interface"]
        sigma = jnp.full(given.x.shape[:1], self._level(self.index))
        clean = _interface(
            shape, phi, "enter", given.x, given.present, given.guess, given.places
        )
        noisy = _interface(shape, phi, "enter_noisy", given.z, sigma)
        h, cache = apply_layers_cached(
            params["block"],
            self.model.transformer,
            clean + noisy,
            given.places,
            cache,
            slots,
        )
        return _interface(shape, phi, "leave_noisy", h, given.z, sigma), cache

    def _draft(
        self, params: Params, cache: Cache, rows: Rows, given: _Input, logits: Array
    ) -> tuple[_Input, Array, Cache]:
        """Decides the unknown bytes one by one, after a pass that knew only the known.

        Returns what the block has read, its logits, and its cache, all as if the bytes
        had been given.
        """
        total, size = self.model.interface.seq_len, rows.bytes.shape[1]
        row = jnp.arange(rows.bytes.shape[0])
        real = (rows.slot >= 0) & (rows.slot < cache.keys.shape[1])
        unknown = jnp.where(real, rows.count - rows.known, 0)
        turns = jnp.minimum(jnp.max(unknown), size)
        # All at once: compiled, and called, apart from the loop.
        indices = where(rows, total).indices
        noise = draws.choice(rows.seed, indices, rows.temperature)
        filters = (rows.temperature, rows.top_k, rows.top_p)

        def decide(turn: Array, carry: tuple[Array, Array, Cache]) -> Any:
            x, logits, cache = carry
            at = rows.known + turn
            here = jnp.where(at < rows.count, at, size)
            before = logits.at[row, at - 1].get(mode="clip")[:, None]
            own = noise.at[row, at - 1].get(mode="clip")[:, None]
            byte = draws.chosen(before, own, *filters)
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


@dataclasses.dataclass(frozen=True)
class LayersStep:
    """A step of some consecutive layers of a reference; the last draws."""

    model: Autoregressive
    last: bool

    def __call__(
        self, params: Params, cache: Cache, rows: Rows, passed: Passed | None
    ) -> tuple[Cache, Passed | Drawn]:
        """See ``Stage.step``."""
        shape, phi = self.model.interface, params["interface"]
        at = where(rows, shape.seq_len)
        if passed is None:
            h = _interface(shape, phi, "enter", rows.bytes, None, None, at.places)
            passed = Passed(h, rows.bytes)
        h, cache = apply_layers_cached(
            params["layers"],
            self.model.transformer,
            passed.state,
            at.places,
            cache,
            rows.slot,
        )
        if not self.last:
            return cache, passed._replace(state=h.astype(jnp.float32))
        logits = _interface(shape, phi, "leave", h)
        return cache, _drawn(logits, rows, at, passed, written=False)


def _interface(
    shape: InterfaceShape, phi: Params, method: str, *args: Array | None
) -> Array:
    return Interface(shape).apply({"params": phi}, *args, method=method)


def _draw(logits: Array, rows: Rows, index: Array) -> Array:
    return draws.draw(
        logits, rows.seed, index, rows.temperature, rows.top_k, rows.top_p
    )


def _drawn(
    logits: Array, rows: Rows, at: Where, passed: Passed, *, written: bool
) -> Drawn:
    asked = (rows.seed, at.indices, rows.temperature, rows.top_k, rows.top_p)
    if passed.draft is None:
        chosen = draws.draw(logits, *asked)
    else:
        # The draft of the first block stands as often as it can.
        chosen = draws.coupled(logits, passed.draft, *asked)
    if written:
        # The text is what the first block wrote; only the byte after it is drawn.
        next_is_guess = jnp.roll(~at.known, -1, axis=1)
        inside = at.places + 1 < (rows.start + rows.count)[:, None]
        follows = jnp.roll(passed.bytes, -1, axis=1)
        chosen = jnp.where(next_is_guess & inside, follows, chosen)
    logs = jax.nn.log_softmax(logits)
    logprob = jnp.take_along_axis(logs, chosen[..., None], axis=-1)[..., 0]
    return Drawn(chosen, logprob, passed.bytes)


def _after(x: Array) -> Array:
    """What belongs to the position before, at every position but the first."""
    return jnp.roll(x, 1, axis=1).at[:, 0].set(0)
