"""Finished jobs of a run directory, a line each; tables and pictures come from them."""

import json
from pathlib import Path
from typing import Any

from spheroid_jax.reports.files import to_json, write_atomic

CELLS = "cells.jsonl"


class ResultsError(ValueError):
    """The results of a run directory can't be read; one line with the cure."""


class Results:
    """Finished jobs by identity; appended to as they finish."""

    def __init__(self, workdir: Path) -> None:
        """Reads what a run directory holds; a torn last line is left out.

        Raises:
          ResultsError: another line isn't a result.
        """
        self._path = workdir / CELLS
        self._done: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            self._read()

    def get(self, identity: str) -> dict[str, Any] | None:
        """The result of a job, if it is finished."""
        return self._done.get(identity)

    def add(self, identity: str, result: dict[str, Any]) -> None:
        """Keeps a result; it is with the operating system on return."""
        line = to_json({"identity": identity, **result})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._done[identity] = json.loads(line)

    def _read(self) -> None:
        lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        for number, line in enumerate(lines, 1):
            try:
                result = json.loads(line)
                self._done[result["identity"]] = result
            except (ValueError, TypeError, KeyError):
                if line and number < len(lines):
                    raise ResultsError(
                        f"{self._path} line {number} isn't a result; delete that line"
                    ) from None
        kept = "".join(to_json(result) + "\n" for result in self._done.values())
        write_atomic(self._path, kept)
