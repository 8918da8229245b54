"""The network changes who delivers when, never the mathematics of a round."""

import asyncio
import math
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
from spheroid_jax.rounds import Engine, init_state, make_round
from spheroid_jax.rounds.delayed import Delivery, simulate
from spheroid_jax.transport.closing import Policy
from spheroid_jax.transport.coordinator import Model, Rules
from spheroid_jax.transport.coordinator.model import Arrival
from spheroid_jax.transport.updates import Encoding, write_update
from tests.transport import tiny
from tests.transport.coordinator.puppets import Puppet, blockwise, opened, running
from tests.transport.tiny import Clock, TinyRun, flat, same

B, K, R = 2, 2, 4


def slots_windows(round_: int) -> np.ndarray:
    return np.stack([[tiny.windows(round_, b, k) for k in range(K)] for b in range(B)])


def simulated(recipe: str, accepted: np.ndarray) -> dict[str, np.ndarray]:
    """R rounds of the simulator; ``accepted`` (R, B, K)."""
    engine, _ = tiny.engine(B, K, recipe)
    params = jax.jit(tiny.init(B))(jax.random.key(0))
    state = init_state(engine, params, tiny.KEY())
    step = jax.jit(make_round(engine))
    for round_, mask in enumerate(accepted):
        state, _ = step(state, jnp.asarray(slots_windows(round_)), jnp.asarray(mask))
    return flat({"params": state.params, "outer": state.outer})


def assert_near(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, leaf in wanted.items():
        np.testing.assert_allclose(found[name], leaf, 2e-6, 2e-6, err_msg=name)


@pytest.mark.parametrize(
    "recipe",
    [
        "sgd learning_rate=1.0",
        "nesterov learning_rate=0.7 momentum=0.9",
        "weighted_sgd learning_rate=0.7",
        "cgad learning_rate=0.05",
    ],
)
def test_lockstep_is_the_simulator(tmp_path: Path, recipe: str) -> None:
    # Age 0 counts fully, so the gates are open, as they are in the simulator's round.
    run = TinyRun(
        tmp_path, blocks=B, replicas=K, rounds=R, workers=B * K, recipe=recipe
    )
    assert asyncio.run(run.together(["a", "b", "c", "d"])) == "finished"
    assert_near(run.state(), simulated(recipe, np.ones((R, B, K), bool)))
    assert same(run.on_disk(), run.state())
    run.close()


def test_whose_updates_are_missing_is_left_out(tmp_path: Path) -> None:
    """Blocks that nothing arrives for stay, momentum included, bit for bit."""
    recipe = "nesterov learning_rate=0.7 momentum=0.9"
    accepted = np.ones((R, B, K), bool)
    accepted[1, 0] = False  # a block nobody is heard of
    accepted[2, 1, 0] = False
    clock = Clock()
    policy = tiny.LOCKSTEP._replace(deadline=10.0)
    run = TinyRun(
        tmp_path, blocks=B, replicas=K, rounds=R, workers=B * K, recipe=recipe,
        policy=policy, clock=clock, lease=1e9,
    )  # fmt: skip

    async def scenario() -> None:
        async with running(run) as task:
            puppets = [await Puppet(run, name).join() for name in "abcd"]
            for round_ in range(R):
                await opened(run, round_)
                before = run.state()
                for puppet in puppets:
                    work = await puppet.ask()
                    assert (work.do, work.round) == ("train", round_)
                    delta = puppet.train(work)
                    if accepted[round_, work.block, work.replica]:
                        assert (await puppet.send(work, delta)).verdict == "accepted"
                if not accepted[round_].all():
                    clock.advance(10.0)
                await opened(run, round_ + 1, "open" if round_ < R - 1 else "finished")
                for block in range(B):
                    pairs = zip(
                        blockwise(before, block),
                        blockwise(run.state(), block),
                        strict=True,
                    )
                    stays = all(np.array_equal(old, new) for old, new in pairs)
                    assert stays is not bool(accepted[round_, block].any())
            await task

    asyncio.run(scenario())
    assert_near(run.state(), simulated(recipe, accepted))
    run.close()


@pytest.mark.parametrize(
    "recipe", ["weighted_sgd learning_rate=0.7", "cgad learning_rate=0.05 gate=pre"]
)
def test_late_updates_are_those_of_the_delayed_simulator(
    tmp_path: Path, recipe: str
) -> None:
    """Updates delivered some rounds later, with the weights of their ages."""
    rounds = 5
    delays = np.zeros((rounds, B, K), np.int32)
    delays[0, 0, 1] = 1
    delays[1, 1, 0] = 2
    delays[1, 0] = 1  # a block with nothing timely
    delays[2, 0, 0] = 2
    clock = Clock()
    policy = Policy(deadline=10.0, late="gate", quorum=0, grace=0.0, max_age=3)
    run = TinyRun(
        tmp_path, blocks=B, replicas=K, rounds=rounds, workers=B * K, recipe=recipe,
        policy=policy, clock=clock, lease=1e9,
    )  # fmt: skip
    flying: dict[int, list[Any]] = {}

    async def scenario() -> None:
        async with running(run) as task:
            puppets = [await Puppet(run, name).join() for name in "abcd"]
            for round_ in range(rounds):
                await opened(run, round_)
                timely = 0
                trained = []
                for puppet in puppets:
                    work = await puppet.ask()
                    assert (work.do, work.round) == ("train", round_)
                    trained.append((puppet, work, puppet.train(work)))
                for puppet, work, delta in trained:
                    late = int(delays[round_, work.block, work.replica])
                    timely += late == 0
                    flying.setdefault(round_ + late, []).append((puppet, work, delta))
                # The late ones first: the last timely one closes the round.
                due = sorted(flying.pop(round_, []), key=lambda given: given[1].round)
                for puppet, work, delta in due:
                    verdict = await puppet.send(work, delta)
                    assert verdict.verdict == "accepted"
                    assert verdict.age == round_ - work.round
                    assert verdict.applies_in == round_
                if timely < B * K:
                    clock.advance(10.0)
                end = "open" if round_ < rounds - 1 else "finished"
                await opened(run, round_ + 1, end)
            await task

    asyncio.run(scenario())
    engine, weigh = tiny.engine(B, K, recipe)
    params = jax.jit(tiny.init(B))(jax.random.key(0))
    windows = jnp.asarray(np.stack([slots_windows(r) for r in range(rounds)]))
    state, metrics, _ = jax.jit(
        lambda: simulate(
            engine, Delivery("in_flight", 3, weigh), params, tiny.KEY(), windows,
            jnp.asarray(delays), jnp.ones(delays.shape, bool),
            lambda _: jnp.float32(0), 1,
        )
    )()  # fmt: skip
    assert_near(run.state(), flat({"params": state.params, "outer": state.outer}))
    log = run.coordinator.status()["rounds_log"]
    assert [r["heard"] for r in log] == np.asarray(metrics["arrived"]).tolist()
    np.testing.assert_allclose([r["age"] for r in log], metrics["age"], 1e-6)
    run.close()


def test_the_order_of_arrival_changes_nothing(tmp_path: Path) -> None:
    """Bit for bit: updates are added by slot, whoever was first."""

    async def scenario(run: TinyRun, order: list[int]) -> None:
        async with running(run) as task:
            puppets = [await Puppet(run, name).join() for name in "abcd"]
            for round_ in range(2):
                await opened(run, round_)
                works = [await puppet.ask() for puppet in puppets]
                deltas = [p.train(w) for p, w in zip(puppets, works, strict=True)]
                for n in order:
                    await puppets[n].send(works[n], deltas[n])
            await task

    states = []
    for number, order in enumerate([[0, 1, 2, 3], [3, 1, 0, 2]]):
        run = TinyRun(
            tmp_path / str(number), blocks=B, replicas=K, rounds=2, workers=4,
            recipe="nesterov",
        )  # fmt: skip
        asyncio.run(scenario(run, order))
        states.append(run.state())
        run.close()
    assert same(*states)


def test_memory_does_not_grow_with_the_number_of_updates(tmp_path: Path) -> None:
    """One block's pseudo-gradient, and one chunk of updates, at a time."""
    size = 1 << 21  # 8 MiB in float32, 8 chunks
    engine = Engine(
        partition.blocks(1), tiny.quadratic, optax.sgd(0.1), optax.sgd(1.0), 8
    )

    def first() -> Any:
        return {
            "blocks": {"kernel": jnp.ones((1, size))},
            "interface": {"head": jnp.ones(3)},
        }, jax.random.key(0)

    with Checkpoints(tmp_path / "c", keep=1, identity={}) as checkpoints:
        model = Model(
            engine, Rules(), first, lambda params: {}, checkpoints, tmp_path / "c"
        )
        files = []
        for number in range(8):
            files.append(tmp_path / f"{number}.update")
            delta = {"block.kernel": np.full(size, number, np.float32)}
            delta["interface.head"] = np.zeros(3, np.float32)
            write_update(files[-1], delta, Encoding(), {})

        def peak(count: int) -> int:
            tracemalloc.start()
            model.step([Arrival(path, 0, 0) for path in files[:count]])
            found = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return found

        peak(1)
        three, eight = peak(3), peak(8)
        assert three >= 4 * size  # the measurement sees NumPy's memory
        assert eight - three < 1 << 19, (three, eight)
        # One, less the means of the first, the first three, and all eight.
        value = np.asarray(model.params["blocks"]["kernel"])
        assert np.all(value == 1 - 0 - 1 - 3.5)


def test_the_age_of_a_round_without_updates(tmp_path: Path) -> None:
    """Nothing arrives: the round is done and the model is the same bits."""
    clock = Clock()
    policy = tiny.LOCKSTEP._replace(deadline=5.0)
    run = TinyRun(tmp_path, rounds=1, policy=policy, clock=clock, lease=math.inf)

    async def scenario() -> None:
        async with running(run) as task:
            await Puppet(run, "a").join()
            await opened(run, 0)
            before = run.state()
            clock.advance(5.0)
            await task
            assert same(before, run.state())

    asyncio.run(scenario())
    run.close()
