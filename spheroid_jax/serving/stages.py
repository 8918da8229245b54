"""A stage: the part of a model that one host of a pipeline computes.

A model of BlockTrain has a stage a block. A sweep sends positions of a text through
stages 0 to B - 1 once: stage b takes the noisy state z from noise level b to b + 1, as
``diffusion.run_chain`` does, and the last one draws the byte after each position. The
autoregressive references are cut into stages of consecutive layers. Keys and values of
earlier positions stay where they were computed.

Dimensions: N rows (texts) of a batch, S positions of a sweep, T places of a model.
"""

import dataclasses
from typing import Any

import jax

from spheroid_jax.models import Autoregressive, BlockDenoiser, TransformerShape
from spheroid_jax.models.cached import Cache, init_cache
from spheroid_jax.models.flops import layers_flops
from spheroid_jax.models.interface import VOCABULARY, InterfaceShape
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.rows import Drawn, Passed, Rows
from spheroid_jax.serving.steps import BlockStep, LayersStep

__all__ = [
    "ANSWERS",
    "AUTOREGRESSIVE",
    "BLOCKTRAIN",
    "FILLS",
    "Drawn",
    "Passed",
    "Rows",
    "Stage",
    "block_stages",
    "layer_stages",
]

Params = Any

BLOCKTRAIN, AUTOREGRESSIVE = "blocktrain", "autoregressive"
FILLS = ("expected", "drawn", "given", "drafted", "written")
ANSWERS = ("last", "ensemble")


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
        if self.count < 1:
            raise ServingError(f"stages are {self.count}; there is at least one")
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
        """Matmul FLOPs of a step on one row; attention is to all T places."""
        d, here = self.width, self.layers.stop - self.layers.start
        # layers_flops attends to as many places as there are positions: here one.
        layers = layers_flops(self.transformer, here, 1)
        layers += here * 4.0 * d * (self.places - 1)
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
            ``rows.bytes``; ``drafted``: what the first block draws byte by byte;
            ``written``: the same, and it is the text: the last block draws only the
            byte after it.
          answer: ``last`` draws from the last block's distribution, ``ensemble`` from
            the product of all (``evaluation.ensemble_log_probabilities``).

        Raises:
          ServingError: a name that there isn't, or that the kind doesn't know.
        """
        self._check(fill, answer, passed)
        if isinstance(self.model, BlockDenoiser):
            block = BlockStep(self.model, self.index, self.grid)
            return block(params, cache, rows, passed, fill=fill, answer=answer)
        return LayersStep(self.model, self.last)(params, cache, rows, passed)

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


def block_stages(model: BlockDenoiser, grid: Any) -> tuple[Stage, ...]:
    """The stages of a block denoiser; ``grid`` (B,) as from ``chain_grid``."""
    levels = tuple(float(level) for level in grid)
    return tuple(Stage(model, i, len(levels), levels) for i in range(len(levels)))


def layer_stages(model: Autoregressive, count: int) -> tuple[Stage, ...]:
    """A reference cut into ``count`` stages of consecutive layers."""
    return tuple(Stage(model, i, count) for i in range(count))
