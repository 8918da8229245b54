"""Text on the command line, and the comparison of methods, from runs on disk."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import generate as generate_command
from experiments import text as text_command
from tests.serving.untrained import save_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with a model of blocks and its end-to-end reference."""
    path = tmp_path_factory.mktemp("runs") / "written"
    return save_run(path, "blocktrain", "end_to_end")


@pytest.fixture(scope="module")
def judge(tmp_path_factory) -> Path:
    return save_run(tmp_path_factory.mktemp("runs") / "judge", "end_to_end", seed=7)


def texts(capsys, *argv: str) -> list[bytes]:
    """Bytes of the texts that the command writes with ``--json``."""
    assert generate_command.main([*argv, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [base64.b64decode(json.loads(line)["bytes"]) for line in lines]


def test_the_command_writes_the_bytes_and_nothing_else_to_stdout(run, capsys):
    argv = [f"--checkpoint={run}", "--prompt=ab", "--length=6", "--seed=3"]
    (expected,) = texts(capsys, *argv)
    assert len(expected) == 6
    done = subprocess.run(
        [sys.executable, "-m", "experiments.generate", *argv, "--method=windowed=1"],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    lines = done.stderr.decode().splitlines()
    assert lines[0] == f"loads {run} ..."
    assert "6 bytes in 6 trips by windowed=1" in lines[-1]


def test_samples_are_the_seeds_that_follow(run, tmp_path, capsys):
    file = tmp_path / "prompt"
    file.write_bytes(b"\xff\x00")
    common = [f"--checkpoint={run}", "--length=6", f"--prompt-file={file}"]
    several = texts(capsys, *common, "--samples=3", "--seed=3")
    assert len(set(several)) == 3
    assert several[1:2] == texts(capsys, *common, "--seed=4")
    reference = [f"--checkpoint={run}/checkpoints/end_to_end", *common[1:]]
    assert [len(t) for t in texts(capsys, *reference)] == [6]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prompt=a"], "--checkpoint=DIR is missing"),
        (["--checkpoint={run}"], "there is no prompt"),
        (["--checkpoint={run}", "--prompt=a", "--method=tokn"], "mean 'token'?"),
        (["--checkpoint={run}", "--prompt=a", "--temperature=nan"], "temperature is"),
        (["--checkpoint={run}", "--prompt=a", "--length=-1"], "length is -1"),
        (["--checkpoint={run}", "--prompt=a", "--samples=0"], "--samples is 0"),
        (["--checkpoint={run}", "--prompt=a", "--round=9"], "complete rounds: 1"),
        (["--checkpoint={run}", "--prompt-file=/none"], "can't read /none"),
        (["--checkpoint=/none", "--prompt=a"], "/none isn't of a run"),
        (["--checkpoint={run}", "--prompt=a", "--lenght=4"], "--lenght=4"),
        (
            [
                "--checkpoint={run}/checkpoints/end_to_end",
                *("--prompt=a", "--method=one_sweep"),
            ],
            "knows 'token' only",
        ),
    ],
)
def test_mistakes_are_one_line(run, capsys, argv, words):
    assert generate_command.main([a.format(run=run) for a in argv]) == 2
    out, said = capsys.readouterr()
    *before, error = said.splitlines()
    assert error.startswith("error: ")
    assert words in error
    assert out == ""
    assert all(line.startswith("loads ") for line in before)


def test_methods_are_compared_on_the_same_prompts(run, judge, tmp_path, capsys):
    argv = [
        f"--checkpoint={run}",
        f"--judge={judge}",
        f"--workdir={tmp_path / 'study'}",
        *("--prompts=8", "--prompt-bytes=6", "--length=8"),
        "--methods=windowed=1:drawn,one_sweep:drafted,token",
    ]
    assert text_command.main(argv) == 0
    summary = json.loads((tmp_path / "study" / "summary.json").read_text())
    rows = {row["name"]: row for row in summary["rows"]}
    assert list(rows) == [
        *("real continuation", "token", "windowed=1:drawn", "one_sweep:drafted"),
        "first block alone",
    ]
    exact, swept = rows["windowed=1:drawn"], rows["one_sweep:drafted"]
    assert (exact["same"], exact["more"], exact["bytes_per_trip"]) == (1, 0, 1)
    assert swept["bytes_per_trip"] == 8
    # An untrained judge knows nothing: guessing alone costs ln 256 = 5.545.
    assert 5 < rows["token"]["ce"] < 7
    assert rows["token"]["ce_error"] > 0
    assert (tmp_path / "study" / "text.png").read_bytes()[:4] == b"\x89PNG"
    report = (tmp_path / "study" / "report.md").read_text()
    assert "| one_sweep:drafted" in report
    assert f"--judge={judge}" in report
    assert "report: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"judge": "{run}"}, "is of the run that it judges"),
        ({"length": "99"}, "the judge reads 16 bytes"),
        ({"prompts": "0"}, "prompts is 0"),
        ({"methods": "token,swep=4"}, "did you mean 'sweeps'?"),
        ({"methods": "token+ensembl"}, "method is 'token+ensembl'"),
        ({"checkpoint": "{judge}"}, "no checkpoints of blocktrain"),
    ],
)
def test_what_cant_be_compared_is_refused(run, judge, tmp_path, capsys, changes, words):
    how = {"checkpoint": "{run}", "judge": "{judge}", "workdir": str(tmp_path)}
    argv = [
        f"--{name}={value.format(run=run, judge=judge)}"
        for name, value in (how | changes).items()
    ]
    assert text_command.main(argv) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
