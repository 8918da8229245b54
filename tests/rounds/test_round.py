"""A round: hand-worked numbers, who counts, and what an absent worker changes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

from spheroid_jax.optim import outer_optimizer
from spheroid_jax.partition import blocks
from spheroid_jax.rounds import Engine, RoundState, make_round, worker_keys

Toy = Callable[..., Engine]
Start = Callable[[Engine, Any], RoundState]
Go = Callable[..., tuple[RoundState, Any]]
Goals = Callable[[Any], jax.Array]


def same_bits(a: Any, b: Any) -> None:
    """Equal to the bit, signs of zeros included."""
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(
            np.asarray(x).view(np.uint32), np.asarray(y).view(np.uint32)
        ),
        a,
        b,
    )


def awkward(*shape: int) -> jax.Array:
    """Numbers whose sums round."""
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


class TestByHand:
    """All numbers are worked out in the comments; a local step halves the distance."""

    def test_mean_of_two_replicas_after_two_steps(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        # Replica 0, goal 2: 0 -> 1 -> 1.5. Replica 1, goal 4: 0 -> 2 -> 3. Mean 2.25.
        engine = toy()
        state, metrics = go(
            engine, start(engine, {"w": jnp.float32(0)}), goals([[[2, 2], [4, 4]]])
        )
        assert float(state.params["w"]) == 2.25
        # Mean loss on the way: (4/2 + 1/2) / 2 = 1.25 and (16/2 + 4/2) / 2 = 5.
        np.testing.assert_array_equal(metrics["loss"], [[1.25, 5.0]])
        # Mean gradient norm: (2 + 1) / 2 and (4 + 2) / 2.
        np.testing.assert_array_equal(metrics["grad_norm"], [[1.5, 3.0]])

    def test_local_steps_take_their_windows_in_order(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        # Goals 8 then 0: 0 -> 4 -> 2. In the other order it would be 0 -> 0 -> 4.
        engine = toy(replicas=1)
        state, _ = go(engine, start(engine, {"w": jnp.float32(0)}), goals([[[8, 0]]]))
        assert float(state.params["w"]) == 2.0

    def test_nesterov_over_two_rounds(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        # Round 1 returns 2.25 (above): g = -2.25, v = -2.25, step g + 0.9 v = -4.275,
        # w = 0.7 * 4.275 = 2.9925.
        # Round 2: goal 2: 2 + 0.9925 / 4 = 2.248125; goal 4: 4 - 1.0075 / 4 = 3.748125;
        # mean 2.998125, g = -0.005625, v = -0.005625 - 2.025 = -2.030625,
        # step = -0.005625 - 1.8275625 = -1.8331875, w = 2.9925 + 1.28323125.
        engine = toy(outer=outer_optimizer("nesterov", 0.7, 0.9))
        state, path = start(engine, {"w": jnp.float32(0)}), []
        for _ in range(2):
            state, _ = go(engine, state, goals([[[2, 2], [4, 4]]]))
            path.append(float(state.params["w"]))
        np.testing.assert_allclose(path, [2.9925, 4.27573125], rtol=1e-6)

    def test_blocks_average_alone_and_the_interface_over_block_means(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        # One step. Block 0: goals 2 and 6, accepted: returns 1 and 3, mean 2.
        # Block 1: goals 16 and 200, only the first accepted: returns 8.
        # Interface: mean of the block means, (2 + 8) / 2 = 5, and not
        # (1 + 3 + 8) / 3 = 4: the block with more replicas doesn't outweigh the other.
        engine = toy(partition=blocks(2))
        params = {"blocks": {"w": jnp.zeros(2)}, "interface": {"v": jnp.float32(0)}}
        windows = goals([[[2], [6]], [[16], [200]]])
        accepted = [[True, True], [True, False]]
        state, metrics = go(engine, start(engine, params), windows, accepted)
        np.testing.assert_array_equal(state.params["blocks"]["w"], [2.0, 8.0])
        assert float(state.params["interface"]["v"]) == 5.0
        # Every worker knew which block it held.
        np.testing.assert_array_equal(metrics["block"], [[0, 0], [1, 1]])
        np.testing.assert_array_equal(metrics["goal"], [[2, 6], [16, 200]])


class TestWhoCounts:
    def test_equal_replicas_are_one(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        params = {"w": awkward(5)}
        one, three = toy(replicas=1), toy(replicas=3)
        alone, _ = go(one, start(one, params), goals([[[7, 3]]]))
        together, _ = go(three, start(three, params), goals([[[7, 3]] * 3]))
        np.testing.assert_allclose(alone.params["w"], together.params["w"], rtol=1e-6)

    def test_the_order_of_replicas_does_not_matter(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        engine = toy(replicas=4)
        values = np.array([[[2], [90], [7], [30]]])
        accepted = np.array([[True, False, True, True]])
        turned = np.array([2, 0, 3, 1])
        begun = start(engine, {"w": awkward(5)})
        a, _ = go(engine, begun, goals(values), accepted)
        b, _ = go(engine, begun, goals(values[:, turned]), accepted[:, turned])
        np.testing.assert_allclose(a.params["w"], b.params["w"], rtol=1e-6)

    def test_updates_that_change_nothing_leave_every_bit(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        """Weights averaged in place of differences would round here."""
        engine = toy(replicas=3, inner=optax.sgd(0.0), partition=blocks(2))
        params = {"blocks": {"w": awkward(2, 5)}, "interface": {"v": -0.0 * awkward(3)}}
        windows = goals(np.full((2, 3, 1), 9))
        state, _ = go(engine, start(engine, params), windows)
        same_bits(state.params, params)

    def test_a_block_nobody_trained_keeps_every_bit_while_others_move(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        """What its workers hold doesn't count, even when it isn't a number."""

        def poisoned(params: Any, batch: Any, key: jax.Array) -> Any:
            loss, metrics = toy().objective(params, batch, key)
            return jnp.where(batch.block == 1, jnp.nan, 1.0) * loss, metrics

        engine = toy(partition=blocks(3), objective=poisoned)
        params = {"blocks": {"w": awkward(3, 5)}, "interface": {"v": awkward(4)}}
        windows = goals(np.full((3, 2, 2), 9))
        accepted = [[True, True], [False, False], [True, False]]
        state, metrics = go(engine, start(engine, params), windows, accepted)
        assert np.all(np.isnan(metrics["loss"][1]))
        before, after = params["blocks"]["w"], state.params["blocks"]["w"]
        same_bits(after[1], before[1])
        assert np.all(np.asarray(after[jnp.array([0, 2])]) > 4.0)
        # The interface is the mean of the two other blocks: 3/4 of the way to 9.
        np.testing.assert_allclose(
            state.params["interface"]["v"],
            9 + (params["interface"]["v"] - 9) / 4,
            rtol=1e-5,
        )

    def test_one_bad_update_that_was_not_accepted_harms_nobody(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        def poisoned(params: Any, batch: Any, key: jax.Array) -> Any:
            loss, metrics = toy().objective(params, batch, key)
            return jnp.where(metrics["goal"] == 66, jnp.inf, 1.0) * loss, metrics

        engine = toy(objective=poisoned)
        begun = start(engine, {"w": jnp.float32(0)})
        state, _ = go(engine, begun, goals([[[4], [66]]]), [[True, False]])
        assert float(state.params["w"]) == 2.0

    def test_a_round_without_any_accepted_update_leaves_every_bit(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        engine = toy(partition=blocks(2))
        params = {"blocks": {"w": awkward(2, 5)}, "interface": {"v": awkward(4)}}
        nobody = np.zeros((2, 2), bool)
        begun = start(engine, params)
        state, _ = go(engine, begun, goals(np.full((2, 2, 1), 9)), nobody)
        same_bits(state.params, params)
        assert int(state.round) == 1


class TestState:
    def test_rounds_are_counted_and_the_key_stays(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        engine = toy(replicas=1)
        state = start(engine, {"w": jnp.float32(0)})
        assert int(state.round) == 0
        for expected in (1, 2):
            after, _ = go(engine, state, goals([[[1]]]))
            assert int(after.round) == expected
            assert bool(jnp.all(after.key == state.key))
            state = after

    def test_worker_optimizers_go_on_where_they_stopped(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        """Momentum survives the round: v <- g + v / 2, w <- w - v / 2, by hand."""
        # Goal 8 from 0. g = -8, v = -8, w = 4; then g = -4, v = -4 - 4 = -8, w = 8.
        # A worker that began afresh would be at w = 6.
        engine = toy(replicas=1, inner=optax.sgd(0.5, momentum=0.5))
        state = start(engine, {"w": jnp.float32(0)})
        state, _ = go(engine, state, goals([[[8]]]))
        assert float(state.params["w"]) == 4.0
        state, _ = go(engine, state, goals([[[8]]]))
        assert float(state.params["w"]) == 8.0

    def test_each_worker_has_an_optimizer_state_of_its_own(
        self, toy: Toy, start: Start, go: Go, goals: Goals
    ) -> None:
        engine = toy(inner=optax.sgd(0.5, momentum=0.5))
        state, _ = go(
            engine, start(engine, {"w": jnp.float32(0)}), goals([[[8], [20]]])
        )
        (velocity,) = jax.tree.leaves(state.workers)
        np.testing.assert_array_equal(velocity, [[-8.0, -20.0]])


@pytest.fixture(scope="module")
def draws(toy: Toy, start: Start, goals: Goals) -> np.ndarray:
    """What each worker drew, by round, local step, block and replica."""

    def noisy(params: Any, batch: Any, key: jax.Array) -> Any:
        loss, _ = toy().objective(params, batch, key)
        step, drawn = batch.windows[0, 0], jax.random.normal(key)
        return loss, {f"step{i}": jnp.where(step == i, drawn, 0.0) for i in (0, 1)}

    engine = toy(partition=blocks(3), objective=noisy)
    params = {"blocks": {"w": jnp.zeros(3)}, "interface": {"v": jnp.float32(0)}}
    state, rounds = start(engine, params), []
    compiled = jax.jit(make_round(engine))
    for _ in range(2):
        windows = goals(np.tile([0, 1], (3, 2, 1)))
        state, metrics = compiled(state, windows, jnp.ones((3, 2), bool))
        rounds.append([metrics["step0"], metrics["step1"]])
    return np.array(rounds)


class TestNoise:
    def test_no_two_workers_steps_or_rounds_share_their_noise(
        self, draws: np.ndarray
    ) -> None:
        assert draws.shape == (2, 2, 3, 2)
        assert len(np.unique(draws)) == draws.size

    def test_keys_come_from_a_workers_place(self) -> None:
        keys = jax.random.key_data(worker_keys(jax.random.key(5), 3, 2))
        assert len(np.unique(np.asarray(keys).reshape(6, -1), axis=0)) == 6
        # More replicas leave the noise of those that were there alone.
        fewer = jax.random.key_data(worker_keys(jax.random.key(5), 3, 1))
        np.testing.assert_array_equal(keys[:, :1], fewer)


def equations(jaxpr: Any) -> int:
    """Number of equations, those inside loops and calls included."""
    return sum(
        1 + sum(map(equations, jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


class TestCompilation:
    def test_many_rounds_take_one_compilation(
        self, tiny_round: Any, tiny_state: RoundState, tiny_windows: jax.Array
    ) -> None:
        accepted = jnp.ones(tiny_windows.shape[:2], bool)
        for arrived in (accepted, accepted.at[0, 1].set(False), ~accepted):
            tiny_state, _ = tiny_round(tiny_state, tiny_windows, arrived)
        assert tiny_round._cache_size() == 1

    def test_the_first_round_changes_every_parameter(
        self, tiny_round: Any, tiny_state: RoundState, tiny_windows: jax.Array
    ) -> None:
        accepted = jnp.ones(tiny_windows.shape[:2], bool)
        after, metrics = tiny_round(tiny_state, tiny_windows, accepted)
        before = jax.tree_util.tree_leaves_with_path(tiny_state.params)
        for (path, old), new in zip(before, jax.tree.leaves(after.params), strict=True):
            assert np.all(np.isfinite(new)), path
            assert np.any(np.asarray(old != new)), path
        assert metrics["loss"].shape == metrics["ce"].shape == tiny_windows.shape[:2]

    def test_the_program_does_not_grow_with_workers_or_steps(
        self, toy: Toy, start: Start
    ) -> None:
        def size(replicas: int, steps: int, count: int) -> int:
            engine = toy(partition=blocks(count), replicas=replicas)
            params = {
                "blocks": {"w": jnp.zeros((count, 5))},
                "interface": {"v": jnp.zeros(4)},
            }
            windows = jnp.zeros((count, replicas, steps, 1, 1), jnp.uint8)
            accepted = jnp.ones((count, replicas), bool)
            traced = jax.make_jaxpr(make_round(engine))
            return equations(traced(start(engine, params), windows, accepted).jaxpr)

        assert size(2, 2, 2) == size(7, 2, 2) == size(2, 19, 2) == size(2, 2, 5)
