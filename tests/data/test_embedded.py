"""The corpus that ships with Python: split without leaks, the same every time."""

import re
import sys

import numpy as np
import pytest

from spheroid_jax.data import CorpusError, load_corpus
from spheroid_jax.data.embedded import split_topics


def long_paragraphs(data: bytes) -> set[str]:
    found = re.split(r"\n\s*\n", data.decode())
    return {text for p in found if len(text := " ".join(p.split())) >= 60}


def test_splits_share_no_paragraph() -> None:
    corpus = load_corpus("embedded")
    train, valid, test = (
        long_paragraphs(split.tobytes())
        for split in (corpus.train, corpus.valid, corpus.test)
    )
    assert min(len(train), len(valid), len(test)) > 20
    assert not train & valid
    assert not train & test
    assert not valid & test


def test_sizes_serve_the_default_evaluation() -> None:
    corpus = load_corpus("embedded")
    assert corpus.valid.size > 256 * 128
    assert corpus.train.size > 5 * corpus.valid.size
    assert corpus.test.size > 10_000
    assert corpus.train.dtype == np.uint8
    assert not corpus.train.flags.writeable


def test_names_itself_and_its_python() -> None:
    corpus = load_corpus("embedded")
    assert corpus.name == "embedded"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert version in corpus.source
    assert corpus.notes == ()
    assert corpus.sha256 == load_corpus("embedded").sha256


def topics_of(count: int) -> dict[str, str]:
    body = "{} is described here in a paragraph long enough to be recognised again, {}."
    return {
        f"t{i}": "\n\n".join(body.format(i, j) for j in range(9)) for i in range(count)
    }


def test_does_not_depend_on_the_order_of_the_dictionary() -> None:
    topics = topics_of(40)
    topics["a"] = topics["z"] = topics["t0"].replace("t0", "Either branch")
    turned = dict(reversed(topics.items()))
    assert split_topics(topics) == split_topics(turned)


def test_neighbouring_versions_hold_out_much_the_same() -> None:
    """Every topic grows, some more than others; which are held out hardly moves."""
    more = "\n\nA later version of Python has paragraph {} in addition on topic {}."
    before = topics_of(100)
    after = {
        name: text + "".join(more.format(i, name) for i in range(1 + number % 3))
        for number, (name, text) in enumerate(before.items())
    }
    held_out = [
        {
            name
            for name in topics
            if topics[name].encode() in split_topics(topics)["valid"]
        }
        for topics in (before, after)
    ]
    assert len(held_out[0] & held_out[1]) > 0.7 * len(held_out[0] | held_out[1])


def test_shares_and_completeness() -> None:
    topics = topics_of(200)
    splits = split_topics(topics)
    total = sum(len(data) for data in splits.values())
    assert 0.12 <= len(splits["valid"]) / total < 0.14
    assert 0.06 <= len(splits["test"]) / total < 0.08
    for text in topics.values():
        assert sum(text.encode() in data for data in splits.values()) == 1


def test_an_excerpt_of_a_longer_topic_is_dropped() -> None:
    topics = topics_of(30)
    topics["excerpt"] = "\n\n".join(topics["t3"].split("\n\n")[2:5])
    assert split_topics(topics) == split_topics(topics_of(30))


def test_a_long_topic_is_never_held_out() -> None:
    for number in range(10):
        topics = topics_of(30)
        name = f"long{number}"
        topics[name] = "\n\n".join(
            f"Paragraph {i} of the long topic, of which there are very many indeed here"
            for i in range(200)
        )
        assert b"of the long topic" in split_topics(topics)["train"]


def test_a_python_without_the_text_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(CorpusError, match=r"no module pydoc_data.*file:PATH"):
        load_corpus("embedded")
