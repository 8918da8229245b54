"""The picture of the weight of an age, for the documentation.

python -m spheroid_jax.reports.staleness_plot docs/images/staleness_weight.png
"""

import io
import math
import sys
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from spheroid_jax.optim import polynomial_weight, staleness_weight
from spheroid_jax.reports.files import write_atomic

# Okabe and Ito's colours, which colour-blind readers tell apart.
_CURVES = (
    ("CGAD, alpha 0.2, cut-off 32", 0.2, 32.0, "#0072b2", "-"),
    ("alpha 0.1", 0.1, 32.0, "#56b4e9", "--"),
    ("alpha 0.4", 0.4, 32.0, "#009e73", "-."),
    ("gate alone, alpha 0", 0.0, 32.0, "#d55e00", ":"),
    ("Adam-Decay, no gate", 0.2, None, "#000000", ":"),
)
_OLDEST = 36.0


def staleness_figure() -> Figure:
    """Draws the weight against the age, and the age times the weight beside it."""
    ages = np.linspace(0.0, _OLDEST, 721)
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, alpha, cut, color, line in _CURVES:
        weights = np.asarray(staleness_weight(ages, alpha, cut))
        left.plot(ages, weights, label=name, color=color, linestyle=line)
        if alpha:
            right.plot(ages, ages * weights, color=color, linestyle=line)
            bound = 1 / (math.e * alpha)
            right.axhline(bound, color=color, linewidth=0.6)
            right.annotate(
                f"1 / ({alpha} e)",
                (_OLDEST, bound),
                ha="right",
                va="bottom",
                fontsize=8,
            )
    left.plot(
        ages,
        np.asarray(polynomial_weight(ages)),
        label="polynomial, 1/sqrt(1 + age)",
        color="#cc79a7",
        linestyle="--",
    )
    left.set_ylabel("weight")
    right.set_ylabel("age times weight")
    for axes in (left, right):
        axes.set_xlabel("age, outer updates")
        axes.set_xlim(0, _OLDEST)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
    left.legend(frameon=False, fontsize=9)
    return figure


def main(argv: list[str]) -> int:
    """Writes the picture to the path that is the only argument."""
    (path,) = argv
    figure = staleness_figure()
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    write_atomic(Path(path), buffer.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
