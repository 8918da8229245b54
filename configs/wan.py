"""Block training between a coordinator and workers that come and go.

Source: BlockTrain (arXiv 2606.24722), its protocol of one round, over HTTP. The
coordinator holds the model; anyone with its address and a token joins with one
command. Start them as the README says ("Two terminals"), or let one command start all
of them on this machine and report what came out, beside the lockstep simulator:

    python -m experiments.run --config=configs/wan.py:quick    # minutes, 2 cores
    python -m experiments.run --config=configs/wan.py:small    # an hour, 2 cores
    python -m experiments.run --config=configs/wan.py:paper    # GPUs

Late updates are kept for later rounds, and weighed by their age.
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
        "train.replicas": 2,
        "train.rounds": 20,
        "train.local_steps": 10,
        "network.deadline": 60.0,
        "network.max_age": 4,
    },
    "small": {
        "model.width": 96,
        "model.heads": 3,
        "model.layers": 4,
        "model.target_radius": 0.25,
        "data.seq_len": 128,
        "data.batch": 8,
        "train.replicas": 2,
        "train.rounds": 160,
        "train.local_steps": 10,
        "train.warmup_steps": 100,
        "network.deadline": 120.0,
        "eval.every": 4,
    },
    "paper": {
        "model.width": 512,
        "model.heads": 8,
        "model.layers": 4,
        "model.remat": "dots",
        "model.compute_dtype": "bfloat16",
        "data.seq_len": 256,
        "data.batch": 64,
        "train.replicas": 2,
        "train.rounds": 32,
        "train.local_steps": 200,
        "train.learning_rate": 3e-4,
        "train.warmup_steps": 200,
        "train.final_lr_fraction": 0.1,
        "network.deadline": 1800.0,
        "exchange.lease": 60.0,
    },
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the configuration at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.exchange()
    c.name = "wan"
    c.network.late = "gate"
    c.outer.recipe = "weighted_sgd learning_rate=1.0"
    return at_size(c, SIZES, size)
