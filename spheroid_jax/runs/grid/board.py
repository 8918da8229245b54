"""Curves of finished jobs for TensorBoard."""

import re
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from spheroid_jax.runs.grid.jobs import Cell, Job


def write_curves(workdir: Path, job: Job, cell: Cell, result: dict[str, Any]) -> None:
    """Writes a job's losses on validation, a curve for each seed."""
    settings = "-".join(f"{k.rsplit('.', 1)[-1]}={v}" for k, v in cell.settings.items())
    place = re.sub(r"[^\w.=-]+", "_", settings)
    curve, first = result["curve"], job.config.seed
    for index, _ in enumerate(result["final"]):
        name = f"{job.method}/{place}/seed={first + index}"
        with SummaryWriter(str(workdir / "tensorboard" / name)) as writer:
            for round_, losses in zip(curve["round"], curve["loss"], strict=True):
                if losses[index] is not None:
                    writer.add_scalar("ce", losses[index], round_)
