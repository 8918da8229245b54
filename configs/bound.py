"""How the error grows with the delay, on functions whose gradient is known.

Source: CGAD (arXiv 2605.09126), whose theorem bounds what staleness adds by a term of
alpha alone, where asynchronous momentum SGD has one of tau_max^2. Gradients are exact
but for white noise of a known size, so that the error and the bias of stale gradients
are measured and not estimated. Each method keeps one learning rate, the best of a grid
without delay. Age-blind Adam is always among the methods: whatever it does as well as
CGAD isn't the gate's doing.

    python -m experiments.run --config=configs/bound.py:quick  # minutes, 2 cores
    python -m experiments.run --config=configs/bound.py:small  # a quarter hour
"""

from ml_collections import ConfigDict

from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {
    "quick": {"seeds": 8, "train.rounds": 1000},
    "small": {"seeds": 16, "train.rounds": 4000},
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the configuration at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    return at_size(config.bound(), SIZES, size)
