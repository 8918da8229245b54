"""A coordinator and workers as processes: started, watched, ended, cleaned up after.

The programs are small ones; what matters here is who runs where, who notices that one
dies, and that nothing is left behind, however it ends.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spheroid_jax.runs.exchange import fleet as fleets
from spheroid_jax.runs.exchange import hosts as hosts_
from spheroid_jax.runs.exchange.fleet import FleetError, last_lines
from spheroid_jax.runs.exchange.processes import start
from spheroid_jax.transport.shaping import Shape

LIMIT = 30.0  # seconds that any of it may take


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-u", "-c", code, *arguments]


# Tells everybody who connects where they come from.
COORDINATOR = python(
    """if 1:
    import socket, sys
    host, port = sys.argv[1].split(":")
    with socket.create_server((host, int(port))) as server:
        print("ready")
        while True:
            client, (peer, _) = server.accept()
            with client:
                client.recv(1)
                client.sendall(peer.encode())
    """,
    "{listen}",
)
# Asks once the coordinator is there, says what it heard and how long that took.
WORKER = python(
    """if 1:
    import socket, sys, time
    host, port = sys.argv[1].split(":")
    heard = b""
    while not heard:
        try:
            with socket.create_connection((host, int(port)), timeout=10) as link:
                begun = time.monotonic()
                link.sendall(b"?")
                heard = link.recv(100)
        except OSError:
            pass
        if not heard:
            time.sleep(0.05)
    print("peer", heard.decode(), "after", time.monotonic() - begun)
    """,
    "{coordinator}",
)
SLEEPER = python("import time; print('here'); time.sleep(600)")


def heard(log: Path) -> tuple[str, float]:
    _, peer, _, seconds = log.read_text().split()
    return peer, float(seconds)


def until(what, seconds: float = LIMIT) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # dead, and its parent hasn't looked yet


def namespaces(pid: int) -> list[str]:
    return [path.name for path in Path("/run/netns").glob(f"spheroid-{pid}-*")]


@pytest.fixture(scope="module")
def can_have_namespaces() -> None:
    made: list[str] = []
    try:
        hosts_.Namespaces(made.append)
    except hosts_.HostsError as error:
        pytest.skip(f"no network namespaces here: {error}")
    finally:
        hosts_.remove_namespaces(made)


def test_on_one_host_all_meet_at_one_address(tmp_path):
    commands = {"coordinator": COORDINATOR, "one": WORKER, "two": WORKER}
    with start(commands, tmp_path / "logs") as fleet:
        assert fleet.wait(LIMIT, ["one", "two"]) == {"one": 0, "two": 0}
        assert fleet.statuses()["coordinator"] is None
        assert fleet.network == "one host, loopback"
        assert len(set(fleet.addresses.values())) == 1
        assert fleet.addresses["one"].startswith("127.0.0.1:")
        assert heard(fleet.logs["one"])[0] == "127.0.0.1"
        assert fleet.logs["coordinator"].read_text() == "ready\n"
    assert fleet.statuses()["coordinator"] == -signal.SIGTERM


@pytest.mark.parametrize(
    ("hosts", "network"),
    [("loopback", "loopback addresses"), ("namespaces", "network namespaces")],
)
def test_a_link_is_as_long_as_was_said(hosts, network, tmp_path, request):
    if hosts == "namespaces":
        request.getfixturevalue("can_have_namespaces")
    commands = {"coordinator": COORDINATOR, "near": WORKER, "far": WORKER}
    far = Shape(0.1, 1e6, 0.0, 0.01)
    with start(commands, tmp_path, {"far": far}, hosts=hosts) as fleet:
        fleet.wait(LIMIT, ["near", "far"])
        assert fleet.network == network
        assert fleet.addresses["near"] == fleet.addresses["coordinator"]
        assert fleet.addresses["far"] != fleet.addresses["coordinator"]
        near, far = heard(fleet.logs["near"]), heard(fleet.logs["far"])
        # Two round trips: one to set up, one to ask.
        assert far[1] >= 0.4 - 0.002
        if hosts == "namespaces":
            assert near[0] != far[0]  # each at an address of its own
            assert near[0].startswith(hosts_.SUBNET)
        assert "far.link" not in fleet.statuses()
        assert "listening on" in fleet.logs["far.link"].read_text()


def test_a_namespace_is_a_network_of_its_own(tmp_path, can_have_namespaces):
    look = python("import os; print(os.readlink('/proc/self/ns/net'))")
    show = python("import socket; print(len(socket.if_nameindex()))")
    with start({"a": look, "b": look}, tmp_path, hosts="namespaces") as fleet:
        fleet.wait(LIMIT)
        seen = {log.read_text().strip() for log in fleet.logs.values()}
        assert len(seen | {os.readlink("/proc/self/ns/net")}) == 3
        # Loopback, and one end of a cable: nothing of the machine's own network.
        said = subprocess.check_output(fleet.command("a", show), timeout=LIMIT)
        assert said == b"2\n"
        assert len(namespaces(os.getpid())) == 3
    assert namespaces(os.getpid()) == []


def test_who_dies_early_is_named_with_its_last_words(tmp_path):
    code = """if 1:
    import sys
    for i in range(9000): print("step", i)
    print("\\n  no room left  \\n", file=sys.stderr)
    sys.exit(3)
    """
    commands = {"coordinator": SLEEPER, "worker": python(code)}
    with start(commands, tmp_path) as fleet:
        with pytest.raises(FleetError) as died:
            fleet.wait(LIMIT)
        line = str(died.value)
        assert re.match(r"worker ended with status 3 within [0-9.]+ s; ", line)
        assert "step 8998 | step 8999 | no room left (all are in " in line
        assert str(tmp_path / "worker.log") in line
        assert "\n" not in line
        with pytest.raises(FleetError, match="worker ended with status 3"):
            fleet.check()


def test_who_was_killed_by_somebody_else_is_named_with_the_signal(tmp_path):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with (
        start({"coordinator": python(code)}, tmp_path) as fleet,
        pytest.raises(
            FleetError, match="coordinator was ended by SIGKILL .*lines: none"
        ),
    ):
        fleet.wait(LIMIT)


def test_a_link_that_dies_is_noticed(tmp_path):
    commands = {"coordinator": SLEEPER, "worker": SLEEPER}
    with start(commands, tmp_path, {"worker": Shape()}, hosts="same") as fleet:
        os.kill(fleet._running["worker.link"].pid, signal.SIGKILL)
        with pytest.raises(FleetError, match=r"worker\.link was ended by SIGKILL"):
            fleet.wait(LIMIT)


def test_who_is_killed_may_be_started_again_and_writes_on(tmp_path):
    commands = {"coordinator": SLEEPER, "worker": SLEEPER}
    with start(commands, tmp_path) as fleet:
        log = fleet.logs["worker"]
        until(lambda: log.read_text() == "here\n")
        with pytest.raises(ValueError, match="name = 'worker': it runs already"):
            fleet.launch("worker")
        fleet.kill("worker")
        assert fleet.wait(LIMIT, ["worker"]) == {"worker": -signal.SIGKILL}
        fleet.launch("worker")
        until(lambda: log.read_text() == "here\nhere\n")
        fleet.check()
        # What it does after that is its own doing again.
        os.kill(fleet._running["worker"].pid, signal.SIGKILL)
        with pytest.raises(FleetError, match="worker was ended by SIGKILL"):
            fleet.wait(LIMIT)


def test_a_stopped_process_runs_and_goes_on(tmp_path):
    with start({"coordinator": SLEEPER}, tmp_path) as fleet:
        pid = fleet._running["coordinator"].pid
        state = Path(f"/proc/{pid}/stat")
        fleet.kill("coordinator", signal.SIGSTOP)
        until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
        with pytest.raises(TimeoutError, match=r"not ended after 0\.1 s: coordinator"):
            fleet.wait(0.1)
        fleet.kill("coordinator", signal.SIGCONT)
        until(lambda: state.read_text().rpartition(")")[2].split()[0] != "T")
        # A pause is no leave to end.
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(FleetError, match="coordinator was ended by SIGKILL"):
            fleet.wait(LIMIT)


def test_who_comes_later_comes_when_called(tmp_path):
    commands = {"coordinator": COORDINATOR, "one": WORKER, "late": WORKER}
    links = {"late": Shape(0.01)}
    with start(commands, tmp_path, links, hosts="same", later=["late"]) as fleet:
        assert fleet.wait(LIMIT, ["one"]) == {"one": 0}
        assert set(fleet.statuses()) == {"coordinator", "one"}
        fleet.launch("late")
        assert fleet.wait(LIMIT, ["late"]) == {"late": 0}
        with pytest.raises(ValueError, match="the processes are coordinator, one, "):
            fleet.launch("nobody")


# Doesn't end on SIGTERM, and has a child.
STUBBORN = python(
    """if 1:
    import signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid)
    time.sleep(600)
    """
)


def test_what_a_killed_process_left_is_ended_before_it_starts_again(tmp_path):
    with start({"coordinator": STUBBORN}, tmp_path) as fleet:
        log = fleet.logs["coordinator"]
        until(lambda: log.read_text().endswith("\n"))
        child = int(log.read_text())
        fleet.kill("coordinator")
        fleet.wait(LIMIT)
        assert alive(child)
        fleet.launch("coordinator")
        until(lambda: not alive(child))
        fleet.kill("coordinator")  # not to wait for it at the end


def test_closing_ends_the_stubborn_and_their_children(tmp_path, monkeypatch):
    monkeypatch.setattr(fleets, "GRACE", 0.3)
    with start({"coordinator": STUBBORN}, tmp_path) as fleet:
        log = fleet.logs["coordinator"]
        until(lambda: log.read_text().endswith("\n"))
        pids = [int(log.read_text()), fleet._running["coordinator"].pid]
        assert all(map(alive, pids))
    until(lambda: not any(map(alive, pids)))
    assert fleet.statuses() == {"coordinator": -signal.SIGKILL}
    fleet.close()  # once more does no harm


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("hosts", ["same", "namespaces"])
def test_nothing_is_left_of_an_experiment_that_is_killed(
    hosts, number, tmp_path, request
):
    if hosts == "namespaces":
        request.getfixturevalue("can_have_namespaces")
    # Without what spheroid_jax.runs imports beside it, which takes seconds.
    code = f"""if 1:
    import sys, types
    from pathlib import Path
    runs = sys.modules["spheroid_jax.runs"] = types.ModuleType("spheroid_jax.runs")
    runs.__path__ = [{str(Path(fleets.__file__).parents[1])!r}]
    from spheroid_jax.runs.exchange.processes import start
    from spheroid_jax.transport.shaping import Shape
    import time
    commands = dict(a={SLEEPER!r}, b={SLEEPER!r})
    fleet = start(commands, Path({str(tmp_path)!r}), dict(b=Shape()), hosts={hosts!r})
    print(*(process.pid for process in fleet._running.values()), fleet._keeper.pid)
    time.sleep(600)
    """
    with subprocess.Popen(python(code), stdout=subprocess.PIPE) as experiment:
        pids = [int(word) for word in experiment.stdout.readline().split()]
        assert len(pids) == 4
        assert all(map(alive, pids))
        if hosts == "namespaces":
            assert len(namespaces(experiment.pid)) == 3
        experiment.send_signal(number)
        experiment.wait(LIMIT)
    until(lambda: not any(map(alive, pids)))
    assert namespaces(experiment.pid) == []


def test_what_a_dead_run_left_is_removed_and_that_of_a_live_one_is_not(
    can_have_namespaces,
):
    with subprocess.Popen(python("")) as dead:
        dead.wait(LIMIT)
    mine = hosts_._started(os.getpid())
    names = {
        "gone": f"spheroid-{dead.pid}-{mine}-abc-1",
        # Its number is another process's by now.
        "replaced": f"spheroid-{os.getpid()}-{int(mine) - 1}-abc-1",
        "live": f"spheroid-{os.getpid()}-{mine}-abc-1",
        "foreign": f"spheroid-x-{os.getpid()}",
    }
    try:
        for name in names.values():
            subprocess.run(["ip", "netns", "add", name], check=True)
        command = ["ip", "netns", "exec", names["gone"], *SLEEPER]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as left:
            try:
                assert left.stdout.readline() == b"here\n"
                hosts_.remove_stale()
                assert left.wait(LIMIT) == -signal.SIGKILL
            finally:
                left.kill()
        there = {path.name for path in Path("/run/netns").iterdir()}
        assert there & set(names.values()) == {names["live"], names["foreign"]}
    finally:
        hosts_.remove_namespaces(names.values())


def test_where_there_are_no_namespaces_the_report_says_what_is_used(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))  # no ip there
    commands = {"coordinator": COORDINATOR, "worker": WORKER}
    with start(commands, tmp_path, {"worker": Shape(0.01)}) as fleet:
        fleet.wait(LIMIT, ["worker"])
        assert fleet.network == (
            "loopback addresses (no network namespaces: "
            "there is no program ip (iproute2))"
        )
        hosts = {address.partition(":")[0] for address in fleet.addresses.values()}
        assert hosts == {"127.0.0.2", "127.0.0.3"}
    with pytest.raises(FleetError, match="no program ip"):
        start(commands, tmp_path, hosts="namespaces")


def test_a_program_that_is_not_there_is_one_line_and_ends_the_others(tmp_path):
    commands = {"coordinator": SLEEPER, "worker": [str(tmp_path / "nothing")]}
    with pytest.raises(FleetError, match="^worker can't be started: No such file"):
        start(commands, tmp_path)


@pytest.mark.parametrize(
    ("commands", "options", "said"),
    [
        ({}, {}, "commands = {}"),
        ({"../up": SLEEPER}, {}, "commands: '../up' is no name"),
        ({"a.link": SLEEPER}, {}, "commands: 'a.link' is no name"),
        ({"a": SLEEPER}, {"links": {"b": Shape()}}, "links: 'b' is none of a"),
        ({"a": SLEEPER}, {"links": {"a": Shape()}}, "links: the coordinator has none"),
        ({"a": SLEEPER}, {"later": ["b"]}, "later: 'b' is none of a"),
        ({"a": SLEEPER}, {"hosts": "moon"}, "hosts = 'moon': use one of best, same, "),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    commands, options, said, tmp_path
):
    with pytest.raises(ValueError, match=re.escape(said)):
        start(commands, tmp_path / "logs", **options)
    assert not (tmp_path / "logs").exists()


def test_last_lines_are_one_line_of_what_can_be_printed(tmp_path):
    log = tmp_path / "log"
    assert last_lines(log) == "none"
    log.write_bytes(b"one\ntwo\r\n\x1b[31mthree\xff\n\n" + b"x" * 1000 + b"\n")
    assert last_lines(log) == "two | [31mthree\ufffd | " + "x" * 300
