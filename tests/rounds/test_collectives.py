"""Collectives are read from the program's text as they are, however it writes them."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spheroid_jax.rounds.collectives import (
    collectives,
    collectives_table,
    spanning,
)
from spheroid_jax.rounds.mesh import make_mesh

ADDED = "%sum (a: f32[], b: f32[]) -> f32[] {\n  ROOT %c = f32[] add(%a, %b)\n}\n"


def program(line: str) -> str:
    """HLO text with one instruction."""
    return f"{ADDED}ENTRY %main (p: f32[8]) -> f32[8] {{\n  {line}\n}}\n"


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return make_mesh(2, 2, 2)


def spread(mesh: Mesh, spec: P, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))


BLOCKS = ((0, 4), (1, 5), (2, 6), (3, 7))
REPLICAS = ((0, 2), (1, 3), (4, 6), (5, 7))
SHARED = ((0, 1), (2, 3), (4, 5), (6, 7))


@pytest.mark.parametrize(
    ("written", "groups", "axes"),
    [
        ("{{0,4},{1,5},{2,6},{3,7}}", BLOCKS, ("block",)),
        ("{{0,2},{1,3},{4,6},{5,7}}", REPLICAS, ("replica",)),
        ("{{0,3},{1,2},{4,7},{5,6}}", None, ("replica", "fsdp")),
        ("{{0,1,2,3},{4,5,6,7}}", None, ("replica", "fsdp")),
        ("{{0},{1},{2},{3},{4},{5},{6},{7}}", None, ()),
        ("{}", (tuple(range(8)),), ("block", "replica", "fsdp")),
        ("[4,2]<=[8]", SHARED, ("fsdp",)),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7)), ("replica", "fsdp")),
        ("[4,2]<=[2,4]T(1,0)", BLOCKS, ("block",)),
        ("[4,2]<=[2,2,2]T(0,2,1)", REPLICAS, ("replica",)),
        ("mesh['a'=2,'b'=2,'c'=2] {'b'}", REPLICAS, ("replica",)),
        ("mesh['a'=2,'b'=4] {'a'}", BLOCKS, ("block",)),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", None, ("block", "fsdp")),
        ("mesh['a'=8] {'a':(1)2}", BLOCKS, ("block",)),
        ("mesh['a'=8] {'a':(2)2}", REPLICAS, ("replica",)),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", SHARED, ("fsdp",)),
        (
            "mesh['a'=2,'b'=2,'c'=2], device_ids=([2,2,2]T(0,2,1)) {'c'}",
            REPLICAS,
            ("replica",),
        ),
        ("mesh['a'=4,'b'=2], device_ids=(0,4,1,5,2,6,3,7) {'b'}", BLOCKS, ("block",)),
    ],
)
def test_groups_of_devices_in_every_form(
    mesh: Mesh, written: str, groups: Any, axes: tuple[str, ...]
) -> None:
    line = (
        f"%all-reduce.1 = f32[16,32]{{1,0}} all-reduce(%p), channel_id=1,"
        f" replica_groups={written}, use_global_device_ids=true, to_apply=%sum,"
        ' metadata={op_name="jit(f)/mean" source_line=3}'
    )
    (found,) = collectives(program(line), mesh)
    assert (found.kind, found.bytes, found.source) == (
        "all-reduce",
        2048,
        "jit(f)/mean",
    )
    assert found.axes == axes
    if groups is not None:
        assert found.groups == groups
    assert sorted(sum(found.groups, ())) == list(range(8))


@pytest.mark.parametrize(
    ("line", "kind", "size"),
    [
        # A tuple, with the comments that HLO puts into long ones.
        (
            "(f32[2,3]{1,0}, /*index=1*/bf16[5]{0}, pred[]) all-reduce(%a, %b, %c)",
            "",
            35,
        ),
        ("f32[8,2]{1,0} all-gather(%a), dimensions={0}", "all-gather", 64),
        # Of what was reduced each device keeps its share.
        ("f32[4]{0} reduce-scatter(%a), dimensions={0}", "reduce-scatter", 32),
        (
            "(f32[4]{0}, f32[8]{0}) all-gather-start(%a), dimensions={0}",
            "all-gather",
            32,
        ),
        ("f32[4]{0} all-reduce-start(%a), to_apply=%sum", "all-reduce", 16),
        ("s8[16]{0} all-to-all(%a), dimensions={0}", "all-to-all", 16),
        ("(f8e4m3fn[16]{0}) all-to-all(%a)", "all-to-all", 16),
    ],
)
def test_bytes_of_every_kind(mesh: Mesh, line: str, kind: str, size: int) -> None:
    (found,) = collectives(
        program(f"ROOT %x.1 = {line}, replica_groups=[4,2]<=[8]"), mesh
    )
    assert found.kind == (kind or "all-reduce")
    assert found.bytes == size


def test_pairs_of_a_permutation(mesh: Mesh) -> None:
    line = (
        "%cp = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%p),"
        " channel_id=2, source_target_pairs={{0,4},{4,0}}"
    )
    (found,) = collectives(program(line), mesh)
    assert (found.bytes, found.groups, found.axes) == (32, ((0, 4), (4, 0)), ("block",))


def test_the_end_of_an_asynchronous_one_is_not_another(mesh: Mesh) -> None:
    line = "%d = f32[8]{0} all-reduce-done(%all-reduce-start.1)"
    assert collectives(program(line), mesh) == []


def test_an_unknown_form_is_refused(mesh: Mesh) -> None:
    line = "%x = f32[8]{0} all-reduce(%p), replica_groups=<new>, to_apply=%sum"
    with pytest.raises(ValueError, match="unknown form"):
        collectives(program(line), mesh)


def test_a_mean_over_replicas_spans_replicas_alone(mesh: Mesh) -> None:
    mean = jax.jit(
        lambda x: jnp.mean(x, axis=1), out_shardings=NamedSharding(mesh, P("block"))
    )
    delta = spread(mesh, P("block", "replica"), 2, 2, 5)
    found = collectives(mean.lower(delta).compile(), mesh)
    assert [(c.kind, c.axes, c.bytes, c.groups) for c in found] == [
        ("all-reduce", ("replica",), 4 * 5, REPLICAS)
    ]
    assert not spanning(found, "block")


def test_a_mean_over_blocks_is_seen_to_span_blocks(mesh: Mesh) -> None:
    """What the tests of the round rule out would not go unnoticed."""
    whole = NamedSharding(mesh, P())
    delta = spread(mesh, P("block"), 2, 5)
    reduced = jax.jit(lambda x: jnp.mean(x, axis=0), out_shardings=whole)
    moved = jax.jit(lambda x: 2 * x, out_shardings=whole)
    for function, kind in ((reduced, "all-reduce"), (moved, "all-gather")):
        found = collectives(function.lower(delta).compile(), mesh)
        assert {c.kind for c in spanning(found, "block")} == {kind}


def test_what_a_loop_repeats_is_counted_as_often(mesh: Mesh) -> None:
    """A sum over replicas in each of 3 x 5 turns, and one after them."""

    def turn(total: jax.Array, x: jax.Array) -> Any:
        total = jnp.sin(total) + jnp.sum(x * total[None, :1], axis=0)
        return jax.lax.with_sharding_constraint(total, NamedSharding(mesh, P())), None

    def outer(total: jax.Array, xs: jax.Array) -> Any:
        return jax.lax.scan(turn, total, xs)[0], None

    def run(xs: jax.Array) -> jax.Array:
        total = jax.lax.scan(outer, jnp.ones(7), xs)[0]
        return total + jnp.sum(xs[0, 0], axis=0)

    xs = spread(mesh, P(None, None, "replica"), 3, 5, 4, 7)
    found = collectives(
        jax.jit(run, out_shardings=NamedSharding(mesh, P())).lower(xs).compile(), mesh
    )
    assert sorted((c.axes, c.bytes, c.times) for c in found) == [
        (("replica",), 28, 1),
        (("replica",), 28, 15),
    ]


def test_the_table_adds_up_and_puts_the_largest_first(mesh: Mesh) -> None:
    lines = [
        "%a = f32[10]{0} all-reduce(%p), replica_groups=[4,2]<=[8], to_apply=%sum",
        "%b = f32[20]{0} all-reduce(%p), replica_groups=[4,2]<=[8], to_apply=%sum",
        "%c = f32[1000]{0} all-gather(%p), replica_groups=[4,2]<=[2,4]T(1,0)",
    ]
    table = collectives_table(collectives(program("\n  ".join(lines)), mesh))
    rows = [line.split() for line in table.splitlines()[1:]]
    assert rows == [
        ["all-gather", "block", "1", "4,000", "1", "4,000"],
        ["all-reduce", "fsdp", "2", "120", "1", "120"],
    ]
