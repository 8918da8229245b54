"""How good is the text that each way of decoding writes, and at how many bytes a trip?

python -m experiments.text --checkpoint=RUN --judge=OTHER_RUN [--workdir=DIR]
    [--prompts=64] [--prompt-bytes=64] [--length=64] [--methods=token,one_sweep:drawn]

The model writes on from prompts of its corpus' validation text; the end-to-end
reference of another run, trained with another seed, reads what was written. Writes
report.md, text.png and summary.json.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from spheroid_jax.fields import ConfigError
from spheroid_jax.leaving import leave
from spheroid_jax.parser import Parser, mistake
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.methods import Method

_LEAST = {"prompts": 1, "prompt_bytes": 1, "length": 1, "timings": 0}


def main(argv: Sequence[str]) -> int:
    """Does what the arguments say; returns the exit status, 2 after a mistake."""
    try:
        return _run(_options(argv), argv)
    except (ConfigError, ServingError) as error:
        return mistake(error)
    except KeyboardInterrupt:
        print("stopped; nothing is kept", file=sys.stderr)
        return 130


def _options(argv: Sequence[str]) -> argparse.Namespace:
    first, _, rest = (__doc__ or "").partition("\n")
    parser = Parser(
        prog="python -m experiments.text",
        description=first + rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s --checkpoint=RUN --judge=RUN [options]",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help="run of the model that writes")
    add("--judge", metavar="RUN", help="run with an end-to-end reference that reads")
    add("--workdir", metavar="DIR", help="where the report goes (RUN/text)")
    add("--prompts", type=int, default=64, metavar="N", help="%(default)s")
    add("--prompt-bytes", type=int, default=64, metavar="N", help="%(default)s")
    add("--length", type=int, default=64, metavar="N", help="bytes written (64)")
    add("--methods", metavar="A,B,...", help="token, and these (all that are known)")
    add("--temperature", type=float, default=1.0, help="%(default)s")
    add("--seed", type=int, default=0, help="%(default)s")
    add("--timings", type=int, default=1, help="of each method (%(default)s)")
    options = parser.parse_args(argv)
    for name in ("checkpoint", "judge"):
        if not getattr(options, name):
            raise ConfigError(f"--{name}=RUN is missing: name a run's directory")
    for name, least in _LEAST.items():
        if getattr(options, name) < least:
            raise ConfigError(
                f"{name} is {getattr(options, name)}; give a number from {least}"
            )
    for method in _methods(options.methods or ""):
        Method.parse(method.removesuffix("+ensemble"))
    return options


def _methods(text: str) -> tuple[str, ...]:
    return tuple(m for m in re.split("[,;]", text) if m.strip())


def _run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    # JAX takes seconds to import: only now, when the command line is right.
    from spheroid_jax.data import CorpusError
    from spheroid_jax.reports import text
    from spheroid_jax.reports.report import wrap
    from spheroid_jax.runs.exchange.frame import keep_compiled, say
    from spheroid_jax.runs.text.experiment import DEFAULT_METHODS, Settings, study

    methods = DEFAULT_METHODS
    if options.methods is not None:
        methods = _methods(options.methods)
    settings = Settings(
        checkpoint=options.checkpoint,
        judge=options.judge,
        prompts=options.prompts,
        prompt_bytes=options.prompt_bytes,
        length=options.length,
        methods=methods,
        temperature=options.temperature,
        seed=options.seed,
        timings=options.timings,
    )
    workdir = Path(options.workdir or Path(options.checkpoint) / "text")
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"can't write to {workdir}: {error.strerror}") from error
    keep_compiled()
    try:
        summary = study(settings, say)
    except CorpusError as error:
        return mistake(error)
    summary["command"] = shlex.join(["python", "-m", "experiments.text", *argv])
    text.write_report(workdir, summary)
    say(text.table(summary, narrow=True).text())
    for line in text.verdicts(summary):
        say(wrap(line))
    say(f"report: {workdir / 'report.md'}   picture: {workdir / text.PICTURE}")
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
