"""What each field of a sweep's own section may hold: one rule a field."""

from collections.abc import Mapping

from spheroid_jax.rules import (
    Interval,
    Rule,
    matching,
    number,
    of_type,
    one_of,
    tuple_of,
)
from spheroid_jax.schema import RULES

_COUNT = number(int, Interval(1))
_RESULT = matching(r"[a-z][a-z0-9_]*", "must be the name of a result")
_CELLS = tuple_of(of_type(str), repr(("model.layers=1", "model.layers=2")))


def _grid(kind: str) -> dict[str, Rule]:
    """A grid of compiled runs."""
    return {
        "sweep.axis": one_of(tuple(RULES[kind])),
        "sweep.panel": one_of(("", *RULES[kind])),
        "sweep.cells": _CELLS,
        "sweep.log_x": of_type(bool),
        "sweep.cells_at_once": _COUNT,
        "sweep.threads": _COUNT,
    }


def _none(kind: str, why: str) -> dict[str, Rule]:
    """A kind that has no use for the section."""
    text = f"is for no run of kind={kind}, {why}: leave the section sweep out"
    return {"sweep.axis": lambda _: text, "sweep.cells": _CELLS}


# By kind of experiment.
SWEEP_RULES: Mapping[str, Mapping[str, Rule]] = {
    "blocks": {
        "sweep.axis": one_of(tuple(RULES["blocks"])),
        "sweep.cells": _CELLS,
        "sweep.log_x": of_type(bool),
        "sweep.series": tuple_of(_RESULT, repr(("ce_chain", "end_to_end"))),
    },
    "delays": _grid("delays"),
    "network": _grid("network"),
    "exchange": _none("exchange", "which is one coordinator and its workers"),
    "encodings": _none("encodings", "which goes through encodings by itself"),
    "bound": _none("bound", "which goes through delay.tau_max by itself"),
    "memory": _none("memory", "which goes through model.widths by itself"),
    "fleet": _none("fleet", "which goes through policies by itself"),
}
