"""The model's step: what it holds in memory, and what becomes of the interface."""

import tracemalloc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax import partition
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.rounds import Engine
from spheroid_jax.transport.coordinator.arrivals import Arrival, Rules
from spheroid_jax.transport.coordinator.model import Model
from spheroid_jax.transport.updates import Encoding, write_update
from tests.transport import tiny

BLOCKS = 3


def model_of(
    directory: Path, size: int, checkpoints: Checkpoints, rules: Rules | None = None
) -> Model:
    """Ones in every block and in the interface; steps are SGD of rate one."""
    engine = Engine(
        partition.blocks(BLOCKS), tiny.quadratic, optax.sgd(0.1), optax.sgd(1.0), 8
    )

    def first() -> Any:
        return {
            "blocks": {"kernel": jnp.ones((BLOCKS, size))},
            "interface": {"head": jnp.ones(3)},
        }, jax.random.key(0)

    return Model(
        engine, rules or Rules(), first, lambda params: {}, checkpoints, directory
    )


def written(directory: Path, block: int, size: int, head: float) -> Arrival:
    """An update of ``block + 1`` in the block, and ``head`` in the interface."""
    path = directory / f"{block}.update"
    delta = {
        "block.kernel": np.full(size, block + 1, np.float32),
        "interface.head": np.full(3, head, np.float32),
    }
    write_update(path, delta, Encoding(), {})
    return Arrival(path, block, 0)


def test_memory_does_not_grow_with_the_number_of_blocks(tmp_path: Path) -> None:
    """The pseudo-gradient of the block before is let go of before the next is made."""
    size = 1 << 21  # 8 MiB in float32
    with Checkpoints(tmp_path / "c", keep=1, identity={}) as checkpoints:
        model = model_of(tmp_path / "c", size, checkpoints)
        arrivals = [written(tmp_path, b, size, 0.0) for b in range(BLOCKS)]

        def peak(count: int) -> int:
            tracemalloc.start()
            model.step(arrivals[:count])
            found = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return found

        peak(1)
        one, three = peak(1), peak(3)
    assert one >= 4 * size  # the measurement sees NumPy's memory
    assert three - one < 1 << 20, (one, three)


def test_the_interface_moves_by_the_mean_of_what_the_blocks_say(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "c", keep=1, identity={}) as checkpoints:
        model = model_of(tmp_path / "c", 4, checkpoints)
        heads = {0: 3.0, 2: -1.0}  # nothing came for block 1
        model.step([written(tmp_path, b, 4, head) for b, head in heads.items()])
        np.testing.assert_array_equal(model.params["interface"]["head"], [0.0] * 3)
        np.testing.assert_array_equal(
            model.params["blocks"]["kernel"], [[0.0] * 4, [1.0] * 4, [-2.0] * 4]
        )


def test_no_round_waits_for_a_compilation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is compiled on the way costs the first rounds seconds, and memory."""
    size = 5  # of no other test here: nothing is compiled already
    rules = Rules(lambda age: 1 / (1 + age))
    with Checkpoints(tmp_path / "c", keep=1, identity={}) as checkpoints:
        model = model_of(tmp_path / "c", size, checkpoints, rules)
        arrivals = [written(tmp_path, b, size, 1.0) for b in range(BLOCKS)]
        arrivals = [a._replace(age=2) for a in arrivals]
        model.compile()
        with jax.log_compiles():
            model.step(arrivals)
            said = [r.getMessage() for r in caplog.records]
            assert [line for line in said if "Compiling" in line] == []
            jax.jit(lambda x: x + 1)(np.zeros(size))
    said = [r.getMessage() for r in caplog.records]
    assert any("Compiling" in line for line in said)  # or nothing would be seen here
    # A third of what arrived, as it is two rounds old.
    kernel = np.asarray(model.params["blocks"]["kernel"][1])
    np.testing.assert_allclose(kernel, 1 - 2 / 3, rtol=1e-6)
