"""Updates: how they are written, read, judged and brought together."""

from spheroid_jax.transport.updates.aggregation import RULES, Weighted, aggregate
from spheroid_jax.transport.updates.encoding import KINDS, Encoding, UpdateError
from spheroid_jax.transport.updates.feedback import Feedback
from spheroid_jax.transport.updates.file import (
    UpdateReader,
    Written,
    ranges,
    write_update,
)
from spheroid_jax.transport.updates.screening import NormBound, Screened, screen

__all__ = [
    "KINDS",
    "RULES",
    "Encoding",
    "Feedback",
    "NormBound",
    "Screened",
    "UpdateError",
    "UpdateReader",
    "Weighted",
    "Written",
    "aggregate",
    "ranges",
    "screen",
    "write_update",
]
