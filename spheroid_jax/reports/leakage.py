"""What each block does with its context, and whether it leaks its target.

At low noise the target can be read out of the noisy input: local CE is near zero, the
context isn't missed, and the chain, which begins at pure noise, collapses.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spheroid_jax.reports.tables import Table, finite, nats, signed

LEAK_BELOW = 0.5  # nats by which a leaking block's local CE lies below the chain's
LEAK_GAP = 0.1  # nats of scrambled-context gap that a leaking block stays under


def blocks(summary: Mapping[str, Any]) -> list[str]:
    """The table of the blocks and how to read it; empty without BlockTrain."""
    results = summary["results"]
    if "local_ce" not in results:
        return []
    columns = (summary["sigma_ranges"], summary["grid"])
    rows = [
        [str(b), f"{low:.4g} to {high:.4g}", f"{level:.4g}", nats(ce), signed(gap)]
        for b, ((low, high), level, ce, gap) in enumerate(
            zip(*columns, results["local_ce"], results["scrambled_gap"], strict=True)
        )
    ]
    header = ["block", "sigma", "sigma in the chain", "local CE", "scrambled gap"]
    return [
        "## Blocks",
        Table(header, rows, "rlrrr").markdown(),
        "Local CE is measured on truly noised targets; the gap is what a block loses "
        "when its clean context is replaced by another window's. "
        + (warning(summary) or _no_leakage(results["scrambled_gap"])),
    ]


def warning(summary: Mapping[str, Any]) -> str:
    """A warning if blocks read their target out of the noisy input, else nothing."""
    results = summary["results"]
    chain, local = results.get("ce_chain"), results.get("local_ce")
    if local is None:
        return ""
    leaking = [
        str(block)
        for block, (ce, gap) in enumerate(
            zip(local, results["scrambled_gap"], strict=True)
        )
        if finite(ce)
        and finite(gap)
        and gap < LEAK_GAP
        # A chain without a finite value has collapsed as far as one can.
        and ce < (chain if finite(chain) else math.inf) - LEAK_BELOW
    ]
    if not leaking:
        return ""
    plural = len(leaking) > 1
    return (
        f"WARNING, target leakage: block{'s' * plural} {', '.join(leaking)} "
        f"{'predict' if plural else 'predicts'} far better than the chain and "
        f"{'do' if plural else 'does'}n't miss {'their' if plural else 'its'} context, "
        "so the target is read out of the noisy input. "
        "Raise diffusion.sigma_min, or lower model.target_radius."
    )


def _no_leakage(gaps: Sequence[float | None]) -> str:
    known = [gap for gap in gaps if finite(gap)]
    if not known:
        return "The gaps are not finite."
    least = nats(min(known))
    if min(known) >= LEAK_GAP:
        return f"No sign of target leakage: every block loses {least} nats or more."
    return (
        f"The smallest gap is {least} nats: that block hardly uses its context, though "
        "it isn't far below the chain either."
    )
