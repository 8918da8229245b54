"""How devices and windows are shared among processes, without any other process."""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from spheroid_jax.distributed import DistributedError, arrays, mesh_devices
from spheroid_jax.rounds.mesh import WINDOWS, make_mesh

SHAPE = (3, 2, 2, 4, 9)


class Device(NamedTuple):
    process_index: int
    number: int


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that there are processes with so many devices each."""

    def pretend(*devices: int) -> None:
        every = [Device(p, n) for p, count in enumerate(devices) for n in range(count)]
        monkeypatch.setattr(arrays.jax, "devices", lambda: every)
        monkeypatch.setattr(arrays.jax, "process_count", lambda: len(devices))

    return pretend


def test_blocks_are_what_crosses_from_process_to_process(processes: Any) -> None:
    processes(4, 4, 4)
    chosen = mesh_devices(6)
    # Two of every process, and so the two replicas of a block beside each other.
    assert [d.process_index for d in chosen] == [0, 0, 1, 1, 2, 2]
    assert [d.number for d in chosen] == [0, 1] * 3


def test_processes_that_cannot_share_a_mesh_are_told_how_many_could(
    processes: Any,
) -> None:
    processes(2, 2, 2, 2)
    with pytest.raises(DistributedError, match=r"6 devices.*start 1 or 2 or 3 or 6 "):
        mesh_devices(6)


def test_a_process_with_too_few_devices_is_told(processes: Any) -> None:
    processes(4, 2)
    with pytest.raises(DistributedError, match="needs 3 on each of 2.* one has 2"):
        mesh_devices(6)


@pytest.mark.parametrize("shape", [(3, 2, 1), (1, 2, 4), (3, 1, 2)])
def test_windows_are_put_together_from_the_rows_of_workers(
    shape: tuple[int, int, int],
) -> None:
    sharding = NamedSharding(make_mesh(*shape), WINDOWS)
    whole = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    workers = tuple((b, k) for b in range(3) for k in range(2))
    rows = np.stack([whole[worker] for worker in workers])
    spread = arrays.spread_windows(rows, workers, sharding, SHAPE)
    assert spread.sharding == sharding
    np.testing.assert_array_equal(np.asarray(spread), whole)


def test_a_process_needs_the_workers_of_its_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays.jax, "process_count", lambda: 2)

    class Sharding:
        """That of the second of two processes with three devices each."""

        def addressable_devices_indices_map(self, shape: Any) -> dict[int, Any]:
            every = slice(None)
            places = [(1, 1), (2, 0), (2, 1)]
            return {
                n: (slice(b, b + 1), slice(k, k + 1), every, every, every)
                for n, (b, k) in enumerate(places)
            }

    assert arrays.own_workers(Sharding(), SHAPE) == ((1, 1), (2, 0), (2, 1))


def test_one_process_needs_all_and_leaves_values_alone() -> None:
    mesh = make_mesh(3, 2)
    assert arrays.own_workers(NamedSharding(mesh, WINDOWS), SHAPE) is None
    key = jax.random.key(0)
    assert arrays.everywhere(mesh, key) is key
