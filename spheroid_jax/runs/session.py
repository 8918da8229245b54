"""A main's frame: options in; one line for a failure, the way back after a stop."""

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from spheroid_jax.checkpoints import CheckpointError
from spheroid_jax.commandline import Options, parse
from spheroid_jax.data import CorpusError, DataStateError
from spheroid_jax.reports.log import MetricsError
from spheroid_jax.runs.grid.execute import JOB_THREADS
from spheroid_jax.runs.grid.results import ResultsError
from spheroid_jax.runs.loop import TrainingError
from spheroid_jax.runs.workdir import WorkdirError, default_workdir
from spheroid_jax.validation import ConfigError

EXPECTED = (
    CheckpointError,
    ConfigError,
    DataStateError,
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

    Returns the exit status: zero, 1 for a failure that is explained in one line, 130
    for a stop by Ctrl-C or SIGTERM: what is on disk then is the last checkpoint.
    A wrong command line
    exits with 2 from the parser.
    """
    options = parse(argv, program)
    workdir = Path(options.workdir)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if not options.workdir:
            c = options.config
            workdir = default_workdir(c.name, c.size, options.resume, RUNS)
        action(options, workdir)
    except CorpusError as error:
        print(f"error: data.corpus: {error}", file=sys.stderr)
        return 1
    except EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # A second Ctrl-C while saying this must not look like a crash.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("stopped; what was saved is kept. Go on with:", file=sys.stderr)
        print(f"  {resume_command(options.command, workdir)}", file=sys.stderr)
        _leave_jobs()
        return 130
    return 0


def _leave_jobs() -> None:
    """Ends the process if jobs still compute.

    They can't be interrupted, and Python would wait for them: hours, for a large one.
    """
    if any(t.name.startswith(JOB_THREADS) for t in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
