"""Runs with faults: nothing accepted is lost or applied twice, and every run ends.

Each schedule is a whole run over HTTP, with a coordinator and workers that are killed
and started again, requests that are lost, repeated and reordered, and a network that
breaks. What goes wrong hangs on its seed alone; which thread is faster does not, so a
failure may need a few tries to come again. To play one, or some, again:

    FAULTS_SEEDS=17 pytest tests/faults/test_schedules.py -k again
    FAULTS_SEEDS=0-99 pytest tests/faults/test_schedules.py -k again
"""

import collections
import os
from pathlib import Path

import pytest

from tests.faults import counting, failpoints
from tests.faults.run import check, play
from tests.faults.schedules import KINDS, LINK, POISON, WIRE, draw

ALL = range(240)
SOON = range(0, 240, 8)  # of them, those that every run of the tests plays
_happened: collections.Counter[str] = collections.Counter()


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """What is compiled once for all schedules takes none of their time."""
    for replicas in (1, 2):
        counting.trainer(replicas)
        counting.first(replicas)


def _play(seed: int, directory: Path) -> None:
    over = play(draw(seed), directory)
    check(over)
    _happened.update(over.happened)


@pytest.mark.parametrize("seed", SOON)
def test_a_run_survives_its_faults(seed: int, tmp_path: Path) -> None:
    _play(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [seed for seed in ALL if seed not in SOON])
def test_every_run_survives_its_faults(seed: int, tmp_path: Path) -> None:
    _play(seed, tmp_path)


@pytest.mark.slow
def test_everything_has_happened() -> None:
    """No fault is one in name only; after the schedules above."""
    if _happened["schedule"] < len(ALL) - len(SOON):
        pytest.skip("not all schedules were played in this process")
    due = {
        *(f"coordinator {point}" for point in failpoints.COORDINATOR),
        *(f"coordinator serve {kind}" for kind in KINDS),
        *(f"worker {point}" for point in failpoints.WORKER),
        *(f"worker ask {kind}" for kind in KINDS),
        *(f"request {what}" for what in LINK),
        *(f"wire {kind}" for kind in WIRE),
        *(f"poison {what}" for what in POISON),
        *(f"end {how}" for how in ("kill", "gone", "replace", "stop", "twin")),
        *(f"verdict {word}" for word in ("accepted", "late", "rejected")),
    }
    assert not due - {name for name, count in _happened.items() if count}


@pytest.mark.skipif("FAULTS_SEEDS" not in os.environ, reason="FAULTS_SEEDS says which")
def test_again(tmp_path: Path) -> None:
    first, _, last = os.environ["FAULTS_SEEDS"].partition("-")
    for seed in range(int(first), int(last or first) + 1):
        directory = tmp_path / str(seed)
        directory.mkdir()
        print(draw(seed), flush=True)
        _play(seed, directory)


def test_a_schedule_is_that_of_its_seed() -> None:
    assert draw(5) == draw(5)
    assert len({str(draw(seed)).split("\n", 1)[1] for seed in ALL}) == len(ALL)
