"""Which axes the fsdp mesh axis cuts, and that cutting changes no number."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import DictKey

from spheroid_jax.models import Llama, abstract_params, llama
from spheroid_jax.models.sharding import (
    bytes_per_device,
    divided,
    fsdp_shardings,
    fsdp_specs,
    gathered,
    leaf_spec,
    shared_over_fsdp,
)
from spheroid_jax.optim.quantized import scale_by_adam_8bit


def leaf(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 24, 16, 32), P(None, "fsdp")),  # the largest but the last
        ((16, 24), P("fsdp")),
        ((15, 24), P(None, "fsdp")),  # the last where no other can be
        ((15, 20), P()),  # nothing divides
        ((8, 2), P()),  # not worth a gather
        ((), P()),
    ],
)
def test_the_largest_axis_that_divides_is_cut_and_the_last_as_a_last_resort(
    shape: tuple[int, ...], expected: P
) -> None:
    assert fsdp_specs({"w": leaf(*shape)}, 8, smallest=32) == {"w": expected}


def test_the_axis_that_a_scan_walks_is_never_cut() -> None:
    tree = {
        "layers": {
            "long": leaf(64, 16, 8),
            "odd": leaf(64, 15, 9),
            "scale": leaf(64, 16),  # small in every layer, whatever the stack's size
        }
    }
    assert fsdp_specs(tree, 8, smallest=32)["layers"] == {
        "long": P(None, "fsdp"),
        "odd": P(),
        "scale": P(),
    }


@pytest.mark.parametrize("name", ["block", "blocks", "layers"])
def test_leading_axes_are_named_and_the_axis_of_layers_after_them_is_not_cut(
    name: str,
) -> None:
    path = (DictKey(name), DictKey("kernel"))
    workers = ("block", "replica")

    def spec(*shape: int) -> P:
        return leaf_spec(path, leaf(*shape), 8, leading=workers, smallest=32)

    assert spec(16, 8, 64, 16, 8) == P("block", "replica", None, "fsdp")
    assert spec(16, 8, 64, 15, 9) == P("block", "replica")
    assert spec(16, 8) == P("block", "replica")  # a count of every worker
    assert spec(16) == P("block")  # or of every block
    outside = (DictKey("interface"), DictKey("kernel"))
    table = leaf_spec(outside, leaf(16, 8, 64, 16), 8, leading=workers, smallest=32)
    assert table == P("block", "replica", "fsdp")


def test_leaves_are_gathered_and_batches_divided_in_a_shared_trace_alone(
    mesh: Mesh,
) -> None:
    def double(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        return gathered(2 * weights), divided(2 * batch)

    def shared(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        with shared_over_fsdp(mesh):
            return double(weights, batch)

    cut, whole = NamedSharding(mesh, P("fsdp")), NamedSharding(mesh, P())
    weights = jax.device_put(jnp.arange(16.0), cut)
    batch = jax.device_put(jnp.arange(16.0), whole)
    kept, alone = jax.jit(double)(weights, batch)
    assert kept.sharding.is_equivalent_to(cut, 1)
    assert alone.sharding.is_equivalent_to(whole, 1)
    moved, divided_ = jax.jit(shared)(weights, batch)
    assert moved.sharding.is_equivalent_to(whole, 1)
    assert divided_.sharding.is_equivalent_to(cut, 1)
    np.testing.assert_array_equal(moved, 2 * np.arange(16.0))


def test_one_device_cuts_nothing_and_none_is_refused() -> None:
    assert fsdp_specs({"w": leaf(256, 256)}, 1) == {"w": P()}
    with pytest.raises(ValueError, match="size is 0"):
        fsdp_specs({"w": leaf(256, 256)}, 0)


def test_an_optimizers_moments_are_cut_as_their_parameters() -> None:
    shapes = abstract_params(llama("25m"))
    specs = fsdp_specs(shapes, 8)
    state = jax.eval_shape(optax.adamw(1e-3).init, shapes)
    adam = fsdp_specs(state, 8)[0]
    assert adam.mu == adam.nu == specs
    assert adam.count == P()
    assert specs["embedding"]["table"] == P(None, "fsdp")  # 50 257 does not divide
    assert specs["layers"]["down"]["kernel"] == P(None, "fsdp")  # (L, 832, 320)


def test_rows_and_the_scales_of_their_blocks_stay_together() -> None:
    shapes = abstract_params(llama("1b"))
    state = jax.eval_shape(scale_by_adam_8bit().init, shapes)
    specs = fsdp_specs(state, 8).mu["layers"]["up"]["kernel"]  # (L, 2048, 8192)
    assert specs.codes == specs.scales == P(None, "fsdp")


def test_bytes_on_a_device_are_those_of_its_shards(mesh: Mesh) -> None:
    tree = {"cut": leaf(16, 24, dtype=jnp.bfloat16), "whole": leaf(3)}
    assert bytes_per_device(tree, 8, smallest=32) == 2 * 16 * 24 // 8 + 4 * 3
    assert bytes_per_device(tree, 1) == 2 * 16 * 24 + 4 * 3
    placed = jax.device_put(
        {"cut": jnp.zeros((16, 24), jnp.bfloat16), "whole": jnp.zeros(3)},
        fsdp_shardings(tree, mesh, smallest=32),
    )
    on_first = [a.addressable_shards[0].data.nbytes for a in jax.tree.leaves(placed)]
    assert sum(on_first) == bytes_per_device(tree, 8, smallest=32)


def test_a_mesh_without_the_axis_is_refused() -> None:
    mesh = jax.make_mesh((8,), ("replica",), axis_types=(AxisType.Auto,))
    with pytest.raises(ValueError, match="axes replica; .* one named fsdp"):
        fsdp_shardings({"w": leaf(8)}, mesh)


def test_a_sharded_decoder_computes_what_one_device_does(mesh: Mesh) -> None:
    plain = llama("tiny", width=32, layers=2, heads=2, kv_heads=1, mlp_width=64)
    batch = NamedSharding(mesh, P("fsdp"))
    pinned: Llama = dataclasses.replace(plain, activations=batch)
    params = jax.jit(plain.init)(jax.random.key(0))
    x = jax.random.randint(jax.random.key(1), (8, 16), 0, 256)
    placed = jax.device_put(params, fsdp_shardings(params, mesh, smallest=64))
    kernel = placed["layers"]["up"]["kernel"]
    assert kernel.addressable_shards[0].data.shape == (2, 4, 64)
    got = jax.jit(pinned.logits)(placed, jax.device_put(x, batch))
    assert got.sharding.is_equivalent_to(batch, 3)
    expected = jax.jit(plain.logits)(params, x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
