"""The paper's rows beside ours, with the difference in scale."""

from typing import Any

import pytest

from spheroid_jax.reports.beside import beside, course_sentence, pairs, scale_sentence
from spheroid_jax.reports.published import Entry, Published, load_published


def numbers(**cells: tuple[str, float]) -> Published:
    return Published(
        "a paper",
        {"S": "stated", "2": "relayed"},
        tuple(
            Entry(name, f"CE {ce}", "2", "", {"CE": ce}, {"table": text})
            for name, (text, ce) in cells.items()
        ),
    )


def sized(summary: dict[str, Any], width: int = 64) -> dict[str, Any]:
    for each in summary["cells"]:
        each["scale"] = {
            "blocks": 3,
            "layers": 4,
            "width": width,
            "replicas": 1,
            "rounds": 30,
            "local_steps": 10,
            "batch": 8,
            "bytes_seen": 921_600,
        }
    return summary


def test_the_depth_sweep_has_the_papers_rows(sweep_summary: dict[str, Any]) -> None:
    text = "\n".join(beside(sized(sweep_summary), load_published()))
    for part in (
        "| fixed depth 12: B=12 L=1, short run | CE 2.728 nats/byte | 2   | "
        "blocks=12-layers=1 |        2.728 |",
        "| blocks=3-layers=4  |        2.196 |",
        "| width d                | not published     | 64 ",
        "| bytes seen in training | not published     | 922 kB ",
        "Not the same scale: d 64 here, not published there; rounds 30 x 10 steps "
        "here, few (a short run) there; bytes seen 922 kB here, not published there; "
        "corpus wikitext-2-raw, 10.8 MB to train on here, WikiText, bytes there.",
        "From blocks=12-layers=1 to blocks=3-layers=4 the published CE falls by 0.532 "
        "(2.728 to 2.196), our CE_chain falls by 0.532 (2.728 to 2.196): the same way.",
        "Tags: 2: second-hand",
    ):
        assert part in text, part
    assert "stated in a summary" not in text, "only tags that are used"


def test_the_noise_ranges_have_theirs(sweep_summary: dict[str, Any]) -> None:
    summary = sweep_summary | {"name": "sigma_ablation"}
    for each, low, high in zip(
        summary["cells"], (0.1, 1.0, 1.0), (2.0, 10.0, 20.0), strict=True
    ):
        each["settings"] = {"diffusion.sigma_min": low, "diffusion.sigma_max": high}
    found = [(p.entry.numbers["CE"], p.ours) for p in pairs(summary, load_published())]
    assert found == [(14.295, 2.728), (2.755, 2.196)]


def test_participation_is_found_by_the_name_of_the_network(
    sweep_summary: dict[str, Any],
) -> None:
    summary = sweep_summary | {"name": "async_regimes"}
    for each, name in zip(
        summary["cells"], ("lockstep", "wan", "bad_edge"), strict=True
    ):
        each["settings"] = {"network.profile": name, "network.late": "drop"}
    found = [(p.entry.numbers["CE"], p.ours) for p in pairs(summary, load_published())]
    assert found == [(2.595, 2.196), (5.638, 2.25)]


@pytest.mark.parametrize(
    ("ce", "end"), [(3.0, "NOT the same way."), (2.0, "the same way.")]
)
def test_another_direction_is_said(
    sweep_summary: dict[str, Any], ce: float, end: str
) -> None:
    summary = sweep_summary | {"name": "table"}
    two = numbers(a=("model.layers=1", 2.5), b=("model.layers=4", ce))
    said = course_sentence(pairs(summary, two))
    assert said.endswith(f": {end}")


def test_a_direction_needs_one_number_on_either_side(
    sweep_summary: dict[str, Any],
) -> None:
    summary = sweep_summary | {"name": "table"}
    two = numbers(a=("model.layers=1", 2.5), b=("model.layers=4", 2.0))
    summary["cells"][1]["results"]["ce_chain"] = float("nan")
    assert course_sentence(pairs(summary, two)) == ""
    one = numbers(a=("model.layers=1", 2.5))
    assert course_sentence(pairs(summary, one)) == ""


def test_an_older_sweep_without_its_scale_tells_the_corpus(
    sweep_summary: dict[str, Any],
) -> None:
    found = pairs(sweep_summary, load_published())
    assert scale_sentence(sweep_summary, found) == (
        "Not the same scale: corpus wikitext-2-raw, 10.8 MB to train on here, "
        "WikiText, bytes there. Compare differences within a column, never numbers "
        "across."
    )


def test_what_the_paper_has_not_is_left_out(sweep_summary: dict[str, Any]) -> None:
    assert beside(sweep_summary | {"name": "radius_sweep"}, load_published()) == []
    assert beside(sweep_summary, None) == []
    assert scale_sentence(sweep_summary, []) == ""
