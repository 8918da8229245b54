"""What is called how in the report of a run of kind ``bound``."""

import math
from collections.abc import Sequence

from spheroid_jax.reports.bound.fits import Bound, Slope, lost
from spheroid_jax.reports.delays.names import listing

_LABELS = {
    "sgd": "SGD",
    "heavy_ball": "Heavy ball",
    "nesterov": "Nesterov",
    "adam": "Age-blind Adam",
    "adam_decay": "Adam-Decay",
    "cgad": "CGAD",
}


def method_label(method: str) -> str:
    """The name of a method for readers; an unknown one names itself."""
    return _LABELS.get(method, method)


def power(found: Slope, digits: int = 2) -> str:
    """A slope with its standard error.

    >>> power(Slope(2.0, 0.125, 8, (1, 2, 4)))
    '2.00±0.12'
    """
    if not math.isfinite(found.value):
        return "-"
    error = f"±{found.error:.{digits}f}" if math.isfinite(found.error) else ""
    return f"{found.value:.{digits}f}{error}"


def divergence(bound: Bound, method: str) -> str:
    """Which cells diverged, and so are in no slope."""
    parts = []
    for function, kind in bound.places():
        line = bound.line(function, kind, method)
        gone = [tau for tau, row in line.items() if lost(row)]
        if gone:
            where = place(bound, function, kind)
            parts.append(f"{where} at {listing([str(t) for t in gone])}")
    return f"Diverged and left out: {'; '.join(parts)}." if parts else "None diverged."


def place(bound: Bound, function: str, kind: str) -> str:
    """A function, and the kind of ages where there are several."""
    return f"{kind} {function}" if len(bound.kinds) > 1 else function


def items(lines: Sequence[str]) -> str:
    """Sentences as a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)
