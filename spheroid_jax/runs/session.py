"""A main's frame: options in; one line for a failure, the way back after a stop."""

import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from spheroid_jax import distributed
from spheroid_jax.checkpoints import CheckpointError
from spheroid_jax.commandline import Options, parse
from spheroid_jax.data import CorpusError, DataStateError
from spheroid_jax.distributed import DistributedError
from spheroid_jax.leaving import STOPPED, leave
from spheroid_jax.reports.log import MetricsError
from spheroid_jax.runs.exchange.fleet import FleetError
from spheroid_jax.runs.grid.execute import JOB_THREADS
from spheroid_jax.runs.grid.results import ResultsError
from spheroid_jax.runs.loop import TrainingError
from spheroid_jax.runs.workdir import (
    WorkdirError,
    as_json,
    default_workdir,
    flatten,
)
from spheroid_jax.transport.ledger import LedgerError
from spheroid_jax.validation import ConfigError, validate

EXPECTED = (
    CheckpointError,
    ConfigError,
    DataStateError,
    DistributedError,
    FleetError,
    LedgerError,
    MetricsError,
    ResultsError,
    TrainingError,
    WorkdirError,
)
RUNS = Path("runs")


def fresh_command(command: str) -> str:
    """The command without where and how this run went on: it starts the same anew."""
    words, kept = shlex.split(command), []
    while words:
        word = words.pop(0)
        if word == "--workdir":
            words.pop(0)
        elif word != "--resume" and not word.startswith("--workdir="):
            kept.append(word)
    return shlex.join(kept)


def resume_command(command: str, workdir: Path) -> str:
    """The command that goes on with a run, wherever its directory came from."""
    words = [w for w in shlex.split(command) if w != "--resume"]
    if not any(w == "--workdir" or w.startswith("--workdir=") for w in words):
        words.append(f"--workdir={workdir}")
    return shlex.join([*words, "--resume"])


def session(
    program: str, argv: Sequence[str], action: Callable[[Options, Path], None]
) -> int:
    """Runs ``action(options, workdir)`` on what the ``argv`` of ``program`` says.

    Returns the exit status: zero, or 1 for a failure that is explained in one line. A
    stop by Ctrl-C or SIGTERM ends the process with 130: what is on disk then is the
    last checkpoint. A process of several ends the others too; see
    :mod:`spheroid_jax.distributed`. A wrong command line exits with 2 from the parser.
    """
    options = parse(argv, program)
    signal.signal(signal.SIGTERM, _interrupt)
    member = distributed.Member(options.group)
    workdir = Path(options.workdir)
    try:
        with member:
            workdir = _workdir(options)
            action(options, workdir)
        return 0
    except KeyboardInterrupt:
        # A second Ctrl-C while saying this must not look like a crash.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if distributed.is_main():
            print("stopped; what was saved is kept. Go on with:", file=sys.stderr)
            print(f"  {resume_command(options.command, workdir)}", file=sys.stderr)
        _leave_jobs(options.group.several)
        return member.end(STOPPED)
    except Exception as error:
        line = distributed.lost_peer(error) or explained(error)
        if line:
            print(f"error: {line}", file=sys.stderr)
        elif options.group.several:
            traceback.print_exc()
        else:
            raise
        return member.end(1)


def _workdir(options: Options) -> Path:
    """The run directory, the same at every process, of which only one may speak."""
    if options.group.several:
        facts = {"--resume": options.resume, "--workdir": options.workdir}
        distributed.check_same(
            "configuration",
            facts | flatten(as_json(options.config)),
            "give every process the same command but for --process",
        )
        validate(options.config)  # now that the devices of all are known
        if not distributed.is_main():
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if options.workdir:
        return Path(options.workdir)
    c = options.config
    chosen = distributed.agree(
        "workdir", lambda: str(default_workdir(c.name, c.size, options.resume, RUNS))
    )
    return Path(chosen)


def explained(error: Exception) -> str:
    """A failure that is the user's to mend, in one line; else nothing."""
    if isinstance(error, CorpusError):
        return f"data.corpus: {error}"
    return str(error) if isinstance(error, EXPECTED) else ""


def _leave_jobs(several: bool) -> None:
    """Ends the process if jobs still compute, or if nobody waits for it.

    Jobs can't be interrupted, and Python would wait for them: hours, for a large one.
    Of a compilation that was interrupted see :func:`leave`.
    """
    if not several or any(
        t.name.startswith(JOB_THREADS) for t in threading.enumerate()
    ):
        leave(STOPPED)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
