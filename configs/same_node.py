"""The paper's run on one node: a coordinator and six workers over HTTP, nobody late.

Source: BlockTrain (arXiv 2606.24722), its same-node run with full participation: CE
1.576, 10.23 GB moved. At the size ``paper`` the model is as large as the one whose
updates make these bytes (d = 512, derived from them). All processes are started here;
the first round waits until all have compiled. The result must be the lockstep
simulator's of the same seeds, or the run fails.

    python -m experiments.run --config=configs/same_node.py:quick    # minutes, 2 cores
    python -m experiments.run --config=configs/same_node.py:small    # an hour, 2 cores
    python -m experiments.run --config=configs/same_node.py:paper    # a GPU
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
        "train.local_steps": 10,
    },
    "small": {
        "model.width": 96,
        "model.heads": 3,
        "model.layers": 4,
        "model.target_radius": 0.25,
        "data.seq_len": 128,
        "data.batch": 8,
        "train.local_steps": 60,
        "train.warmup_steps": 100,
    },
    "paper": {
        "model.width": 512,
        "model.heads": 8,
        "model.layers": 4,
        "model.remat": "dots",
        "model.compute_dtype": "bfloat16",
        "data.seq_len": 256,
        "data.batch": 64,
        "train.local_steps": 200,
        "train.learning_rate": 3e-4,
        "train.warmup_steps": 200,
        "train.final_lr_fraction": 0.1,
    },
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the configuration at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.exchange()
    c.name = "same_node"
    c.train.replicas = 2
    c.train.rounds = 16
    c.exchange.workers = 6
    c.exchange.encoding = "float32"
    c.exchange.lease = 120.0  # cores are shared by seven processes
    return at_size(c, SIZES, size)
