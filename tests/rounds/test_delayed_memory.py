"""How much memory a delayed run takes, by what XLA says of the compiled program.

Counted in copies of the parameters, a vector of a million float32 beside which all else
is small. A run is given one copy, which stays the caller's. Beyond it, with D for the
largest delay:

- the simulator's own: D + 1 in the ring (versions, or sums on their way) and the
  current parameters, so D + 2;
- the outer optimizer's state: none for SGD, two moments for Adam;
- the workers' own, for each of M: its optimizer state, the part it was sent
  (``snapshot`` only; in ``in_flight`` that is the current parameters), the part it
  trained, and the difference of both.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from spheroid_jax.optim.recipes import build_outer, parse_recipe
from spheroid_jax.rounds import Engine
from spheroid_jax.rounds.delayed import PROTOCOLS, Delivery, simulate

Toy = Callable[..., Engine]

SIZE = 1 << 20
ROUNDS, STEPS = 4, 2
# Numbers for shapes, counters, metrics and bytes, next to a million.
SMALL = 0.02
MOMENTUM = optax.sgd(0.5, momentum=0.5)
NUMBERS = {
    "learning_rate": 0.1,
    "b1": 0.9,
    "b2": 0.99,
    "eps": 1e-8,
    "alpha": 0.2,
    "tau_cut": 8.0,
}


@functools.cache
def copies(
    toy: Toy,
    protocol: str,
    max_delay: int,
    *,
    workers: int = 2,
    recipe: str = "sgd",
    inner: optax.GradientTransformation | None = None,
) -> float:
    """What a whole run takes beyond its arguments, in copies of the parameters."""
    outer = build_outer(parse_recipe(recipe, NUMBERS))
    engine = toy(
        inner=inner or optax.sgd(0.5), outer=outer.transformation, replicas=workers
    )
    delivery = Delivery(protocol, max_delay, outer.weigh)

    def run(params: Any, key: Any, windows: Any, delays: Any, active: Any) -> Any:
        def first(params: Any) -> jax.Array:
            return params["w"][0]

        arrays = windows, delays, active
        return simulate(engine, delivery, params, key, *arrays, first, 2)

    like = jax.ShapeDtypeStruct
    memory = (
        jax.jit(run)
        .lower(
            {"w": like((SIZE,), jnp.float32)},
            jax.eval_shape(lambda: jax.random.key(0)),
            like((ROUNDS, 1, workers, STEPS, 1, 2), jnp.uint8),
            like((ROUNDS, 1, workers), jnp.int32),
            like((ROUNDS, 1, workers), bool),
        )
        .compile()
        .memory_analysis()
    )
    assert memory is not None
    size = memory.output_size_in_bytes + memory.temp_size_in_bytes
    return (size - memory.alias_size_in_bytes) / (4 * SIZE)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_round_of_delay_costs_one_copy_of_the_parameters(
    toy: Toy, protocol: str
) -> None:
    """Two would mean that the ring is copied when it is written to."""
    two, four, eight = (copies(toy, protocol, delay) for delay in (2, 4, 8))
    assert four - two == pytest.approx(2, abs=SMALL)
    assert eight - four == pytest.approx(4, abs=SMALL)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_with_one_worker_as_well(toy: Toy, protocol: str) -> None:
    """Reading one version is a slice and not a gather, which XLA fuses otherwise."""
    two, eight = (copies(toy, protocol, delay, workers=1) for delay in (2, 8))
    assert eight - two == pytest.approx(6, abs=SMALL)


@pytest.mark.parametrize("recipe", ["sgd", "cgad gate=pre"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_beside_the_workers_it_is_the_delay_and_two(
    toy: Toy, protocol: str, recipe: str
) -> None:
    delay, workers = 4, 2
    each = {"snapshot": 3, "in_flight": 2}[protocol]
    moments = {"sgd": 0, "cgad gate=pre": 2}[recipe]
    got = copies(toy, protocol, delay, recipe=recipe)
    assert got <= (delay + 2) + moments + each * workers + SMALL


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_workers_optimizer_is_held_three_times_at_most(
    toy: Toy, protocol: str
) -> None:
    """As it was, for a worker that turns out not to be active; as it is; in a step."""
    delay, workers = 4, 2
    each = {"snapshot": 3, "in_flight": 2}[protocol] + 3
    got = copies(toy, protocol, delay, inner=MOMENTUM)
    assert got <= (delay + 2) + each * workers + SMALL
