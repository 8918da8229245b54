import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.transport.updates import (
    Encoding,
    Feedback,
    UpdateError,
    UpdateReader,
    write_update,
)
from spheroid_jax.transport.updates.header import CHUNK
from tests.transport.updates.files import whole

SHAPES = {"b": (), "w": (5, 30)}
# The residual R is at most half a step of what is sent, which is a share of D + R with
# D the largest delta: R <= s (D + R), so R <= D s / (1 - s).
SHARE = {"bfloat16": 2**-8, "int8": 1 / 254, "int4": (1 + 2**-8) / 14}


def delta(seed, scale=1.0, shapes=None):
    noise = np.random.default_rng(seed)
    return {
        name: np.asarray(scale * noise.uniform(-1, 1, shape), np.float32)
        for name, shape in (shapes or SHAPES).items()
    }


def sent_and_decoded(path, feedback, given_delta, kind, zstd=0):
    sent = feedback.compensate(given_delta)
    write_update(path, sent, Encoding(kind, zstd), {})
    return sent, UpdateReader(path)


@pytest.mark.parametrize("kind", SHARE)
@given(
    rounds=st.lists(
        st.tuples(st.booleans(), st.floats(0.1, 10)), min_size=1, max_size=12
    ),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_what_arrives_is_what_was_to_be_sent(tmp_path_factory, kind, rounds, seed):
    """sum(decoded) = sum(delta) - residual, over the updates that were accepted."""
    path = tmp_path_factory.mktemp("feedback") / "u"
    feedback = Feedback()
    arrived = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    meant = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for number, (accepted, scale) in enumerate(rounds):
        new = delta((seed, number), scale)
        sent, reader = sent_and_decoded(path, feedback, new, kind)
        with reader:
            if not accepted:
                continue
            for name, values in whole(reader).items():
                arrived[name] += values.reshape(SHAPES[name])
                meant[name] += new[name]
            feedback.settle(sent, reader)
    largest = max(scale for _, scale in rounds)
    bound = largest * SHARE[kind] / (1 - SHARE[kind]) * (1 + 1e-4)
    for name in SHAPES:
        owed = feedback.residual.get(name, np.zeros(SHAPES[name]))
        np.testing.assert_allclose(
            arrived[name], meant[name] - owed, rtol=0, atol=1e-5 * largest
        )
        assert np.abs(owed).max() <= bound


def test_small_numbers_beside_a_large_one_arrive_in_time(tmp_path):
    """Each is under half a step, so that without feedback it would never be sent."""
    small = {"w": np.full(64, 0.01, np.float32)}
    small["w"][0] = 1.0
    feedback, plain, with_feedback = Feedback(), np.zeros(64), np.zeros(64)
    for _ in range(100):
        sent, reader = sent_and_decoded(tmp_path / "u", feedback, small, "int4")
        with reader:
            with_feedback += reader.read("w", 0, 64)
            feedback.settle(sent, reader)
        _, reader = sent_and_decoded(tmp_path / "u", Feedback(), small, "int4")
        with reader:
            plain += reader.read("w", 0, 64)
    np.testing.assert_array_equal(plain[1:], 0)
    np.testing.assert_allclose(with_feedback[1:], 1.0, atol=1 / 13)


def test_float32_owes_nothing(tmp_path):
    feedback = Feedback()
    sent, reader = sent_and_decoded(tmp_path / "u", feedback, delta(0), "float32", 3)
    with reader:
        feedback.settle(sent, reader)
    for name, leaf in feedback.compensate(delta(1)).items():
        assert not feedback.residual[name].any()
        np.testing.assert_array_equal(leaf, delta(1)[name])


def test_refused_updates_change_nothing(tmp_path):
    feedback = Feedback({"w": np.float32([0.5])})
    sent, reader = sent_and_decoded(
        tmp_path / "u", feedback, {"w": np.float32([1.0])}, "int8"
    )
    reader.close()
    np.testing.assert_array_equal(sent["w"], [1.5])
    np.testing.assert_array_equal(feedback.residual["w"], [0.5])


def test_after_leaves_the_present_one_alone(tmp_path):
    feedback = Feedback({"w": np.float32([0.5, 0])})
    sent = feedback.compensate({"w": np.float32([1.0, 0.003])})
    after = feedback.after(sent, {"w": np.float32([1.25, 0])})
    np.testing.assert_array_equal(feedback.residual["w"], np.float32([0.5, 0]))
    np.testing.assert_array_equal(after.residual["w"], np.float32([0.25, 0.003]))
    sent["w"][0] = 9  # neither is a view
    np.testing.assert_array_equal(after.residual["w"], np.float32([0.25, 0.003]))


def test_arguments_are_left_alone():
    given_delta = delta(0)
    for leaf in given_delta.values():
        leaf.flags.writeable = False
    feedback = Feedback({name: np.ones(s, np.float32) for name, s in SHAPES.items()})
    sent = feedback.compensate(given_delta)
    np.testing.assert_array_equal(sent["w"], given_delta["w"] + 1)
    feedback.settle(sent, given_delta)
    np.testing.assert_array_equal(feedback.residual["w"], sent["w"] - given_delta["w"])


def test_more_than_a_chunk(tmp_path):
    many = delta(3, shapes={"x": (2, CHUNK // 2 + 9)})
    feedback = Feedback()
    sent, reader = sent_and_decoded(tmp_path / "u", feedback, many, "int4", 1)
    with reader:
        feedback.settle(sent, reader)
        np.testing.assert_array_equal(
            feedback.residual["x"],
            sent["x"] - whole(reader)["x"].reshape(sent["x"].shape),
        )


def test_it_is_kept_over_restarts(tmp_path):
    path = tmp_path / "feedback"
    feedback = Feedback({"b": np.float32(1e-9), "w": delta(5)["w"]})
    feedback.save(path)
    found = Feedback.load(path)
    assert list(found.residual) == ["b", "w"]
    for name, leaf in feedback.residual.items():
        assert found.residual[name].shape == leaf.shape
        np.testing.assert_array_equal(found.residual[name], leaf)
    Feedback().save(path)
    assert Feedback.load(path).residual == {}


def test_no_file_owes_nothing_and_damage_is_told(tmp_path):
    path = tmp_path / "feedback"
    assert Feedback.load(path).residual == {}
    Feedback(delta(0)).save(path)
    data = bytearray(path.read_bytes())
    data[-80] ^= 1
    path.write_bytes(data)
    with pytest.raises(UpdateError, match="damaged bytes"):
        Feedback.load(path)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"w": np.ones(4)}, r"leaf 'w' has shape \(4,\), not \(3,\)"),
        ({"v": np.ones(3)}, "leaves differ, at 'v'"),
        ({"w": np.ones(3), "x": np.ones(1)}, "leaves differ, at 'x'"),
    ],
)
def test_residuals_of_another_model_are_refused(other, said):
    with pytest.raises(ValueError, match=said):
        Feedback({"w": np.ones(3, np.float32)}).compensate(other)
    with pytest.raises(ValueError, match=said):
        Feedback().after(other, {"w": np.ones(3, np.float32)})
    with pytest.raises(ValueError, match="leaves differ, at 'w'"):
        Feedback().after({"w": np.ones(3)}, {})


def test_an_update_that_is_not_finite_does_not_stay(tmp_path):
    feedback = Feedback()
    sent = feedback.compensate({"w": np.float32([math.nan])})
    with pytest.raises(UpdateError):
        write_update(tmp_path / "u", sent, Encoding("int8"), {})
    assert feedback.residual == {}
