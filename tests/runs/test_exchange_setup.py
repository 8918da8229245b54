"""What coordinator and workers make of one configuration, and of a strange one."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from spheroid_jax import config, data, manifests
from spheroid_jax.config import KINDS
from spheroid_jax.fields import ConfigError, leaves
from spheroid_jax.runs.exchange import setup
from spheroid_jax.runs.workdir import as_json
from spheroid_jax.transport import protocol
from spheroid_jax.transport.protocol import Registered
from spheroid_jax.transport.updates import Encoding

TINY = {
    "name": "wan",
    "data.corpus": "embedded",
    "data.seq_len": 16,
    "data.batch": 2,
    "model.blocks": 2,
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "train.replicas": 2,
    "train.rounds": 4,
    "train.local_steps": 2,
    "train.warmup_steps": 1,
    "eval.windows": 2,
    "eval.batch": 2,
}


def tiny(**changes: Any) -> ConfigDict:
    c = config.exchange()
    c.update_from_flattened_dict({**TINY, **changes})
    return c


def over_the_wire(c: ConfigDict) -> tuple[dict[str, Any], str]:
    """What a worker hears of a configuration."""
    plain = as_json(c)
    said = Registered(
        protocol=protocol.VERSION, run="0" * 32, worker="a", config=plain,
        config_sha256=manifests.sha256_of_json(plain), corpus_sha256="", lease=1.0,
        heartbeat=1.0,
    )  # fmt: skip
    heard = protocol.decode(protocol.encode(said), Registered)
    return heard.config, heard.config_sha256


def test_a_worker_has_the_coordinators_configuration() -> None:
    c = tiny(**{"train.learning_rate": 1e-7, "network.deadline": 1e15})
    found = setup.config_from(*over_the_wire(c), {})
    assert leaves(found) == leaves(c)
    types = {name: type(value) for name, value in leaves(c).items()}
    assert {name: type(value) for name, value in leaves(found).items()} == types
    assert found.is_locked


def test_a_worker_may_have_its_text_elsewhere() -> None:
    c = tiny()
    found = setup.config_from(*over_the_wire(c), {"data.corpus": "file:there.txt"})
    assert found.data.corpus == "file:there.txt"
    rest = {n: v for n, v in leaves(found).items() if n != "data.corpus"}
    assert rest == {n: v for n, v in leaves(c).items() if n != "data.corpus"}


def _set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(plain: dict[str, Any]) -> None:
        *sections, field = name.split("/")
        for section in sections:
            plain = plain[section]
        plain[field] = value

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_set("train/brand_new", 3), "train.brand_new only at the coordinator"),
        (lambda plain: plain["train"].pop("rounds"), "train.rounds only here"),
        (_set("model", 3), "model"),
        (_set("train/rounds", "many"), "train.rounds"),
        (_set("train/rounds", None), "train.rounds"),
        (_set("train/rounds", [1, 2]), "train.rounds"),
        (_set("train/rounds", {"a": 1}), "train.rounds"),
        (_set("train/rounds", -4), "train.rounds"),
        (_set("train/rounds", 2.5), "train.rounds"),
        (_set("train.rounds", 4), "train.rounds"),
        (_set("kind", "blocktrain"), "kind"),
        (_set("exchange/encoding", "pickle"), "exchange.encoding"),
        (_set("__class__", "x"), "__class__"),
        (_set("to_json", "x"), "to_json"),
        (_set("", "x"), "only at the coordinator"),
    ],
)
def test_a_configuration_of_another_release_is_one_line(
    change: Callable[[dict[str, Any]], Any], named: str
) -> None:
    plain = copy.deepcopy(over_the_wire(tiny())[0])
    change(plain)
    with pytest.raises(ConfigError, match=".+") as told:
        setup.config_from(plain, manifests.sha256_of_json(plain), {})
    assert named in str(told.value)


def test_a_changed_configuration_is_noticed() -> None:
    plain, sha256 = over_the_wire(tiny())
    plain["train"]["rounds"] += 1
    with pytest.raises(ConfigError, match="isn't what its digest says"):
        setup.config_from(plain, sha256, {})


def test_settings(tmp_path: Path) -> None:
    corpus = data.load_corpus("embedded")
    c = tiny(**{"network.quorum": 1, "network.grace": 2.0, "exchange.workers": 3})
    s = setup.settings_of(c, corpus)
    assert (s.blocks, s.replicas, s.rounds, s.local_steps) == (2, 2, 4, 2)
    assert (s.workers, s.eval_every, s.keep_best) == (3, 1, False)
    assert s.policy == (math.inf, "drop", 1, 2.0, 8)  # 0 is no deadline
    e = c.exchange
    assert (s.heartbeat, s.lease, s.drain) == (e.heartbeat, e.lease, e.drain)
    assert s.welcome["corpus_sha256"] == corpus.sha256
    assert s.welcome["config"] == as_json(c)
    c.network.deadline = 7.0
    assert setup.settings_of(c, corpus).policy.deadline == 7.0
    assert setup.encoding_of(c) == Encoding("bfloat16", 0)


def test_every_limit_of_the_configuration_gets_somewhere() -> None:
    """A time-out that is accepted and never used would be none."""
    corpus = data.load_corpus("embedded")
    before = setup.settings_of(tiny(), corpus)._replace(welcome={})
    for field, value in {
        "network.deadline": 9.0,
        "network.late": "gate",
        "network.max_age": 3,
        "network.quorum": 1,
        "network.grace": 1.0,
        "exchange.workers": 2,
        "exchange.heartbeat": 0.5,
        "exchange.lease": 9.0,
        "exchange.drain": 9.0,
        "eval.every": 2,
        "checkpoint.keep_best": 1,
    }.items():
        after = setup.settings_of(tiny(**{field: value}), corpus)._replace(welcome={})
        assert after != before, field


def test_slots_see_the_windows_that_they_do_on_one_machine() -> None:
    corpus = data.load_corpus("embedded")
    c = tiny()
    windows = setup.windows_of(c, corpus)
    all_of_them = data.round_batches(corpus.train, **setup.window_settings(c))
    for round_ in (0, 7):
        for block in range(2):
            for replica in range(2):
                np.testing.assert_array_equal(
                    windows(round_, block, replica), all_of_them[round_][block, replica]
                )


def test_keys_are_those_of_a_run_on_one_machine() -> None:
    c = tiny()
    found, other = setup.keys_of(c), setup.keys_of(tiny(seed=1))
    same = [
        jax.numpy.array_equal(jax.random.key_data(a), jax.random.key_data(b))
        for a, b in (
            (found.init, setup.keys_of(tiny()).init),
            (found.rounds, other.rounds),
            (found.init, found.rounds),
        )
    ]
    assert same == [True, False, False]


def test_rules_and_engine() -> None:
    c = tiny(
        **{
            "outer.recipe": "weighted_sgd learning_rate=1.0",
            "exchange.rule": "trimmed_mean",
            "exchange.trim": 0.3,
        }
    )
    engine, weigh = setup.engine_of(c)
    assert (engine.partition.count, engine.replicas) == (2, 2)
    assert engine.partition.separate
    rules = setup.rules_of(c, weigh)
    assert (rules.rule, rules.trim) == ("trimmed_mean", 0.3)
    assert rules.weigh is not None
    ages = [float(rules.weigh(jax.numpy.float32(age))) for age in range(3)]
    assert ages[0] == 1.0
    assert ages[0] > ages[1] > ages[2]
    assert "exchange" in KINDS
