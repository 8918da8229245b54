"""Outer optimizers side by side at one delay, with their curves.

Source: CGAD (arXiv 2605.09126): workers take H local steps from a model that is some
rounds old, and an outer optimizer applies the mean of what they send. Expect Nesterov
with DiLoCo's published 0.7 / 0.9 to end above chance at eight rounds of delay, and the
Adam family to learn. Whether age-aware methods do better than age-blind Adam is what
the comparison is for. What we measured is in the README.

    python -m experiments.run --config=configs/delayed.py:quick  # minutes, 2 cores
    python -m experiments.run --config=configs/delayed.py:small  # a quarter hour
    python -m experiments.run --config=configs/delayed.py:paper  # an hour, one GPU

``paper`` has the shape of a 25 M decoder on bytes, 100 rounds and three seeds; the
paper publishes neither its batch nor its rates.
"""

from ml_collections import ConfigDict

from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

_MODEL = {
    "model.layers": 2,
    "model.width": 64,
    "model.heads": 2,
    "model.kv_heads": 2,
    "model.mlp_width": 192,
    "data.seq_len": 64,
    "data.batch": 2,
}
SIZES: Sizes = {
    "quick": _MODEL
    | {
        "train.replicas": 2,
        "train.learning_rate": 3e-3,
        "outer.period": 2,
        "eval.windows": 128,
        "eval.batch": 128,
    },
    "small": _MODEL
    | {
        "seeds": 3,
        "train.replicas": 4,
        "train.learning_rate": 3e-3,
        "outer.period": 4,
        "eval.windows": 256,
        "eval.batch": 256,
    },
    "paper": {
        "seeds": 3,
        "model.layers": 8,
        "model.width": 320,
        "model.heads": 5,
        "model.kv_heads": 5,
        "model.mlp_width": 896,
        "model.compute_dtype": "bfloat16",
        "model.remat": "dots",
        "data.seq_len": 256,
        "data.batch": 32,
        "train.replicas": 4,
        "train.learning_rate": 1e-3,
        "outer.period": 4,
        "eval.windows": 512,
        "eval.batch": 64,
    },
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the configuration at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.delayed()
    c.delay.tau = 8
    return at_size(c, SIZES, size)
