"""The same round on a mesh of devices: same numbers, little said between blocks."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spheroid_jax import partition
from spheroid_jax.diffusion import NoiseLevels, block_ranges
from spheroid_jax.models import BlockDenoiser, InterfaceShape, TransformerShape
from spheroid_jax.objectives import block_denoising
from spheroid_jax.rounds import Engine, RoundState, init_state, make_round
from spheroid_jax.rounds.collectives import Collective, collectives, spanning
from spheroid_jax.rounds.mesh import (
    WINDOWS,
    MeshShape,
    choose_shape,
    fitting_shapes,
    make_mesh,
    mesh_round,
    misfit,
    on_mesh,
    reference_shape,
    state_sharding,
)

BLOCKS, REPLICAS = 3, 2
SMALLEST = 64  # elements: the models here are small
# A third of the time to compile; the partitioning comes before and is the same.
QUICK = {"xla_backend_optimization_level": "0"}


class Spread(NamedTuple):
    """A round on a mesh: what went in, the compiled program, and what came out."""

    mesh: Mesh
    state: RoundState
    windows: jax.Array
    program: Any
    after: RoundState
    metrics: Any
    again: RoundState


def spread(shape: MeshShape, engine: Engine, state: Any, windows: Any) -> Spread:
    """Runs a round twice, the second time on what the first left."""
    mesh = make_mesh(*shape)
    shardings = state_sharding(mesh, state, smallest=SMALLEST)
    # Copies: the round takes the memory of the state it is given.
    placed = jax.device_put(jax.tree.map(jnp.copy, state), shardings)
    windows = jax.device_put(windows, NamedSharding(mesh, WINDOWS))
    accepted = jnp.ones(windows.shape[:2], bool)
    round_ = mesh_round(engine, mesh, shardings)
    program = round_.lower(placed, windows, accepted).compile(compiler_options=QUICK)
    after, metrics = program(placed, windows, accepted)
    kept = jax.tree.map(jnp.copy, after)
    again, _ = program(after, windows, accepted)
    return Spread(mesh, state, windows, program, kept, metrics, again)


@pytest.fixture(scope="module")
def six(tiny: Engine, tiny_state: RoundState, tiny_windows: jax.Array) -> Spread:
    """Every worker on a device of its own."""
    return spread(MeshShape(BLOCKS, REPLICAS), tiny, tiny_state, tiny_windows)


@functools.cache
def two_blocks() -> tuple[Engine, RoundState, jax.Array]:
    """Two blocks of two layers under remat, with two replicas."""
    model = BlockDenoiser(
        TransformerShape(width=16, heads=2, mlp_width=32, layers=2, remat="dots"),
        InterfaceShape(width=16, seq_len=8),
    )
    ranges = jnp.asarray(block_ranges(NoiseLevels(), 2, 0.1), jnp.float32)
    inner = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
    objective = block_denoising(model, NoiseLevels(), ranges)
    engine = Engine(partition.blocks(2), objective, inner, optax.sgd(1.0), 2)
    shapes = jax.eval_shape(lambda key: model.init(key, 2), jax.random.key(0))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(0.25 * rng.standard_normal(leaf.shape), leaf.dtype),
        shapes,
    )
    windows = jnp.asarray(rng.integers(0, 256, (2, 2, 2, 4, 9)), jnp.uint8)
    state = jax.jit(lambda p, key: init_state(engine, p, key))
    return engine, state(params, jax.random.key(1)), windows


@pytest.fixture(scope="module")
def eight() -> Spread:
    return spread(MeshShape(2, 2, 2), *two_blocks())


def assert_close(got: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        got,
        expected,
    )


def shard_bytes(params: Any, shardings: Any) -> int:
    """Bytes of a tree on one device."""
    return sum(
        math.prod(at.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, at in zip(
            jax.tree.leaves(params), jax.tree.leaves(shardings), strict=True
        )
    )


def arrays_in(found: list[Collective]) -> list[Collective]:
    """Those that carry more than scalars: counts of arrivals are exchanged too."""
    return [collective for collective in found if collective.elements > 1]


def test_a_worker_lives_on_one_device_and_a_block_beside_its_replicas(
    six: Spread,
) -> None:
    assert len(six.windows.sharding.device_set) == BLOCKS * REPLICAS
    assert six.windows.addressable_shards[0].data.shape[:2] == (1, 1)
    for leaf in jax.tree.leaves(six.after.workers):
        assert leaf.addressable_shards[0].data.shape[:2] == (1, 1)
    for leaf in jax.tree.leaves(six.after.params["blocks"]):
        assert leaf.addressable_shards[0].data.shape[0] == 1
    for leaf in jax.tree.leaves(six.after.params["interface"]):
        assert leaf.sharding.is_fully_replicated


def test_fsdp_cuts_a_worker_inside_and_its_batch(eight: Spread) -> None:
    assert eight.windows.addressable_shards[0].data.shape == (1, 1, 2, 2, 9)
    blocks = eight.after.params["blocks"]
    kernel = blocks["qkv"]["kernel"]  # (B, L, d, 3 d): whole layers, half of each
    assert kernel.sharding.spec == P("block", None, "fsdp")
    assert kernel.addressable_shards[0].data.shape == (1, 2, 8, 48)
    assert blocks["qkv"]["bias"].sharding.spec == P("block")  # 48 elements: too small
    trace = optax.tree.get(eight.after.workers, "trace")
    assert trace["block"]["qkv"]["kernel"].sharding.spec == P(
        "block", "replica", None, "fsdp"
    )
    assert "block" not in str(
        [
            leaf.sharding.spec
            for leaf in jax.tree.leaves(eight.after.params["interface"])
        ]
    )


def test_an_outer_state_kept_apart_for_blocks_lies_as_its_parameters() -> None:
    params = {
        "blocks": {"kernel": jnp.zeros((2, 3, 16, 8))},
        "interface": {"table": jnp.zeros((16, 8))},
    }
    adam = optax.adam(1e-3)
    outer = {
        "blocks": jax.vmap(adam.init)(params["blocks"]),
        "interface": adam.init(params["interface"]),
    }
    state = RoundState(params, outer, {}, jnp.int32(0), jax.random.key(0))
    at = state_sharding(make_mesh(2, 2, 2), state, smallest=SMALLEST)
    for name in ("blocks", "interface"):
        assert at.outer[name][0].mu == at.outer[name][0].nu == at.params[name]
    assert at.outer["blocks"][0].count.spec == P("block")  # (B,)
    assert at.outer["interface"][0].count.spec == P()
    assert at.params["blocks"]["kernel"].spec == P("block", None, "fsdp")
    assert at.params["interface"]["table"].spec == P("fsdp")


def test_a_mesh_of_six_devices_gives_the_result_of_one(
    six: Spread, tiny_round: Any, tiny_state: RoundState, tiny_windows: jax.Array
) -> None:
    """Noise included: it comes from a worker's place, not from its device."""
    expected, metrics = tiny_round(
        tiny_state, tiny_windows, jnp.ones((BLOCKS, REPLICAS), bool)
    )
    assert_close(
        (six.after.params, six.after.workers, six.metrics),
        (expected.params, expected.workers, metrics),
    )
    assert len(np.unique(np.asarray(six.metrics["loss"]))) == BLOCKS * REPLICAS


@functools.cache
def alone() -> Any:
    """Two rounds of :func:`two_blocks` on one device."""
    engine, state, windows = two_blocks()
    accepted = jnp.ones((2, 2), bool)
    lowered = jax.jit(make_round(engine)).lower(state, windows, accepted)
    round_ = lowered.compile(compiler_options=QUICK)
    after, metrics = round_(state, windows, accepted)
    return after, metrics, round_(after, windows, accepted)[0]


def test_eight_devices_that_share_workers_give_the_result_of_one(
    eight: Spread,
) -> None:
    after, metrics, again = alone()
    assert_close(
        (eight.after.params, eight.after.workers, eight.metrics, eight.again.params),
        (after.params, after.workers, metrics, again.params),
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", fitting_shapes(8, 2, 2, 4), ids=str)
def test_every_factorisation_gives_the_result_of_one_device(shape: MeshShape) -> None:
    after, metrics, again = alone()
    got = spread(shape, *two_blocks())
    assert_close(
        (got.after.params, got.after.workers, got.metrics, got.again.params),
        (after.params, after.workers, metrics, again.params),
    )


@pytest.mark.parametrize("name", ["six", "eight"])
def test_a_round_leaves_the_state_where_it_was_in_the_memory_it_had(
    name: str, request: pytest.FixtureRequest
) -> None:
    got: Spread = request.getfixturevalue(name)
    shardings = state_sharding(got.mesh, got.state, smallest=SMALLEST)
    for at, leaf in zip(
        jax.tree.leaves(shardings), jax.tree.leaves(got.after), strict=True
    ):
        assert leaf.sharding.is_equivalent_to(at, leaf.ndim)
    assert int(got.again.round) == 2
    held = [(s.params, s.workers) for s in (got.state, shardings)]
    assert got.program.memory_analysis().alias_size_in_bytes >= shard_bytes(*held)


@pytest.mark.parametrize("name", ["six", "eight"])
def test_blocks_exchange_the_interface_only(
    name: str, request: pytest.FixtureRequest
) -> None:
    """A device adds up its own block and interface over replicas, then the interface
    over blocks. A full-model all-reduce would move every block to every device.
    """
    got: Spread = request.getfixturevalue(name)
    params = got.state.params
    at = state_sharding(got.mesh, got.state, smallest=SMALLEST).params
    found = collectives(got.program, got.mesh)

    between_blocks = arrays_in(spanning(found, "block"))
    assert {(c.kind, c.axes, c.times) for c in between_blocks} == {
        ("all-reduce", ("block",), 1)
    }
    interface = shard_bytes(params["interface"], at["interface"])
    assert sum(c.bytes for c in between_blocks) == interface

    between_replicas = arrays_in(spanning(found, "replica"))
    assert {(c.kind, c.axes, c.times) for c in between_replicas} == {
        ("all-reduce", ("replica",), 1)
    }
    assert sum(c.bytes for c in between_replicas) == shard_bytes(params, at)

    inside_workers = [c for c in arrays_in(found) if c.axes == ("fsdp",)]
    assert len(inside_workers) + len(between_blocks) + len(between_replicas) == len(
        arrays_in(found)
    )
    assert bool(inside_workers) == (name == "eight")


def test_fsdp_moves_weights_and_gradients_but_no_activations(eight: Spread) -> None:
    """Each local step gathers the interface once, a layer's cut leaves in the forward
    and in the backward pass, and adds up gradients. Nothing has the batch's shape.
    """
    inside = spanning(collectives(eight.program, eight.mesh), "fsdp")
    assert {c.kind for c in inside} == {"all-gather", "all-reduce"}
    sequences, length = 4, 8
    for collective in inside:
        for _, shape in collective.arrays:
            assert shape[2:4] not in {(sequences, length), (sequences // 2, length)}
    assert {c.times for c in inside if c.kind == "all-gather"} <= {2, 4}


def test_on_one_device_per_worker_the_engine_is_the_same(tiny: Engine) -> None:
    assert on_mesh(tiny, make_mesh(3, 2)) is tiny
    assert on_mesh(tiny, make_mesh(1, 2, 2)) is not tiny


def test_every_mesh_that_fits_is_found() -> None:
    shapes = fitting_shapes(8, blocks=3, replicas=2, batch=4)
    assert set(shapes) == {
        (b, k, n) for b in (1, 3) for k in (1, 2) for n in (1, 2, 4) if b * k * n <= 8
    }


@pytest.mark.parametrize(
    ("asked", "devices", "expected"),
    [
        ((0, 0, 0), 6, (3, 2, 1)),
        ((0, 0, 0), 8, (1, 2, 4)),  # all eight, rather than six of them
        ((0, 0, 0), 12, (3, 2, 2)),
        ((0, 0, 0), 1, (1, 1, 1)),
        ((3, 0, 0), 8, (3, 2, 1)),
        ((0, 1, 0), 8, (1, 1, 8)),
        ((1, 2, 2), 8, (1, 2, 2)),
        ((2, 0, 0), 8, None),
        ((3, 2, 2), 8, None),
    ],
)
def test_zeros_are_chosen(asked: Any, devices: int, expected: Any) -> None:
    assert choose_shape(MeshShape(*asked), devices, 3, 2, 8) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            (4, 2, 1),
            "mesh.block=4 mesh.replica=2 mesh.fsdp=1 does not fit: mesh.block does not"
            " divide model.blocks=3, use mesh.block=3 mesh.replica=2 mesh.fsdp=1"
            " (6 of 8 devices)",
        ),
        (
            (3, 2, 3),
            "mesh.block=3 mesh.replica=2 mesh.fsdp=3 does not fit: mesh.fsdp does not"
            " divide data.batch=16 (15 and 18 would do), it needs 18 devices and there"
            " are 8, use mesh.block=3 mesh.replica=1 mesh.fsdp=2 (6 of 8 devices)",
        ),
        (
            (3, 0, 4),
            "mesh.block=3 mesh.replica=0 mesh.fsdp=4 does not fit: it needs 12 devices"
            " and there are 8, use mesh.block=1 mesh.replica=2 mesh.fsdp=4"
            " (8 of 8 devices)",
        ),
        ((3, 2, 1), ""),
        ((0, 0, 16), "mesh.block=0 mesh.replica=0 mesh.fsdp=16 does not fit: it needs"),
        ((0, 0, 0), ""),
    ],
)
def test_a_misfit_is_refused_with_a_mesh_that_fits(asked: Any, expected: str) -> None:
    line = misfit(MeshShape(*asked), 8, blocks=3, replicas=2, batch=16)
    assert line.startswith(expected)
    assert bool(line) == bool(expected)


@pytest.mark.parametrize(
    ("asked", "devices"), [((4, 3, 5), 8), ((9, 9, 9), 1), ((0, 0, 7), 6)]
)
def test_what_is_proposed_fits(asked: Any, devices: int) -> None:
    line = misfit(MeshShape(*asked), devices, blocks=3, replicas=2, batch=8)
    words = line.partition(", use ")[2].split()
    proposed = MeshShape(*(int(word.partition("=")[2]) for word in words[:3]))
    assert not misfit(proposed, devices, blocks=3, replicas=2, batch=8)
    assert f"({proposed.devices} of {devices} devices)" in line


def test_a_reference_shares_its_batch_among_the_devices_of_blocks() -> None:
    assert reference_shape(MeshShape(3, 2, 1), batch=12) == (1, 2, 3)
    assert reference_shape(MeshShape(3, 2, 2), batch=12) == (1, 2, 6)
    assert reference_shape(MeshShape(3, 2, 2), batch=8) == (1, 2, 2)  # 6 does not


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="3 x 2 x 2 needs 12 devices, there are 8"):
        make_mesh(3, 2, 2)
    with pytest.raises(ValueError, match="2 x 1 x 1 needs 2 devices, there are 1"):
        make_mesh(2, 1, devices=jax.devices()[:1])


def test_neighbours_share_a_worker_and_blocks_are_farthest_apart() -> None:
    mesh = make_mesh(2, 2, 2)
    ids = np.vectorize(lambda device: device.id)(mesh.devices)
    np.testing.assert_array_equal(ids[0], [[0, 1], [2, 3]])
    assert mesh.axis_names == ("block", "replica", "fsdp")
