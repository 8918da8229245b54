"""Writes text with a trained model, in this one process.

python -m experiments.generate --checkpoint=runs/b3_l4-small --prompt="The king "
    [--length=64] [--method=token] [--temperature=0.8] [--seed=0] [--json]

The text goes to stdout as the bytes that it is, all else to stderr. Methods: token,
one_sweep, windowed=16, sweeps=4, speculative=16; after a colon what stands for bytes
that aren't decided yet: expected, drawn, drafted, as in windowed=16:drafted.
"""

import argparse
import base64
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spheroid_jax.fields import ConfigError
from spheroid_jax.leaving import leave
from spheroid_jax.parser import Parser, mistake
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.methods import ANSWERS, FILLS, Method, Sampling
from spheroid_jax.serving.showing import Showing

if TYPE_CHECKING:
    from spheroid_jax.serving.generate import Generated


def main(argv: Sequence[str]) -> int:
    """Does what the arguments say; returns the exit status, 2 after a mistake."""
    try:
        _run(_options(argv))
    except (ConfigError, ServingError) as error:
        return mistake(error)
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads on, which is no fault
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    first, _, rest = (__doc__ or "").partition("\n")
    parser = Parser(
        prog="python -m experiments.generate",
        description=first + rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s --checkpoint=DIR --prompt=TEXT [options]",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--checkpoint", metavar="DIR", help="a run, or DIR/checkpoints/METHOD of it")
    add("--round", type=int, metavar="N", help="checkpoint (default: the newest)")
    add("--prompt", action="append", default=[], metavar="TEXT", help="may be repeated")
    add("--prompt-file", metavar="FILE", help="a prompt from a file, - for stdin")
    add("--samples", type=int, default=1, metavar="N", help="texts for each prompt")
    add("--length", type=int, default=64, metavar="BYTES", help="at most (64)")
    add("--method", default="token", help="see above (token)")
    add("--fill", choices=FILLS, help="unless the method says it")
    add("--answer", choices=ANSWERS, default="last", help="which blocks decide (last)")
    add("--temperature", type=float, default=1.0, help="0: the best byte (1)")
    add("--top-k", type=int, default=0, metavar="K", help="best bytes only (all)")
    add("--top-p", type=float, default=1.0, metavar="P", help="probability kept (1)")
    add("--seed", type=int, default=0, help="of the first text; then one more each")
    add("--stop", action="append", default=[], metavar="TEXT", help="may be repeated")
    add("--json", action="store_true", help="a JSON line for each text")
    options = parser.parse_args(argv)
    if not options.checkpoint:
        raise ConfigError("--checkpoint=DIR is missing: name a run's directory")
    if options.prompt_file:
        options.prompt.append(_read(options.prompt_file))
    if not options.prompt:
        raise ConfigError("there is no prompt: add --prompt=TEXT or --prompt-file=FILE")
    if options.samples < 1:
        raise ConfigError(f"--samples is {options.samples}: give a number from 1")
    if options.length < 0:
        raise ConfigError(f"length is {options.length}: give a number of bytes from 0")
    return options


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"can't read {name}: {error.strerror}") from error


def _run(options: argparse.Namespace) -> None:
    method = Method.parse(options.method, options.fill)
    # The shell hands bytes that aren't UTF-8 over as half surrogate pairs.
    given = [p if isinstance(p, bytes) else _bytes(p) for p in options.prompt]
    prompts = [p for p in given for _ in range(options.samples)]
    stop = tuple(_bytes(text) for text in options.stop)
    how = Sampling(
        options.temperature, options.top_k, options.top_p, options.seed, stop
    )
    # JAX takes seconds to import: only now, when the command line is right.
    from spheroid_jax.runs.exchange.frame import keep_compiled
    from spheroid_jax.serving.generate import generate
    from spheroid_jax.serving.loading import load_model

    keep_compiled()
    _say(f"loads {options.checkpoint} ...")
    stages, parts, facts = load_model(options.checkpoint, round_=options.round)
    several = len(prompts) > 1 or sys.stdout.isatty()
    showing = Showing(
        None if options.json else _write,
        b"\n" if several else b"",
        _say,
        together=sys.stdout.isatty(),
    )
    began = time.perf_counter()
    try:
        result = generate(
            stages,
            parts,
            prompts,
            options.length,
            method,
            temperature=how.temperature,
            top_k=how.top_k,
            top_p=how.top_p,
            seed=how.seed,
            stop=how.stop,
            answer=options.answer,
            watch=showing,
        )
    finally:
        showing.close()
    showing.finish(result.texts)
    seconds = time.perf_counter() - began
    if options.json:
        for row, prompt in enumerate(prompts):
            print(_json(prompt, result, row, (options.seed + row) % 2**32))
    sys.stdout.flush()
    written, trips = sum(map(len, result.texts)), sum(result.trips)
    _say(
        f"{facts.config} ({facts.method}, round {facts.round}): {written} bytes in "
        f"{trips} trips by {method}, {seconds:.1f} s with compiling"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write(data: bytes) -> None:
    """At once: who reads sees a text while it is written."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _json(prompt: bytes, result: "Generated", row: int, seed: int) -> str:
    text = result.texts[row]
    return json.dumps(
        {
            "prompt": prompt.decode(errors="replace"),
            "text": text.decode(errors="replace"),
            "bytes": base64.b64encode(text).decode(),
            "seed": seed,
            "trips": result.trips[row],
            "finish": result.finish[row],
            "logprob": sum(result.logprobs[row]),
        },
        ensure_ascii=False,
    )


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
