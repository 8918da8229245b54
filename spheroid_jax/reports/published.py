"""Numbers of the paper, to be printed beside ours and never in their place.

They live in ``third_party/published.json`` of the source tree. A package that was
installed without the tree goes without them.
"""

import dataclasses
import json
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
    """

    what: str
    value: str
    tag: str
    ours: str


@dataclasses.dataclass(frozen=True)
class Published:
    """All published results, with their source and the meaning of their tags."""

    source: str
    tags: dict[str, str]
    entries: tuple[Entry, ...]


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
            Entry(
                what=entry["what"],
                value=", ".join(map(_value, entry["values"])),
                tag=entry["tag"],
                ours=entry.get("ours", ""),
            )
            for entry in content["entries"]
        ),
    )


def _value(item: dict[str, Any]) -> str:
    value = item["value"]
    numbers = value if isinstance(value, list) else [value]
    course = " to ".join(f"{number:g}" for number in numbers)
    return f"{item['quantity']} {course} {item['unit']}".rstrip()
