"""The proxy as a program: what it takes, what it says, how it ends."""

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from experiments.proxy import main, rate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20Mbit", 2.5e6),
        ("20Mbit/s", 2.5e6),
        ("2.5MB", 2.5e6),
        ("1Gbit", 1.25e8),
        ("8kbit", 1e3),
        ("1e6", 1e6),
        (repr(1e17), 1e17),
        ("500B", 500),
        ("inf", math.inf),
    ],
)
def test_a_rate_is_read_with_its_unit(text, value):
    assert rate(text) == value


GOOD = ["--listen=127.0.0.1:0", "--to=127.0.0.1:9"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "required: --listen, --to"),
        ([*GOOD, "--rate=20mb"], "'20mb' is no rate; write 20Mbit or 2.5MB"),
        ([*GOOD, "--rate=1.2.3MB"], "'1.2.3MB' is no rate"),
        ([*GOOD, "--rate=0Mbit"], "rate_bytes = 0.0: take more than 0"),
        ([*GOOD, "--loss=1"], "loss = 1.0: take a share from 0 to below 1"),
        ([*GOOD, "--delay=-1"], "delay_seconds = -1.0: take seconds, from 0"),
        ([*GOOD, "--delay=nan"], "delay_seconds = nan"),
        ([*GOOD, "--delay=soon"], "argument --delay: invalid float value: 'soon'"),
        (["--listen=8470", GOOD[1]], "'8470' is no address; write HOST:PORT"),
        ([GOOD[0], "--to=localhost:99999"], "'localhost:99999' is no address"),
        ([*GOOD, "--speed=1"], "unrecognized arguments: --speed=1"),
    ],
)
def test_a_mistake_is_one_line(argv, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1


def test_a_port_that_is_taken_is_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([f"--listen=127.0.0.1:{port}", "--to=127.0.0.1:9"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: can't listen on 127.0.0.1:{port}: ")
    assert "in use" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_end(number):
    def echo() -> None:
        with server.accept()[0] as connection:
            connection.sendall(connection.recv(100))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=echo, daemon=True)
        thread.start()
        to = f"--to=127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-m", "experiments.proxy"]
        with subprocess.Popen(
            [*command, "--listen=127.0.0.1:0", to, "--delay=0.05"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        ) as process:
            try:
                said = process.stdout.readline()
                assert said.startswith("listening on 127.0.0.1:")
                port = int(said.rpartition(":")[2])
                address = ("127.0.0.1", port)
                with socket.create_connection(address, timeout=20) as client:
                    begun = time.monotonic()
                    client.sendall(b"hello")
                    assert client.recv(100) == b"hello"
                    # One round trip to set the connection up, one for the answer.
                    assert time.monotonic() - begun >= 0.2 - 0.002
                    process.send_signal(number)
                    out, err = process.communicate(timeout=20)
            finally:
                process.kill()
        assert process.returncode == 0
        assert err == ""
        assert out.startswith("1 connections, 0 refused, 5 bytes up, 5 bytes down, ")
        thread.join(timeout=20)


def test_starting_it_needs_nothing_heavy():
    """It is started beside every worker of an experiment."""
    code = "import sys, experiments.proxy; print(*{'jax', 'numpy'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True, timeout=60).strip() == ""
