"""A configuration's methods: BlockTrain and its two references, ready to train.

All three are the same engine. What differs is written here and nowhere else: the
model, the partition, the objective and the learning rate.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from ml_collections import ConfigDict

from spheroid_jax import evaluation, partition
from spheroid_jax.diffusion import (
    NoiseLevels,
    block_ranges,
    chain_grid,
    owned_ranges,
)
from spheroid_jax.models import (
    Autoregressive,
    BlockDenoiser,
    InterfaceShape,
    Params,
    TransformerShape,
)
from spheroid_jax.models.flops import (
    autoregressive_window_flops,
    denoiser_window_flops,
)
from spheroid_jax.objectives import (
    Objective,
    UnknownContext,
    block_denoising,
    next_byte,
)
from spheroid_jax.optim import outer_optimizer
from spheroid_jax.rounds import Engine, inner_optimizer


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to train, and how it is judged.

    Attributes:
      name: ``blocktrain``, ``end_to_end`` or ``block_sized``.
      engine: partition, objective and optimizers of the round.
      init: ``key -> params``.
      curve: evaluator for the points of the curves.
      final: evaluator for the table.
      layers_per_worker: transformer layers a worker trains.
      learning_rate: peak of the inner optimizer.
      window_flops: training FLOPs of one worker on one window.
    """

    name: str
    engine: Engine
    init: Callable[[Array], Params]
    curve: evaluation.Evaluator
    final: evaluation.Evaluator
    layers_per_worker: int
    learning_rate: float
    window_flops: float

    @property
    def workers(self) -> int:
        """B * K."""
        return self.engine.partition.count * self.engine.replicas


def transformer_shape(config: ConfigDict, layers: int) -> TransformerShape:
    """Shape of a stack of ``layers`` layers."""
    model = config.model
    return TransformerShape(
        width=model.width,
        heads=model.heads,
        mlp_width=model.mlp_ratio * model.width,
        layers=layers,
        compute_dtype=model.compute_dtype,
        remat=model.remat,
        rotary=model.rotary,
        attention=model.attention,
    )


def interface_shape(config: ConfigDict, noisy: bool) -> InterfaceShape:
    """Shape of the interface; the references have no noisy half."""
    return InterfaceShape(
        width=config.model.width,
        seq_len=config.data.seq_len,
        noisy=noisy,
        head=config.model.head,
        target_radius=config.model.target_radius,
        sigma_data=config.diffusion.sigma_data,
        noisy_input_std=config.model.noisy_input_std,
    )


def noise_levels(config: ConfigDict) -> NoiseLevels:
    """The distribution of noise levels."""
    d = config.diffusion
    return NoiseLevels(d.sigma_min, d.sigma_max, d.p_mean, d.p_std)


def grid_levels(config: ConfigDict) -> np.ndarray:
    """Noise level of every step of the chain, float64 (B,)."""
    return chain_grid(noise_levels(config), config.model.blocks, config.diffusion.grid)


def build_method(config: ConfigDict, name: str) -> Method:
    """Builds the method called ``name`` from a valid configuration."""
    builders = {
        "blocktrain": _blocktrain,
        "end_to_end": lambda c: _reference(
            c, "end_to_end", c.model.blocks * c.model.layers
        ),
        "block_sized": lambda c: _reference(c, "block_sized", c.model.layers),
    }
    return builders[name](config)


def block_denoiser(config: ConfigDict) -> BlockDenoiser:
    """The model of block training."""
    return BlockDenoiser(
        transformer_shape(config, config.model.layers),
        interface_shape(config, noisy=True),
        config.model.layout,
    )


def denoising_objective(config: ConfigDict, model: BlockDenoiser) -> Objective:
    """What a block is trained on."""
    noise = noise_levels(config)
    ranges = block_ranges(noise, config.model.blocks, config.diffusion.overlap)
    train = config.train
    unknown = None
    if train.context_mask:
        unknown = UnknownContext(train.context_mask, train.context_fill)
    return block_denoising(model, noise, jnp.asarray(ranges, jnp.float32), unknown)


def _blocktrain(config: ConfigDict) -> Method:
    noise, blocks = noise_levels(config), config.model.blocks
    model = block_denoiser(config)
    owned = jnp.asarray(owned_ranges(noise, blocks), jnp.float32)
    grid = jnp.asarray(grid_levels(config), jnp.float32)
    batch, draws = config.eval.batch, config.eval.mix_draws
    rate = config.train.learning_rate
    return Method(
        name="blocktrain",
        engine=_engine(
            config,
            partition.blocks(blocks),
            denoising_objective(config, model),
            rate,
        ),
        init=lambda key: model.init(key, blocks),
        curve=evaluation.chain_evaluator(model, grid, batch),
        final=evaluation.full_evaluator(model, noise, grid, owned, batch, draws),
        layers_per_worker=config.model.layers,
        learning_rate=rate,
        window_flops=denoiser_window_flops(model),
    )


def _reference(config: ConfigDict, name: str, layers: int) -> Method:
    model = Autoregressive(
        transformer_shape(config, layers), interface_shape(config, noisy=False)
    )
    evaluate = evaluation.reference_evaluator(model, config.eval.batch)
    rate = config.train[f"learning_rate_{name}"]
    return Method(
        name=name,
        engine=_engine(config, partition.everything(), next_byte(model), rate),
        init=model.init,
        curve=evaluate,
        final=evaluate,
        layers_per_worker=layers,
        learning_rate=rate,
        window_flops=autoregressive_window_flops(model),
    )


def _engine(
    config: ConfigDict,
    parts: partition.Partition,
    objective: Objective,
    learning_rate: float,
) -> Engine:
    outer = config.outer
    return Engine(
        parts,
        objective,
        inner_of(config.train, learning_rate),
        outer_optimizer(outer.name, outer.learning_rate, outer.momentum),
        config.train.replicas,
    )


def inner_of(
    train: ConfigDict,
    learning_rate: float,
    adamw: Callable[..., optax.GradientTransformation] = optax.adamw,
) -> optax.GradientTransformation:
    """The workers' optimizer, as the ``train`` section of a configuration says."""
    return inner_optimizer(
        learning_rate,
        train.rounds * train.local_steps,
        warmup_steps=train.warmup_steps,
        final_lr_fraction=train.final_lr_fraction,
        b1=train.b1,
        b2=train.b2,
        weight_decay=train.weight_decay,
        clip=train.clip,
        adamw=adamw,
    )


def count_params(init: Callable[[Array], Any]) -> int:
    """Number of parameters, from shapes alone."""
    shapes = jax.eval_shape(init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))
