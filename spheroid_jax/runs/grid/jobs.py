"""The jobs of a run or a sweep: a method at a setting, with all its seeds.

A job has an identity, made of what shapes its result and nothing else. Two cells that
differ in a field which a method doesn't use (alpha, for age-blind Adam) share a job,
and what is done is never done again.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from spheroid_jax.fields import assignments, leaves, overridden
from spheroid_jax.optim.recipes import Recipe, parse_recipe
from spheroid_jax.runs.grid.family import Family

# What names a run, but doesn't shape it.
_ASIDE = ("kind", "name", "size", "methods", "data.corpus", "data.mirror")
_ASIDE_SECTIONS = ("sweep.", "recipes.", "outer.")
# Of a job's fields, those that are arguments of any program and not compiled in.
_ARGUMENTS = ("seed", "seeds")


class Job(NamedTuple):
    """A method at one setting.

    Attributes:
      method: its name in tables.
      recipe: its outer optimizer.
      config: its setting.
      identity: what shapes its result.
      program: what its compiled program is made of, as text.
    """

    method: str
    recipe: Recipe
    config: ConfigDict
    identity: str
    program: str


class Cell(NamedTuple):
    """A setting of a sweep, or the only one of a run.

    Attributes:
      settings: the fields that it sets, by dotted name.
      jobs: one a method.
    """

    settings: dict[str, Any]
    jobs: tuple[Job, ...]


def plan(family: Family, config: ConfigDict, digest: str) -> list[Cell]:
    """The cells of a run, or of a sweep.

    Args:
      family: the kind of experiment.
      config: a valid configuration.
      digest: of the corpus.
    """
    if "sweep" not in config:
        settings = {field: leaves(config)[field] for field in family.axis}
        return [Cell(settings, _jobs(family, config, digest))]
    cells = []
    for text in config.sweep.cells:
        changed = overridden(config, text)
        shown = [name for name, _ in assignments(text) if name != "methods"]
        shown += [f for f in (config.sweep.axis, config.sweep.panel) if f]
        values = leaves(changed)
        settings = {name: values[name] for name in dict.fromkeys(shown)}
        cells.append(Cell(settings, _jobs(family, changed, digest)))
    return cells


def room(family: Family, cells: list[Cell]) -> int:
    """The largest delay of all cells: with room for it, one program serves them all."""
    return max(family.room(job.config) for cell in cells for job in cell.jobs)


def recipe_of(config: ConfigDict, method: str) -> Recipe:
    """The outer optimizer of a method, with what it takes from ``outer``."""
    return parse_recipe(config.recipes[method], dict(config.outer))


def _jobs(family: Family, config: ConfigDict, digest: str) -> tuple[Job, ...]:
    return tuple(_job(family, config, method, digest) for method in config.methods)


def _job(family: Family, config: ConfigDict, method: str, digest: str) -> Job:
    recipe = recipe_of(config, method)
    fields = {
        field: value
        for field, value in leaves(config).items()
        if field not in _ASIDE
        and not field.startswith(_ASIDE_SECTIONS)
        and family.shapes(config, field)
    }
    outer = {"optimizer": recipe.name, **recipe.choices}
    given = family.arguments.union(_ARGUMENTS)
    compiled = {f: v for f, v in fields.items() if f not in given} | outer
    # The same shapes and another corpus are the same program.
    whole = fields | outer | dict(recipe.numbers) | {"corpus": digest}
    return Job(method, recipe, config, _digest(whole), _text(compiled))


def _text(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(fields).encode()).hexdigest()[:16]
