"""What a server compiles before anybody asks."""

import asyncio
from typing import Any

import pytest

from spheroid_jax.runs.serving.warming import usual, warm
from spheroid_jax.serving.host.host import Shape
from spheroid_jax.serving.methods import Method
from spheroid_jax.serving.stages import Stage, block_stages, layer_stages
from tests.serving.naive_chain import GRID, denoiser, reference

BLOCK = block_stages(denoiser(), GRID)[1]  # of 12 places
LAYERS = layer_stages(reference(2), 2)[0]


def test_a_usual_text_of_blocks_is_drafted_from_the_prompt_on() -> None:
    found = usual(BLOCK, None)
    assert found[0] == Shape(1, 12, "drafted")
    assert Shape(1, 1, "given") in found
    assert {shape.rows for shape in found} == {1}
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("method", [None, Method()])
def test_a_reference_reads_the_prompt_and_then_one_byte_at_a_time(
    method: Method | None,
) -> None:
    found = usual(LAYERS, method)
    assert (found[0].positions, found[-1].positions) == (12, 1)
    assert {shape.fill for shape in found} == {"given"}


def test_a_single_block_has_nobody_to_verify_its_drafts() -> None:
    (alone,) = block_stages(denoiser(), GRID[:1])
    assert {shape.fill for shape in usual(alone, None)} == {"given"}


def test_the_method_of_the_command_line_is_what_is_compiled() -> None:
    found = usual(BLOCK, Method("one_sweep", fill="expected"))
    assert {shape.fill for shape in found} <= {"expected", "given"}
    assert found[0].fill == "expected"


class Host:
    """Writes down what it is to compile."""

    def __init__(self, stage: Stage, stopped: asyncio.Event, after: int) -> None:
        self.stage, self.done = stage, list[Shape]()
        self._stopped, self._after = stopped, after

    async def warm(self, shapes: list[Shape]) -> None:
        self.done += shapes
        await asyncio.sleep(0)
        if len(self.done) == self._after:
            self._stopped.set()
        if self._after < 0:
            raise RuntimeError("no room\nfor it")


def run(after: int) -> tuple[list[Shape], list[str]]:
    async def work() -> tuple[list[Shape], list[str]]:
        stopped, lines = asyncio.Event(), list[str]()
        host: Any = Host(BLOCK, stopped, after)
        await warm([host], None, stopped, lines.append)
        return host.done, lines

    return asyncio.run(work())


def test_all_is_compiled_and_then_it_is_said() -> None:
    done, lines = run(0)
    assert done == usual(BLOCK, None)
    assert len(lines) == 1
    assert lines[0].startswith("is warm: ")


def test_a_server_that_stops_begins_no_further_program() -> None:
    done, lines = run(1)
    assert len(done) == 1
    assert not lines


def test_what_fails_is_one_line() -> None:
    done, lines = run(-1)
    assert len(done) == 1
    assert lines == ["couldn't compile ahead: no room for it"]
