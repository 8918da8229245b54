import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.reports.files import plain, to_json, write_atomic


def test_numbers_of_every_kind_become_plain_json() -> None:
    value = {
        "numpy": np.float32(0.5),
        "int": np.int64(7),
        "flag": True,
        "jax": jnp.float32(1.25),
        "array": np.array([[1.0, np.inf], [np.nan, -2.0]]),
        "tuple": (1, None, "x"),
        3: float("-inf"),
    }
    assert json.loads(to_json(value)) == {
        "numpy": 0.5,
        "int": 7,
        "flag": True,
        "jax": 1.25,
        "array": [[1.0, None], [None, -2.0]],
        "tuple": [1, None, "x"],
        "3": None,
    }
    assert plain(True) is True  # not the integer it also is


def test_what_json_has_no_word_for_is_an_error() -> None:
    with pytest.raises(TypeError, match="object can't be written"):
        to_json({"a": [object()]})


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.md"
    write_atomic(path, "naïve")
    assert path.read_bytes() == "naïve".encode()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert path.read_text(encoding="utf-8") == "naïve"
