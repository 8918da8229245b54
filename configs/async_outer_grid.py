"""Rates of outer optimizers for blocks, where nothing is late.

No comparison of outer optimizers counts unless each has a rate that suits it. The
regimes of ``configs/async_regimes.py`` keep for every network the rate that is best
here, without one. What we measured is in the README.

    python -m experiments.sweep --config=configs/async_outer_grid.py:quick  # minutes
    python -m experiments.sweep --config=configs/async_outer_grid.py:small  # longer
"""

from ml_collections import ConfigDict

from configs import async_regimes
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

RATES = {
    "mean": ("sgd", (0.5, 0.7, 1.0)),
    "nesterov": ("nesterov momentum=0.9", (0.1, 0.3, 0.7)),
    "adam": ("adam", (3e-3, 1e-2, 3e-2)),
}

SIZES: Sizes = {name: dict(async_regimes.SIZES[name]) for name in ("quick", "small")}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.network()
    c.name = "async_outer_grid"
    c.network.preset = "lockstep"
    # A rate is an argument of the compiled program: three programs in all.
    rows = {
        f"{name}_{i}": f"{recipe} learning_rate={rate}"
        for name, (recipe, rates) in RATES.items()
        for i, rate in enumerate(rates)
    }
    c.recipes = ConfigDict(dict(config.NETWORK_RECIPES) | rows)
    c.methods = tuple(rows)
    c.sweep = config.delay_cells("network.preset", ("network.preset=lockstep",))
    return at_size(c, SIZES, size)
