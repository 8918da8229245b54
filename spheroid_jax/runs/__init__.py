"""Whole runs: methods from a configuration, the training loop, reports, sweeps."""

from spheroid_jax.runs.experiment import run_experiment
from spheroid_jax.runs.loop import TrainingError
from spheroid_jax.runs.methods import build_method
from spheroid_jax.runs.workdir import WorkdirError, default_workdir

__all__ = [
    "TrainingError",
    "WorkdirError",
    "build_method",
    "default_workdir",
    "run_experiment",
]
