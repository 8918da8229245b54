"""Rates of outer optimizers for blocks, where nothing is late and where much is.

No comparison of outer optimizers counts unless each has a rate that suits it. The
regimes of ``configs/async_regimes.py`` keep for every network the rate that is best in
lockstep; the two other cells show what a rate of its own would do for the preset
``wan``. What we measured is in the README.

    python -m experiments.sweep --config=configs/async_outer_grid.py:quick  # minutes
    python -m experiments.sweep --config=configs/async_outer_grid.py:small  # an hour
"""

from ml_collections import ConfigDict

from configs import async_regimes
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

# Rates are arguments of the compiled program: one program for each optimizer.
RECIPES = {
    "mean": "sgd",
    "mean_weighted": "weighted_sgd",
    "nesterov": "nesterov momentum=0.9",
    "adam": "adam",
    "cgad": "cgad gate=pre",
}
RATES = {
    "mean": (0.3, 0.5, 0.7, 1.0),
    "mean_weighted": (0.3, 0.5, 0.7, 1.0),
    "nesterov": (0.1, 0.3, 0.7),
    "adam": (3e-3, 1e-2, 3e-2),
    "cgad": (3e-3, 1e-2, 3e-2),
}
WEIGHED = ("mean_weighted", "cgad")  # as the others where nothing is late

SIZES: Sizes = {name: dict(async_regimes.SIZES[name]) for name in ("quick", "small")}


def _name(method: str, rate: float) -> str:
    """The name of a rate's row: a rate of 0.003 is ``r0003``."""
    return f"{method}_r{round(1000 * rate):04d}"


def lockstep_and_wan(blind: str) -> ConfigDict:
    """The cells lockstep, WAN with ``drop`` and WAN with ``gate``.

    Args:
      blind: the methods for the first two, where nothing is late, with commas.
    """
    return config.delay_cells(
        "network.preset",
        (
            f"network.preset=lockstep network.late=drop methods={blind}",
            f"network.preset=wan network.late=drop methods={blind}",
            "network.preset=wan network.late=gate",
        ),
        panel="network.late",
    )


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.network()
    c.name = "async_outer_grid"
    rows = {
        _name(method, rate): f"{recipe} learning_rate={rate}"
        for method, recipe in RECIPES.items()
        for rate in RATES[method]
    }
    blind = ",".join(name for name in rows if not name.startswith(WEIGHED))
    c.recipes = ConfigDict(dict(config.NETWORK_RECIPES) | rows)
    c.methods = tuple(rows)
    c.sweep = lockstep_and_wan(blind)
    return at_size(c, SIZES, size)
