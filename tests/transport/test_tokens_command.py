"""The command that lets workers in, and out."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.tokens import main
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.tokens import Tokens, digest

PROGRAM = (sys.executable, "-m", "experiments.tokens")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def run(workdir: Path, *arguments: str) -> int:
    return main([f"--workdir={workdir}", *arguments])


def ledger_of(workdir: Path) -> Path:
    return workdir / "exchange" / "ledger.db"


def test_a_token_is_made_before_a_coordinator_ever_ran(
    workdir: Path, capsys: Capture
) -> None:
    assert run(workdir, "--add=mars-1") == 0
    out, err = capsys.readouterr()
    token = out.removesuffix("\n")
    assert re.fullmatch(r"spheroid_[\w-]{43}", token)
    assert token not in err
    assert "mars-1" in err
    with Ledger.open(ledger_of(workdir)) as ledger:
        assert Tokens(ledger).name_of(token) == "mars-1"


def test_a_name_is_replaced_only_on_request(workdir: Path, capsys: Capture) -> None:
    run(workdir, "--add=a")
    first = capsys.readouterr().out.strip()
    assert run(workdir, "--add=a") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: a has a token: --revoke=a first, or add --replace")
    assert run(workdir, "--add=a", "--replace") == 0
    second = capsys.readouterr().out.strip()
    with Ledger.open(ledger_of(workdir)) as ledger:
        who = Tokens(ledger)
        assert who.name_of(first) is None
        assert who.name_of(second) == "a"
    assert run(workdir, "--revoke=a") == 0
    assert capsys.readouterr().out == ""
    assert run(workdir, "--revoke=a") == 0
    assert "before" in capsys.readouterr().err
    assert run(workdir, "--add=a") == 0


def test_the_list_is_a_table_without_secrets(workdir: Path, capsys: Capture) -> None:
    for name in ("long-name-of-a-worker", "b"):
        run(workdir, f"--add={name}")
    token = capsys.readouterr().out.split()[0]
    run(workdir, "--revoke=b")
    capsys.readouterr()
    assert run(workdir, "--list") == 0
    out, err = capsys.readouterr()
    assert err == ""
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
    head, b, long = out.splitlines()
    assert re.fullmatch(r"name {19}added {17}revoked", head)
    assert re.fullmatch(rf"b {{22}}{time}  {time}", b)
    assert re.fullmatch(rf"long-name-of-a-worker  {time}  -", long)
    assert token not in out
    assert digest(token) not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to do"),
        (["--add"], "expected one argument"),
        (["--add=a", "--list"], "not allowed with"),
        (["--ad=a"], "unrecognized arguments"),
        (["--list", "more"], "unrecognized arguments"),
        (["--add="], "no name"),
        (["--add=../a"], "no name"),
        (["--add=a\nb"], "no name"),
        (["--add=a\n"], "no name"),
        (["--add=" + "x" * 65], "no name"),
        (["--revoke=a b"], "no name"),
        (["--list", "--replace"], "--replace goes with --add"),
        (["--revoke=c"], "c has no token to revoke: --list"),
        (["--workdir=", "--list"], "--workdir=DIR is missing"),
        (["--workdir=/dev/null", "--add=c"], "name another run directory"),
    ],
)
def test_a_mistake_is_one_line(
    workdir: Path, capsys: Capture, arguments: list[str], said: str
) -> None:
    run(workdir, "--add=a")
    capsys.readouterr()
    assert run(workdir, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err
    with Ledger.open(ledger_of(workdir)) as ledger:
        assert list(ledger.tokens()) == ["a"]


@pytest.mark.parametrize("argument", ["--list", "--revoke=a"])
def test_a_mistyped_directory_is_not_made(
    workdir: Path, capsys: Capture, argument: str
) -> None:
    assert run(workdir, argument) == 2
    assert "has no tokens: check --workdir" in capsys.readouterr().err
    assert not workdir.exists()


def test_a_damaged_ledger_is_one_line(workdir: Path, capsys: Capture) -> None:
    run(workdir, "--add=a")
    ledger_of(workdir).write_bytes(b"no database " * 500)
    capsys.readouterr()
    assert run(workdir, "--list") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "is damaged" in err


def test_it_works_as_a_program_while_a_ledger_is_open(workdir: Path) -> None:
    with Ledger.open(ledger_of(workdir)) as ledger:
        who = Tokens(ledger)
        assert who.name_of("x") is None
        done = subprocess.run(
            [*PROGRAM, f"--workdir={workdir}", "--add=a"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert who.name_of(done.stdout.strip()) == "a"


def test_a_token_that_nobody_could_read_is_told(workdir: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROGRAM, f"--workdir={workdir}", "--add=a"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert "couldn't be written out" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_ends_well(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "--revoke" in capsys.readouterr().out
