"""One of several processes that train a toy, through the frame of every experiment.

    python -m tests.end_to_end.process_worker --config=... --coordinator=... \
        --processes=N --process=I --workdir=DIR

Blocks and workers are as in a run of BlockTrain, but a block is a 4 x 4 matrix, so that
next to nothing is compiled. ``DIR/read-I.json`` says which windows process I read.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from spheroid_jax import data, distributed, partition
from spheroid_jax.commandline import Options
from spheroid_jax.data import windows
from spheroid_jax.objectives import Batch
from spheroid_jax.reports.log import MetricsLog, NoLog
from spheroid_jax.rounds import Engine
from spheroid_jax.runs.loop import train_method
from spheroid_jax.runs.methods import Method
from spheroid_jax.runs.session import session

BLOCKS, REPLICAS = 3, 2


def denoise(part: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Any]:
    """A linear map of the first bytes of a window, from noise that is the worker's."""
    x = batch.windows[:, :4].astype(jnp.float32) / 256
    noise = 0.1 * jax.random.normal(key, x.shape)
    predicted = (x + noise) @ part["block"]["kernel"] + part["interface"]["bias"][None]
    loss = jnp.mean((predicted - x[:, ::-1]) ** 2)
    return loss, {"ce": loss}


def init(key: jax.Array) -> Any:
    kernel = jax.random.normal(key, (BLOCKS, 4, 4))
    return {"blocks": {"kernel": kernel}, "interface": {"bias": jnp.zeros(4)}}


def evaluate(params: Any, windows: jax.Array, key: jax.Array) -> Any:
    del key
    x = windows[:, :4].astype(jnp.float32) / 256
    every = jnp.einsum("nt,bts->bns", x, params["blocks"]["kernel"])
    return {"ce": jnp.mean(every + params["interface"]["bias"][None, None])}


# A rate that doesn't know the number of rounds: a run is the beginning of a longer one.
ENGINE = Engine(
    partition.blocks(BLOCKS), denoise, optax.adam(1e-2), optax.sgd(1.0), REPLICAS
)
METHOD = Method("blocktrain", ENGINE, init, evaluate, evaluate, 1, 1e-2, 1.0)


class Recorder:
    """A view of the corpus that notes which windows are taken out of it."""

    starts: set[int] = set()  # noqa: RUF012

    def __init__(self, view: np.ndarray) -> None:
        self.view = view

    def __getitem__(self, starts: np.ndarray) -> np.ndarray:
        self.starts.update(np.ravel(starts).tolist())
        return self.view[starts]


def train(options: Options, workdir: Path) -> None:
    """Trains the toy on every process, and leaves what the tests look at."""
    corpus = data.load_corpus(options.config.data.corpus)
    sliding = np.lib.stride_tricks.sliding_window_view

    def recorded(text: np.ndarray, length: int) -> Any:
        view = sliding(text, length)
        return Recorder(view) if text is corpus.train else view

    windows.np.lib.stride_tricks.sliding_window_view = recorded
    log = MetricsLog(workdir) if distributed.is_main() else NoLog()
    with log:
        place = workdir / "checkpoints"
        outcome = train_method(METHOD, options.config, corpus, place, log)
    read = workdir / f"read-{jax.process_index()}.json"
    read.write_text(json.dumps(sorted(Recorder.starts)))
    params = distributed.on_host(outcome.params)
    if distributed.is_main():
        kernel, bias = params["blocks"]["kernel"], params["interface"]["bias"]
        np.savez(workdir / "params.npz", kernel=kernel, bias=bias)
    print("trained")


if __name__ == "__main__":
    sys.exit(session("tests.end_to_end.process_worker", sys.argv[1:], train))
