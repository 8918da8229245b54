"""Active states: counted from shapes, and compiled without allocating anything."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from spheroid_jax.config import memory
from spheroid_jax.memory import StepMemory, step_memory
from spheroid_jax.runs.memory import experiment, step
from spheroid_jax.validation import problems

WIDTH, LENGTH, BATCH, STEPS = 16, 8, 2, 3
LAYER = 12 * WIDTH**2 + 13 * WIDTH
# Table, positions, W_x, norm, head scale and bias; the noisy half: W_z, 32 features.
CLEAN = 256 * WIDTH + LENGTH * WIDTH + WIDTH**2 + 2 * WIDTH + 1 + 256
NOISY = CLEAN + WIDTH**2 + 32 * WIDTH


def tiny() -> ConfigDict:
    c = memory()
    c.model.blocks, c.model.layers, c.model.head_width = 2, 1, 8
    c.model.widths, c.compile.up_to = (WIDTH, 32), WIDTH
    c.data.seq_len, c.data.batch = LENGTH, BATCH
    c.train.local_steps = STEPS
    return c


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, list[str]]:
    workdir = tmp_path_factory.mktemp("memory") / "run"
    lines: list[str] = []
    summary = experiment.run_memory(
        tiny(), workdir, resume=False, command="again", say=lines.append
    )
    return workdir, summary, lines


Finished = tuple[Path, dict[str, Any], list[str]]


def test_the_files_of_a_run(finished: Finished) -> None:
    workdir, summary, _ = finished
    assert {path.name for path in workdir.iterdir()} == {
        *("config.json", "summary.json", "report.md", "memory.png"),
    }
    written = json.loads((workdir / "summary.json").read_text())
    assert written["rows"] == summary["rows"]


def test_parameters_are_those_of_the_layers_and_the_interface(
    finished: Finished,
) -> None:
    row = finished[1]["rows"][0]
    assert row["interface"]["params"] == NOISY
    assert row["worker"]["params"] == LAYER + NOISY
    # The reference has all layers and no noisy half.
    assert row["full"]["params"] == 2 * LAYER + CLEAN
    for who in ("worker", "full"):
        assert row[who]["adamw_gib"] == row[who]["params"] * 16 / 2**30


def test_a_compiled_step_is_given_weights_moments_and_windows(
    finished: Finished,
) -> None:
    row = finished[1]["rows"][0]
    windows = STEPS * BATCH * (LENGTH + 1)
    for who in ("worker", "full"):
        params, found = row[who]["params"], row[who]["compiled"]
        # Twelve bytes a parameter; besides them counters, the key and the block.
        few = found["arguments"] - 12 * params - windows
        assert 0 <= few < 100
        # Both are donated, and come back in their own place.
        assert 12 * params <= found["aliased"] <= 12 * params + 100
        # Metrics, and a pointer to each array.
        assert found["aliased"] <= found["outputs"] < found["aliased"] + 1024
        # The gradient at least.
        assert found["temporaries"] > 4 * params
        assert found["total"] == (
            found["arguments"]
            + found["outputs"]
            - found["aliased"]
            + found["temporaries"]
        )


def test_a_width_beyond_the_limit_is_arithmetic_and_says_why(
    finished: Finished,
) -> None:
    wide = finished[1]["rows"][1]
    assert wide["width"] == 32
    for who in ("worker", "full"):
        assert wide[who]["compiled"] is None
        assert wide[who]["why"] == f"above compile.up_to={WIDTH}"
    assert "arithmetic only" in finished[2][-1]


def test_parameters_of_any_width_from_three(finished: Finished) -> None:
    a, b, c = finished[1]["full_params_of_width"]
    for row in finished[1]["rows"]:
        d = row["width"]
        assert a * d**2 + b * d + c == pytest.approx(row["full"]["params"], rel=1e-9)


@pytest.mark.slow
def test_the_code_generator_has_no_say_in_the_memory() -> None:
    """The options that make compiling quick leave every buffer as it was."""
    config = tiny()
    method = step.method_at(config, WIDTH, "blocktrain")
    quick = step.compile_local_phase(method, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "_SKIP_CODE", None)
        assert step.compile_local_phase(method, config) == quick
    assert quick.memory is not None


def test_what_does_not_compile_is_told_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: too large\nstack")

    monkeypatch.setattr(step, "step_memory", fail)
    config = tiny()
    found = step.compile_local_phase(
        step.method_at(config, WIDTH, "end_to_end"), config
    )
    assert found == (None, "does not compile here (INTERNAL: too large)")


def test_no_byte_is_counted_twice() -> None:
    """An update in place, a donated array that isn't used up, and a fresh one."""
    x = jax.ShapeDtypeStruct((1024,), jnp.float32)
    donated = jax.jit(lambda x: x + 1.0, donate_argnums=0).lower(x).compile()
    assert step_memory(donated) == StepMemory(4096, 4096, 4096, 0)
    fresh = jax.jit(lambda x: x + 1.0).lower(x).compile()
    memory = step_memory(fresh)
    assert memory is not None
    assert (memory.aliased, memory.total) == (0, 8192)


def test_a_finished_run_is_not_run_again(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir, summary, _ = finished

    def never(*_: Any) -> None:
        raise AssertionError("it was compiled again")

    monkeypatch.setattr(experiment, "compile_local_phase", never)
    lines: list[str] = []
    again = experiment.run_memory(
        tiny(), workdir, resume=True, command="again", say=lines.append
    )
    assert again["rows"] == summary["rows"]
    assert lines == [f"memory in {workdir} finished before, not run again"]


def test_what_makes_no_sense_is_refused() -> None:
    config = tiny()
    assert problems(config, 1) == []
    config.model.widths = (16, 20)
    assert problems(config, 1) == [
        "model.widths has 20, no multiple of model.head_width=8: use 16"
    ]
    config = tiny()
    config.sweep = ConfigDict({"axis": "data.batch", "cells": ("data.batch=1",)})
    (line,) = problems(config, 1)
    assert "sweep.axis=data.batch is for no run of kind=memory" in line
