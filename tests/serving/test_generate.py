"""Generation in one process, against the model's definition without any cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.diffusion import NoiseLevels, chain_grid, run_chain
from spheroid_jax.evaluation import ensemble_log_probabilities
from spheroid_jax.models import (
    Autoregressive,
    BlockDenoiser,
    InterfaceShape,
    TransformerShape,
)
from spheroid_jax.serving import generate as module
from spheroid_jax.serving.decoding import Decoder, Method, Sampling, segments
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.generate import generate, split
from spheroid_jax.serving.stages import block_stages, layer_stages
from tests.serving.naive_chain import dice, naive_draw

WIDTH, PLACES, BLOCKS = 16, 8, 2
SHAPE = TransformerShape(width=WIDTH, heads=2, mlp_width=32, layers=1)
# Of all lengths: none, some that fit, and one of more bytes than places. Every shape of
# a batch is compiled, which takes longer than all the rest: so most tests share these.
PROMPTS = [b"", b"abc", bytes(range(200, 221)), "ä€".encode()]
LENGTH, SEED = 14, 5


def interface(**changes) -> InterfaceShape:
    return InterfaceShape(WIDTH, PLACES, noisy_input_std=1.0, **changes)


def sharpened(params):
    """Untrained, but not the uniform distribution: blocks disagree now and then."""
    phi = dict(params["interface"])
    phi["head"] = 40.0 * phi["head"]
    return params | {"interface": phi}


def make(blocks):
    model = BlockDenoiser(SHAPE, interface())
    grid = chain_grid(NoiseLevels(), blocks, "upper_edges")
    params = jax.jit(model.init, static_argnums=1)(jax.random.key(0), blocks)
    return model, grid, sharpened(params)


@pytest.fixture(scope="module")
def served():
    model, grid, params = make(BLOCKS)
    stages = block_stages(model, grid)
    return stages, split(stages, params), naive(model, grid, params)


@pytest.fixture(scope="module")
def token(served):
    stages, parts, _ = served
    return generate(stages, parts, PROMPTS, LENGTH, seed=SEED)


def naive(model, grid, params):
    """``(seed, prompt, length, ...) -> (text, logprobs)``, recomputed byte by byte."""

    def noise(key, index):
        return jax.random.normal(jax.random.fold_in(key, index), (WIDTH,))

    @jax.jit
    def logits(x, seed, origin):
        key = jax.random.fold_in(jax.random.key(seed), 0)
        eps = jax.vmap(lambda i: noise(key, i))(origin + jnp.arange(PLACES))
        levels = jnp.asarray(grid, jnp.float32)

        def denoise(block, z, sigma):
            return model.logits(block, params["interface"], x[None], z, sigma)

        return run_chain(
            denoise,
            params["blocks"],
            levels[0] * eps[None],
            levels,
            model.targets(params["interface"]),
        ).logits[:, 0]

    def write(seed, prompt, length, temperature=1.0, answer="last", blocks=None):
        text, logs = prompt or b"\n", []
        first = len(text)
        for cut in segments(first, length, PLACES):
            for _ in range(cut.first, cut.end):
                x = np.zeros(PLACES, np.int32)
                seen = np.frombuffer(text[cut.origin :], np.uint8)
                x[: len(seen)] = seen
                each = np.asarray(logits(x, seed, cut.origin), np.float64)
                each = each[:blocks, len(seen) - 1]
                last = each[-1]
                if answer == "ensemble":
                    last = np.asarray(ensemble_log_probabilities(jnp.asarray(each)))
                draft = each[0] if len(each) > 1 else None
                byte = choose(last, draft, seed, len(text) - 1, temperature)
                logs.append(float(last[byte] - np.logaddexp.reduce(last)))
                text += bytes([byte])
        return text[first:], logs

    return write


@functools.cache
def thrown(seed):
    return dice(seed, np.arange(64))


def choose(last, first, seed, index, temperature) -> int:
    return naive_draw(last, first, temperature, thrown(seed), index)[0]


def test_token_writes_what_the_model_defines(served, token):
    _, _, write = served
    for row, prompt in enumerate(PROMPTS):
        text, logs = write(SEED + row, prompt, LENGTH)
        assert token.texts[row] == text
        np.testing.assert_allclose(token.logprobs[row], logs, rtol=1e-3, atol=1e-4)
    assert token.trips == [LENGTH] * len(PROMPTS)
    assert token.finish == ["length"] * len(PROMPTS)


def test_speculative_writes_the_bytes_of_token(served, token):
    stages, parts, _ = served
    result = generate(stages, parts, PROMPTS, LENGTH, "speculative=4", seed=SEED)
    assert result.texts == token.texts
    # Fewer trips, or the comparison would say nothing about guesses that held.
    assert sum(result.trips) < sum(token.trips)
    for ours, theirs in zip(result.logprobs, token.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_sweeps_converge_to_the_bytes_of_token(served):
    stages, parts, write = served
    prompts = [b"abc", b"xyz", b"foo", b"bar"]
    result = generate(stages, parts, prompts, 6, "sweeps=6:expected", seed=SEED)
    for row, prompt in enumerate(prompts):
        text, logs = write(SEED + row, prompt, 6)
        assert result.texts[row] == text
        np.testing.assert_allclose(result.logprobs[row], logs, rtol=1e-3, atol=1e-4)
    assert sum(result.trips) < 6 * len(prompts)


def test_drafts_that_nothing_verifies_are_the_text(served):
    """So exact methods do refuse some: else all of them would write this text."""
    stages, parts, write = served
    prompts = [b"abc", b"xyz", b"foo", b"bar"]
    result = generate(stages, parts, prompts, 6, "one_sweep:drafted", seed=SEED)
    first = [write(SEED + r, p, 6, blocks=1)[0] for r, p in enumerate(prompts)]
    # The byte after the last draft is the last block's.
    assert [text[:5] for text in result.texts] == [text[:5] for text in first]
    token = [write(SEED + r, p, 6)[0] for r, p in enumerate(prompts)]
    assert result.texts != token
    assert result.trips == [1] * 4


@pytest.mark.parametrize("fill", ["expected", "drawn", "drafted"])
def test_a_window_of_one_is_token(served, token, fill):
    stages, parts, _ = served
    result = generate(stages, parts, PROMPTS, LENGTH, "windowed=1", fill=fill, seed=5)
    assert result.texts == token.texts


def test_a_row_is_the_prompt_alone_under_its_seed(served, token):
    stages, parts, _ = served
    alone = generate(stages, parts, PROMPTS[1:2], LENGTH, seed=SEED + 1)
    assert alone.texts == token.texts[1:2]
    by_one = generate(stages, parts, PROMPTS[:2], LENGTH, seed=SEED, batch=1)
    assert by_one.texts == token.texts[:2]
    # The seed of the second row has 33 bits.
    wrapped = generate(stages, parts, [b"x", b"abc"], 4, seed=2**32 - 1, batch=1)
    again = generate(stages, parts, [b"abc"], 4, seed=0)
    assert wrapped.texts[1:] == again.texts


@pytest.mark.parametrize(
    ("method", "together"), [("windowed=3:drafted", [0]), ("windowed=3:drawn", [0, 1])]
)
def test_a_last_byte_is_not_drawn_among_drafts_that_stand(method, together):
    """There the last block draws without regard to the first one's draft."""
    method, places = Method.parse(method), 8
    # The first asks for a window of three, the second for the byte that is left.
    decoders = [Decoder(b"a", n, method, Sampling(), places) for n in (6, 1)]
    assert list(module._turn(decoders)) == together
    while turn := module._turn(decoders):
        assert len({s.fill for s in turn.values() if s.count > s.known}) <= 1
        for slot, s in turn.items():
            decoders[slot].take(bytes(s.window))
    assert [len(decoder.output) for decoder in decoders] == [6, 1]


def test_greedy_temperatures_and_filters(served):
    stages, parts, write = served

    def texts(**how):
        return generate(stages, parts, PROMPTS, LENGTH, seed=SEED, **how).texts

    greedy = texts(temperature=0)
    assert greedy == texts(temperature=0)
    assert greedy == texts(top_k=1) == texts(top_p=1e-6) == texts(temperature=1e-6)
    assert greedy == texts(temperature=0, method="speculative=4")
    naive_ = [write(SEED + r, p, LENGTH, 0)[0] for r, p in enumerate(PROMPTS)]
    assert greedy == naive_
    # At a huge one only the Gumbel noise is left: the same for every model.
    noise = thrown(SEED).choice[:LENGTH]
    assert list(texts(temperature=1e6)[0]) == noise.argmax(axis=1).tolist()
    filtered = {"top_k": 3, "top_p": 0.9}
    assert texts(**filtered) == texts(**filtered, method="speculative=4")


def test_the_ensemble_of_blocks_answers(served, token):
    stages, parts, write = served
    result = generate(stages, parts, PROMPTS, LENGTH, seed=SEED, answer="ensemble")
    for row, prompt in enumerate(PROMPTS[:2]):
        text, logs = write(SEED + row, prompt, LENGTH, answer="ensemble")
        assert result.texts[row] == text
        np.testing.assert_allclose(result.logprobs[row], logs, rtol=1e-3, atol=1e-4)
    assert result.texts != token.texts


def test_one_block_is_its_own_draft():
    model, grid, params = make(1)
    stages = block_stages(model, grid)
    text, _ = naive(model, grid, params)(0, b"abc", 6)
    for method in ("token", "speculative=6", "one_sweep:drafted"):
        result = generate(stages, params, [b"abc"], 6, method)
        assert result.texts == [text]
    # Its drafts always hold.
    assert result.trips == [1]


def test_a_shape_is_compiled_once(served, token):
    del token  # compiled what token needs
    stages, parts, _ = served
    before = module.sweep._cache_size()
    how = {"temperature": 0.3, "top_k": 5, "seed": 9}
    for prompts in ([b"1234567890", b"a", b"", b"ab"], [b"1234", b"a", b"b"]):
        generate(stages, parts, prompts, LENGTH, **how)
    assert module.sweep._cache_size() == before


def test_a_row_that_stops_leaves_the_others_alone(served, token):
    stages, parts, _ = served
    stop = token.texts[1][3:5]
    result = generate(stages, parts, PROMPTS, LENGTH, seed=SEED, stop=[stop, "€€"])
    expected = [text.split(stop)[0] for text in token.texts]
    assert result.texts == expected
    assert result.finish[1] == "stop"
    assert result.finish.count("length") >= 1
    assert [len(logs) for logs in result.logprobs] == [len(t) for t in expected]
    assert result.trips[1] == 5


class Seen:
    """Bytes of every row, as they came, and who is done."""

    def __init__(self):
        self.texts, self.sweeps, self.done = {}, 0, []

    def sweep(self, texts, positions, fill):
        assert texts >= 1 <= positions
        assert fill
        self.sweeps += 1

    def wrote(self, row, data, done):
        self.texts[row] = self.texts.get(row, b"") + data
        self.done += [row] * done


def test_who_watches_sees_the_texts_as_they_become(served, token):
    stages, parts, _ = served
    stop, seen = token.texts[1][3:5], Seen()
    how = {"seed": SEED, "stop": [stop, "€€"], "watch": seen}
    result = generate(stages, parts, PROMPTS, LENGTH, **how)
    assert [seen.texts[row] for row in range(len(PROMPTS))] == result.texts
    assert sorted(seen.done) == list(range(len(PROMPTS)))
    assert seen.done[0] == 1  # the one that stops
    assert seen.sweeps >= LENGTH
    # In parts: rows are those of all prompts.
    again = Seen()
    generate(stages, parts, PROMPTS, LENGTH, seed=SEED, batch=2, watch=again)
    assert [again.texts[row] for row in range(len(PROMPTS))] == token.texts


def test_a_reference_writes_byte_by_byte_however_it_is_cut():
    shape = TransformerShape(width=WIDTH, heads=2, mlp_width=32, layers=2)
    model = Autoregressive(shape, interface(noisy=False))
    params = sharpened(jax.jit(model.init)(jax.random.key(1)))
    cut = generate(layer_stages(model, 2), params, PROMPTS, LENGTH)
    logits = jax.jit(model.logits)
    for row, prompt in enumerate(PROMPTS[:2]):
        text = prompt or b"\n"
        first = len(text)
        for segment in segments(first, LENGTH, PLACES):
            for _ in range(segment.first, segment.end):
                x = np.zeros((1, PLACES), np.int32)
                seen = np.frombuffer(text[segment.origin :], np.uint8)
                x[0, : len(seen)] = seen
                last = np.asarray(logits(params, x), np.float64)[0, len(seen) - 1]
                text += bytes([choose(last, None, row, len(text) - 1, 1.0)])
        assert cut.texts[row] == text[first:]
    with pytest.raises(ServingError, match="knows 'token' only"):
        generate(layer_stages(model, 1), params, [b"a"], 4, "windowed=4")
    with pytest.raises(ServingError, match="knows 'last' only"):
        generate(layer_stages(model, 1), params, [b"a"], 4, answer="ensemble")


def test_a_text_is_its_utf8(served, token):
    stages, parts, _ = served
    texts = ["", "abc", PROMPTS[2], "ä€"]
    assert generate(stages, parts, texts, LENGTH, seed=SEED).texts == token.texts
    with pytest.raises(ServingError, match="half a surrogate pair"):
        generate(stages, parts, ["\ud800"], 3)


def test_nothing_asked_is_nothing_written(served):
    stages, parts, _ = served
    assert generate(stages, parts, [], 3).texts == []
    none = generate(stages, parts, [b"a"], 0)
    assert (none.texts, none.trips, none.finish) == ([b""], [0], ["length"])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"prompts": "abc"}, "prompts is one text; put it into a list"),
        ({"prompts": [3]}, "prompt is a int; give bytes or a text"),
        ({"length": -1}, "length is -1"),
        ({"method": "windowd=4"}, "did you mean 'windowed'?"),
        ({"answer": "mean"}, "answer is 'mean'"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"batch": 0}, "batch is 0"),
        ({"stop": [""]}, "stop has b''"),
    ],
)
def test_bad_arguments_are_one_line(served, how, words):
    stages, parts, _ = served
    with pytest.raises(ServingError) as error:
        generate(stages, parts, **{"prompts": [b"a"], "length": 2} | how)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_parameters_that_are_not_finite_are_refused(served):
    stages, parts, _ = served
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, parts[1])
    with pytest.raises(ServingError, match="aren't finite"):
        generate(stages, (parts[0], broken), PROMPTS, LENGTH)
    with pytest.raises(ServingError, match="give all 2 of the model in order"):
        generate(stages[:1], parts[:1], PROMPTS, LENGTH)
