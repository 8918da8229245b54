"""Where one may listen, asked before anything takes long."""

import socket

import pytest

from spheroid_jax.fields import ConfigError
from spheroid_jax.ports import check_free


def test_a_taken_port_is_said_in_our_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            with pytest.raises(ConfigError) as said:
                check_free(host, port)
            assert str(said.value) == (
                f"{host}:{port} is taken by another process: end it, or choose "
                "another --listen"
            )
    check_free("127.0.0.1", port)  # it is free again, and asking doesn't take it
    check_free("127.0.0.1", port)
    check_free("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("192.0.2.1", "192.0.2.1:8580 is no address of this machine"),
        ("no-such-name.invalid", "no machine is known as no-such-name.invalid"),
    ],
)
def test_a_host_that_is_not_this_machine(host: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_free(host, 8580)
