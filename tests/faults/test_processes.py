"""The same with real programs: killed by the kernel at a moment that the disk shows."""

import json
import math
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spheroid_jax import manifests
from spheroid_jax.transport.ledger import Ledger
from tests.end_to_end.test_exchange import WITHIN, Scene, of, said

pytestmark = pytest.mark.slow

FEW, MANY = 6, 40  # rounds; many where processes start while they go on
NAMES = ("ann", "bob", "eve")
_VERDICT = re.compile(r"^round (\d+), block (\d+): .*, accepted", re.M)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    try:
        yield made
    finally:
        for process in made.programs:
            process.kill()
            process.wait(30)


def _steps(scene: Scene) -> list[Path]:
    directory = scene.run / "checkpoints" / "blocktrain"
    if not directory.is_dir():
        return []
    return [p for p in directory.iterdir() if p.name.split(".")[0] not in ("0", "")]


def _update_is_there(scene: Scene) -> bool:
    return any((scene.run / "exchange" / "updates").glob("*.update"))


def _checkpoint_is_begun(scene: Scene) -> bool:
    return any(not (step / manifests.MANIFEST).exists() for step in _steps(scene))


def _checkpoint_counts(scene: Scene) -> bool:
    done = [s for s in _steps(scene) if (s / manifests.MANIFEST).exists()]
    return bool(done) and _update_is_there(scene)  # which the round's end deletes


def _upload_has_begun(scene: Scene) -> bool:
    return any((scene.run / "exchange" / "uploads").glob("*"))


def _begin(
    scene: Scene, rounds: int
) -> tuple["subprocess.Popen[str]", dict[str, list["subprocess.Popen[str]"]]]:
    """A coordinator and workers, who have all met."""
    coordinator = _coordinator(scene, rounds)
    scene.when(lambda s: True)
    workers = {name: [scene.worker(name)] for name in NAMES}
    scene.when(lambda s: {w["name"] for w in s["workers"]} == set(NAMES))
    return coordinator, workers


def _coordinator(scene: Scene, rounds: int) -> "subprocess.Popen[str]":
    return scene.coordinator("--config.exchange.workers=3", rounds=rounds)


def _kill_once(
    scene: Scene, program: "subprocess.Popen[str]", when: Callable[[Scene], bool]
) -> None:
    """Kills a program as soon as the disk looks like that."""
    ends = time.monotonic() + WITHIN
    while not when(scene):
        assert time.monotonic() < ends, said(program)
        assert program.poll() is None, said(program)
        time.sleep(0.0005)
    program.kill()
    assert program.wait(30) == -signal.SIGKILL


def _check(
    scene: Scene, workers: dict[str, list["subprocess.Popen[str]"]], last: int
) -> None:
    """Nothing that a worker was promised is lost, and nothing counts twice."""
    with Ledger.open(scene.run / "exchange" / "ledger.db", create=False) as ledger:
        updates, rounds = ledger.remembered(), ledger.rounds()
    in_ledger = {(u.worker, u.round, u.block) for u in updates}
    assert len({(u.block, u.replica, u.round) for u in updates}) == len(updates)
    assert all(u.applies_in < last for u in updates)
    told = [
        (name, int(round_) - 1, int(block))
        for name, programs in workers.items()
        for program in programs
        for round_, block in _VERDICT.findall(said(program))
    ]
    assert told
    assert set(told) <= in_ledger
    for number, facts in rounds:
        assert facts["heard"] == sum(u.applies_in == number - 1 for u in updates)
    records = [
        json.loads(line)
        for line in (scene.run / "metrics.jsonl").read_text().splitlines()
    ]
    numbers = [record["round"] for record in records]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == last
    losses = [r["ce_chain"] for r in records if "ce_chain" in r]
    assert losses
    assert all(math.isfinite(loss) for loss in losses)


@pytest.mark.parametrize(
    "moment",
    [_upload_has_begun, _update_is_there, _checkpoint_is_begun, _checkpoint_counts],
    ids=lambda moment: moment.__name__.strip("_"),
)
def test_a_coordinator_is_killed_twice(
    scene: Scene, moment: Callable[[Scene], bool]
) -> None:
    coordinator, workers = _begin(scene, FEW)
    for _ in range(2):
        _kill_once(scene, coordinator, moment)
        coordinator = _coordinator(scene, FEW)
    assert coordinator.wait(WITHIN) == 0, said(coordinator)
    for (worker,) in workers.values():
        assert worker.wait(WITHIN) == 0, said(worker)
    _check(scene, workers, FEW)


def test_workers_are_killed_while_they_fetch_train_and_send(scene: Scene) -> None:
    coordinator, workers = _begin(scene, MANY)
    moments = {
        "ann": "items/**/*.part",
        "bob": "slots/*/inner*",
        "eve": "outbox/upload.json",
    }
    for name, pattern in moments.items():
        folder = scene.directory / name

        def there(_: Scene, folder: Path = folder, pattern: str = pattern) -> bool:
            return any(folder.glob(pattern))

        _kill_once(scene, workers[name][0], there)
        workers[name].append(scene.worker(name))
    assert coordinator.wait(WITHIN) == 0, said(coordinator)
    for programs in workers.values():
        assert programs[-1].wait(WITHIN) == 0, said(programs[-1])
    _check(scene, workers, MANY)


def test_a_worker_that_stands_still_is_waited_for_until_the_deadline(
    scene: Scene,
) -> None:
    deadline = 4.0
    scene.coordinator(
        f"--config.network.deadline={deadline}",
        "--config.exchange.lease=600",  # which isn't what ends the rounds
        rounds=100_000,
    )
    scene.when(lambda s: True)
    stuck = scene.worker("ann")
    for name in NAMES[1:]:
        scene.worker(name)
    scene.when(lambda s: all(of(s, name).get("accepted", 0) > 1 for name in NAMES))
    stuck.send_signal(signal.SIGSTOP)
    begun = scene.status()["round"]
    status = scene.when(lambda s: s["round"] >= begun + 4)
    # Its update may have been in before; and who is behind isn't waited for again.
    without = [r for r in status["rounds_log"] if r["round"] > begun and r["heard"] < 3]
    assert len(without) >= 2
    assert any(record["seconds"] >= deadline for record in without)
    assert all(record["seconds"] < deadline + 30 for record in without)
    count = of(status, "ann")["accepted"]
    stuck.send_signal(signal.SIGCONT)
    scene.when(lambda s: of(s, "ann")["accepted"] > count)
