"""What a delayed run can't be made of is refused in a line, before it is compiled."""

from typing import Any

import pytest
from ml_collections import ConfigDict

from spheroid_jax import config
from spheroid_jax.fields import assign
from spheroid_jax.validation import problems


def delayed(*assignments: str) -> ConfigDict:
    c = config.delayed()
    for assignment in assignments:
        field, _, value = assignment.partition("=")
        assign(c, field, value)
    return c


# What is wrong, and words of the line that says so: the field and the cure.
WRONG: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("methods=adam,cgda",), ("methods has 'cgda'", "did you mean cgad?")),
    (("methods=pa_cgad",), ("'pa_cgad'", "set sync.fragments=4")),
    (("recipes.cgad=cgda",), ("recipes.cgad=cgda", "no outer optimizer")),
    (("recipes.adam=adam momentum=0.5",), ("recipes.adam", "adam has no momentum")),
    (("recipes.sgd=sgd learning_rate=fast",), ("learning_rate=fast", "a number")),
    (("recipes.sgd=sgd learning_rate=nan",), ("learning_rate=nan", "not a number")),
    (("recipes.sgd=sgd learning_rate=-1",), ("learning_rate=-1.0", "above 0")),
    (("recipes.cgad=cgad gate=after",), ("gate=after", "pre or post or both")),
    (("recipes.cgad=cgad tau_cut=0",), ("tau_cut=0.0", "above 0")),
    (("recipes.cgad=cgad alpha",), ("'alpha' sets nothing", "field=value")),
    (("outer.alpha=-0.1",), ("outer.alpha=-0.1", "at least 0")),
    (("outer.tau_cut=0",), ("outer.tau_cut=0", "above 0")),
    (("delay.tau=-1",), ("delay.tau=-1", "at least 0")),
    (("delay.tau=100",), ("delay.tau=100", "train.rounds=100", "lower it")),
    (("delay.kind=per_worker", "train.replicas=3"), ("4 delays", "one for each")),
    (("delay.kind=trace",), ("delay.kind=trace", "set delay.trace=PATH")),
    (("delay.trace=a.csv",), ("delay.trace is not used", "leave it out")),
    (("train.rounds=101",), ("train.rounds=101", "use 100 or 105")),
    (("eval.last=21",), ("eval.last=21", "20 points")),
    (("eval.windows=65",), ("eval.windows=65", "use 64 or 96")),
    (("model.kv_heads=3",), ("model.kv_heads=3", "model.heads=4")),
    (("model.width=36",), ("model.heads=4", "even width")),
    (("sync.fragments=2",), ("set delay.protocol=in_flight",)),
    (
        ("sync.fragments=8", "delay.protocol=in_flight"),
        ("sync.fragments=8", "model.layers=4"),
    ),
    (
        ("sync.fragments=2", "delay.protocol=in_flight", "delay.tau=2"),
        ("delay.tau=2", "below the 2 rounds"),
    ),
    (
        ("sync.fragments=2", "delay.protocol=in_flight", "delay.kind=uniform"),
        ("delay.kind=uniform", "use fixed"),
    ),
    (
        (
            "sync.fragments=2",
            "delay.protocol=in_flight",
            "sync.schedule=periods",
        ),
        ("sync.periods has 4 numbers", "sync.fragments=2"),
    ),
    (
        (
            "sync.fragments=4",
            "delay.protocol=in_flight",
            "sync.schedule=periods",
            "sync.periods=(2,2,4,8)",
            "delay.tau=2",
        ),
        ("delay.tau=2", "below the 2 rounds"),
    ),
    (
        ("sync.quorum=5", "delay.protocol=in_flight"),
        ("sync.quorum=5", "train.replicas=4"),
    ),
]


@pytest.mark.parametrize(("assignments", "words"), WRONG)
def test_what_is_wrong_is_said_in_one_line(
    assignments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    found = problems(delayed(*assignments), 1)
    assert len(found) == 1, found
    for word in words:
        assert word in found[0]


SOUND: list[tuple[str, ...]] = [
    ("delay.tau=99",),
    ("delay.kind=per_worker",),
    ("delay.kind=trace", "delay.trace=a.csv"),
    ("sync.fragments=4", "delay.protocol=in_flight", "delay.tau=3"),
    ("sync.fragments=4", "delay.protocol=in_flight", "methods=pa_cgad,adam"),
    ("sync.fragments=4", "delay.protocol=in_flight", "sync.schedule=periods"),
    ("sync.quorum=4", "delay.protocol=in_flight"),
    ("recipes.cgad=cgad tau_cut=0.5 alpha=0 gate=both",),
]


@pytest.mark.parametrize("assignments", SOUND)
def test_what_is_sound_is_let_through(assignments: tuple[str, ...]) -> None:
    assert problems(delayed(*assignments), 1) == []


def test_a_kind_that_does_not_exist_is_named() -> None:
    c: Any = config.delayed()
    c.kind = "delay"
    assert problems(c, 1) == ["kind=delay is unknown: did you mean delays?"]


def test_a_cell_that_is_wrong_is_named_with_its_place() -> None:
    c = config.delayed()
    c.sweep = ConfigDict(
        {
            "axis": "delay.tau",
            "panel": "",
            "cells": ("delay.tau=1", "delay.tau=100"),
            "log_x": False,
            "cells_at_once": 1,
            "threads": 1,
        }
    )
    (line,) = problems(c, 1)
    assert line.startswith("sweep.cells[1] 'delay.tau=100': delay.tau=100")
