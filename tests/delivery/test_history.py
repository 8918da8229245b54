"""The history of parameters against a list of all of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.delivery import history, record, snapshot, snapshots


def version(number: Any) -> dict[str, Any]:
    """Parameters that tell their version."""
    return {
        "w": jnp.full((2,), number, jnp.float32),
        "b": jnp.asarray(-number, jnp.bfloat16),
    }


@pytest.mark.parametrize("max_delay", [0, 1, 4])
def test_reads_the_versions_that_were_recorded(max_delay: int) -> None:
    """Version v is what was recorded as v, and version 0 before the beginning."""
    ages = np.random.default_rng(max_delay).integers(0, max_delay + 1, (20, 3))
    ages[0], ages[-1] = max_delay, max_delay

    @jax.jit
    def run(ages: jax.Array) -> Any:
        def step(kept: Any, asked: Any) -> Any:
            now, ages = asked
            kept = record(kept, version(now), now)
            one = snapshot(kept, now - ages[0])
            return kept, (one, snapshots(kept, now - ages))

        start = history(version(0), max_delay)
        return jax.lax.scan(step, start, (jnp.arange(20), ages))[1]

    one, many = run(ages.astype(np.int32))
    wanted = np.array(
        [[max(0, now - age) for age in row] for now, row in enumerate(ages)]
    )
    assert many["w"].shape == (20, 3, 2)
    assert (many["b"].dtype, one["b"].dtype) == (jnp.bfloat16, jnp.bfloat16)
    np.testing.assert_array_equal(many["w"][..., 0], wanted)
    np.testing.assert_array_equal(many["w"][..., 1], wanted)
    np.testing.assert_array_equal(many["b"].astype(jnp.float32), -wanted)
    np.testing.assert_array_equal(one["w"][:, 0], wanted[:, 0])
    np.testing.assert_array_equal(one["b"].astype(jnp.float32), -wanted[:, 0])


def test_a_version_is_forgotten_only_when_its_slot_is_needed() -> None:
    kept = history(version(0), 2)
    for now in (1, 2, 3):
        kept = record(kept, version(now), now)
    assert [float(snapshot(kept, v)["w"][0]) for v in (1, 2, 3)] == [1, 2, 3]


def test_a_history_of_the_start_is_the_start_whatever_is_asked() -> None:
    kept = history(version(7), 3)
    assert np.all(snapshots(kept, jnp.array([-5, -1, 0, 3]))["w"] == 7)


def test_one_program_serves_all_ages_and_a_batch_of_them() -> None:
    traces = 0

    @jax.jit
    def read(kept: Any, asked: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return snapshot(kept, asked)["w"]

    kept = record(history(version(0), 3), version(1), 1)
    assert [float(read(kept, jnp.int32(v))[0]) for v in (1, 0, -4)] == [1, 0, 0]
    assert traces == 1
    batched = jax.vmap(read, in_axes=(None, 0))(kept, jnp.array([1, 0]))
    np.testing.assert_array_equal(batched, [[1, 1], [0, 0]])


def test_the_ring_is_updated_in_place() -> None:
    size, max_delay = 4096, 31

    def run(kept: Any, ages: jax.Array) -> Any:
        def step(kept: Any, asked: Any) -> Any:
            now, age = asked
            old = snapshot(kept, now - age)
            return record(kept, old * 0.5 + now, now + 1), jnp.sum(old)

        return jax.lax.scan(step, kept, (jnp.arange(50), ages))

    kept = history(jnp.zeros(size), max_delay)
    ages = jnp.zeros(50, jnp.int32)
    program = jax.jit(run, donate_argnums=0).lower(kept, ages).compile()
    memory = program.memory_analysis()
    assert memory.alias_size_in_bytes >= kept.snapshots.nbytes
    assert memory.temp_size_in_bytes <= 4 * size * 4 < kept.snapshots.nbytes / 2


def test_refuses_a_negative_capacity() -> None:
    with pytest.raises(
        ValueError, match="max_delay must be a whole number >= 0, got -1"
    ):
        history(version(0), -1)
