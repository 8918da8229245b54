"""A run directory whose models are as they start: enough to load and to write with."""

import json
from pathlib import Path

import jax

from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.commandline import load, overrides
from spheroid_jax.rounds import init_state
from spheroid_jax.runs.methods import build_method
from spheroid_jax.runs.settings import Keys, training_identity
from spheroid_jax.runs.workdir import as_json

TINY = (
    "data.corpus=embedded model.blocks=2 model.layers=1 model.width=16 model.heads=2 "
    "data.seq_len=16"
)


def save_run(workdir: Path, *methods: str, seed: int = 0, fields: str = "") -> Path:
    """Writes a run of no rounds trained, round 1 by name; returns ``workdir``."""
    changed = f"{TINY} seed={seed} {fields}"
    config = overrides(load("configs/b3_l4.py:quick"), changed.strip())
    workdir.mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(as_json(config)))
    for name in methods:
        built, keys = build_method(config, name), Keys(config.seed, name)
        state = init_state(built.engine, jax.jit(built.init)(keys.init), keys.rounds)
        identity = {"method": name, **training_identity(config)}
        directory = workdir / "checkpoints" / name
        with Checkpoints(directory, keep=1, identity=identity) as checkpoints:
            checkpoints.save(1, state, {})
    return workdir
