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

from spheroid_jax.commandline import Parser
from spheroid_jax.data import CorpusError
from spheroid_jax.fields import ConfigError
from spheroid_jax.reports import text
from spheroid_jax.reports.report import wrap
from spheroid_jax.runs.exchange.frame import keep_compiled, say
from spheroid_jax.runs.text.experiment import DEFAULT_METHODS, Settings, study
from spheroid_jax.serving.errors import ServingError

_DEFAULTS = Settings("", "")


def main(argv: Sequence[str]) -> int:
    """Does what the arguments say; returns the exit status, 2 after a mistake."""
    try:
        _run(argv)
    except (ConfigError, CorpusError, ServingError) as error:
        print("error:", *str(error).split(), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; nothing is kept", file=sys.stderr)
        return 130
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    first, _, rest = (__doc__ or "").partition("\n")
    parser = Parser(
        prog="python -m experiments.text",
        description=first + rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s --checkpoint=RUN --judge=RUN [options]",
        allow_abbrev=False,
    )
    add, d = parser.add_argument, _DEFAULTS
    add("--checkpoint", metavar="RUN", help="run of the model that writes")
    add("--judge", metavar="RUN", help="run with an end-to-end reference that reads")
    add("--workdir", metavar="DIR", help="where the report goes (RUN/text)")
    add("--prompts", type=int, default=d.prompts, metavar="N", help="%(default)s")
    add("--prompt-bytes", type=int, default=d.prompt_bytes, metavar="N")
    add("--length", type=int, default=d.length, metavar="N", help="bytes written")
    add("--methods", default=",".join(DEFAULT_METHODS), metavar="A,B,...")
    add("--temperature", type=float, default=d.temperature, help="%(default)s")
    add("--seed", type=int, default=d.seed, help="%(default)s")
    add("--timings", type=int, default=d.timings, help="of each method (%(default)s)")
    options = parser.parse_args(argv)
    for name in ("checkpoint", "judge"):
        if not getattr(options, name):
            raise ConfigError(f"--{name}=RUN is missing: name a run's directory")
    return options


def _run(argv: Sequence[str]) -> None:
    options = _options(argv)
    settings = Settings(
        checkpoint=options.checkpoint,
        judge=options.judge,
        prompts=options.prompts,
        prompt_bytes=options.prompt_bytes,
        length=options.length,
        methods=tuple(m for m in re.split("[,;]", options.methods) if m.strip()),
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
    summary = study(settings, say)
    summary["command"] = shlex.join(["python", "-m", "experiments.text", *argv])
    text.write_report(workdir, summary)
    say(text.table(summary, narrow=True).text())
    for line in text.verdicts(summary):
        say(wrap(line))
    say(f"report: {workdir / 'report.md'}   picture: {workdir / text.PICTURE}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
