"""Places in sentences: "at tau = 0, 4" and "With fixed ages, "."""

from collections.abc import Sequence
from typing import Any

from spheroid_jax.reports.delays.names import field_label, panel_label, value_label
from spheroid_jax.reports.delays.summary import Sweep


def at(sweep: Sweep, x: Any) -> str:
    """A clause with a space before it; empty where there is no axis."""
    return among(sweep, [x])


def among(sweep: Sweep, xs: Sequence[Any]) -> str:
    """The same for several places."""
    if not sweep.x or not xs:
        return ""
    return f" at {field_label(sweep.x)} = {', '.join(map(value_label, xs))}"


def within(sweep: Sweep, panel: Any) -> str:
    """The opening of a sentence on one panel; empty where there are none."""
    if not sweep.panel or panel is None:
        return ""
    title = panel_label(sweep.panel, panel)
    return f"{title[0].upper()}{title[1:]}: "
