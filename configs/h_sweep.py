"""More local steps a round: does the ranking of outer optimizers persist?

Source: CGAD (arXiv 2605.09126), which works at H = 8 where DiLoCo takes hundreds of
steps, and says that its ranking persists. The number of rounds is the same in each
cell, so that a larger H trains longer: compare methods, not cells. What we measured is
in the README.

    python -m experiments.sweep --config=configs/h_sweep.py:quick  # a quarter hour
    python -m experiments.sweep --config=configs/h_sweep.py:small  # an hour
"""

from ml_collections import ConfigDict

from configs import delayed
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {
    "quick": delayed.SIZES["quick"] | {"train.rounds": 40},
    "small": delayed.SIZES["small"] | {"train.rounds": 40},
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.delayed()
    c.name = "h_sweep"
    c.methods = ("nesterov", "sgd", "adam", "adam_decay", "cgad")
    c.delay.tau = 8
    c.sweep = config.delay_cells(
        "train.local_steps",
        tuple(f"train.local_steps={steps}" for steps in (8, 32, 128)),
        log_x=True,
    )
    return at_size(c, SIZES, size)
