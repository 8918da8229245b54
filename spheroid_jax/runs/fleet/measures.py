"""A day's counts as shares, seconds and bytes: sums on the host, none in float32."""

from typing import Any

import numpy as np
from ml_collections import ConfigDict

from spheroid_jax.delivery.fleet import Counting, Tally, groups, smallest_group


def measures(config: ConfigDict, day: Tally) -> dict[str, Any]:
    """What a report tells of one policy.

    Args:
      config: of kind ``fleet``.
      day: every round, leading axis R; see
        :func:`spheroid_jax.delivery.fleet.simulate_day`.
    """
    rounds, blocks, replicas = len(day.seconds), *_size(config)
    begun, accepted, fresh = (_total(x) for x in (day.started, day.arrived, day.fresh))
    seconds = np.asarray(day.seconds, np.float64)
    there = np.asarray(day.online, np.float64)
    present = float(np.sum(there * seconds))  # worker-seconds
    ages = _total(day.ages)
    return {
        "rounds": rounds,
        "hours": float(seconds.sum() / 3600),
        "round_seconds": float(seconds.mean()),
        "online_share": present / (float(seconds.sum()) * blocks * replicas),
        "begun": int(begun.sum()),
        "accepted": int(accepted.sum()),
        "fresh": int(fresh.sum()),
        "accepted_of_begun": _share(accepted.sum(), begun.sum()),
        "fresh_of_begun": _share(fresh.sum(), begun.sum()),
        "per_block": {
            "begun": begun.tolist(),
            "accepted": accepted.tolist(),
            "fresh": fresh.tolist(),
        },
        "per_kind": {
            "begun": _total(day.kind_started).tolist(),
            "accepted": _total(day.kind_arrived).tolist(),
        },
        "ages": ages.tolist(),
        "mean_age": _share(np.sum(ages * np.arange(len(ages))), ages.sum()),
        "busy_share": _share(_float(day.busy_seconds), present),
        "useful_share": _share(_float(day.useful_seconds), present),
        "coordinator": coordinator(config, day),
        "timely": timely(config, day.timely, rounds),
        "timely_fresh": timely(config, day.timely_fresh, rounds),
    }


def coordinator(config: ConfigDict, day: Tally) -> dict[str, Any]:
    """Bytes and bits per second of the coordinator's line.

    Bytes are exact: counts times the size of a part. Rates are those of whole rounds;
    ``lines`` is the rate if every line down were full at once, when a round opens,
    which is what the clock supposes, and None if some line has no end.
    """
    part = int(config.fleet.part_bytes)
    seconds = np.asarray(day.seconds, np.float64)
    found: dict[str, Any] = {}
    for name, counts in (("out", day.started), ("in", day.arrived)):
        by_round = np.asarray(counts, np.int64).sum(axis=1)
        bits = 8.0 * part * by_round / seconds
        found[name] = {
            "bytes": int(by_round.sum()) * part,
            "mean_bits_per_second": 8.0 * part * by_round.sum() / seconds.sum(),
            "peak_bits_per_second": float(bits.max()),
        }
    lines = 8.0 * float(np.max(day.lines))
    found["lines_bits_per_second"] = lines if np.isfinite(lines) else None
    return found


def timely(config: ConfigDict, counts: Any, rounds: int) -> dict[str, Any]:
    """Shares of timely (group, round) for groups of 1 ... G, and the groups to have.

    ``replicas`` is the smallest group whose share is ``fleet.timely`` over all blocks,
    and ``replicas_worst`` in every one of them; None if no group up to G has it.
    """
    blocks, replicas = _size(config)
    counter = Counting(config.fleet.needed, config.fleet.largest_group, 0, 0)
    tried = rounds * groups(replicas, counter)
    by_block = _total(counts) / tried[None]
    share = by_block.mean(axis=0)
    least = config.fleet.timely
    return {
        "share": share.tolist(),
        "replicas": smallest_group(share, least),
        "replicas_worst": smallest_group(by_block.min(axis=0), least),
        "groups": (groups(replicas, counter) * blocks).tolist(),
    }


def _size(config: ConfigDict) -> tuple[int, int]:
    return config.fleet.blocks, config.fleet.replicas


def _total(counts: Any) -> np.ndarray:
    """Sum over rounds, int64."""
    return np.asarray(counts, np.int64).sum(axis=0)


def _float(values: Any) -> float:
    return float(np.sum(values, dtype=np.float64))


def _share(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else 0.0
