"""The norm of a target embedding: how loudly z speaks.

Source: our own derivation. With ideal blocks CE_chain stays above the entropy of the
text by about ``0.5 (1 - E sum_y p²) (R / sigma_last)²``: the noise left in z at the
last level looks like evidence. R = 1 is DiffusionBlocks' (arXiv 2506.14202), 0.45 the
norm of an N(0, 0.02²) row at d = 512, our default. At small R the built-in loss
vanishes, but so does what one block can tell the next. Expect CE_chain to rise with R,
and local CE to fall, since a louder z gives more of the target away. What we measured
is in the README.

    python -m experiments.sweep --config=configs/radius_sweep.py:quick  # 20 minutes
    python -m experiments.sweep --config=configs/radius_sweep.py:small  # hours

Times are for 2 cores.
"""

from ml_collections import ConfigDict

from configs import b3_l4
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {size: b3_l4.SIZES[size] for size in ("quick", "small")}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.default()
    c.name = "radius_sweep"
    c.sweep = ConfigDict()
    c.sweep.axis = "model.target_radius"
    c.sweep.cells = tuple(f"model.target_radius={r}" for r in (0.1, 0.25, 0.45, 1.0))
    c.sweep.log_x = True
    c.sweep.series = ("ce_chain", "ce_ensemble", "local_ce", "end_to_end")
    return at_size(c, SIZES, size)
