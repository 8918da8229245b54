"""What is said of texts: by hand, and by a judge that is asked byte by byte."""

import math

import jax
import numpy as np
import pytest

from spheroid_jax.models import Autoregressive, InterfaceShape, TransformerShape
from spheroid_jax.runs.text.experiment import DEFAULT_METHODS, parse_method
from spheroid_jax.runs.text.measures import (
    Judge,
    distinct,
    longest_run,
    mean_and_error,
    repeated,
)
from spheroid_jax.serving.methods import Method


def test_the_judge_reads_the_text_after_its_prompt():
    shape = TransformerShape(width=8, heads=2, mlp_width=16, layers=1)
    model = Autoregressive(shape, InterfaceShape(8, 6, noisy=False))
    params = jax.jit(model.init)(jax.random.key(0))
    phi = params["interface"]
    params["interface"] = phi | {"head": 40.0 * phi["head"]}  # not uniform
    prompts, texts = [b"ab", b"cd"], [b"wxyz", b"stuv"]
    found = Judge(model, params).cross_entropies(prompts, texts)
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        whole = np.frombuffer(prompt + text, np.uint8).astype(np.int32)
        logits = np.asarray(model.logits(params, whole[None, :5]), np.float64)[0]
        costs = [
            np.log(np.exp(logits[i - 1]).sum()) - logits[i - 1, whole[i]]
            for i in range(2, 6)
        ]
        assert found[row] == pytest.approx(np.mean(costs), rel=1e-5)


def test_repetition_by_hand():
    assert distinct([b"abcde", b"abcdf"]) == 3 / 4  # abcd twice, bcde, bcdf
    assert distinct([b"abc"]) == 1.0
    assert repeated(b"abcdabcd") == pytest.approx(1 / 5)  # abcd once more, of five
    assert longest_run(b"xyyyz") == 3


def test_the_error_of_a_mean():
    mean, error = mean_and_error(np.array([1.0, 2.0, 3.0, 6.0]))
    assert mean == 3.0
    assert error == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3 / 4))
    assert math.isnan(mean_and_error(np.array([1.0]))[1])


def test_the_usual_methods_are_methods():
    assert parse_method("windowed=4:drawn+ensemble") == (
        Method("windowed", 4, fill="drawn"),
        "ensemble",
    )
    assert len({str(parse_method(text)) for text in DEFAULT_METHODS}) == len(
        DEFAULT_METHODS
    )
