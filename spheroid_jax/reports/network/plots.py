"""The picture of training over a network: losses against simulated time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from spheroid_jax.reports import plots
from spheroid_jax.reports.network.names import method_label
from spheroid_jax.reports.network.summary import read


def plot(summary: Mapping[str, Any], path: Path) -> None:
    """Writes the picture of a summary to ``path``, as PNG."""
    sweep = read(summary)
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for (method, setting), cell in sweep.cells.items():
        times = np.array(cell.row["time"], float).mean(axis=1)
        losses = np.array(cell.row["curve"]["loss"], float).mean(axis=1)
        axes.plot(times, losses, label=f"{method_label(method)}, {setting.label}")
    axes.set_xlabel("simulated seconds")
    axes.set_ylabel("cross-entropy on validation, nats per byte")
    plots.decorate(axes)
    if sweep.cells:
        plots.legend(figure, axes, None)
    plots.save(figure, path)
