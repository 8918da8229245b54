"""Numbers of the paper, to be printed beside ours and never in their place.

They live in ``third_party/published.json`` of the source tree. A package that was
installed without the tree goes without them.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).parents[2] / "third_party" / "published.json"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One published result.

    Attributes:
      what: the set-up.
      value: its numbers with their units, for readers.
      tag: how we know; a key of ``Published.tags``.
      ours: the same quantity in a run of ours: a key of ``results`` in a summary,
        ``adamw_gib`` for the memory of one worker, or empty.
      numbers: its numbers by quantity, such as ``CE``; of a course, the last.
      cells: by experiment of ours, the cell that stands beside it: overrides of a
        configuration, or a name that the experiment's own report knows.
      scale: what is public of its size: ``width``, ``rounds``, ``bytes``, ``corpus``,
        ``hardware``; what isn't, is left out.
    """

    what: str
    value: str
    tag: str
    ours: str
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    cells: Mapping[str, str] = dataclasses.field(default_factory=dict)
    scale: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Published:
    """All published results, with their source and the meaning of their tags."""

    source: str
    tags: dict[str, str]
    entries: tuple[Entry, ...]

    def of(self, experiment: str) -> dict[str, Entry]:
        """The entries that stand beside cells of an experiment of ours, by cell."""
        return {
            entry.cells[experiment]: entry
            for entry in self.entries
            if experiment in entry.cells
        }


def load_published(path: Path = PUBLISHED) -> Published | None:
    """Returns the published numbers, or None where the source tree isn't at hand."""
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    source = content["source"]
    return Published(
        source=f"{source['title']} (arXiv {source['arxiv']}), via {source['via']}",
        tags=content["tags"],
        entries=tuple(
            _entry(item, content.get("scale", {})) for item in content["entries"]
        ),
    )


def _entry(item: dict[str, Any], scale: dict[str, str]) -> Entry:
    values = item["values"]
    return Entry(
        what=item["what"],
        value=", ".join(map(_value, values)),
        tag=item["tag"],
        ours=item.get("ours", ""),
        numbers={value["quantity"]: _course(value)[-1] for value in values},
        cells=item.get("cells", {}),
        scale=scale | item.get("scale", {}),
    )


def _course(item: dict[str, Any]) -> list[float]:
    """A number, or numbers from first to last."""
    value = item["value"]
    return value if isinstance(value, list) else [value]


def _value(item: dict[str, Any]) -> str:
    course = " to ".join(f"{number:g}" for number in _course(item))
    return f"{item['quantity']} {course} {item['unit']}".rstrip()
