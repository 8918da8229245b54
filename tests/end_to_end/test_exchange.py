"""Coordinator and workers as programs, as the README starts them; killed in between."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.transport.dashboard.browser import Tab, browser, installed

ROOT = Path(__file__).parents[2]
TINY = [
    "--config=configs/wan.py",
    "--config.model.width=16",
    "--config.model.layers=1",
    "--config.data.corpus=embedded",
    "--config.data.seq_len=16",
    "--config.data.batch=2",
    "--config.train.local_steps=2",
    "--config.train.replicas=1",
    "--config.network.deadline=30",
    "--config.exchange.heartbeat=0.5",
    "--config.exchange.lease=3",
    "--config.exchange.drain=5",
    "--config.eval.windows=32",
]
WITHIN = 240.0  # seconds for any one thing to happen, on a busy machine


class Scene:
    """Programs in a directory; all of them end with it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.run = directory, directory / "run"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://localhost:{self.port}"
        self.programs: list[subprocess.Popen[str]] = []

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        log = self.directory / f"{program}-{len(self.programs)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", f"experiments.{program}", *arguments],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "XLA_FLAGS": "", "OMP_NUM_THREADS": "1"},
            )
        process.log = log  # type: ignore[attr-defined]
        self.programs.append(process)
        return process

    def coordinator(self, *more: str, rounds: int) -> subprocess.Popen[str]:
        return self.start(
            "coordinator",
            *TINY,
            f"--config.train.rounds={rounds}",
            f"--workdir={self.run}",
            f"--listen=127.0.0.1:{self.port}",
            *more,
        )

    def worker(self, name: str, *more: str) -> subprocess.Popen[str]:
        token = self.directory / f"{name}.token"
        if not token.exists():
            made = subprocess.run(
                [
                    *(sys.executable, "-m", "experiments.tokens"),
                    *(f"--workdir={self.run}", f"--add={name}"),
                ],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
                timeout=WITHIN,
            )
            token.touch(mode=0o600)
            token.write_text(made.stdout)
        return self.start(
            "worker",
            f"--coordinator={self.url}",
            f"--token-file={token}",
            f"--workdir={self.directory / name}",
            *more,
        )

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/status", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def when(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first status for which something holds."""
        ends = time.monotonic() + WITHIN
        status: dict[str, Any] = {}
        while time.monotonic() < ends:
            with contextlib.suppress(urllib.error.URLError, OSError):
                status = self.status()
                if what(status):
                    return status
            time.sleep(0.2)
        logs = "\n".join(f"{p.log}:\n{p.log.read_text()}" for p in self.programs)  # type: ignore[attr-defined]
        raise AssertionError(f"never happened; {status}\n{logs}")


def of(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next((w for w in status["workers"] if w["name"] == name), {})


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    try:
        yield made
    finally:
        for process in made.programs:
            process.kill()
            process.wait(30)


def page_text(url: str) -> str:
    """What the dashboard shows in a browser, once it is live."""

    async def look(devtools: str) -> str:
        async with Tab.open(devtools, 1200, 900) as tab:
            await tab.go(url)
            await tab.until("document.querySelector('#link.live')")
            text: str = await tab.text()
            return text

    with browser() as devtools:
        return asyncio.run(asyncio.wait_for(look(devtools), WITHIN))


def said(process: subprocess.Popen[str]) -> str:
    text: str = process.log.read_text()  # type: ignore[attr-defined]
    return text


@pytest.mark.slow
def test_workers_join_and_are_killed_and_the_dashboard_shows_it(scene: Scene) -> None:
    first = scene.coordinator(rounds=100_000)
    ann = scene.worker("ann")
    scene.worker("bob")
    scene.when(lambda s: s["round"] >= 3 and of(s, "bob").get("accepted", 0) > 1)

    # A third one joins in the middle, and one is killed.
    scene.worker("eve")
    scene.when(lambda s: of(s, "eve").get("accepted", 0) > 1)
    ann.kill()
    status = scene.when(lambda s: of(s, "ann")["state"] == "gone")
    assert any("ann is gone" in p["text"] for p in status["problems"])
    later = scene.when(lambda s: s["round"] > status["round"] + 2)
    assert of(later, "ann")["accepted"] == of(status, "ann")["accepted"]
    # Every block is still trained: two workers take turns at three blocks.
    trained = [b["last_trained"] for b in status["blocks"]]
    scene.when(
        lambda s: all(
            b["last_trained"] > before
            for b, before in zip(s["blocks"], trained, strict=True)
        )
    )
    if installed() is not None:
        text = page_text(scene.url)
        for name in ("ann", "bob", "eve", "gone"):
            assert name in text

    # The coordinator is killed, too, and goes on; its workers find it again.
    before = scene.status()
    first.kill()
    first.wait(30)
    second = scene.coordinator(rounds=100_000)
    after = scene.when(lambda s: s["round"] > before["round"] + 2)
    assert after["run"] == before["run"]
    assert of(after, "bob")["accepted"] >= of(before, "bob")["accepted"]
    # The killed worker comes back with its token.
    count = of(after, "ann")["accepted"]
    scene.worker("ann")
    scene.when(lambda s: of(s, "ann")["accepted"] > count)

    second.send_signal(signal.SIGTERM)
    assert second.wait(WITHIN) == 130
    assert "the same command goes on with the run" in said(second)
    assert "report so far (" in said(second)
    assert "**Unfinished**" in (scene.run / "report.md").read_text()
    summary = json.loads((scene.run / "summary.json").read_text())
    assert (summary["state"], summary["run"]) == ("unfinished", after["run"])
    assert {"ann", "bob", "eve"} == summary["members"].keys()


@pytest.mark.slow
def test_a_run_over_tls_ends_and_tells_its_workers(scene: Scene) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    files = {n: scene.directory / f"{n}.pem" for n in ("ca", "certificate", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    issued.private_key_pem.write_to_path(files["key"])
    for blob in issued.cert_chain_pems:
        blob.write_to_path(files["certificate"], append=True)
    scene.url = scene.url.replace("http:", "https:")
    tls = [f"--certificate={files['certificate']}", f"--key={files['key']}"]
    coordinator = scene.coordinator(
        *tls, "--config.exchange.workers=2", "--config.exchange.encoding=int4", rounds=6
    )
    workers = [scene.worker(n, f"--ca={files['ca']}") for n in ("ann", "bob")]
    assert coordinator.wait(WITHIN) == 0, said(coordinator)
    for worker in workers:
        assert worker.wait(WITHIN) == 0, said(worker)
        assert "the run is over" in said(worker)
    assert "round 6/6" in said(coordinator)
    records = (scene.run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(r)["round"] for r in records] == list(range(1, 7))
    assert said(coordinator).rstrip().endswith("summary.json beside it")
    assert "Finished: all 6 rounds are done." in (scene.run / "report.md").read_text()
    summary = json.loads((scene.run / "summary.json").read_text())
    assert [p["round"] for p in summary["ce"]] == list(range(1, 7))
    assert summary["members"]["bob"]["accepted"] > 0
    assert (scene.run / "exchange.png").stat().st_size > 10_000


@pytest.mark.slow
def test_two_processes_with_one_token(scene: Scene) -> None:
    """In one folder the second one ends, elsewhere it takes over; nobody else ends."""
    scene.coordinator(rounds=100_000)
    first = scene.worker("ann")
    scene.when(lambda s: of(s, "ann").get("accepted", 0) > 1)
    second = scene.worker("ann")
    assert second.wait(WITHIN) == 1
    (line,) = said(second).splitlines()
    assert line.startswith(f"error: another worker process (process {first.pid})")
    assert "end it first, or give this one a token of its own" in line
    count = of(scene.status(), "ann")["accepted"]
    scene.when(lambda s: of(s, "ann")["accepted"] > count + 1)
    assert first.poll() is None

    third = scene.worker("ann", f"--workdir={scene.directory / 'elsewhere'}")
    assert first.wait(WITHIN) == 1
    assert "process has taken over" in said(first).splitlines()[-1]
    count = of(scene.status(), "ann")["accepted"]
    scene.when(lambda s: of(s, "ann")["accepted"] > count + 1)
    assert third.poll() is None


def refused(*arguments: str, program: str = "coordinator") -> str:
    """The one line with which a command line is refused."""
    done = subprocess.run(
        [sys.executable, "-m", f"experiments.{program}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WITHIN,
    )
    assert done.returncode in (1, 2), done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_what_is_wrong_with_a_command_is_said_in_one_line(tmp_path: Path) -> None:
    here = f"--workdir={tmp_path}"
    assert "--certificate=PEM --key=PEM, or --insecure" in refused(
        *TINY, here, "--listen=0.0.0.0:0"
    )
    assert "of kind blocks, which needs no coordinator" in refused(
        "--config=configs/b3_l4.py", here
    )
    (tmp_path / "token").write_text("")
    token = f"--token-file={tmp_path / 'token'}"
    url = "--coordinator=http://localhost:1"
    assert "is empty; put the token into it" in refused(url, token, program="worker")
