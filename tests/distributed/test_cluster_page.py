"""The launchers in docs/cluster.md run, up to the command they launch."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from spheroid_jax.commandline import Options, parse

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
STUB = '#!/bin/bash\nprintf "%s\\n" "$@" > "$SEEN"\n'


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return found


def run(script: str, stub: str, folder: Path, **environment: str) -> list[str]:
    """Runs a script in which ``stub`` only notes its arguments; returns these."""
    program = folder / "bin" / stub
    program.parent.mkdir(exist_ok=True)
    program.write_text(STUB)
    program.chmod(0o755)
    seen = folder / "seen"
    path = f"{program.parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-c", script],
        env={"PATH": path, "SEEN": str(seen), **environment},
        check=True,
        timeout=60,
        cwd=folder,
    )
    return seen.read_text().splitlines()


def parsed(arguments: list[str], program: str) -> Options:
    """The options that follow the program's name, as the program reads them."""
    assert arguments[arguments.index("-m") + 1] == program
    return parse(arguments[arguments.index("-m") + 2 :])


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def slurm(folder: Path) -> Options:
    arguments = run(
        *(block("bash"), "srun", folder),
        SLURM_SUBMIT_DIR=str(folder),
        SLURM_JOB_ID="7",
    )
    assert arguments[0].startswith("--kill-on-bad-exit")
    return parsed(arguments, "experiments.run")


def test_the_slurm_script_starts_a_run_and_goes_on_with_it(tmp_path: Path) -> None:
    options = slurm(tmp_path)
    assert options.group.detect
    assert not options.resume
    workdir = Path(options.workdir)
    assert workdir == tmp_path / "runs" / "blocktrain-7"
    workdir.mkdir(parents=True)
    (workdir / "config.json").write_text("{}")
    assert slurm(tmp_path).resume


def test_the_kubernetes_job_starts_as_many_processes_as_it_has_pods(
    tmp_path: Path,
) -> None:
    service, job = yaml.safe_load_all(block("yaml"))
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    for index in range(spec["completions"]):
        arguments = run(
            *(container["args"][0], "python", tmp_path), JOB_COMPLETION_INDEX=str(index)
        )
        group = parsed(arguments, "experiments.run").group
        assert (group.process, group.processes) == (index, spec["parallelism"])
        host, port = group.coordinator.split(":")
        # Pods are called JOB-INDEX, and found under the service's name.
        assert host == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
        assert int(port) == container["ports"][0]["containerPort"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None"
    assert container["command"][0] == "/bin/bash"


def test_the_commands_of_the_page_are_understood() -> None:
    consoles = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    commands = re.findall(
        r"python -m experiments\.run ((?:[^\n]*\\\n)*[^\n&]*)", "\n".join(consoles)
    )
    assert len(commands) == 2
    for command in commands:
        options = parse(command.replace("\\\n", " ").replace("$i", "2").split())
        assert options.group.processes == 3
        assert options.config.mesh.block * options.config.mesh.replica == 6


def test_the_page_knows_every_flag() -> None:
    help_ = subprocess.run(
        ["grep", "-o", '"--[a-z-]*"', "spheroid_jax/commandline.py"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    flags = set(help_.replace('"', "").split()) - {"--config"}
    assert len(flags) == 8
    assert {flag for flag in flags if f"`{flag}" not in PAGE} == set()
