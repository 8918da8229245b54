"""The whole run: the same fleet over the same day, once for each policy."""

import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from spheroid_jax.delivery.clock import Policy, Traffic
from spheroid_jax.delivery.fleet import Counting, parse_profile, simulate_day
from spheroid_jax.delivery.profiles import Profile, kinds_of, make_fleet
from spheroid_jax.delivery.traces import read_profiles
from spheroid_jax.fields import ConfigError
from spheroid_jax.reports.fleet.report import write_report
from spheroid_jax.reports.report import SUMMARY
from spheroid_jax.reports.tables import duration
from spheroid_jax.runs.fleet.measures import measures
from spheroid_jax.runs.opening import environment
from spheroid_jax.runs.workdir import as_json, open_workdir

SUMMARY_FORMAT = 1
Say = Callable[[str], None]


def run_fleet(
    config: ConfigDict, workdir: Path, *, resume: bool, command: str, say: Say = print
) -> dict[str, Any]:
    """Simulates a day under every policy, and reports them together.

    Args:
      config: a valid configuration of kind ``fleet``.
      workdir: the run directory; with ``resume`` it must hold the run.
      resume: whether to take what a finished run has left. There is no half of a run:
        one that was stopped starts again.
      command: what to type to get this again.
      say: prints a line for the user.

    Returns:
      The summary that is written to ``summary.json``.

    Raises:
      ConfigError: if the file of profiles can't be read or used.
    """
    began = time.perf_counter()
    kinds = worker_kinds(config)
    open_workdir(workdir, config, resume)
    if resume and (found := _finished(workdir / SUMMARY)) is not None:
        say(f"{config.name} in {workdir} finished before, not run again")
        write_report(workdir, found)
        return found
    blocks, replicas = config.fleet.blocks, config.fleet.replicas
    say(f"{config.name} ({config.size}) in {workdir}")
    say(
        f"{blocks} blocks x {replicas:,} = {blocks * replicas:,} workers of "
        f"{len(kinds)} kinds, {config.fleet.hours:g} hours; nothing is trained"
    )
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
    summary = {
        "format": SUMMARY_FORMAT,
        "kind": config.kind,
        "name": config.name,
        "size": config.size,
        "workers": blocks * replicas,
        "kinds": {
            name: {"profile": told(kind), "workers": int((of_kind == number).sum())}
            for number, (name, kind) in enumerate(kinds.items())
        },
        "rows": rows,
        "environment": environment(),
        "config": as_json(config),
        "command": command,
        "seconds": round(time.perf_counter() - began, 2),
    }
    write_report(workdir, summary)
    return summary


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


def _finished(path: Path) -> dict[str, Any] | None:
    """The summary of a run that ended, or None."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and found.get("format") == SUMMARY_FORMAT
    return found if whole else None
