"""Mistakes on a command line are told before anything takes long."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# What is asked of which program, and what its answer holds.
CASES = [
    (
        "serve",
        [],
        "say what to serve: --local (everything here), --stage=N (one block)",
    ),
    ("serve", ["--checkpoint=x"], "say what to serve"),
    ("serve", ["--stage=0"], "--checkpoint is missing"),
    ("serve", ["--stage=0", "--checkpoint=x"], "--token-file=FILE is missing"),
    ("serve", ["--local"], "--checkpoint=DIR is missing"),
    ("serve", ["--local", "--checkpoint=x", "--wurm"], "--wurm"),
    ("serve", ["--frontend"], "--stages is missing"),
    ("generate", ["--prompt=x"], "--checkpoint=DIR is missing"),
    ("generate", ["--checkpoint=x", "--prompt=a", "--method=tokn"], "mean 'token'?"),
    ("generate", ["--checkpoint=x", "--prompt=a", "--top-p=2"], "top_p is 2"),
    ("text", ["--checkpoint=x"], "--judge=RUN is missing"),
    ("text", ["--checkpoint=x", "--judge=y", "--length=0"], "length is 0"),
    ("text", ["--checkpoint=x", "--judge=y", "--methods=tokn"], "mean 'token'?"),
]
PROGRAM = """
import contextlib, importlib, io, json, sys
found = []
for name, argv, _ in json.loads(sys.argv[1]):
    main = importlib.import_module(f"experiments.{name}").main
    with contextlib.redirect_stderr(io.StringIO()) as said:
        status = main(argv)
    found.append([status, said.getvalue()])
heavy = [m for m in ("jax", "flax", "orbax", "matplotlib") if m in sys.modules]
print(json.dumps([found, heavy]))
"""


def test_a_usage_error_imports_no_jax() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(CASES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found, heavy = json.loads(done.stdout)
    for (name, argv, words), (status, said) in zip(CASES, found, strict=True):
        assert status == 2, (name, argv)
        assert words in said, (name, argv)
        assert said.startswith("error: ")
        assert said.count("\n") == 1
    assert heavy == []
