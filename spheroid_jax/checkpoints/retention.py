"""Which checkpoints stay: the newest ones and the best ones."""

import math
import shutil
from collections.abc import Mapping, Set
from pathlib import Path

from spheroid_jax import manifests
from spheroid_jax.checkpoints.writer import COMMITTED


def complete(directory: Path) -> list[int]:
    """Rounds that Orbax committed and that have a manifest, in no order."""
    return [
        int(path.name)
        for path in directory.iterdir()
        if path.name.isdecimal()
        and (path / COMMITTED).is_file()
        and (path / manifests.MANIFEST).is_file()
    ]


def metrics(directory: Path) -> dict[int, float | None]:
    """The metric of each complete round; None if it has none or is damaged."""
    found: dict[int, float | None] = {}
    for round_ in complete(directory):
        try:
            found[round_] = manifests.read(directory / str(round_))["metric"]
        except (manifests.Damage, LookupError):
            found[round_] = None
    return found


def best(metrics: Mapping[int, float | None], count: int) -> list[int]:
    """The rounds of the ``count`` lowest metrics, best first.

    Of equal metrics the newer round comes first; no metric, or NaN, is never best.
    """
    known = {r: m for r, m in metrics.items() if m is not None and not math.isnan(m)}
    return sorted(known, key=lambda round_: (known[round_], -round_))[:count]


def kept(
    metrics: Mapping[int, float | None], *, keep: int, keep_best: int
) -> frozenset[int]:
    """The rounds to keep: the newest and the best, which may overlap."""
    return frozenset(sorted(metrics)[-keep:]) | frozenset(best(metrics, keep_best))


def prune(directory: Path, newest: int, keep: Set[int]) -> None:
    """Deletes rounds before ``newest`` that aren't in ``keep``; leftovers too."""
    for path in directory.iterdir():
        if not (path.name.isdecimal() and path.is_dir()):
            continue
        if int(path.name) < newest and int(path.name) not in keep:
            # The manifest goes first: half a directory is then a leftover, not a
            # damaged checkpoint.
            (path / manifests.MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path)
