"""What a stage has to have before it lets other machines in."""

import argparse

import pytest

from spheroid_jax.fields import ConfigError
from spheroid_jax.serving.options.net import credentials_of


@pytest.mark.parametrize(("listen", "open_"), [("127.0.0.1:1", False), ("a:1", True)])
def test_other_machines_need_tls_or_a_net_that_is_trusted(
    listen: str, open_: bool, tmp_path
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef" * 2)
    token.chmod(0o600)
    options = argparse.Namespace(
        listen=listen,
        token_file=str(token),
        workdir=None,
        certificate=None,
        key=None,
        ca=None,
        insecure=False,
    )
    if open_:
        with pytest.raises(ConfigError, match=r"--certificate and --key .*--insecure"):
            credentials_of(options)
        options.insecure = True
    assert credentials_of(options).token is not None
