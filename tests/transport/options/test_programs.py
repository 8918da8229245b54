"""Mistakes on the command lines of the exchange are told before anything takes long."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spheroid_jax.fields import ConfigError
from spheroid_jax.transport.options.coordinator import parse_flags

ROOT = Path(__file__).parents[3]
TOKEN = "a-token-of-letters-and-digits-0123456789"
PROGRAM = """
import contextlib, importlib, io, json, sys
found = []
for name, argv in json.loads(sys.argv[1]):
    main = importlib.import_module(f"experiments.{name}").main
    with contextlib.redirect_stderr(io.StringIO()) as said:
        status = main(argv)
    found.append([status, said.getvalue()])
print(json.dumps([found, "jax" in sys.modules]))
"""
WAN = "--config=configs/wan.py"


def test_a_mistake_is_told_in_a_line_without_jax(tmp_path: Path) -> None:
    token = tmp_path / "ann.token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    given = f"--token-file={token}"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = [
            ("worker", [], 2, "--coordinator is missing"),
            ("worker", ["--coordinator=http://localhost:1"], 2, "--token-file is miss"),
            ("worker", ["--coordinator=s3://b/run", given], 2, "add --name=NAME"),
            ("worker", ["--coordinator=localhost:1", given], 2, "https://host:8470"),
            ("worker", ["--coordinator=http://a:1", given], 2, "in clear"),
            ("worker", ["--coordinatr=http://a:1"], 2, "--coordinatr"),
            (
                "worker",
                ["--coordinator=https://a:1", given, f"--ca={tmp_path / 'no'}"],
                2,
                "can't be read",
            ),
            ("coordinator", [WAN], 2, "--workdir=DIR is missing"),
            ("coordinator", ["--workdir=x"], 2, "--config is missing"),
            (
                "coordinator",
                ["--workdir=x", WAN, "--lisen=a:1"],
                2,
                "there is no option --lisen: did you mean --listen?",
            ),
            (
                "coordinator",
                ["--workdir=x", "--config=configs/wann.py"],
                2,
                "no config file configs/wann.py: did you mean configs/wan.py?",
            ),
            (
                "coordinator",
                ["--workdir=x", "--config=zzz.py"],
                2,
                "there is no config file zzz.py: see configs/",
            ),
            ("coordinator", ["--workdir=x", WAN, "--listen=8470"], 2, "no HOST:PORT"),
            ("coordinator", ["--workdir=x", WAN, "--key=x"], 2, "go together"),
            (
                "coordinator",
                ["--workdir=x", WAN, f"--listen=127.0.0.1:{port}"],
                1,
                f"127.0.0.1:{port} is taken by another process: end it, or choose "
                "another --listen",
            ),
            ("tokens", ["--workdir=x"], 2, "nothing to do"),
        ]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps([c[:2] for c in cases])],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    found, took_jax = json.loads(done.stdout)
    for (name, argv, wanted, words), (status, said) in zip(cases, found, strict=True):
        assert status == wanted, (name, argv, said)
        assert words in said, (name, argv)
        assert said.startswith("error: ")
        assert said.count("\n") == 1
    assert not took_jax
    assert not (ROOT / "x").exists()


def test_a_token_that_others_can_read_is_told_of_in_plain_words(tmp_path: Path) -> None:
    token = tmp_path / "ann.token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o644)
    argv = ["--coordinator=http://localhost:1", f"--token-file={token}"]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.worker", *argv, "--ca=/nowhere"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    first, second = done.stderr.splitlines()
    assert first == (
        f"warning: token file {token} can be read by others; chmod 600 {token}"
    )
    assert second.startswith("error: --ca=/nowhere can't be read")


def test_what_may_be_a_field_is_left_to_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    more = ["--config.train.rounds=8", "--config.exchange.workers", "-1", "--rounds=8"]
    assert parse_flags([WAN, "--workdir=x", *more]).overrides == more
    with pytest.raises(ConfigError, match="leave --rounds=8 out"):
        parse_flags(["--report=only", "--workdir=x", "--rounds=8"])
