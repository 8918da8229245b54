"""Flags that make no group of processes are refused in one line with the cure."""

import socket
from typing import Any

import pytest

from spheroid_jax.commandline import parse
from spheroid_jax.distributed import DistributedError, Group, Member, group_from_flags
from spheroid_jax.fields import ConfigError

CONFIG = "--config=configs/b3_l4.py:quick"


def flags(**changes: Any) -> Group:
    given = {"coordinator": "node1:29400", "processes": 3, "process": 2}
    return group_from_flags(**{**given, **changes})


def test_flags_make_a_group() -> None:
    group = flags(join_timeout=7, heartbeat_timeout=9)
    assert group == Group("node1:29400", 3, 2, False, 7, 9)
    assert group.several
    assert not group_from_flags().several
    assert group_from_flags(detect=True).several
    assert flags(coordinator="[::1]:29400").coordinator == "[::1]:29400"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"process": 3}, ("--process=3", "0 to 2")),
        ({"process": -1}, ("--process=-1", "0 to 2")),
        ({"processes": 0, "process": 0}, ("--processes=0", "at least 1")),
        ({"coordinator": None}, ("--processes needs --coordinator", "HOST:PORT")),
        ({"processes": None}, ("needs --processes",)),
        ({"process": None}, ("needs --process too",)),
        ({"coordinator": "node1"}, ("--coordinator=node1", "HOST:PORT")),
        ({"coordinator": ":29400"}, ("--coordinator=:29400", "HOST:PORT")),
        ({"coordinator": "node1:0"}, ("--coordinator=node1:0",)),
        ({"coordinator": "node1:65536"}, ("--coordinator=node1:65536",)),
        ({"detect": True}, ("--distributed", "leave --coordinator out")),
        ({"join_timeout": 0}, ("--join-timeout=0", "at least 1")),
        ({"heartbeat_timeout": -5}, ("--heartbeat-timeout=-5", "at least 1")),
    ],
)
def test_wrong_flags_are_named(changes: dict[str, Any], words: tuple[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        flags(**changes)
    assert "\n" not in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((CONFIG, "--processes=3", "--process=0"), "--coordinator=HOST:PORT"),
        ((CONFIG, "--processes=three"), "--processes"),
        ((CONFIG, "--proces=1"), "did you mean --process?"),
        (("--config=configs/delayed.py:quick", "--distributed"), "of kind delays"),
        (("--config=configs/lr_grid.py:quick", "--distributed"), "is a sweep"),
    ],
)
def test_the_command_line_refuses_in_one_line(
    argv: tuple[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(argv)
    assert stop.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert words in line


def test_a_mesh_of_more_devices_than_this_process_has_is_not_refused_too_early() -> (
    None
):
    argv = (
        *(CONFIG, "--config.model.blocks=32", "--config.mesh.block=32"),
        *("--coordinator=node1:29400", "--processes=4", "--process=1"),
    )
    assert parse(argv).group.processes == 4
    with pytest.raises(SystemExit):
        parse(argv[:3])  # eight devices, and nobody to bring more


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_coordinator_that_is_not_there_is_one_line() -> None:
    address = f"127.0.0.1:{free_port()}"
    member = Member(flags(coordinator=address, join_timeout=1))
    with pytest.raises(DistributedError, match=f"no coordinator at {address}.* 1 s"):
        member.__enter__()


def test_a_host_without_an_address_is_one_line() -> None:
    member = Member(flags(coordinator="no.such.host.invalid:29400", join_timeout=1))
    with pytest.raises(DistributedError, match="no coordinator at no.such.host"):
        member.__enter__()


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        member = Member(flags(coordinator=f"127.0.0.1:{port}", process=0))
        with pytest.raises(DistributedError, match=f"can't listen on port {port}"):
            member.__enter__()


def test_a_group_of_one_does_nothing() -> None:
    with Member(Group()) as member:
        pass
    assert member.end(3) == 3
