"""BlockTrain with B = 3 blocks of L = 4 layers, beside its two references.

Source: *Decentralised AI Training and Inference with BlockTrain* (arXiv 2606.24722),
its main configuration; the objective is that of DiffusionBlocks (arXiv 2506.14202).

The paper's figures, in nats per byte: CE_chain 1.359 after 32 rounds on one device,
against about 1.32 for the end-to-end model of 12 layers. Expect the end-to-end
reference, the block-sized reference, CE_chain and CE_ensemble close to each other and
well below the order-1 entropy of the corpus. What we measured is in the README.

    python -m experiments.run --config=configs/b3_l4.py:quick    # minutes, 2 cores
    python -m experiments.run --config=configs/b3_l4.py:small    # an hour, 2 cores
    python -m experiments.run --config=configs/b3_l4.py:paper    # a day, one GPU

The paper publishes neither batch, nor sequence length, nor learning rate, nor local
steps; those of ``paper`` are ours.
"""

from ml_collections import ConfigDict

from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {
    "quick": {
        "model.width": 64,
        "model.heads": 2,
        "model.target_radius": 0.25,
        "data.seq_len": 128,
        "data.batch": 8,
        "train.rounds": 30,
        "train.local_steps": 10,
        "train.warmup_steps": 30,
        "train.learning_rate": 8e-3,
        "train.learning_rate_end_to_end": 4e-3,
        "train.learning_rate_block_sized": 8e-3,
        "eval.every": 2,
        "eval.curve_windows": 16,
        "eval.windows": 128,
        "eval.mix_draws": 4,
        "checkpoint.every": 2,
    },
    "small": {
        "model.width": 96,
        "model.heads": 3,
        # The chain's built-in loss grows with the square of R (see the README).
        "model.target_radius": 0.25,
        "data.seq_len": 128,
        "data.batch": 8,
        "train.rounds": 160,
        "train.local_steps": 10,
        "train.warmup_steps": 100,
        # Each method's best of configs/lr_grid.py.
        "train.learning_rate": 4e-3,
        "train.learning_rate_end_to_end": 4e-3,
        "train.learning_rate_block_sized": 4e-3,
        "eval.every": 4,
        "checkpoint.every": 4,
    },
    "paper": {
        "model.width": 512,
        "model.heads": 8,
        "data.seq_len": 256,
        "data.batch": 64,
        "train.rounds": 32,
        "train.local_steps": 200,
        "train.learning_rate": 3e-4,
        "train.learning_rate_end_to_end": 3e-4,
        "train.learning_rate_block_sized": 3e-4,
        "train.warmup_steps": 200,
        "train.b2": 0.95,
        "train.weight_decay": 0.1,
        "train.clip": 1.0,
    },
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the configuration at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    return at_size(config.default(), SIZES, size)
