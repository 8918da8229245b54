"""The end of a coordinator's run: its report, from what is on its disk alone."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spheroid_jax import data
from spheroid_jax.fields import ConfigError
from spheroid_jax.reports.exchange.coordinated import write_coordinated
from spheroid_jax.reports.exchange.report import PICTURE
from spheroid_jax.reports.log import METRICS, read_metrics
from spheroid_jax.reports.report import REPORT, SUMMARY
from spheroid_jax.runs.opening import corpus_facts, environment
from spheroid_jax.transport.coordinator import METHOD
from spheroid_jax.transport.ledger import Ledger, LedgerError
from spheroid_jax.transport.tokens import LEDGER

# Not the number that a run in one go has there: its --resume must not take this
# summary for one of its own.
FORMAT = "coordinator-1"
_ABOUT = "about"  # in the ledger
_REDRAW = "python -m experiments.coordinator --workdir={} --report=only"


def note_about(ledger: Ledger, corpus: data.Corpus, command: str) -> None:
    """Keeps what a report tells of the run and isn't among its figures.

    Args:
      ledger: of the run.
      corpus: that it trains on.
      command: that goes on with it.
    """
    about = {
        "corpus": corpus_facts(corpus),
        "environment": environment(),
        "command": command,
    }
    with contextlib.suppress(LedgerError):  # a full disk: a run is worth more
        ledger.note(_ABOUT, about)


def report_on(workdir: Path) -> str:
    """Draws the report of a run, over or not, running or not.

    Args:
      workdir: the run directory: ``config.json``, ``metrics.jsonl``, and the ledger,
        without which the report tells nothing of workers.

    Returns:
      A line that says where it is.

    Raises:
      ConfigError: this is no run directory of a coordinator.
      MetricsError: the metrics can't be read.
      LedgerError: the ledger can't be read.
      OSError: the report can't be written.
    """
    config = _config(workdir)
    records = [r for r in read_metrics(workdir / METRICS) if r["method"] == METHOD]
    facts: dict[str, Any] = {}
    if (workdir / LEDGER).exists():
        with Ledger.open(workdir / LEDGER, create=False) as ledger:
            facts = {
                "run": ledger.run,
                "members": ledger.noted("members", {}),
                "round": ledger.noted("round", 0),
                "seconds": ledger.noted("seconds", 0.0),
                **ledger.noted(_ABOUT, {}),
            }
    summary = summary_of(config, records, facts)
    write_coordinated(workdir, summary, records)
    state = (
        ""
        if summary["state"] == "finished"
        else (f" so far ({summary['rounds_done']} of {summary['rounds']} rounds)")
    )
    return f"report{state}: {workdir}/{REPORT}, {PICTURE} and {SUMMARY} beside it"


def leave_report(workdir: Path, say: Callable[[str], None]) -> None:
    """Draws the report, or says in a line why not: no run fails for a picture."""
    try:
        line = report_on(workdir)
    except Exception as error:  # of a disk, of a drawing library: whatever it is
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        line = (
            f"the report couldn't be written ({why}); the run is kept all the same, "
            f"and this draws it: {_REDRAW.format(workdir)}"
        )
    say(line)


def summary_of(
    config: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """What is written to ``summary.json``.

    Args:
      config: the run's, as plain JSON.
      records: the coordinator's metrics, a record a round.
      facts: of the ledger: ``run``, ``members``, ``round``, ``seconds``, and what
        :func:`note_about` keeps; any may be missing.
    """
    last = records[-1] if records else {"round": 0, "seconds": 0.0}
    done = max(last["round"], facts.get("round", 0))
    rounds = config["train"]["rounds"]
    points = ce_points(records)
    return {
        "format": FORMAT,
        "kind": config["kind"],
        "name": config["name"],
        "size": config["size"],
        "seed": config["seed"],
        "run": facts.get("run"),
        "state": "finished" if done >= rounds else "unfinished",
        "rounds": rounds,
        "rounds_done": done,
        "local_steps": config["train"]["local_steps"],
        "blocks": config["model"]["blocks"],
        "replicas": config["train"]["replicas"],
        "late": config["network"]["late"],
        "deadline": config["network"]["deadline"] or None,
        "encoding": encoded(config, config["exchange"]["encoding"]),
        "broadcast": encoded(config, config["exchange"]["broadcast"]),
        "results": {k: v for k, v in points[-1].items() if k.startswith("ce_")}
        if points
        else {},
        "ce": points,
        "expected": sum(r["expected"] for r in records),
        "timely": sum(r["timely"] for r in records),
        "late_updates": sum(r["heard"] - r["timely"] for r in records),
        "empty_rounds": sum(not r["heard"] for r in records),
        "bytes_up": sum(r["bytes_up"] for r in records),
        "bytes_down": sum(r["bytes_down"] for r in records),
        "seconds": max(last["seconds"], facts.get("seconds", 0.0)),
        "members": facts.get("members", {}),
        "corpus": facts.get("corpus"),
        "environment": facts.get("environment", {}),
        "config": dict(config),
        "command": facts.get("command", ""),
    }


def ce_points(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every evaluation: its losses, with round, seconds and bytes moved until then."""
    points, moved = [], 0
    for r in records:
        moved += r["bytes_up"] + r["bytes_down"]
        losses = {name: value for name, value in r.items() if name.startswith("ce_")}
        if losses:
            at = {"round": r["round"], "seconds": r["seconds"], "bytes": moved}
            points.append({**at, **losses})
    return points


def encoded(config: Mapping[str, Any], kind: str) -> str:
    """How numbers go one way, for readers."""
    if kind == "full":
        return "whole float32 parts"
    zstd = config["exchange"]["zstd"]
    return f"{kind} zstd {zstd}" if zstd else kind


def _config(workdir: Path) -> dict[str, Any]:
    path = workdir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        is_one = config["kind"] == "exchange"
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path} is no run's configuration ({' '.join(str(error).split())[:200]}): "
            "name a coordinator's run directory with --workdir=DIR"
        ) from error
    if not is_one:
        raise ConfigError(
            f"{workdir} holds a run of kind {config['kind']}, which has no "
            "coordinator: python -m experiments.run --resume draws its report again"
        )
    found: dict[str, Any] = config
    return found
