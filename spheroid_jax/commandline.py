"""The command line of every experiment.

``--config=FILE[:SIZE]`` runs a config file, ``--config.SECTION.FIELD=VALUE`` changes a
field of it. Every mistake ends in one line on stderr and exit status 2, before anything
is compiled.
"""

import argparse
import dataclasses
import difflib
import importlib.util
import inspect
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from ml_collections import ConfigDict

from spheroid_jax import fields
from spheroid_jax.config_files import no_file
from spheroid_jax.distributed.group import (
    HEARTBEAT_TIMEOUT,
    JOIN_TIMEOUT,
    Group,
    group_from_flags,
)
from spheroid_jax.fields import ConfigError
from spheroid_jax.parser import Parser, mistake
from spheroid_jax.validation import validate

__all__ = ["Options", "Parser", "configured", "load", "overrides", "parse"]

# How many devices there are is not known before all processes have come together.
_UNKNOWN_DEVICES = 1 << 20
_FLAGS = (
    *("config", "workdir", "resume", "help"),
    *("coordinator", "processes", "process", "distributed"),
    *("join-timeout", "heartbeat-timeout"),
)
_OVERRIDE = re.compile(r"--?(?P<no>no)?config\.(?P<field>[^=]*)(=(?P<text>.*))?", re.S)


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line asks for.

    Attributes:
      config: the configuration, overridden, validated and locked.
      workdir: the run directory; empty where none was named.
      resume: whether to continue what the run directory holds.
      command: the command that does the same again.
      group: which process this is, of which group.
    """

    config: ConfigDict
    workdir: str
    resume: bool
    command: str
    group: Group = dataclasses.field(default_factory=Group)


def parse(argv: Sequence[str], program: str = "experiments.run") -> Options:
    """Parses the arguments of an experiment, without the program's own name.

    Args:
      argv: such as ``["--config=configs/b3_l4.py:small", "--config.train.rounds=8"]``;
        overrides apply in order, the last one of a field wins.
      program: the module that was run, for the help and for ``Options.command``.

    Raises:
      SystemExit: with status 2 after one line on stderr if anything is wrong, with
        status 0 after ``--help``.
    """
    try:
        return _parse(argv, program)
    except ConfigError as error:
        raise SystemExit(mistake(error)) from None


def overrides(config: ConfigDict, text: str) -> ConfigDict:
    """Returns a validated copy of ``config``, changed as a sweep's cell says.

    Args:
      config: left as it is; a ``sweep`` section isn't copied.
      text: such as ``"train.rounds=8 model.layers=2"``.

    Raises:
      ConfigError: if the text is malformed, or the result makes no sense.
    """
    changed = fields.overridden(config, text)
    validate(changed)
    return changed


def _parser(program: str) -> Parser:
    parser = Parser(
        prog=f"python -m {program}",
        usage="%(prog)s --config=FILE[:SIZE] [--config.FIELD=VALUE ...] [options]",
        description="Trains what a config file describes and reports the result.",
        epilog="Any field of the config file can be changed: --config.train.rounds=8. "
        "The fields, with their units, are in spheroid_jax/config/.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        metavar="FILE[:SIZE]",
        help="config file and, after a colon, one of its sizes, "
        "such as configs/b3_l4.py:quick",
    )
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        help="run directory (default: a new one under runs/)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in the run directory from its last checkpoint",
    )
    _add_processes(parser)
    return parser


def _add_processes(parser: argparse.ArgumentParser) -> None:
    several = parser.add_argument_group("one run on several processes")
    several.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="where process 0 listens; the same at every process",
    )
    several.add_argument("--processes", metavar="N", type=int, help="how many")
    several.add_argument(
        "--process", metavar="I", type=int, help="which this is, from 0 to N - 1"
    )
    several.add_argument(
        "--distributed",
        action="store_true",
        help="find these three out (SLURM, Open MPI, Kubernetes, Cloud TPU)",
    )
    several.add_argument(
        "--join-timeout",
        metavar="S",
        type=int,
        default=JOIN_TIMEOUT,
        help="seconds in which every process must have started (%(default)s)",
    )
    several.add_argument(
        "--heartbeat-timeout",
        metavar="S",
        type=int,
        default=HEARTBEAT_TIMEOUT,
        help="seconds of silence after which a process counts as dead (%(default)s)",
    )


def _parse(argv: Sequence[str], program: str) -> Options:
    options, rest = _parser(program).parse_known_args(argv)
    config = _changed(options.config, rest)
    group = group_from_flags(
        options.coordinator,
        options.processes,
        options.process,
        options.distributed,
        options.join_timeout,
        options.heartbeat_timeout,
    )
    validate(config, _UNKNOWN_DEVICES if group.several else None)
    if group.several and (config.kind != "blocks" or "sweep" in config):
        kind = "a sweep" if "sweep" in config else f"of kind {config.kind}"
        raise ConfigError(
            f"{config.name} is {kind}, which runs in one process: leave --processes "
            "and --distributed out"
        )
    config.lock()
    workdir = options.workdir
    if workdir == "":
        raise ConfigError("--workdir has no directory: write --workdir=DIR")
    if workdir and Path(workdir).exists() and not Path(workdir).is_dir():
        raise ConfigError(f"--workdir={workdir} is not a directory: name another")
    command = shlex.join(["python", "-m", program, *argv])
    return Options(config, workdir or "", options.resume, command, group)


def configured(spec: str | None, arguments: Sequence[str]) -> ConfigDict:
    """The valid configuration of ``FILE[:SIZE]``, changed by ``--config.FIELD=VALUE``.

    Raises:
      ConfigError: one line that says what is wrong.
    """
    config = _changed(spec, arguments)
    validate(config)
    config.lock()
    return config


def _changed(spec: str | None, arguments: Sequence[str]) -> ConfigDict:
    if spec is None:
        raise ConfigError("--config is missing: add --config=configs/b3_l4.py")
    config = load(spec)
    _override(config, arguments)
    return config


def _override(config: ConfigDict, arguments: Sequence[str]) -> None:
    """Applies ``--config.FIELD=VALUE`` in order, and refuses every other argument."""
    known = fields.leaves(config)
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        match = _OVERRIDE.fullmatch(argument)
        if match is None:
            raise ConfigError(_stray(argument, list(known)))
        field, text = match["field"], match["text"]
        if match["no"] or (text is None and isinstance(known.get(field), bool)):
            if text is not None:
                raise ConfigError(f"{argument} has a value too many: leave ={text} out")
            text = "false" if match["no"] else "true"
        elif text is None:
            if field in known and not queue:
                raise ConfigError(f"{argument} has no value: write {argument}=VALUE")
            text = queue.pop(0) if field in known else ""
        fields.assign(config, field, text)


def _stray(argument: str, known: Sequence[str]) -> str:
    """Says why an argument that nothing takes is refused."""
    flag, equals, text = argument.partition("=")
    if not flag.startswith("-"):
        return f"{argument!r} is left over: options begin with --, as in --config=FILE"
    name = flag.lstrip("-")
    meant = [leaf for leaf in known if f".{leaf}".endswith(f".{name}")]
    if name and meant:
        cure = f"did you mean --config.{meant[0]}{equals}{text}?"
        return f"there is no option {flag}: {cure}"
    near = difflib.get_close_matches(name, _FLAGS, n=1)
    cure = f"did you mean --{near[0]}?" if near else "--help lists the options"
    return f"there is no option {flag}: {cure}"


def load(spec: str) -> ConfigDict:
    """Returns the configuration that ``FILE[:SIZE]`` describes, not yet validated.

    Raises:
      ConfigError: if there is no such file or size, or the file doesn't work.
    """
    name, colon, size = spec.partition(":")
    path = Path(name)
    if not name:
        raise ConfigError("--config has no file: write --config=configs/b3_l4.py")
    if not path.is_file():
        raise ConfigError(no_file(path))
    get_config = getattr(_guarded(path, lambda: _module(path)), "get_config", None)
    if not callable(get_config):
        raise ConfigError(f"{name} has no function get_config(size): add one")
    arguments = [size] if colon else []
    try:
        inspect.signature(get_config).bind(*arguments)
    except TypeError:
        cure = f"use --config={name}" if colon else f"use --config={name}:SIZE"
        takes = "takes no size" if colon else "needs a size"
        raise ConfigError(f"get_config of {name} {takes}: {cure}") from None
    config = _guarded(path, lambda: get_config(*arguments))
    if not isinstance(config, ConfigDict):
        kind = type(config).__name__
        raise ConfigError(f"get_config of {name} returned {kind}: return a ConfigDict")
    return config


def _guarded(path: Path, call: Callable[[], object]) -> object:
    """Calls into a config file; whatever it raises becomes one line."""
    try:
        return call()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except Exception as error:
        kind = type(error).__name__
        raise ConfigError(f"{path} failed with {kind}: {error}: mend it") from error


def _module(path: Path) -> ModuleType:
    """Runs a Python file as a module of its own, which ``sys.modules`` never sees."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError("not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
