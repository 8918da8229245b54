"""What a configuration decides for a coordinator and for its workers, alike."""

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict

from spheroid_jax import data, manifests, partition
from spheroid_jax.config import KINDS
from spheroid_jax.evaluation import chain_evaluator
from spheroid_jax.fields import ConfigError, assign, leaves
from spheroid_jax.optim.recipes import build_outer, parse_recipe
from spheroid_jax.rounds import Engine
from spheroid_jax.runs.methods import (
    block_denoiser,
    denoising_objective,
    grid_levels,
    inner_of,
)
from spheroid_jax.runs.settings import Keys, plan_settings, training_identity
from spheroid_jax.runs.workdir import as_json
from spheroid_jax.transport.closing import Policy
from spheroid_jax.transport.coordinator import METHOD, Rules, Settings
from spheroid_jax.transport.updates import Encoding
from spheroid_jax.validation import validate


def corpus_of(config: ConfigDict) -> data.Corpus:
    """The text, which is enough for every slot.

    Raises:
      CorpusError: it can't be read, or is too small.
    """
    corpus = data.load_corpus(config.data.corpus, mirror=config.data.mirror)
    data.round_batches(corpus.train, **window_settings(config))
    return corpus


def keys_of(config: ConfigDict) -> Keys:
    """The run's random keys: those of a run of the same seed on one machine."""
    return Keys(config.seed, METHOD)


def engine_of(config: ConfigDict) -> tuple[Engine, Callable[[Array], Array] | None]:
    """The round, and how much an update of some age counts."""
    outer = build_outer(parse_recipe(config.outer.recipe, dict(config.outer)))
    engine = Engine(
        partition.blocks(config.model.blocks),
        denoising_objective(config, block_denoiser(config)),
        inner_of(config.train, config.train.learning_rate),
        outer.transformation,
        config.train.replicas,
    )
    return engine, outer.weigh


def rules_of(config: ConfigDict, weigh: Callable[[Array], Array] | None) -> Rules:
    """How a block's updates become one."""
    return Rules(weigh, config.exchange.rule, config.exchange.trim)


def init_of(config: ConfigDict) -> Callable[[Array], Any]:
    """``key -> params``."""
    model, blocks = block_denoiser(config), config.model.blocks
    return lambda key: model.init(key, blocks)


def judge_of(
    config: ConfigDict, corpus: data.Corpus
) -> Callable[[Any], dict[str, float]]:
    """Parameters to losses on validation; compiled at the first call."""
    grid = jnp.asarray(grid_levels(config), jnp.float32)
    evaluate = jax.jit(chain_evaluator(block_denoiser(config), grid, config.eval.batch))
    windows = jnp.asarray(
        data.evaluation_windows(
            corpus.valid, seq_len=config.data.seq_len, count=config.eval.windows
        )
    )
    key = keys_of(config).evaluation

    def judge(params: Any) -> dict[str, float]:
        return {n: float(v) for n, v in evaluate(params, windows, key).items()}

    return judge


def window_settings(config: ConfigDict) -> dict[str, Any]:
    """What decides which windows a slot sees; see ``data.round_batches``."""
    return plan_settings(config, config.model.blocks, config.train.replicas)


def windows_of(
    config: ConfigDict, corpus: data.Corpus
) -> Callable[[int, int, int], np.ndarray]:
    """``(round, block, replica)`` to a slot's windows, uint8 (H, N, T+1)."""
    settings = window_settings(config)

    @functools.cache
    def of_slot(block: int, replica: int) -> grain.MapDataset:
        return data.round_batches(corpus.train, workers=[(block, replica)], **settings)

    def windows(round_: int, block: int, replica: int) -> np.ndarray:
        found: np.ndarray = of_slot(block, replica)[round_][0]
        return found

    return windows


def encoding_of(config: ConfigDict) -> Encoding:
    """How updates are written."""
    return Encoding(config.exchange.encoding, config.exchange.zstd)


def broadcast_of(config: ConfigDict) -> Encoding | None:
    """How the coordinator writes what changed; None: as it is."""
    kind = config.exchange.broadcast
    return None if kind == "full" else Encoding(kind, config.exchange.zstd)


def identity_of(config: ConfigDict) -> dict[str, Any]:
    """What a checkpoint must agree with."""
    return {"method": METHOD, **training_identity(config)}


def settings_of(config: ConfigDict, corpus: data.Corpus) -> Settings:
    """What the coordinator does."""
    n, e = config.network, config.exchange
    plain = as_json(config)
    return Settings(
        blocks=config.model.blocks,
        replicas=config.train.replicas,
        rounds=config.train.rounds,
        local_steps=config.train.local_steps,
        workers=e.workers,
        policy=Policy(
            deadline=n.deadline or math.inf,
            late=n.late,
            quorum=n.quorum,
            grace=n.grace,
            max_age=n.max_age,
        ),
        heartbeat=e.heartbeat,
        lease=e.lease,
        drain=e.drain,
        eval_every=config.eval.every,
        keep_best=config.checkpoint.keep_best > 0,
        welcome={
            "config": plain,
            "config_sha256": manifests.sha256_of_json(plain),
            "corpus_sha256": corpus.sha256,
        },
    )


def config_from(plain: dict[str, Any], sha256: str, own: dict[str, str]) -> ConfigDict:
    """A worker's configuration, from the coordinator's.

    Args:
      plain: as JSON.
      sha256: of that JSON, as the coordinator says.
      own: fields that the worker sets for itself, such as where its text is.

    Raises:
      ConfigError: it isn't one that this release can serve.
    """
    if manifests.sha256_of_json(plain) != sha256:
        raise ConfigError(
            "the coordinator's configuration isn't what its digest says: check what "
            "is between here and there"
        )
    config = KINDS["exchange"]()
    known = leaves(config)
    try:
        given = leaves(ConfigDict(plain))
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the coordinator's configuration has a field that can't be one "
            f"({' '.join(str(error).split())[:200]}); install the coordinator's release"
        ) from error
    for field in sorted(known.keys() ^ given.keys()):
        where = "here" if field in known else "at the coordinator"
        raise ConfigError(
            f"the coordinator runs another release of spheroid_jax: there is a field "
            f"{field} only {where}; install the coordinator's release"
        )
    for field, value in given.items():
        if isinstance(known[field], tuple):
            value = tuple(value)
        try:
            config.update_from_flattened_dict({field: value})
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the coordinator's {field}={value!r} is no value here: install the "
                "coordinator's release"
            ) from error
    for field, text in own.items():
        assign(config, field, text)
    validate(config)
    config.lock()
    return config


def stored_config(path: Path) -> ConfigDict:
    """A run's configuration, from its ``config.json``.

    Raises:
      ConfigError: there is none there, or it is another release's.
    """
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no configuration: {error}") from error
    return config_from(plain, manifests.sha256_of_json(plain), {})


def exchange_folder(workdir: Path) -> Path:
    """Where a coordinator keeps tokens, ledger, uploads and accepted updates."""
    return workdir / "exchange"
