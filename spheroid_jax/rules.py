"""Rules for what a field of a configuration may hold.

A rule maps a value to a complaint, or to an empty string. A complaint continues the
words ``field=value``, so that "must be at least 1" reads "train.rounds=0 must be at
least 1". ml_collections checks neither ranges, nor NaN, nor what is in a tuple.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from spheroid_jax.fields import KINDS, suggestion

Rule = Callable[[Any], str]

CORPORA = ("auto", "embedded", "wikitext-2-raw", "wikitext-103-raw", "file:PATH")


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


def tuple_of(element: Rule, example: str, *, distinct: bool = True) -> Rule:
    """A tuple that isn't empty, whose elements obey a rule and don't repeat."""

    def rule(value: Any) -> str:
        if not isinstance(value, tuple) or not value:
            return f"must be a tuple that isn't empty, such as {example}"
        for position, item in enumerate(value):
            if complaint := element(item):
                return f"has element {item!r}, which {complaint}, as in {example}"
            if distinct and item in value[:position]:
                return f"has {item!r} twice: leave one out"
        return ""

    return rule
