"""Fragments of the model synced at times of their own: PA-CGAD against CGAD.

Source: CGAD's partial-sync variant (arXiv 2605.09126) on the streaming schedule of
Streaming DiLoCo (arXiv 2501.18512), with lost syncs and a quorum with a grace window as
in Decoupled DiLoCo (arXiv 2604.21428). Round-robin gives fragments one constant age,
which Adam divides out; only lost syncs make ages vary, so the axis is how many are
lost. Methods called ``pa_*`` keep moments and a count for each fragment: with the gate
on its age, with the gate on the delay alone, and without a gate. What we measured is in
the README.

    python -m experiments.sweep --config=configs/partial_sync.py:quick  # minutes
    python -m experiments.sweep --config=configs/partial_sync.py:small  # an hour
"""

from ml_collections import ConfigDict

from configs import delayed
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

_FRAGMENTS = {
    "model.layers": 4,
    "sync.fragments": 4,
    "sync.grace": 0.1,
    "delay.tau": 1,
    "delay.protocol": "in_flight",
}
SIZES: Sizes = {
    "quick": delayed.SIZES["quick"] | _FRAGMENTS | {"seeds": 3, "sync.quorum": 1},
    "small": delayed.SIZES["small"] | _FRAGMENTS | {"sync.quorum": 3},
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.delayed()
    c.name = "partial_sync"
    c.methods = ("adam", "cgad", "pa_adam", "pa_delay", "pa_cgad")
    c.sweep = config.delay_cells(
        "sync.drop", tuple(f"sync.drop={drop}" for drop in (0.0, 0.25, 0.5, 0.75))
    )
    return at_size(c, SIZES, size)
