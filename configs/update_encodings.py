"""What an update may be written as: cross-entropy against bytes.

Three seeds train once with every encoding of updates, error feedback kept at each
worker; what each update takes is measured with and without zstd, which loses nothing.
Coordinator and workers compute as they do over the network, in one process without one.
The target: 8 times fewer bytes than float32 at no loss that seeds would show.

    python -m experiments.run --config=configs/update_encodings.py:quick    # minutes
    python -m experiments.run --config=configs/update_encodings.py:small    # an hour
"""

from ml_collections import ConfigDict

from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {
    "quick": {
        "model.width": 64,
        "model.heads": 2,
        "model.target_radius": 0.25,
        "data.seq_len": 64,
        "data.batch": 4,
        "train.rounds": 20,
        "train.local_steps": 10,
        "eval.every": 4,
    },
    "small": {
        "model.width": 96,
        "model.heads": 3,
        "model.layers": 4,
        "model.target_radius": 0.25,
        "data.seq_len": 128,
        "data.batch": 8,
        "train.rounds": 60,
        "train.local_steps": 10,
        "train.warmup_steps": 100,
        "eval.every": 5,
    },
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the configuration at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    return at_size(config.encodings(), SIZES, size)
