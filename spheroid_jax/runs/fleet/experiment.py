"""The whole run: the same fleet over the same day, once for each policy."""

import dataclasses
import math
import time
from functools import partial
from typing import Any

import jax
from ml_collections import ConfigDict

from spheroid_jax.delivery.clock import Policy, Traffic
from spheroid_jax.delivery.fleet import Counting, parse_profile, simulate_day
from spheroid_jax.delivery.profiles import Profile, kinds_of, make_fleet
from spheroid_jax.delivery.traces import read_profiles
from spheroid_jax.fields import ConfigError
from spheroid_jax.reports.fleet.report import write_report
from spheroid_jax.reports.tables import duration
from spheroid_jax.runs.fleet.measures import measures
from spheroid_jax.runs.whole import Say, Whole, run_whole


def _opening(config: ConfigDict, kinds: dict[str, Profile]) -> str:
    blocks, replicas = config.fleet.blocks, config.fleet.replicas
    return (
        f"{blocks} blocks x {replicas:,} = {blocks * replicas:,} workers of "
        f"{len(kinds)} kinds, {config.fleet.hours:g} hours; nothing is "
        "trained"
    )


def _work(config: ConfigDict, kinds: dict[str, Profile], say: Say) -> dict[str, Any]:
    """A day under every policy."""
    blocks, replicas = config.fleet.blocks, config.fleet.replicas
    profiles = list(kinds.values())
    fleet = make_fleet(profiles, blocks, replicas, config.seed)
    of_kind = kinds_of(profiles, blocks, replicas, config.seed)
    rows = []
    for policy in config.policies:
        start, cpu = time.perf_counter(), time.process_time()
        day = simulate_day(
            fleet,
            of_kind,
            traffic(config),
            policy_of(config, policy),
            counting(config, len(kinds)),
            seconds=3600 * config.fleet.hours,
            key=jax.random.key(config.seed),
        )
        wall = time.perf_counter() - start
        row = {
            "policy": policy,
            **measures(config, day),
            "simulated_in": {
                "seconds": round(wall, 2),
                "cpu_seconds": round(time.process_time() - cpu, 2),
            },
        }
        rows.append(row)
        say(
            f"  {policy}: {row['rounds']} rounds, {row['accepted_of_begun']:.1%} of "
            f"updates accepted ({duration(wall)})"
        )
    return {
        "workers": blocks * replicas,
        "kinds": {
            name: {"profile": told(kind), "workers": int((of_kind == number).sum())}
            for number, (name, kind) in enumerate(kinds.items())
        },
        "rows": rows,
    }


def worker_kinds(config: ConfigDict) -> dict[str, Profile]:
    """Kinds of workers by name: of ``network.profiles``, or else of ``kinds``.

    Those of a file are in its order, and the others from the fastest to the slowest.

    Raises:
      ConfigError: if there is none, or the file can't be read or used.
    """
    path = config.network.profiles
    if not path:
        if not config.kinds:
            raise ConfigError("kinds is empty: add one, or set network.profiles=FILE")
        kinds = {name: parse_profile(text) for name, text in config.kinds.items()}
        # ConfigDict sorts by name, which says nothing.
        return dict(sorted(kinds.items(), key=lambda kind: kind[1].step_seconds))
    try:
        found = read_profiles(path)
    except OSError as error:
        raise ConfigError(
            f"network.profiles={path} can't be read: {error.strerror}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"network.profiles: {error}") from None
    return {f"row {number}": kind for number, kind in enumerate(found, 1)}


def told(kind: Profile) -> str:
    """A kind in the words of the config, without what is as the default."""
    return " ".join(
        f"{field.name}={getattr(kind, field.name):g}"
        for field in dataclasses.fields(kind)
        if getattr(kind, field.name) != field.default
    )


def traffic(config: ConfigDict) -> Traffic:
    """What a worker has to do in a round: its part both ways, and H steps."""
    part = float(config.fleet.part_bytes)
    return Traffic(part, part, float(config.train.local_steps))


def policy_of(config: ConfigDict, name: str) -> Policy:
    """The policy of that name, with the numbers of ``network``.

    ``drop`` loses what is late, ``gate`` hears it later, and so does ``quorum``, which
    closes its rounds sooner.
    """
    n = config.network
    if name == "drop":
        return Policy(n.deadline)
    quorum = math.ceil(n.quorum_share * config.fleet.replicas)
    return Policy(
        n.deadline,
        keep_late=True,
        max_age=n.max_age,
        quorum=quorum if name == "quorum" else 0,
        grace=n.grace,
    )


def counting(config: ConfigDict, kinds: int) -> Counting:
    """What is counted of a round; the same for all policies, to be one program."""
    return Counting(
        needed=config.fleet.needed,
        largest_group=config.fleet.largest_group,
        kinds=kinds,
        oldest=config.network.max_age,
    )


run_fleet = partial(run_whole, Whole(worker_kinds, _opening, _work, write_report))
