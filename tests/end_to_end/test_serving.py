"""A served model as processes: stages, a replica, a front end; OpenAI's client; faults.

All processes share one machine here; what they say to each other goes over sockets.
"""

import base64
import concurrent.futures
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from spheroid_jax.serving.generate import generate
from spheroid_jax.serving.loading import load_model
from spheroid_jax.transport.tokens import mint
from tests.serving.untrained import save_run

ROOT = Path(__file__).parents[2]
BLOCKS = 3
PLACES = 32
PROMPT = b"It was the best"
LENGTH = 24  # longer than what fits: two segments
FIELDS = f"model.blocks={BLOCKS} data.seq_len={PLACES}"


@dataclasses.dataclass(frozen=True)
class Served:
    """A run's directory, and what it writes: {seed: bytes}."""

    run: Path
    texts: dict[int, bytes]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("served") / "run"
    run = save_run(folder, "blocktrain", fields=FIELDS)
    stages, params, _ = load_model(run)
    # Row i of a batch has seed + i.
    made = generate(stages, params, [PROMPT] * 8, LENGTH, "token", seed=0)
    return Served(run, dict(enumerate(made.texts)))


class Process:
    """A process of ours; its lines lie in a file."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "experiments.serve", *arguments],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "XLA_FLAGS": "--xla_backend_optimization_level=0",
                    "PYTHONUNBUFFERED": "1",
                },
            )

    def port(self, seconds: float = 300.0) -> int:
        """Where it listens, once it says so."""
        found = self.said(r"listens on \S+:(\d+)", seconds)
        return int(found[1])

    def said(self, pattern: str, seconds: float = 60.0) -> re.Match[str]:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if found := re.search(pattern, self.log.read_text()):
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"{self.log.name}: no {pattern}: {self.log.read_text()}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Asks it to end; its exit status."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(20.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@dataclasses.dataclass
class House:
    """Stages 0, 1, 1 and 2, and a front end."""

    folder: Path
    stages: list[Process]
    frontend: Process
    url: str

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="x", max_retries=0)

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        return status, json.loads(content) if content[:1] == b"{" else content

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        ends = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends, self.frontend.log.read_text()
            time.sleep(0.05)

    def healthy(self) -> bool:
        return self.get("/healthz")[0] == 200

    def gauge(self, name: str) -> list[float]:
        found = re.findall(rf"^{name}\S* (\S+)$", self.metrics(), re.M)
        return [float(value) for value in found]

    def metrics(self) -> str:
        return bytes(self.get("/metrics")[1]).decode()


def stage(
    served: Served, folder: Path, index: int, name: str, port: int = 0
) -> Process:
    return Process(
        folder,
        name,
        f"--stage={index}",
        f"--checkpoint={served.run}",
        f"--listen=127.0.0.1:{port}",
        f"--token-file={folder / 'token'}",
        "--slots=8",
        "--max-batch=1",
        "--warm=1,16,32",
    )


@pytest.fixture(scope="module")
def house(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text(mint()[0])
    started: list[Process] = []
    try:
        for place, index in enumerate((0, 1, 1, 2)):
            started.append(stage(served, folder, index, f"stage{place}"))
        addresses = [f"127.0.0.1:{one.port()}" for one in started]
        frontend = Process(
            folder,
            "frontend",
            "--frontend",
            f"--stages={','.join(addresses)}",
            f"--token-file={folder / 'token'}",
            "--listen=127.0.0.1:0",
            "--patience=3",
            "--request-seconds=300",
            "--sweep-seconds=300",  # some programs are compiled when they are needed
        )
        started.append(frontend)
        it = House(
            folder, started[:-1], frontend, f"http://127.0.0.1:{frontend.port()}"
        )
        it.until(it.healthy)
        yield it
    finally:
        for one in started:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()


def write(house: House, seed: int, method: str, length: int = LENGTH) -> bytes:
    """A text, by OpenAI's client, in pieces."""
    with house.client() as client:
        stream = client.completions.create(
            model="b3_l4",
            prompt=PROMPT.decode(),
            max_tokens=length,
            seed=seed,
            stream=True,
            extra_body={"method": method},
        )
        parts = [base64.b64decode(chunk.choices[0].bytes) for chunk in stream]  # type: ignore[attr-defined]
    return b"".join(parts)


def test_openai_client_gets_what_generate_writes(house: House, served: Served) -> None:
    assert write(house, 3, "token") == served.texts[3]
    with house.client() as client:
        whole = client.completions.create(
            model="b3_l4", prompt=PROMPT.decode(), max_tokens=LENGTH, seed=0, n=4
        )
        found = [base64.b64decode(choice.bytes) for choice in whole.choices]  # type: ignore[attr-defined]
        assert found == [served.texts[seed] for seed in range(4)]
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 4 * LENGTH
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="a")
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="b3_l4", prompt="a", max_tokens=10**6)
    status, models = house.get("/v1/models")
    assert (status, models["data"][0]["places"]) == (200, PLACES)


def test_the_example_of_the_documentation_runs(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "serving.md").read_text()
    (code,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    there = code.replace("http://127.0.0.1:8471", house.url)
    # Fewer bytes, and drafts need programs that aren't compiled here.
    there = there.replace("max_tokens=64", "max_tokens=8").replace(
        "speculative=16", "token"
    )
    exec(compile(there, "docs/serving.md", "exec"), {})
    assert capsys.readouterr().out.endswith("\n")
    assert "127.0.0.1:8471" not in there


@pytest.mark.slow
def test_drafts_are_verified_to_the_same_text(house: House, served: Served) -> None:
    assert write(house, 4, "speculative=4") == served.texts[4]


def test_a_replica_is_killed_under_load(house: House, served: Served) -> None:
    """Every text ends with the bytes that it has without the loss."""
    victim = house.stages[1]
    seeds = list(range(8))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(write, house, seed, "token") for seed in seeds]
        house.until(lambda: house.gauge("spheroid_serving_trips_total")[0] > 0)
        house.until(lambda: house.gauge("spheroid_serving_in_flight")[0] > 0)
        victim.signal(signal.SIGKILL)
        found = [one.result(300.0) for one in asked]
    assert found == [served.texts[seed] for seed in seeds]
    assert house.healthy()  # the other replica is there


def test_the_last_replica_hangs_and_comes_back(house: House, served: Served) -> None:
    """A clear error within the time; and business as usual after it."""
    hung = house.stages[2]
    hung.signal(signal.SIGSTOP)
    house.until(lambda: not house.healthy())
    status, health = house.get("/healthz")
    assert (status, health["missing"]) == (503, [1])
    began = time.monotonic()
    with pytest.raises(openai.InternalServerError, match="block 1 has no stage"):
        write(house, 0, "token")
    assert time.monotonic() - began < 10.0
    hung.signal(signal.SIGCONT)
    house.until(house.healthy)
    assert write(house, 0, "token") == served.texts[0]
    port = int(house.stages[1].said(r"listens on \S+:(\d+)")[1])
    house.stages[1] = stage(served, house.folder, 1, "again", port)
    house.stages[1].port()
    house.until(lambda: sum(house.gauge("spheroid_serving_stage_up")) == 4)


def test_a_client_that_goes_away_leaves_nothing(house: House) -> None:
    with house.client() as client:
        stream = client.completions.create(
            model="b3_l4", prompt="a", max_tokens=4000, n=4, stream=True
        )
        next(iter(stream))
        assert house.gauge("spheroid_serving_in_flight") == [4.0]
        stream.close()
    house.until(lambda: house.gauge("spheroid_serving_in_flight") == [0.0])
    house.until(lambda: house.gauge("spheroid_serving_stage_slots_free") == [8.0] * 4)


def test_sigterm_ends_all_in_seconds(house: House) -> None:
    """A text that is being written is written; the last test of this house."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(write, house, 1, "token")
        house.until(lambda: house.gauge("spheroid_serving_in_flight") == [1.0])
        assert house.frontend.end() == 0
        assert len(asked.result(10.0)) == LENGTH
    for one in house.stages:
        assert one.end() == 0
        assert "Traceback" not in one.log.read_text()
    assert "Traceback" not in house.frontend.log.read_text()


def test_all_in_one_process(served: Served, tmp_path: Path) -> None:
    process = Process(
        tmp_path,
        "local",
        "--local",
        f"--checkpoint={served.run}",
        "--listen=127.0.0.1:0",
        "--slots=4",
        "--max-batch=1",
    )
    try:
        found = process.said(r"front end listens on (http://\S+)/v1", 300.0)
        house = House(tmp_path, [], process, found[1])
        house.until(house.healthy)
        assert write(house, 2, "token") == served.texts[2]
        # It may compile what nobody has asked for: it ends after the program in hand.
        assert process.end() == 0
        log = process.log.read_text()
        assert "Traceback" not in log
        assert "warning" not in log.lower()
        assert log.endswith("has stopped\n")
        assert log.startswith(f"loads {served.run} ...\n")
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait()
