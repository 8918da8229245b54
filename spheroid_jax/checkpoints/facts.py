"""What a checkpoint must agree with, and how a disagreement is told."""

import json
from collections.abc import Mapping
from typing import Any

_LISTED = 3  # differences spelt out in one error line; the rest are counted


def flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted names and JSON: {"model": {"layers": 4}} gives {"model.layers": "4"}."""
    out: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, dict) and value:
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = json.dumps(value)
    return out


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """One phrase for each name whose text differs."""
    return [
        f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} "
        "here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]


def shortened(phrases: list[str]) -> str:
    """The first few phrases, and how many more there are."""
    more = len(phrases) - _LISTED
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join(phrases[:_LISTED] + rest)
