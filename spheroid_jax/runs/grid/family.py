"""What a kind of experiment brings to a grid of compiled runs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jax import Array
from ml_collections import ConfigDict

from spheroid_jax.optim.recipes import Recipe


class Run(NamedTuple):
    """What a run leaves behind.

    Attributes:
      losses: on validation, nats per byte, after each ``eval.every`` rounds.
      metrics: of each round; ``arrived`` (updates) and ``age`` (their mean) at least.
      others: further results at the points of ``losses``.
    """

    losses: Array
    metrics: dict[str, Array]
    others: dict[str, Array]


# Numbers of the recipe, parameters, key, windows (R, B, K, H, N, T+1), validation
# windows, and the schedule, to a run.
OneRun = Callable[[Mapping[str, Array], Any, Array, Array, Array, Any], Run]


class Family(NamedTuple):
    """A kind of experiment, as functions of its configurations.

    Attributes:
      init: ``key -> params`` of a configuration.
      program: one run of a recipe, with room for so many rounds of delay; everything is
        compiled in but seeds, the recipe's numbers and what ``arguments`` names.
      schedule: what arrives when, for a seed: a tree of arrays.
      blocks: B.
      room: the longest delay there can be, in rounds.
      shapes: whether a field has a part in the result of a job, beside its recipe.
      arguments: fields that are arguments of the program.
      opening: lines for the screen about the model and the workers.
      result: ``(config, metrics, NumPy leaves (S, R))`` to what a result holds beside
        the losses.
      facts: what a summary tells beside the rows.
      axis: fields that a run which is no sweep shows.
      label: name of a method in progress lines.
      write_report: ``(workdir, summary)``, the end of it all.
    """

    init: Callable[[ConfigDict], Callable[[Array], Any]]
    program: Callable[[ConfigDict, Recipe, int], OneRun]
    schedule: Callable[[ConfigDict, int], Any]
    blocks: Callable[[ConfigDict], int]
    room: Callable[[ConfigDict], int]
    shapes: Callable[[ConfigDict, str], bool]
    arguments: frozenset[str]
    opening: Callable[[ConfigDict], list[str]]
    result: Callable[[ConfigDict, dict[str, Any]], dict[str, Any]]
    facts: Callable[[ConfigDict], dict[str, Any]]
    axis: tuple[str, ...]
    label: Callable[[str, Mapping[str, str]], str]
    write_report: Callable[[Path, Mapping[str, Any]], None]
