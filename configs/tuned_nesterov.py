"""Nesterov with the rate and the momentum that suit each delay.

Source: CGAD (arXiv 2605.09126): tuned to its delay, Nesterov ends up without momentum,
wants other settings at every delay, and still does not reach CGAD at large ones. All
pairs of the grid run at all delays; the report names the best of each. Age-blind Adam
and CGAD run beside them at one rate for all delays. What we measured is in the README.

    python -m experiments.sweep --config=configs/tuned_nesterov.py:quick  # minutes
    python -m experiments.sweep --config=configs/tuned_nesterov.py:small  # an hour
"""

from ml_collections import ConfigDict

from configs import delayed
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

RATES = (0.03, 0.1, 0.3, 0.7)
MOMENTA = (0.0, 0.5, 0.9)

SIZES: Sizes = {name: dict(delayed.SIZES[name]) for name in ("quick", "small")}


def name(rate: float, momentum: float) -> str:
    """The name of a pair, which is also the name of its recipe."""
    return f"nesterov_r{round(100 * rate):03d}_m{round(10 * momentum):02d}"


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.delayed()
    c.name = "tuned_nesterov"
    grid = {
        name(rate, momentum): f"nesterov learning_rate={rate} momentum={momentum}"
        for rate in RATES
        for momentum in MOMENTA
    }
    c.recipes = ConfigDict(dict(config.RECIPES) | grid)
    c.methods = (*grid, "adam", "cgad")
    c.sweep = config.delay_cells(
        "delay.tau", tuple(f"delay.tau={tau}" for tau in (0, 4, 8, 16))
    )
    return at_size(c, SIZES, size)
