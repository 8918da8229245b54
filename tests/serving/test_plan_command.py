"""The command that plans: its hosts, its files, its tables, its mistakes."""

import dataclasses
import json
from pathlib import Path

import pytest

from experiments import plan
from spheroid_jax.commandline import configured
from spheroid_jax.runs.workdir import open_workdir
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.planner import Cluster, Host, Link, parse_host, read_cluster

HOSTS = tuple(Host(name, 1.0, 10.0, 0.001, 0.002) for name in "ab")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:80:1935", "write NAME:GiB:GB/s:TFLOP/s"),
        ("a:80:x:312", "write NAME:GiB:GB/s:TFLOP/s"),
        (":80:1935:312", "write NAME:GiB:GB/s:TFLOP/s"),
        ("a:0:1935:312", "memory of host a is 0.0; give a number above 0"),
        ("a:80:nan:312", "bandwidth of host a is nan"),
        ("a:80:1935:312:-1", "overhead of host a is -1.0; give a number from 0"),
    ],
)
def test_a_host_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(ServingError) as caught:
        parse_host(text)
    assert said in str(caught.value)


def test_a_file_of_hosts_gives_each_link(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    hosts = [dataclasses.asdict(host) for host in HOSTS]
    links = [{"latency": 0.01}, {"latency": 0.02, "rate": 1e6}, {}]
    file.write_text(json.dumps({"hosts": hosts, "links": links, "frontend": 0.001}))
    found = read_cluster(file)
    assert found == Cluster(HOSTS, (Link(0.01), Link(0.02, 1e6), Link()), 0.001)
    file.write_text(json.dumps({"hosts": hosts}))
    assert read_cluster(file, 0.04).links == (Link(0.02),) * 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "is no list of hosts"),
        ("{", "is no list of hosts"),
        ('{"hosts": []}', "there are no hosts"),
        ('{"hosts": [{"name": "a"}]}', "is no list of hosts"),
        (
            '{"hosts": [{"name": "a", "memory": 1, "bandwidth": 1, "flops": 1}], '
            '"links": [{}]}',
            "there are 1 links for 1 hosts; give 2",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hosts.json"
    file.write_text(content)
    assert plan.main(["--preset=paper", f"--hosts={file}"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_command_prints_the_papers_rows_beside_the_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan.main(["--preset=paper"]) == 0
    said = capsys.readouterr().out
    rows = {
        line.split("  ")[0]: line.split()[-3:-1]
        for line in said.splitlines()
        if line.startswith(("one sweep,", "token-by-token", "ratio", "output"))
    }
    assert [theirs for _, theirs in rows.values()] == ["376", "2.80", "134", "128"]
    ratio = float(rows["ratio"][0])
    assert ratio == pytest.approx(128, rel=0.02)
    assert "second-hand" in said
    assert "47.3" in said  # GiB of parameters a host


def test_no_more_requests_are_in_the_pipeline_than_there_are_slots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {}
    for slots, wanted in ((4, 64), (16, 64), (16, 4)):
        file = tmp_path / f"{slots}-{wanted}.json"
        asked = [f"--slots={slots}", f"--concurrency={wanted}", f"--json={file}"]
        assert plan.main(["--preset=paper", "--methods=token", *asked]) == 0
        said = capsys.readouterr().out
        assert (f"for {wanted} requests at once" in said) == (slots < wanted)
        found = json.loads(file.read_text())["methods"]
        assert {each["concurrency"] for each in found} == {min(slots, wanted)}
        rates[slots, wanted] = [each["full_rate"] for each in found]
    assert rates[4, 64] == rates[16, 4]
    # Nothing goes faster than a trip for each byte of each request that is inside.
    alone = 1 / found[0]["trip_seconds"]
    assert all(rate <= 4 * alone * (1 + 1e-9) for rate in rates[4, 64])


def test_the_command_takes_a_configuration_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = [f"--host={name}:16:20:0.1" for name in "abc"]
    config = "configs/b3_l4.py:small"
    arguments = [*hosts, "--rtt=0.04", "--output=64", "--json=-"]
    assert plan.main([f"--config={config}", *arguments]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["size"]["width"], said["size"]["layers"]) == (96, 12)
    assert [p["blocks"] for p in said["placement"]] == [1, 1, 1]
    sweep = next(m for m in said["methods"] if m["method"] == "one_sweep:expected")
    assert sweep["network"] == [0.02] * 4
    assert sweep["trip_seconds"] == pytest.approx(64 / sweep["rate"])
    # The same from the directory of a run, and of its checkpoints.
    open_workdir(tmp_path / "run", configured(config, []), False)
    for path in (tmp_path / "run", tmp_path / "run" / "checkpoints" / "blocktrain"):
        assert plan.main([f"--checkpoint={path}", *arguments]) == 0
        assert json.loads(capsys.readouterr().out) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "there is no model; add --preset=paper"),
        (["--config=configs/b3_l4.py"], "there are no hosts; add --host="),
        (["--config=configs/delayed.py", "--host=a:1:1:1"], "kind blocks"),
        (["--checkpoint=/nowhere", "--host=a:1:1:1"], "has no config.json"),
        (["--shape=16:6:3:2", "--host=a:1:1:1"], "write WIDTH:LAYERS"),
        (["--shape=16:7:3:2:32", "--host=a:1:1:1"], "give a multiple of 3"),
        (["--shape=16:6:3:5:32", "--host=a:1:1:1"], "give a multiple of 5"),
        (["--preset=paper", "--methods=tokens"], "did you mean 'token'?"),
        (["--preset=paper", "--slots=64"], "GiB are missing (GH200 lacks"),
        (["--preset=paper", "--slots=0"], "slots is 0"),
        (["--preset=paper", "--concurrency=0"], "concurrency is 0"),
        (["--preset=paper", "--output=0"], "output is 0"),
        (["--preset=paper", "--acceptance=2"], "acceptance is 2.0"),
        (["--preset=paper", "--rtt=nan"], "rtt is nan"),
        (["--preset=paper", "--hosts=/nowhere.json"], "can't read /nowhere.json"),
        (["--preset=paper", "--json=/nowhere/x"], "can't write /nowhere/x"),
        (["--preset=paper", "--hosts=x", "--host=y"], "give one of the two"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = plan.main(arguments)
    except SystemExit as ended:
        status = int(ended.code or 0)
    captured = capsys.readouterr()
    assert status == 2
    assert said in captured.err
    assert captured.err.count("\n") == 1
