"""What each field of a configuration may hold: one rule a field.

A rule maps a value to a complaint, or to an empty string. A complaint continues the
words ``field=value``, so that "must be at least 1" reads "train.rounds=0 must be at
least 1". ml_collections checks neither ranges, nor NaN, nor what is in a tuple.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from spheroid_jax.config import METHODS
from spheroid_jax.diffusion import GRIDS
from spheroid_jax.fields import KINDS, suggestion
from spheroid_jax.models import HEADS, LAYOUTS, REMAT_POLICIES
from spheroid_jax.optim.outer import OUTER_OPTIMIZERS

Rule = Callable[[Any], str]

CORPORA = ("auto", "embedded", "wikitext-2-raw", "wikitext-103-raw", "file:PATH")
COMPUTE_DTYPES = ("float32", "bfloat16")
SHARDINGS = ("replica", "worker", "shared")


@dataclasses.dataclass(frozen=True)
class Interval:
    """An interval of numbers, and the words for it.

    Attributes:
      low: least number.
      high: largest number.
      above: whether ``low`` itself is left out.
      below: whether ``high`` itself is left out.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        high_enough = value > self.low if self.above else value >= self.low
        low_enough = value < self.high if self.below else value <= self.high
        return high_enough and low_enough

    def __str__(self) -> str:
        words = []
        if self.low > -math.inf:
            words.append(f"{'above' if self.above else 'at least'} {self.low}")
        if self.high < math.inf:
            words.append(f"{'below' if self.below else 'at most'} {self.high}")
        return " and ".join(words)


def _is(kind: type, value: Any) -> bool:
    """Whether ``value`` is of that type; a bool is no number, an int is a float too."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def of_type(kind: type) -> Rule:
    """Any value of one type."""
    return lambda value: "" if _is(kind, value) else f"must be {KINDS[kind]}"


def number(kind: type, interval: Interval) -> Rule:
    """A finite number of type ``kind`` in an interval."""

    def rule(value: Any) -> str:
        if not _is(kind, value):
            return f"must be {KINDS[kind]}"
        if not math.isfinite(value):
            return "must be finite"
        return "" if value in interval else f"must be {interval}"

    return rule


def matching(pattern: str, hint: str) -> Rule:
    """Text that a regular expression matches whole; ``hint`` describes it."""

    def rule(value: Any) -> str:
        if not _is(str, value):
            return "must be text"
        return "" if re.fullmatch(pattern, value) else hint

    return rule


def one_of(names: tuple[str, ...]) -> Rule:
    """One of some names."""

    def rule(value: Any) -> str:
        if not _is(str, value):
            return "must be text"
        return "" if value in names else f"is unknown: {suggestion(value, names)}"

    return rule


def corpus(value: Any) -> str:
    """The name of a corpus, or ``file:`` and a path."""
    if isinstance(value, str) and value.startswith("file:"):
        return "" if value.removeprefix("file:").strip() else "must be file:PATH"
    return one_of(CORPORA[:-1])(value) and one_of(CORPORA)(value)


def tuple_of(element: Rule, example: str) -> Rule:
    """A tuple that isn't empty, without repetitions, whose elements obey a rule."""

    def rule(value: Any) -> str:
        if not isinstance(value, tuple) or not value:
            return f"must be a tuple that isn't empty, such as {example}"
        for position, item in enumerate(value):
            if complaint := element(item):
                return f"has element {item!r}, which {complaint}, as in {example}"
            if item in value[:position]:
                return f"has {item!r} twice: leave one out"
        return ""

    return rule


_COUNT = number(int, Interval(1))
_WHOLE = number(int, Interval(0))
_POSITIVE = number(float, Interval(0, above=True))
_NOT_NEGATIVE = number(float, Interval(0))
_FRACTION = number(float, Interval(0, 1))
_DECAY = number(float, Interval(0, 1, below=True))
# The name becomes a directory's.
_NAME = matching(
    r"[A-Za-z0-9][A-Za-z0-9_.-]*", "must be letters, digits, '_', '-' and '.' only"
)

RULES: Mapping[str, Rule] = {
    "name": _NAME,
    "size": _NAME,
    "seed": number(int, Interval(0, 2**32 - 1)),
    "methods": tuple_of(one_of(METHODS), repr(METHODS)),
    "model.blocks": _COUNT,
    "model.layers": _COUNT,
    "model.width": _COUNT,
    "model.heads": _COUNT,
    "model.mlp_ratio": _COUNT,
    "model.layout": one_of(LAYOUTS),
    "model.head": one_of(HEADS),
    "model.target_radius": _POSITIVE,
    "model.noisy_input_std": _NOT_NEGATIVE,
    "model.compute_dtype": one_of(COMPUTE_DTYPES),
    "model.remat": one_of(REMAT_POLICIES),
    "model.rotary": of_type(bool),
    "diffusion.sigma_min": _POSITIVE,
    "diffusion.sigma_max": _POSITIVE,
    "diffusion.p_mean": number(float, Interval()),
    "diffusion.p_std": _POSITIVE,
    "diffusion.sigma_data": _POSITIVE,
    "diffusion.overlap": _NOT_NEGATIVE,
    "diffusion.grid": one_of(GRIDS),
    "data.corpus": corpus,
    "data.mirror": of_type(str),
    "data.seq_len": number(int, Interval(2)),
    "data.stride": _WHOLE,
    "data.batch": _COUNT,
    "data.sharding": one_of(SHARDINGS),
    "train.replicas": _COUNT,
    "train.rounds": _COUNT,
    "train.local_steps": _COUNT,
    "train.learning_rate": _POSITIVE,
    "train.learning_rate_end_to_end": _POSITIVE,
    "train.learning_rate_block_sized": _POSITIVE,
    "train.warmup_steps": _WHOLE,
    "train.final_lr_fraction": _FRACTION,
    "train.b1": _DECAY,
    "train.b2": _DECAY,
    "train.weight_decay": _NOT_NEGATIVE,
    "train.clip": _NOT_NEGATIVE,
    "outer.name": one_of(OUTER_OPTIMIZERS),
    "outer.learning_rate": _POSITIVE,
    "outer.momentum": _DECAY,
    "eval.every": _COUNT,
    "eval.curve_windows": _COUNT,
    # A window borrows another's context, so that one alone has no scrambled gap.
    "eval.windows": number(int, Interval(2)),
    "eval.batch": _COUNT,
    "eval.mix_draws": _COUNT,
    "checkpoint.every": _COUNT,
    "checkpoint.keep": _COUNT,
    "mesh.block": _COUNT,
    "mesh.replica": _COUNT,
}

_RESULT = matching(r"[a-z][a-z0-9_]*", "must be the name of a result")

SWEEP_RULES: Mapping[str, Rule] = {
    "sweep.axis": one_of(tuple(RULES)),
    "sweep.cells": tuple_of(of_type(str), repr(("model.layers=1", "model.layers=2"))),
    "sweep.log_x": of_type(bool),
    "sweep.series": tuple_of(_RESULT, repr(("ce_chain", "end_to_end"))),
}
