"""The dotted fields of a configuration: listed, set from text, and their errors.

One override language, ``train.rounds=8``, serves the command line, the cells of a
sweep and the sizes of a config file. Values are parsed by ml_collections, by the type
that the field already has; what it leaves unclear (which field, which type, what was
meant) is said here, in one line.
"""

import copy
import difflib
import re
from collections.abc import Iterable
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

# ml_collections parses by type; these words say the same to a person.
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a tuple",
}

# Of a config file: {size: {dotted field: value}}.
Sizes = dict[str, dict[str, Any]]

_WORDS = re.compile(r"[A-Za-z]\w*(,[A-Za-z]\w*)*")


class ConfigError(ValueError):
    """The configuration cannot be used; one line names the cause and the cure."""


def leaves(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
    """Returns ``{dotted field: value}``, sorted by name within a section.

    >>> leaves(ConfigDict({"train": {"rounds": 8}}))
    {'train.rounds': 8}
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            found |= leaves(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def suggestion(name: str, names: Iterable[str]) -> str:
    """Returns ``"did you mean X?"``, or all ``names`` where none is near.

    >>> suggestion("smal", ["quick", "small"])
    'did you mean small?'
    >>> suggestion("huge", ["quick", "small"])
    'use quick or small'
    """
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"use {' or '.join(names)}"


def unknown(field: str, known: Iterable[str]) -> str:
    """Says that there is no such field, and which one was probably meant."""
    known = list(known)
    inside = [name for name in known if name.startswith(f"{field}.")]
    if inside:
        return f"{field} is a section, not a field: set one of {', '.join(inside)}"
    section, _, last = field.rpartition(".")
    # The right name in the wrong section comes first: its whole name may look far.
    near = [name for name in known if name.rpartition(".")[2] == last]
    near = near or difflib.get_close_matches(field, known, n=1)
    if near:
        return f"there is no field {field}: did you mean {' or '.join(near)}?"
    siblings = [name for name in known if name.rpartition(".")[0] == section]
    if section and siblings:
        return f"there is no field {field}: use one of {', '.join(siblings)}"
    sections = sorted({name.partition(".")[0] for name in known})
    return f"there is no field {field}: begin with one of {', '.join(sections)}"


def assign(config: ConfigDict, field: str, text: str) -> None:
    """Sets one field, in place, to the value written in ``text``.

    Whole numbers widen to floats. A tuple is written as in Python, or as words with
    commas between them: ``methods=blocktrain,end_to_end``.

    Raises:
      ConfigError: if there is no such field, or the text is not of its type.
    """
    known = leaves(config)
    if field not in known:
        raise ConfigError(unknown(field, known))
    value = text
    if isinstance(known[field], tuple) and _WORDS.fullmatch(text):
        value = repr(tuple(text.split(",")))
    argument = f"--config.{field}={value}"
    # A registry of its own: absl's usual one is global and remembers every override.
    values = flags.FlagValues()
    config_flags.DEFINE_config_dict(
        "config", config, flag_values=values, sys_argv=[argument], lock_config=False
    )
    try:
        values(["", argument])
    except (flags.Error, TypeError, ValueError):
        kind = KINDS.get(type(known[field]), "of the field's type")
        raise ConfigError(
            f"{field}={text} is not {kind}: write {kind}, such as {known[field]!r}"
        ) from None


def assignments(text: str) -> list[tuple[str, str]]:
    """Splits ``"train.rounds=8 model.layers=2"`` into pairs of field and value.

    A value ends where the next ``field=`` begins, so that it may hold spaces and
    quotes.

    >>> assignments("data.corpus=file:/my texts seed=1")
    [('data.corpus', 'file:/my texts'), ('seed', '1')]

    Raises:
      ConfigError: if something is not of the form ``field=value``.
    """
    pairs = []
    for assignment in re.split(r"\s+(?=[\w.]+=)", text.strip()):
        field, equals, value = assignment.partition("=")
        if not equals or not field:
            raise ConfigError(f"{assignment!r} sets nothing: write field=value")
        pairs.append((field, value))
    return pairs


def overridden(config: ConfigDict, text: str) -> ConfigDict:
    """Returns a copy of ``config``, changed as the :func:`assignments` of a text say.

    The result is one experiment: a sweep's own section is left out. It isn't
    validated.

    Raises:
      ConfigError: if an assignment is malformed, names no field or has a wrong type.
    """
    changed = copy.deepcopy(config)
    if "sweep" in changed:
        with changed.unlocked():
            del changed.sweep
    for field, value in assignments(text):
        assign(changed, field, value)
    return changed


def at_size(config: ConfigDict, sizes: Sizes, size: str) -> ConfigDict:
    """Applies the changes of one size to ``config``.

    Returns:
      The same ``config``, with ``config.size`` naming the size.

    Raises:
      ConfigError: if the size is unknown, or changes a field that does not exist.
      TypeError: if a value is not of its field's type.
    """
    if size not in sizes:
        raise ConfigError(f"unknown size {size!r}: the sizes are {', '.join(sizes)}")
    known = leaves(config)
    for field in sizes[size]:
        if field not in known:
            raise ConfigError(unknown(field, known))
    config.size = size
    config.update_from_flattened_dict(sizes[size])
    return config
