"""A network as bad as you like, in user space: slow links, and links that break.

A TCP proxy stands between two programs. It holds bytes back as a link of given delay,
rate and loss would, and it cuts, stalls, flips, repeats or resets at a byte that a
plan names. It needs no rights, no kernel module and no change to the programs.
"""

from spheroid_jax.transport.shaping.faults import (
    KINDS,
    Counts,
    Fault,
    Plan,
    listed,
    seeded,
)
from spheroid_jax.transport.shaping.link import MSS, Shape
from spheroid_jax.transport.shaping.proxy import Proxy, shaped

__all__ = [
    "KINDS",
    "MSS",
    "Counts",
    "Fault",
    "Plan",
    "Proxy",
    "Shape",
    "listed",
    "seeded",
    "shaped",
]
