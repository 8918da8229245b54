"""A worker whose numbers aren't finite, or too large: what it says and goes on from."""

import asyncio
import functools
import math
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.transport import slots as module
from spheroid_jax.transport.trainer import Trained, Trainer
from spheroid_jax.transport.updates import Encoding
from tests.transport.coordinator.puppets import running
from tests.transport.tiny import TinyRun

ROUNDS = 3
INT8 = Encoding("int8", 0)


class Sick(Trainer):
    """Its numbers are as a broken machine's from a round on, where AdamW's state is."""

    def __init__(self, sound: Trainer, round_: int, value: float) -> None:
        self.__dict__.update(sound.__dict__)
        self.round, self.value = round_, value
        self.states: list[bool] = []  # whether there was one

    def train(self, part: Any, state: Any, round_: int, *slot: int) -> Trained:
        self.states.append(state is not None)
        trained = super().train(part, state, round_, *slot)
        if self.round == round_:
            name = sorted(trained.delta)[0]
            spoiled = trained.delta[name].copy()
            spoiled.flat[-1] = self.value
            trained = trained._replace(delta={**trained.delta, name: spoiled})
        return trained


def alone(path: Path, encoding: Encoding = INT8) -> TinyRun:
    return TinyRun(path, blocks=1, replicas=1, rounds=ROUNDS, encoding=encoding)


def with_sick_numbers(run: TinyRun, value: float, round_: int = 1) -> Sick:
    trainer = Sick(run.trainer, round_, value)

    async def scenario() -> None:
        async with running(run) as task:
            worker = run.worker("a", trainer=trainer)
            await worker.register()
            assert await worker.run() == "finished"
            await task

    asyncio.run(scenario())
    return trainer


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_refused_for_its_numbers_costs_adamws_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """As where the encoding spoils them: the worker sees nothing before the answer."""
    run = alone(tmp_path, Encoding("float32", 0))
    monkeypatch.setattr(Trained, "is_finite", True)
    write = functools.partial(module.write_update, finite=False)
    monkeypatch.setattr(module, "write_update", write)
    trainer = with_sick_numbers(run, value)
    assert trainer.states == [False, True, False]
    told = [line for line in run.said if line.startswith("a: ")]
    (refused,) = [line for line in told if "rejected" in line]
    assert "AdamW starts anew" in refused
    assert "lower train.learning_rate" in refused
    log = run.coordinator.status()["rounds_log"]
    assert [r["heard"] for r in log] == [1, 0, 1]
    run.close()


@pytest.mark.parametrize("value", [math.nan, 3.4e38])
def test_an_update_that_cant_be_sent_costs_adamws_state(
    tmp_path: Path, value: float
) -> None:
    """Also where it is a float32, and too large for the encoding alone."""
    run = alone(tmp_path, Encoding("bfloat16", 0))
    trainer = with_sick_numbers(run, value)
    assert trainer.states == [False, True, False]
    (line,) = [line for line in run.said if "sent; AdamW starts anew" in line]
    assert "lower train.learning_rate" in line
    run.close()


def test_a_state_thrown_away_isnt_on_the_disk_either(tmp_path: Path) -> None:
    """A process that is killed right after begins as the one before it would have."""
    run = alone(tmp_path)
    with_sick_numbers(run, math.nan, ROUNDS - 1)
    place = tmp_path / "workers" / "a" / "slots" / "0-0"
    assert list(place.iterdir()) == []
    run.close()


def test_an_update_refused_for_its_norm_costs_no_state(tmp_path: Path) -> None:
    """It is finite, so is what it came from, and a fresh AdamW takes larger steps."""
    run = alone(tmp_path)
    trainer = with_sick_numbers(run, 1e6)
    assert trainer.states == [False, True, True]
    assert any("over the bound" in line for line in run.said)
    run.close()
