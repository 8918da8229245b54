"""The command line of a front end, and of all in one process."""

from pathlib import Path

import pytest

from spheroid_jax.fields import ConfigError
from spheroid_jax.serving.options import frontend, local
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.tokens import mint


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(mint()[0])
    path.chmod(0o600)
    return f"--token-file={path}"


def test_what_a_front_end_is_told(token: str, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "exchange" / "ledger.db"):
        pass
    options = frontend.parse(
        [
            "--frontend",
            "--stages=a:1,[::1]:2, b:3",
            token,
            "--insecure",
            "--listen=0.0.0.0:8471",
            f"--clients={tmp_path}",
            "--method=speculative=8",
            "--waiting=0",
            "--request-seconds=9",
            "--wire-dtype=bfloat16",
        ]
    )
    assert options.stages == ("a:1", "[::1]:2", "b:3")
    http = options.http
    assert (http.host, http.port, http.clients) == ("0.0.0.0", 8471, tmp_path)
    assert str(http.method) == "speculative=8"
    assert (http.settings.queue, http.settings.request) == (0, 9.0)
    assert http.wire_dtype == "bfloat16"
    assert options.credentials.insecure


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--stages is missing"),
        (["--stages=,"], "--stages is empty"),
        (["--stages=127.0.0.1"], "isn't an address"),
        (["--stages=127.0.0.1:1,127.0.0.1:1"], "twice"),
        (["--stages=10.0.0.1:1"], "--ca=PEM for TLS"),
        (["--stages=127.0.0.1:1", "--listen=0.0.0.0:1"], "--clients=DIR"),
        (["--stages=127.0.0.1:1", "--clients=/nowhere"], "experiments.tokens"),
        (["--stages=127.0.0.1:1", "--method=windowd"], "did you mean 'windowed'"),
        (["--stages=127.0.0.1:1", "--certificate=a"], "go together"),
        (["--stages=127.0.0.1:1", "--request-seconds=nan"], "request=nan"),
        (["--stages=127.0.0.1:1", "--request-seconds=0"], "request=0"),
        (["--stages=127.0.0.1:1", "--waiting=-1"], "queue=-1"),
        (["--stages=127.0.0.1:1", "--what"], "unrecognized arguments: --what"),
    ],
)
def test_what_is_wrong_is_said(token: str, arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        frontend.parse(["--frontend", token, *arguments])


def test_a_token_is_needed() -> None:
    with pytest.raises(ConfigError, match="--token-file=FILE is missing"):
        frontend.parse(["--frontend", "--stages=127.0.0.1:1"])
    with pytest.raises(ConfigError, match="can't be read"):
        frontend.parse(["--stages=127.0.0.1:1", "--token-file=/nowhere"])


def test_clients_of_other_machines_need_tls_or_a_net_that_is_trusted(
    token: str, tmp_path: Path
) -> None:
    with Ledger.open(tmp_path / "exchange" / "ledger.db"):
        pass
    arguments = ["--stages=127.0.0.1:1", token, f"--clients={tmp_path}"]
    assert frontend.parse(arguments).http.host == "127.0.0.1"
    with pytest.raises(ConfigError, match="in clear"):
        frontend.parse([*arguments, "--listen=0.0.0.0:1"])


def test_all_in_one_process() -> None:
    options = local.parse(["--local", "--checkpoint=run", "--of=3", "--slots=4"])
    assert (options.checkpoint, options.stages) == (Path("run"), 3)
    assert options.settings.slots == 4
    with pytest.raises(ConfigError, match="--checkpoint=DIR is missing"):
        local.parse(["--local"])
    with pytest.raises(ConfigError, match="slots is 0"):
        local.parse(["--local", "--checkpoint=run", "--slots=0"])
