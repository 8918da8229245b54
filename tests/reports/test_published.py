import math
import re
from pathlib import Path

import pytest

from spheroid_jax.reports import published
from spheroid_jax.reports.published import load_published


def test_the_numbers_of_the_paper_load() -> None:
    numbers = load_published()
    assert numbers is not None
    assert "arXiv 2606.24722" in numbers.source
    assert {entry.tag for entry in numbers.entries} == set(numbers.tags) == {"S", "2"}
    by_ours = {e.ours: e for e in numbers.entries if e.ours}
    assert by_ours["ce_chain"].value == "CE 1.359 nats/byte, PPL 3.89"
    assert by_ours["end_to_end"].value == "CE 1.32 nats/byte"
    assert by_ours["adamw_gib"].value == "memory 0.198 GiB"
    (wide,) = [e for e in numbers.entries if "three hosts" in e.what]
    assert wide.value == "CE 5.58 to 1.811 nats/byte, moved 15.22 GB"


def test_perplexities_and_cross_entropies_are_of_one_unit() -> None:
    """PPL is exp(CE) only if CE is in nats per byte: guards against typing errors."""
    numbers = load_published()
    assert numbers is not None
    pairs = [
        re.match(r"CE ([\d.]+) nats/byte, PPL (.+)", e.value) for e in numbers.entries
    ]
    found = [(float(m[1]), float(m[2])) for m in pairs if m]
    assert len(found) == 2
    for ce, perplexity in found:
        assert math.exp(ce) == pytest.approx(perplexity, abs=0.01)


def test_participation_stands_beside_the_networks_of_ours() -> None:
    numbers = load_published()
    assert numbers is not None
    networks = {c: e.numbers["CE"] for c, e in numbers.of("async_regimes").items()}
    assert networks == {"mild": 2.151, "wan": 2.595, "bad_edge": 5.638}
    shares = {c: e.numbers["CE"] for c, e in numbers.of("participation_sweep").items()}
    assert shares == {"0.9": 2.151, "0.42": 2.595, "0.0": 5.638}
    assert numbers.of("radius_sweep") == {}


def test_of_a_course_the_last_number_counts() -> None:
    numbers = load_published()
    assert numbers is not None
    (wide,) = [e for e in numbers.entries if "three hosts" in e.what]
    assert wide.numbers == {"CE": 1.811, "moved": 15.22}


def test_a_scale_is_the_common_one_and_its_own() -> None:
    numbers = load_published()
    assert numbers is not None
    alone, six = numbers.of("six_workers").values()
    assert (alone.numbers["CE"], six.numbers["CE"]) == (1.359, 1.385)
    assert alone.scale["corpus"] == six.scale["corpus"] == "WikiText, bytes"
    assert (alone.scale["rounds"], six.scale.get("rounds")) == ("32", None)


def test_without_the_source_tree_there_are_none(tmp_path: Path) -> None:
    assert load_published(tmp_path / "third_party" / "published.json") is None


def test_it_is_found_from_the_source_tree_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert published.PUBLISHED.is_absolute()
    assert load_published() is not None
