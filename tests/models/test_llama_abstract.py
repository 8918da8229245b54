"""Whole training steps on eight devices, compiled from shapes: nothing is allocated.

Each prints what it would hold on a device: `pytest -s -m slow` on this file.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from spheroid_jax.models import Llama, abstract_params, llama, parameter_count
from spheroid_jax.models.sharding import fsdp_shardings
from spheroid_jax.objectives import cross_entropy, split_windows
from spheroid_jax.optim.quantized import adamw_8bit

DEVICES, BATCH, LENGTH = 8, 8, 128
HALF = {"param_dtype": "bfloat16", "compute_dtype": "bfloat16"}
FLOAT32 = optax.adamw(3e-4, b2=0.95, weight_decay=0.1)
EIGHT_BIT = adamw_8bit(3e-4, b2=0.95, weight_decay=0.1)


class Step(NamedTuple):
    """A compiled step and what it says of the memory of one device, in bytes."""

    text: str
    arguments: int
    aliased: int
    temporary: int


def compiled(model: Llama, optimizer: optax.GradientTransformation) -> Step:
    """Loss, gradient and update of one step on a mesh of eight, donated."""
    mesh = jax.make_mesh((DEVICES,), ("fsdp",), axis_types=(AxisType.Auto,))
    batch, replicated = NamedSharding(mesh, P("fsdp")), NamedSharding(mesh, P())
    pinned = dataclasses.replace(model, activations=batch)
    params = abstract_params(model)
    state = (params, jax.eval_shape(optimizer.init, params))
    shardings = fsdp_shardings(state, mesh)

    def step(state: Any, windows: jax.Array) -> Any:
        params, opt_state = state
        x, y = split_windows(windows)
        loss, gradient = jax.value_and_grad(
            lambda p: jnp.mean(cross_entropy(pinned.logits(p, x), y))
        )(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    placed = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding
        ),
        state,
        shardings,
    )
    windows = jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32, sharding=batch)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated))
    program = jitted.lower(placed, windows).compile()
    memory = program.memory_analysis()
    assert memory is not None
    return Step(
        program.as_text() or "",
        memory.argument_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
    )


def show(name: str, model: Llama, step: Step) -> None:
    print(
        f"\n{name}: {parameter_count(model) / 1e6:.1f} M parameters; on each of "
        f"{DEVICES} devices {step.arguments / 2**20:.0f} MiB of weights and states, "
        f"{step.temporary / 2**20:.0f} MiB for one step on {BATCH} x {LENGTH} tokens"
    )


@pytest.mark.parametrize("size", ["1b", "7b"])
def test_a_billion_parameters_have_shapes_without_memory(size: str) -> None:
    model = llama(size, **HALF)
    tokens = jax.ShapeDtypeStruct((2, 16), jnp.int32)
    logits = jax.eval_shape(model.logits, abstract_params(model), tokens)
    assert logits.shape == (2, 16, 50_257)
    assert logits.dtype == jnp.float32
    state = jax.eval_shape(EIGHT_BIT.init, abstract_params(model))
    held = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(state))
    # Two bytes, and two float32 scales for each 256 of them.
    assert held == pytest.approx(parameter_count(model) * (2 + 8 / 256), rel=0.002)


@pytest.fixture(scope="module")
def small() -> Step:
    return compiled(llama("25m", remat="full"), FLOAT32)


@pytest.mark.slow
def test_a_device_holds_an_eighth_of_weights_and_moments(small: Step) -> None:
    model = llama("25m")
    show("25m, float32, AdamW", model, small)
    # Twelve bytes a parameter; norms and the windows are what isn't cut.
    eighth = 12 * parameter_count(model) / DEVICES
    assert eighth < small.arguments < 1.005 * eighth
    # Donated: the next state takes the place of the last one.
    assert small.aliased > 0.99 * eighth


@pytest.mark.slow
def test_layers_are_gathered_one_by_one_and_batches_never(small: Step) -> None:
    shape = llama("25m").shape
    gathers = [line for line in small.text.splitlines() if " all-gather(" in line]
    matrix = f"{shape.width},{shape.mlp_width}]"
    assert any(f" f32[{matrix}" in line for line in gathers)
    assert not any(f"[{shape.layers},{matrix}" in line for line in gathers)
    whole_batch = f"f32[{BATCH},{LENGTH},{shape.vocabulary}]"
    assert whole_batch not in small.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "half"), [("25m", True), ("1b", False), ("1b", True), ("7b", True)]
)
def test_a_step_compiles_within_an_eighth_of_its_states(size: str, half: bool) -> None:
    model = llama(size, remat="full", **HALF if half else {})
    step = compiled(model, EIGHT_BIT if half else FLOAT32)
    show(
        f"{size}, {'bfloat16, 8-bit AdamW' if half else 'float32, AdamW'}", model, step
    )
    each = 2 + 2 + 8 / 256 if half else 12
    eighth = each * parameter_count(model) / DEVICES
    # 50 257 rows of 2 scales, those of the smallest table, cannot be cut by eight.
    assert 0.999 * eighth < step.arguments < (1.1 if size == "25m" else 1.01) * eighth
    assert step.aliased > 0.99 * eighth
