"""What would make late updates pay: a smaller outer step, or weights that fall faster?

At the rate that is best in lockstep, keeping late updates under the preset ``wan`` ends
above dropping them (``configs/async_regimes.py``). Here the mean runs at several rates,
and its weights fall with age at several speeds; ``drop`` has the same rates to choose
from. What we measured is in the README.

    python -m experiments.sweep --config=configs/async_gate.py:quick  # ten minutes
    python -m experiments.sweep --config=configs/async_gate.py:small  # an hour
"""

from ml_collections import ConfigDict

from configs import async_regimes
from configs.async_outer_grid import lockstep_and_wan
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

RATES = (0.5, 0.7, 1.0)
ALPHAS = (0.2, 0.8, 2.0)

SIZES: Sizes = {
    name: dict(async_regimes.SIZES[name]) | {"seeds": 3} for name in ("quick", "small")
}


def _name(rate: float) -> str:
    """The name of a rate's row: a rate of 0.5 is ``mean_r05``."""
    return f"mean_r{10 * rate:02.0f}"


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.network()
    c.name = "async_gate"
    # Numbers are arguments of the compiled program: two programs in all.
    plain = {_name(r): f"sgd learning_rate={r}" for r in RATES}
    weighed = {
        f"{_name(r)}_a{10 * a:02.0f}": f"weighted_sgd learning_rate={r} alpha={a}"
        for r in RATES
        for a in ALPHAS
        if r in (RATES[0], RATES[-1])
    }
    c.recipes = ConfigDict(dict(config.NETWORK_RECIPES) | plain | weighed)
    c.methods = (*plain, *weighed)
    blind = ",".join(plain)
    c.sweep = lockstep_and_wan(blind)
    return at_size(c, SIZES, size)
