"""A whole run between processes on this machine, beside the simulator's.

Starts a coordinator and a worker for every slot, on hosts as ``hosts`` says, waits for
their end, runs the lockstep simulator of the same seeds, and reports both.
"""

import shutil
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from spheroid_jax import data
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.fields import overridden
from spheroid_jax.memory import size
from spheroid_jax.reports.exchange.report import write_report
from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.runs.exchange import setup
from spheroid_jax.runs.exchange.ending import encoded
from spheroid_jax.runs.exchange.frame import keep_compiled
from spheroid_jax.runs.exchange.lockstep import (
    Simulated,
    comparison,
    explained,
    simulate,
)
from spheroid_jax.runs.exchange.started import (
    ledger_of,
    run_processes,
    shape_of,
    workers_folder,
    workers_of,
)
from spheroid_jax.runs.loop import TrainingError
from spheroid_jax.runs.opening import corpus_facts
from spheroid_jax.runs.whole import Say, Whole, run_whole
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.shaping.link import rate_bound, round_trip

LOCKSTEP = "lockstep"  # method of the simulator's metrics


def run_exchange(
    config: ConfigDict, workdir: Path, *, resume: bool, command: str, say: Say = print
) -> dict[str, Any]:
    """Runs a configuration between processes, and reports it.

    All workers that there are slots for take part, and the first round waits for them.

    Args:
      config: a valid configuration of kind ``exchange``.
      workdir: the run directory; with ``resume`` it must hold the run, which goes on
        as after a restart of all its processes.
      resume: whether to go on.
      command: what to type to get this again.
      say: prints a line.

    Returns:
      The summary that is written to ``summary.json``.

    Raises:
      FleetError: a process failed; one line says which, and its last words.
      TrainingError: the result isn't the simulator's though it has to be; the report
        is written.
    """
    count = len(workers_of(config))
    config = overridden(config, f"exchange.workers={count}")
    kind = Whole(
        setup.corpus_of,
        _opening,
        lambda config, corpus, say: _work(config, corpus, workdir, say),
        write_report,
    )
    summary = run_whole(kind, config, workdir, resume=resume, command=command, say=say)
    if problem := summary["lockstep"]["problem"]:
        raise TrainingError(f"{problem}; the report in {workdir} has the figures")
    return summary


def _opening(config: ConfigDict, corpus: data.Corpus) -> str:
    h = config.hosts
    parts = [
        f"{h.delay_seconds * 1e3:g} ms each way" if h.delay_seconds else "",
        f"{h.rate_bits / 1e6:g} Mbit/s" if h.rate_bits else "",
        f"{h.loss:.1%} loss" if h.loss else "",
    ]
    links = ", ".join(filter(None, parts))
    return (
        f"a coordinator and {len(workers_of(config))} workers as processes, "
        f"hosts: {h.kind}{f' ({links})' if links else ''}; logs of each in logs/"
    )


def _work(
    config: ConfigDict, corpus: data.Corpus, workdir: Path, say: Say
) -> dict[str, Any]:
    """What the summary tells of the run and of the simulator's."""
    keep_compiled()
    watched = run_processes(config, workdir, say)
    simulated = simulate(config, corpus, say)
    _log(config, workdir, simulated)
    with Ledger.open(ledger_of(workdir)) as ledger:
        rounds = [{"round": row.round, **row.facts} for row in ledger.rounds()]
        ce, members = ledger.evaluations(), ledger.noted("members", {})
    found = comparison(config, simulated, ce, _params(config, workdir), rounds)
    if found["problem"]:
        say(
            f"CE of round {found['ce_round']} is {found['ce_difference']:.2g} nats "
            "from the simulator's; how far rounding alone leads is measured now"
        )
        beside = simulate(config, corpus, say, beside=True)
        found = explained(found, simulated, beside, ce)
    start = {"round": 0, **{k: v for k, v in simulated.ce[0].items() if k != "round"}}
    summary = {
        "corpus": corpus_facts(corpus),
        "hosts": {
            **config.hosts.to_dict(),
            "network": watched.network,
            "connection_bytes": _connection_bytes(config),
        },
        **_model_facts(config),
        # The first parameters are the simulator's, from the same key.
        "ce": [start, *(point for point in ce if point["round"])],
        "rounds_log": rounds,
        "members": members,
        "fleet_seconds": round(watched.seconds, 2),
        "lockstep": found,
    }
    # Inner optimizers, items and tokens: for a run that goes on, and this is over.
    shutil.rmtree(workers_folder(workdir), ignore_errors=True)
    shutil.rmtree(setup.exchange_folder(workdir) / "tokens", ignore_errors=True)
    return summary


def _model_facts(config: ConfigDict) -> dict[str, Any]:
    m, t = config.model, config.train
    shapes = jax.eval_shape(setup.init_of(config), jax.random.key(0))
    part = size(shapes["blocks"]) // m.blocks + size(shapes["interface"])
    return {
        "blocks": m.blocks,
        "replicas": t.replicas,
        "workers": m.blocks * t.replicas,
        "rounds": t.rounds,
        "local_steps": t.local_steps,
        "params": size(shapes),
        "part_params": part,
        "encoding": encoded(config, config.exchange.encoding),
        "broadcast": encoded(config, config.exchange.broadcast),
    }


def _connection_bytes(config: ConfigDict) -> float:
    """Bytes per second that one connection of a worker's link carries at most."""
    shape = shape_of(config)
    return min(
        shape.rate_bytes, rate_bound(round_trip(shape, shape), shape.loss)
    )  # null in JSON if there is no bound


def _params(config: ConfigDict, workdir: Path) -> Any:
    """Of the coordinator's last checkpoint."""
    abstract = jax.eval_shape(setup.init_of(config), jax.random.key(0))
    with Checkpoints(
        workdir / "checkpoints" / setup.METHOD,
        keep=config.checkpoint.keep,
        identity=setup.identity_of(config),
        digest="blake3",
    ) as checkpoints:
        return checkpoints.restore_params(abstract)


def _log(config: ConfigDict, workdir: Path, simulated: Simulated) -> None:
    """The simulator's losses, beside the coordinator's metrics."""
    with MetricsLog(workdir) as log:
        log.rewind(LOCKSTEP, -1)
        for point in simulated.ce:
            losses = {k: v for k, v in point.items() if k != "round"}
            round_ = int(point["round"])
            step = round_ * config.train.local_steps
            log.write(LOCKSTEP, round_, losses, step=step, seconds=simulated.seconds)
