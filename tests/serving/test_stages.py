"""Stages with caches against whole chains without; what is asked for that can't be."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params

from spheroid_jax.models import BlockDenoiser
from spheroid_jax.serving import draws
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.stages import (
    FILLS,
    Passed,
    Rows,
    Stage,
    block_stages,
    layer_stages,
)
from tests.serving.naive_chain import (
    GRID,
    PLACES,
    SLOTS,
    WIDTH,
    Ask,
    Chain,
    batch,
    denoiser,
    dice,
    naive_draw,
    naive_sweep,
    params,
    reference,
    step,
    teacher_forced,
)

ROWS, SIZE = 3, 4
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 2e-4}
RNG = np.random.default_rng(0)
TEXTS = RNG.integers(0, 256, (ROWS, PLACES)).tolist()
SEEDS, OFFSETS = [5, 6, 2**32 - 1], [0, 40, 1000]
SEEDS_ARRAY = jnp.array(SEEDS, jnp.uint32)
INDICES = jnp.arange(PLACES)[None] + jnp.array(OFFSETS)[:, None]
DICE = [dice(seed, np.asarray(own)) for seed, own in zip(SEEDS, INDICES, strict=True)]
NEAR = 1e-3  # a choice so near to another may be the other by rounding


def log_softmax(logits: Any) -> np.ndarray:
    return np.asarray(jax.nn.log_softmax(logits))


def feed(
    chain: Chain, pieces: list[list[int]], slots: list[int], size: int, answer: str
) -> tuple[np.ndarray, ...]:
    """Sends the texts through in pieces; returns drawn, logprob and z of each place."""
    drawn = np.full((ROWS, PLACES), -1)
    logs = np.full((ROWS, PLACES), np.nan)
    z = np.full((len(chain.stages) - 1, ROWS, PLACES, WIDTH), np.nan)
    done = [0] * ROWS
    for turn in range(max(map(len, pieces))):
        asks = []
        for row, own in enumerate(pieces):
            count = min(own[turn], PLACES - done[row]) if turn < len(own) else 0
            here = TEXTS[row][done[row] : done[row] + count]
            # Without work a row has no slot in the sweep.
            slot = slots[row] if count else -1
            asks.append(
                Ask(slot, done[row], here, count, SEEDS[row], 1.0, OFFSETS[row])
            )
        out = chain.sweep(batch(asks, size), answer=answer)
        for row, ask in enumerate(asks):
            count = len(ask.bytes)
            here = slice(done[row], done[row] + count)
            drawn[row, here] = out.bytes[row, :count]
            logs[row, here] = out.logprob[row, :count]
            assert out.context[row, :count].tolist() == ask.bytes
            for b, passed in enumerate(chain.passed):
                z[b, row, here] = passed.state[row, :count]
            done[row] += count
    return drawn, logs, z


def alone_in_batch(ask: Ask) -> Rows:
    """One row, and padding rows of both kinds that ask for much."""
    junk = [Ask(slot, 1, [7] * SIZE, 1) for slot in (-1, SLOTS)]
    return batch([ask, *junk], SIZE)


def check_pieces(
    model: BlockDenoiser, pieces: list[list[int]], slots: list[int], size: int
) -> None:
    """The stages' outputs against the whole chain's."""
    whole = params(model, len(GRID))
    chain = Chain(block_stages(model, GRID), whole)
    drawn, logs, z = feed(chain, pieces, slots, size, "last")
    logits, _ = teacher_forced(
        model, GRID, whole, jnp.array(TEXTS), SEEDS_ARRAY, INDICES
    )
    expected, first = log_softmax(logits[-1]), log_softmax(logits[0])
    seen = drawn >= 0
    rows, places = np.nonzero(seen)
    picked = drawn[rows, places]
    np.testing.assert_allclose(logs[seen], expected[rows, places, picked], **CLOSE)
    for row, place in zip(rows, places, strict=True):
        byte, margin = naive_draw(
            expected[row, place], first[row, place], 1.0, DICE[row], int(place)
        )
        assert drawn[row, place] == byte or margin < NEAR
    z_expected = states(model, whole, np.asarray(logits))
    np.testing.assert_allclose(z[:, seen], z_expected[:, seen], **CLOSE)


def states(model: BlockDenoiser, whole: Any, logits: np.ndarray) -> np.ndarray:
    """z after every block but the last: Euler's method, by NumPy."""
    targets = np.asarray(model.targets(whole["interface"]))
    z = GRID[0] * np.asarray(draws.eps(SEEDS_ARRAY, INDICES, WIDTH))
    out = []
    for b in range(len(GRID) - 1):
        ratio = GRID[b + 1] / GRID[b]
        z = ratio * z + (1 - ratio) * np.exp(log_softmax(logits[b])) @ targets
        out.append(z)
    return np.stack(out)


chunks = st.lists(st.integers(0, SIZE), min_size=1, max_size=6)


@pytest.mark.parametrize(("rotary", "head"), [(True, "tied"), (False, "untied")])
def test_any_pieces_give_what_the_whole_chain_gives(rotary: bool, head: str) -> None:
    """Rows of a batch are at different places, and some have nothing to do."""

    @given(
        pieces=st.lists(chunks, min_size=ROWS, max_size=ROWS),
        slots=st.permutations(range(SLOTS)),
    )
    @settings(max_examples=12, deadline=None)
    def check(pieces: list[list[int]], slots: list[int]) -> None:
        check_pieces(denoiser(rotary, head), pieces, slots, SIZE)

    check()


def test_all_at_once_gives_the_same() -> None:
    check_pieces(denoiser(), [[PLACES]] * ROWS, [4, 0, 2], PLACES)


# Each with a history in the cache: start, known, and what may be asked for.
STARTS, KNOWN, COUNTS = [5, 0, 8], [1, 3, 2], [4, 4, 3]
HEATS = [1.0, 0.0, 0.7]


@pytest.mark.parametrize(
    ("fill", "answer"),
    [
        ("expected", "ensemble"),
        ("drawn", "last"),
        ("given", "last"),
        ("drafted", "last"),
        ("written", "last"),
    ],
)
def test_unknown_bytes_are_filled_by_the_rules(fill: str, answer: str) -> None:
    model = denoiser()
    whole = params(model, len(GRID))
    chain = Chain(block_stages(model, GRID), whole)
    history = [[4, 1], [], [4, 4]]
    feed(chain, [own + [0] * 2 for own in history], [4, 0, 2], SIZE, "last")
    asks = [
        Ask(
            slot,
            STARTS[row],
            TEXTS[row][STARTS[row] : STARTS[row] + COUNTS[row]],
            KNOWN[row],
            SEEDS[row],
            HEATS[row],
            OFFSETS[row],
        )
        for row, slot in enumerate([4, 0, 2])
    ]
    out = chain.sweep(batch(asks, SIZE), fill, answer)
    for row, ask in enumerate(asks):
        end = ask.start + len(ask.bytes)
        expected = naive_sweep(
            model,
            GRID,
            whole,
            TEXTS[row][:end] + [0] * (PLACES - end),
            ask.start + ask.known,
            end,
            fill,
            ensemble=answer == "ensemble",
            seed=ask.seed,
            temperature=ask.temperature,
            offset=ask.offset,
        )
        here, count = slice(ask.start, end), len(ask.bytes)
        picked = np.asarray(out.bytes[row, :count])
        logs = expected.logs[here]
        np.testing.assert_allclose(
            out.logprob[row, :count], logs[np.arange(count), picked], **CLOSE
        )
        near = expected.margin[here] < NEAR
        assert np.all((picked == expected.bytes[here]) | near)
        assert not np.all(near)
        if fill != "expected":  # which has no bytes there
            assert out.context[row, :count].tolist() == expected.context[here].tolist()


def test_what_is_drafted_is_what_the_first_block_writes_alone() -> None:
    """Token by token, as a model of one block."""
    model = denoiser()
    whole = params(model, len(GRID))
    drafting = Chain(block_stages(model, GRID), whole)
    prompt = TEXTS[0][:2]
    rows = alone_in_batch(Ask(1, 0, [*prompt, 0, 0], 2, 8))
    drafts = drafting.sweep(rows, "drafted").context[0, 2:].tolist()

    one = jax.tree.map(lambda leaf: leaf[:1], whole["blocks"])
    alone = Chain(
        block_stages(model, GRID[:1]), {"blocks": one, "interface": whole["interface"]}
    )
    text = prompt.copy()
    for turn in range(2):
        known = text if turn == 0 else text[-1:]
        ask = Ask(0, len(text) - len(known), known, len(known), 8)
        rows = alone_in_batch(ask)
        text.append(int(alone.sweep(rows).bytes[0, len(known) - 1]))
    assert drafts == text[2:]


@pytest.mark.parametrize("fill", ["given", "drafted", "expected"])
def test_one_block_is_the_first_stage_and_the_last(fill: str) -> None:
    model, grid = denoiser(), GRID[:1]
    whole = params(model, 1)
    chain = Chain(block_stages(model, grid), whole)
    known = 1 if fill == "drafted" else 2
    out = chain.sweep(alone_in_batch(Ask(3, 0, TEXTS[0][:4], known, 9)), fill)
    expected = naive_sweep(
        model,
        grid,
        whole,
        TEXTS[0][:4] + [0] * (PLACES - 4),
        known,
        SIZE,
        fill,
        ensemble=False,
        seed=9,
        temperature=1.0,
        offset=0,
    )
    picked = np.asarray(out.bytes[0])
    np.testing.assert_allclose(
        out.logprob[0], expected.logs[np.arange(4), picked], **CLOSE
    )
    assert picked.tolist() == expected.bytes[:SIZE].tolist()
    if fill == "drafted":
        assert out.context[0, 1:].tolist() == picked[:-1].tolist()


def test_a_step_of_one_position_of_one_block() -> None:
    model, grid = denoiser(), GRID[:1]
    whole = params(model, 1)
    chain = Chain(block_stages(model, grid), whole)
    logits, _ = teacher_forced(
        model, grid, whole, jnp.array(TEXTS), SEEDS_ARRAY, INDICES
    )
    expected = log_softmax(logits[0, 0])
    for place in range(3):
        ask = Ask(1, place, TEXTS[0][place : place + 1], 1, SEEDS[0], 0.0)
        out = chain.sweep(batch([ask], 1))
        assert int(out.bytes[0, 0]) == np.argmax(expected[place])
        np.testing.assert_allclose(out.logprob[0, 0], expected[place].max(), **CLOSE)


@pytest.mark.parametrize("count", [1, 3])
def test_a_reference_cut_into_stages_equals_the_whole(count: int) -> None:
    model = reference(4)
    whole = params(model)
    chain = Chain(layer_stages(model, count), whole)
    pieces = [[4, 4, 4], [1, 0, 3, 2], [2, 4]]
    drawn, logs, _ = feed(chain, pieces, [1, 2, 0], SIZE, "last")
    expected = log_softmax(jax.jit(model.logits)(whole, jnp.array(TEXTS)))
    seen = drawn >= 0
    assert seen.sum() == 12 + 6 + 6
    rows, places = np.nonzero(seen)
    picked = drawn[seen]
    np.testing.assert_allclose(logs[seen], expected[rows, places, picked], **CLOSE)
    noisy = expected + np.asarray(draws.gumbel(SEEDS_ARRAY, INDICES))
    assert picked.tolist() == np.argmax(noisy[rows, places], axis=-1).tolist()


def test_layers_of_stages_are_all_the_layers() -> None:
    for layers in range(1, 9):
        for count in range(1, layers + 1):
            held = [
                range(layers)[s.layers] for s in layer_stages(reference(layers), count)
            ]
            assert [i for own in held for i in own] == list(range(layers))
            assert max(map(len, held)) - min(map(len, held)) <= 1


def test_a_row_that_is_not_a_number_leaves_the_others_alone() -> None:
    model = denoiser()
    whole = params(model, len(GRID))
    last = block_stages(model, GRID)[-1]
    rows = batch(
        [Ask(row, 0, TEXTS[row][:SIZE], SIZE, SEEDS[row]) for row in range(ROWS)], SIZE
    )
    chain = Chain(block_stages(model, GRID), whole)
    good = chain.sweep(rows)
    passed = chain.passed[-1]
    bad = passed._replace(state=passed.state.at[1, 2].set(jnp.nan))
    cache = last.init_cache(SLOTS)
    _, out = step(last, last.part(whole), cache, rows, bad)
    # Positions of the row before the broken one may be lost too, but nobody else's.
    assert np.all(np.isnan(out.logprob[1, 2:]))
    for row in (0, 2):
        np.testing.assert_array_equal(out.bytes[row], good.bytes[row])
        np.testing.assert_array_equal(out.logprob[row], good.logprob[row])


def test_a_draft_changes_a_donated_cache_in_place() -> None:
    model = denoiser()
    stage = block_stages(model, GRID)[0]
    part = jax.eval_shape(stage.part, params(model, len(GRID)))
    cache = jax.eval_shape(lambda: stage.init_cache(8192))
    rows = batch([Ask(0, 0, TEXTS[0][:SIZE], 1)], SIZE)
    donating = jax.jit(
        Stage.step, static_argnames=("self", "fill", "answer"), donate_argnums=2
    )
    compiled = donating.lower(stage, part, cache, rows, fill="drafted").compile()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in cache)
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size / 10


def matmul_flops(jaxpr: Any, times: int = 1) -> int:
    """Two per multiply-add of every matrix product of a program."""
    total = 0
    for equation in jaxpr.eqns:
        turns = times * equation.params.get("length", 1)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            deep = int(np.prod([shape[axis] for axis in contracted]))
            total += times * 2 * equation.outvars[0].aval.size * deep
        for inner in jaxprs_in_params(equation.params):
            total += matmul_flops(inner, turns)
    return total


@pytest.mark.parametrize("index", [0, 2])
def test_flops_are_those_of_the_program(index: int) -> None:
    rows = batch([Ask(0, 0, TEXTS[0][:SIZE], SIZE)], SIZE)
    model = reference(4)
    for stage, whole in (
        (
            block_stages(denoiser(head="untied"), GRID)[index],
            params(denoiser(head="untied"), 3),
        ),
        (layer_stages(model, 3)[index], params(model)),
    ):
        state = jnp.zeros((1, SIZE, WIDTH))
        passed = Passed(state, rows.bytes) if index else None
        program = jax.make_jaxpr(lambda *a, s=stage: s.step(*a))(
            stage.part(whole), stage.init_cache(1), rows, passed
        )
        counted = matmul_flops(program.jaxpr)
        if stage.kind == "blocktrain":
            counted -= 2 * 32 * WIDTH  # the embedding of sigma, once a row
        assert stage.flops(SIZE) == counted


WHOLE = block_stages(denoiser(), GRID)[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": 3}, "stage is 3, but there are stages 0 to 2"),
        ({"index": -1}, "stage is -1, but there are stages 0 to 2"),
        ({"grid": GRID[:2]}, "3 blocks need as many noise levels, not 2"),
        (
            {"model": dataclasses.replace(denoiser(), layout="concat")},
            "model.layout is 'concat', which can't be served position by position; "
            "train with model.layout='aligned'",
        ),
        (
            {"model": reference(2), "grid": ()},
            "3 stages can't share 2 layers; use fewer stages",
        ),
    ],
)
def test_a_stage_that_cannot_be_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ServingError) as caught:
        dataclasses.replace(WHOLE, **change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("stage", "asked", "message"),
    [
        (
            WHOLE,
            {"fill": "guessed"},
            f"fill is 'guessed'; use one of {', '.join(FILLS)}",
        ),
        (WHOLE, {"answer": "first"}, "answer is 'first'; use one of last, ensemble"),
        (WHOLE, {}, "stage 1 takes a state from a stage before it"),
        (
            layer_stages(reference(2), 2)[0],
            {"fill": "drafted"},
            "fill 'drafted' with answer 'last' needs a model of blocks; a reference "
            "knows given and last",
        ),
    ],
)
def test_a_step_that_cannot_be_is_refused(
    stage: Stage, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(ServingError) as caught:
        stage.step(None, stage.init_cache(1), batch([Ask(0, 0, [1], 1)], 1), **asked)
    assert str(caught.value) == message
