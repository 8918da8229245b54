"""The state machine of decoding, against stages that are simulated naively."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spheroid_jax.serving.decoding import (
    Decoder,
    Method,
    Sampling,
    Sweep,
    segments,
)
from spheroid_jax.serving.errors import ServingError
from tests.serving.fake_stages import FakeStages

fills = st.sampled_from(["expected", "drawn", "drafted"])
windows = st.integers(1, 9)
methods = st.one_of(
    st.just(Method()),
    st.builds(Method, st.just("one_sweep"), fill=fills),
    st.builds(Method, st.just("windowed"), window=windows, fill=fills),
    st.builds(Method, st.just("sweeps"), sweeps=windows, fill=fills),
    st.builds(Method, st.just("speculative"), window=windows, fill=st.just("drafted")),
)


@st.composite
def requests(draw):
    return {
        "prompt": draw(st.binary(max_size=20)),
        "length": draw(st.integers(0, 20)),
        "places": draw(st.integers(1, 24)),
        "stages": (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        "stop": tuple(
            draw(st.lists(st.text("abc", min_size=1, max_size=4), max_size=2))
        ),
    }


def run(request, method, lose=(), stop=True, logprobs=False):
    """(decoder, pieces, sweeps); before sweeps in ``lose`` the caches are lost."""
    sampling = Sampling(stop=tuple(s.encode() for s in request["stop"]) * stop)
    stages = FakeStages(*request["stages"])
    decoder = Decoder(
        request["prompt"], request["length"], method, sampling, request["places"]
    )
    pieces, sweeps = [], []
    while (sweep := decoder.next()) is not None:
        if len(sweeps) in lose:
            stages.forget()
            decoder.restart()
            sweep = decoder.next()
            assert sweep.fresh
        assert decoder.next() is sweep
        drawn, context = stages.sweep(sweep)
        logs = [-float(byte) for byte in drawn] if logprobs else ()
        pieces.append(decoder.take(drawn, context, logs))
        sweeps.append(sweep)
        assert len(sweeps) <= request["length"]
    return decoder, pieces, sweeps


def naive(request) -> bytes:
    """The text by the model's definition: no cache, no state machine."""
    stages = FakeStages(*request["stages"])
    prompt = request["prompt"] or b"\n"
    text = prompt
    for segment in segments(len(prompt), request["length"], request["places"]):
        for _ in range(segment.first, segment.end):
            text += bytes([stages.next_byte(segment.origin, text)])
    return text[len(prompt) :]


def cut(text: bytes, stop) -> bytes:
    """The text before the stop sequence that is complete first."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stop if text[:end].endswith(s.encode())]
        if starts:
            return text[: min(starts)]
    return text


@given(requests())
def test_token_draws_what_the_model_defines(request_):
    decoder, pieces, _ = run(request_, Method(), stop=False)
    assert b"".join(pieces) == naive(request_)
    assert decoder.trips == request_["length"]


@given(requests(), methods)
def test_exact_methods_give_the_text_of_token(request_, method):
    if method.name == "sweeps":
        method = Method("sweeps", sweeps=max(1, request_["length"]), fill=method.fill)
    elif not method.exact:
        method = Method("windowed", fill=method.fill)  # a window of one is exact
    decoder, pieces, _ = run(request_, method)
    token, _, _ = run(request_, Method())
    assert b"".join(pieces) == decoder.output == token.output
    assert decoder.finish == token.finish


@given(requests(), methods, st.sets(st.integers(0, 20)))
def test_lost_caches_change_nothing(request_, method, lose):
    decoder, pieces, _ = run(request_, method)
    again, pieces_again, sweeps = run(request_, method, lose=lose)
    assert (again.output, again.finish) == (decoder.output, decoder.finish)
    assert pieces_again == pieces
    assert all(sweep.fresh for n, sweep in enumerate(sweeps) if n in lose)


@given(requests(), methods)
def test_every_sweep_makes_progress_inside_the_places(request_, method):
    decoder, _, sweeps = run(request_, method, stop=False)
    assert decoder.trips == len(sweeps) <= request_["length"]
    assert len(decoder.output) == request_["length"]
    assert decoder.finish == "length"
    for sweep in sweeps:
        assert 1 <= sweep.known <= sweep.count
        assert 0 <= sweep.start <= sweep.start + sweep.count <= request_["places"]
        given_ = sweep.fill == "given"
        assert len(sweep.bytes) == (sweep.count if given_ else sweep.known)
        assert sweep.fresh == (sweep.start == 0)


@given(requests(), methods)
def test_the_text_ends_before_the_first_stop_sequence(request_, method):
    whole, _, _ = run(request_, method, stop=False)
    decoder, pieces, _ = run(request_, method)
    expected = cut(whole.output, request_["stop"])
    assert b"".join(pieces) == decoder.output == expected
    stopped = any(s.encode() in whole.output for s in request_["stop"])
    assert decoder.finish == ("stop" if stopped else "length")


@given(requests(), methods)
def test_log_probabilities_stay_beside_their_bytes(request_, method):
    decoder, _, _ = run(request_, method, logprobs=True)
    assert decoder.logprobs == [-float(byte) for byte in decoder.output]


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 100))
def test_segments_cover_the_output_once(prompt, length, places):
    cuts = list(segments(prompt, length, places))
    assert [c.first for c in cuts] == [0, *[c.end for c in cuts[:-1]]][: len(cuts)]
    assert (cuts[-1].end if cuts else 0) == length
    for cut_ in cuts:
        context = prompt + cut_.first - cut_.origin
        assert cut_.first < cut_.end
        # The last byte decided needs no place of its own.
        assert context + cut_.end - cut_.first - 1 <= places
        assert context >= min(prompt + cut_.first, max(1, places // 2))


def test_segments_by_hand():
    def ends(*args):
        return [(s.origin, s.first, s.end) for s in segments(*args)]

    assert ends(5, 4, 8) == [(0, 0, 4)]  # places 0..7 hold 5 + 3 bytes
    assert ends(5, 5, 8) == [(1, 0, 5)]  # one byte of the prompt makes room
    assert ends(5, 9, 8) == [(1, 0, 5), (5, 5, 9)]
    assert ends(3, 20, 8) == [(0, 0, 6), (5, 6, 11), (10, 11, 16), (14, 16, 20)]
    assert ends(1, 3, 1) == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]


def take_all(decoder, text: bytes):
    """Feeds the drawn text to a decoder, whatever its sweeps."""
    pieces, first = [], decoder.next().known
    while (sweep := decoder.next()) is not None:
        at = sweep.index + sweep.known - first
        pieces.append(decoder.take(text[at : at + sweep.window], b""))
    return pieces


@pytest.mark.parametrize(
    ("window", "pieces"),
    [
        (1, [b"x", b"", b"", b"en", b""]),  # "en" might have begun "end"
        (2, [b"x", b"en", b""]),
        (3, [b"x", b"en"]),
        (9, [b"xen"]),
    ],
)
def test_bytes_that_may_begin_a_stop_sequence_are_held_back(window, pieces):
    decoder = Decoder(
        b"p", 9, Method("windowed", window), Sampling(stop=(b"end", b"e!")), 99
    )
    assert take_all(decoder, b"xene!rest") == pieces
    assert (decoder.output, decoder.finish) == (b"xen", "stop")


def test_what_was_held_back_is_flushed_at_the_end():
    decoder = Decoder(b"p", 4, Method(), Sampling(stop=(b"end",)), 99)
    assert take_all(decoder, b"azen") == [b"a", b"z", b"", b"en"]
    assert decoder.finish == "length"


def test_the_longest_start_of_a_stop_sequence_is_held_back():
    decoder = Decoder(b"p", 6, Method(), Sampling(stop=(b"ca", b"abcd")), 99)
    assert take_all(decoder, b"abcabc")[:3] == [b"", b"", b""]
    assert (decoder.output, decoder.finish) == (b"ab", "stop")


def test_of_stop_sequences_that_end_together_the_longest_counts():
    decoder = Decoder(b"p", 6, Method(), Sampling(stop=(b"b", b"ab")), 99)
    assert take_all(decoder, b"xab") == [b"x", b"", b""]
    assert decoder.output == b"x"


def test_a_stop_sequence_in_the_prompt_ends_nothing():
    decoder = Decoder(b"end", 2, Method(), Sampling(stop=(b"end", b"ndx")), 99)
    assert take_all(decoder, b"xy") == [b"x", b"y"]


def test_one_sweep_brings_all_bytes_at_once():
    decoder = Decoder(b"abc", 5, Method("one_sweep", fill="expected"), Sampling(), 99)
    assert decoder.next() == Sweep(True, 0, 0, 3, 7, b"abc", "expected")
    assert decoder.take(b"vwxyz") == b"vwxyz"
    assert (decoder.trips, decoder.done) == (1, True)


def test_windowed_reads_its_bytes_as_decided_in_the_next_sweep():
    decoder = Decoder(b"abc", 5, Method("windowed", 2, fill="drawn"), Sampling(), 99)
    assert decoder.next() == Sweep(True, 0, 0, 3, 4, b"abc", "drawn")
    decoder.take(b"vw")
    assert decoder.next() == Sweep(False, 3, 3, 2, 3, b"vw", "drawn")
    decoder.take(b"xy")
    assert decoder.next() == Sweep(False, 5, 5, 2, 2, b"xy", "given")


def test_sweeps_guess_what_the_last_one_drew():
    decoder = Decoder(
        b"abc", 4, Method("sweeps", sweeps=3, fill="expected"), Sampling(), 99
    )
    assert decoder.next() == Sweep(True, 0, 0, 3, 6, b"abc", "expected")
    assert decoder.take(b"wxyz") == b"w"
    assert decoder.next() == Sweep(False, 3, 3, 1, 3, b"wxy", "given")
    # x was right; y was not, so z stands on a wrong byte.
    assert decoder.take(b"xYz") == b"xY"
    assert decoder.next() == Sweep(False, 5, 5, 1, 1, b"Y", "given")
    assert decoder.take(b"Z") == b"Z"
    assert decoder.done


def test_the_last_of_the_sweeps_decides_what_is_left():
    decoder = Decoder(
        b"abc", 4, Method("sweeps", sweeps=2, fill="expected"), Sampling(), 99
    )
    decoder.take(decoder.next() and b"wxyz")
    decoder.next()
    assert decoder.take(b"XYZ") == b"XYZ"
    assert (decoder.output, decoder.trips) == (b"wXYZ", 2)


def test_drafts_that_nothing_verifies_are_the_text():
    decoder = Decoder(b"abc", 5, Method("one_sweep"), Sampling(), 99)
    assert decoder.next() == Sweep(True, 0, 0, 3, 7, b"abc", "written")
    assert decoder.take(b"vwxyz") == b"vwxyz"
    assert (decoder.trips, decoder.done) == (1, True)


def test_sweeps_draft_anew_after_the_first_wrong_one():
    decoder = Decoder(b"abc", 5, Method("sweeps", sweeps=2), Sampling(), 99)
    assert decoder.next() == Sweep(True, 0, 0, 3, 7, b"abc", "drafted")
    assert decoder.take(b"vwXyz", b"vwx?") == b"vwX"
    assert decoder.next() == Sweep(False, 5, 5, 1, 2, b"X", "written")
    assert decoder.take(b"YZ") == b"YZ"
    assert decoder.done


def test_speculative_keeps_the_verified_drafts_and_one_byte_more():
    decoder = Decoder(
        b"abc", 9, Method("speculative", 4, fill="drafted"), Sampling(), 99
    )
    assert decoder.next() == Sweep(True, 0, 0, 3, 6, b"abc", "drafted")
    assert decoder.take(b"wxyz", b"wx?") == b"wxy"
    assert decoder.next() == Sweep(False, 5, 5, 1, 4, b"y", "drafted")
    assert decoder.take(b"stuv", b"stu") == b"stuv"
    assert decoder.next() == Sweep(False, 9, 9, 1, 2, b"v", "drafted")


@pytest.mark.parametrize(
    ("drawn", "context", "logprobs"),
    [(b"abc", b"", ()), (b"abcd", b"ab", ()), (b"abcd", b"abc", (0.0,))],
)
def test_a_result_of_another_size_is_refused_and_changes_nothing(
    drawn, context, logprobs
):
    method = Method.parse("speculative=4")
    decoder = Decoder(b"p", 9, method, Sampling(), 99)
    with pytest.raises(ServingError, match="asked for"):
        decoder.take(b"abcd", b"abc")
    sweep = decoder.next()
    with pytest.raises(ServingError, match="a sweep of 4 bytes brought"):
        decoder.take(drawn, context, logprobs)
    assert decoder.next() is sweep
    assert decoder.trips == 0


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("token", Method()),
        ("one_sweep", Method("one_sweep")),
        ("one_sweep:drafted", Method("one_sweep", fill="drafted")),
        ("sweeps=4", Method("sweeps", sweeps=4)),
        (" windowed=16, drawn ", Method("windowed", 16, fill="drawn")),
        ("speculative=8", Method("speculative", 8, fill="drafted")),
    ],
)
def test_methods_are_read_and_written(text, method):
    assert Method.parse(text) == method
    assert Method.parse(str(method)) == method


def test_the_fill_can_be_given_beside_the_text():
    assert Method.parse("windowed=4", fill="drawn").fill == "drawn"
    assert Method.parse("windowed=4:drawn", fill="drawn").fill == "drawn"
    with pytest.raises(ServingError, match="give one"):
        Method.parse("windowed=4:drawn", fill="drafted")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokens", "method is 'tokens'; did you mean 'token'?"),
        ("", "use one of token, one_sweep, windowed, sweeps, speculative"),
        ("one_sweep=4", "one_sweep takes no number"),
        ("sweeps", "such as sweeps=16"),
        ("windowed=-1", "such as windowed=16"),
        ("windowed=0", "window is 0; give a whole number from 1"),
        ("windowed=2:drafed", "did you mean 'drafted'?"),
        ("one_sweep:given", "fill is 'given'"),
        ("speculative=4:drawn", "speculative verifies drafts; use drafted"),
        ("windowed=99999999999", "takes a whole number"),
    ],
)
def test_bad_methods_are_refused_in_one_line(text, words):
    with pytest.raises(ServingError) as error:
        Method.parse(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": float("nan")},
        {"temperature": -0.1},
        {"temperature": True},
        {"top_k": 257},
        {"top_k": 1.0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"seed": -1},
        {"seed": 2**32},
        {"stop": (b"",)},
        {"stop": ("text",)},
    ],
)
def test_bad_sampling_is_refused_in_one_line(bad):
    (name,) = bad
    with pytest.raises(ServingError, match=rf"^{name} .*give .*$"):
        Sampling(**bad)


@pytest.mark.parametrize(("length", "places"), [(-1, 8), (True, 8), (2.0, 8), (3, 0)])
def test_bad_sizes_are_refused(length, places):
    with pytest.raises(ServingError, match="give a whole number from"):
        Decoder(b"p", length, Method(), Sampling(), places)


def test_nothing_to_decode_is_done_at_once():
    decoder = Decoder(b"p", 0, Method(), Sampling(), 8)
    assert decoder.next() is None
    assert (decoder.done, decoder.finish, decoder.output) == (True, "length", b"")
