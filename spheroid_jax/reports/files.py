"""Files that are whole or absent, and JSON that every reader takes."""

import json
import math
import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replaces ``path`` in one step; text is written as UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def plain(value: Any) -> Any:
    """Returns ``value`` in JSON's own types.

    Numbers of NumPy and JAX become Python's; a float that isn't finite becomes None,
    since NaN and Infinity are not JSON.

    >>> plain({"ce": float("nan"), "range": (1, 2.5)})
    {'ce': None, 'range': [1, 2.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # arrays, and scalars that are arrays
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON text, keys in their own order."""
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)
