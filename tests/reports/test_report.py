import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.reports import leakage, report, sections
from spheroid_jax.reports.report import render_report, render_summary

SCREEN = """\
method                  layers  params  FLOPs  bytes   rate   nats    PPL   bits
--------------------------------------------------------------------------------
End-to-end reference        12      1M     3P   819k  0.004  1.506   4.51  2.173
Block-sized reference        4    430k     1P   819k  0.002  1.665   5.29  2.402
BlockTrain CE_chain          4   1.23M  3.15P  2.46M  0.002  1.588   4.89  2.291
BlockTrain CE_ensemble                                       1.503   4.50  2.169
BlockTrain CE_first                                          1.590   4.90  2.294
BlockTrain CE_mix                                            1.570   4.81  2.265
byte entropy, order 0                                        3.200  24.53  4.617
byte entropy, order 1                                        2.460  11.70  3.549
byte entropy, order 2                                        2.010   7.46  2.900

nats, perplexity and bits are per byte of validation text; lower is better
BlockTrain's chain reaches 1.588 nats/byte on wikitext-2-raw, 0.082 above the
end-to-end reference (1.506) and 0.077 below the block-sized reference (1.665).
The ensemble of its blocks reaches 1.503, 0.003 below the end-to-end reference
(1.506) and 0.162 below the block-sized reference (1.665)."""


Summary = dict[str, Any]


def with_results(summary: Summary, **changes: Any) -> Summary:
    return summary | {"results": summary["results"] | changes}


def only(summary: Summary, method: str) -> Summary:
    """The summary as it is when just one method was trained."""
    results = summary["results"]
    if method == "blocktrain":
        kept = {k: v for k, v in results.items() if k not in summary["methods"]}
        return summary | {
            "methods": {method: summary["methods"][method]},
            "results": kept,
        }
    gone = ("sigma_ranges", "grid", "memory")
    return {k: v for k, v in summary.items() if k not in gone} | {
        "methods": {method: summary["methods"][method]},
        "results": {method: results[method]},
    }


def records() -> list[dict[str, Any]]:
    """BlockTrain sees three times the bytes of the end-to-end reference a round."""
    ours = [
        {"method": "blocktrain", "round": r, "bytes_seen": 300 * r}
        | {"ce_chain": 4 - r / 10, "ce_ensemble": 3.5 - r / 10}
        for r in range(1, 21)
    ]
    theirs = [
        {"method": "end_to_end", "round": r, "bytes_seen": 100 * r, "ce": 3.9 - r / 10}
        for r in range(1, 21)
    ]
    return ours + theirs


def test_the_screen_tells_the_whole_story(run_summary: Summary) -> None:
    assert render_summary(run_summary) == SCREEN


def test_the_screen_has_no_line_that_ends_within_a_name(run_summary: Summary) -> None:
    for length in range(1, 40):
        corpus = run_summary["corpus"] | {"name": "x" * length}
        lines = render_summary(run_summary | {"corpus": corpus}).splitlines()[11:]
        assert max(map(len, lines)) <= 80
        assert not any(line.endswith("-") for line in lines)


def test_summary_json_is_json_in_its_own_order(
    run_summary: Summary, tmp_path: Path
) -> None:
    summary = with_results(run_summary, ce_chain=float("nan"), ce_mix=float("inf"))
    report.write_summary(tmp_path, summary)
    text = (tmp_path / "summary.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    loaded = json.loads(text)
    assert loaded["results"]["ce_chain"] is loaded["results"]["ce_mix"] is None
    assert loaded["results"]["ce_first"] == 1.5901
    assert list(loaded) == list(summary)
    assert text.startswith('{\n  "format": 1,\n')


def test_the_report_has_all_its_parts(run_summary: Summary, tmp_path: Path) -> None:
    summary = run_summary
    report.write_report(tmp_path, summary, records())
    text = (tmp_path / "report.md").read_text()
    assert text.startswith(
        "# b3_l4:quick\n\nBlockTrain's chain reaches 1.588 nats/byte"
    )
    for part in (
        f"**wikitext-2-raw** (the hub), 10,780,437 bytes to train on and 1,120,192 to "
        f"validate on, SHA-256 `{'ab' * 32}`",
        "> Note: no test split\n\n> Note: 12 carriage returns",
        "| layers per worker | params | train FLOPs | bytes seen | learning rate |",
        "| BlockTrain CE_chain    |                 4 |  1.23M |       3.15P |",
        "1.23 times the parameters, 1.05 times the training FLOPs, 3.00 times the "
        "training bytes and 1.00 times the updates of each parameter",
        "](curves.png)",
        "|     2 | 1 to 1.344     |              1.344 |    1.410 |        +1.750 |",
        "No sign of target leakage: every block loses 1.750 nats or more.",
        "| one worker            |   430k | 0.00641 |   35% |",
        "**Different scale, not comparable**",
        "CE 1.359 nats/byte, PPL 3.89               | S   |    CE 1.588 |",
        "| S   | 0.00641 GiB |",
        f"```\n{summary['command']}\n```",
        "It took 4m10s here (blocktrain 2m10s, end_to_end 1m20s, block_sized 30s).",
        "- jax: 0.10.2\n- device: cpu\n- python: 3.11.7",
    ):
        assert part in text, part
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert "None" not in text
    assert "nan" not in text


def test_the_comparison_at_equal_bytes_takes_the_round_that_had_seen_as_many(
    run_summary: Summary,
) -> None:
    """The reference ends at 2000 bytes; BlockTrain has 1800 after round 6."""
    text = sections.curves(run_summary, records())
    assert "the 2k of the end-to-end reference's whole training" in text
    assert (
        "in round 6 of 20: CE_chain 3.400 and CE_ensemble 2.900 against 1.900" in text
    )
    assert "yet to decay" in text
    assert "equal bytes" not in sections.curves(run_summary, records()[20:])


@pytest.mark.parametrize("method", ["blocktrain", "end_to_end", "block_sized"])
def test_methods_that_were_not_trained_are_left_out(
    run_summary: Summary, method: str
) -> None:
    summary = only(run_summary, method)
    text, screen = render_report(summary, []), render_summary(summary)
    table = screen.split("\n\n")[0]
    assert ("BlockTrain CE_chain" in table) == (method == "blocktrain")
    assert ("End-to-end" in table) == (method == "end_to_end")
    assert ("Block-sized" in table) == (method == "block_sized")
    assert ("## Blocks" in text) == ("## Memory" in text) == (method == "blocktrain")
    assert "None" not in text
    if method == "end_to_end":
        assert "The end-to-end reference reaches 1.506 nats/byte on wikitext-2" in text
    if method == "blocktrain":
        assert "chain reaches 1.588 nats/byte on wikitext-2-raw. The ensemble" in text


def test_methods_within_half_a_thousandth_are_level(run_summary: Summary) -> None:
    summary = with_results(run_summary, ce_chain=1.5058, ce_ensemble=1.5068)
    text = sections.headline(summary)
    assert "1.506 nats/byte on wikitext-2-raw, level with the end-to-end" in text
    assert "reaches 1.507, 0.001 above the end-to-end reference (1.506)" in text


def test_what_is_not_finite_is_a_dash_and_compared_with_nothing(
    run_summary: Summary,
) -> None:
    for bad in (None, float("nan"), float("inf")):
        summary = with_results(run_summary, ce_chain=bad, scrambled_gap=[bad] * 3)
        text = render_report(summary, [])
        assert "chain reaches - nats/byte on wikitext-2-raw. The ensemble" in text
        assert "The gaps are not finite." in text
        assert "nan" not in text
    table = sections.main_table(with_results(run_summary, ce_chain=1e6))
    assert table.rows[2][-3:] == ["1e+06", "-", "-"]  # exp overflows


def test_leaking_blocks_are_named(run_summary: Summary) -> None:
    summary = with_results(
        run_summary,
        ce_chain=14.3,
        local_ce=[1.9, 0.3, 0.02],
        scrambled_gap=[2.0, 0.05, 0.0],
    )
    text = leakage.warning(summary)
    assert text.startswith("WARNING, target leakage: blocks 1, 2 predict ")
    assert "Raise diffusion.sigma_min" in text
    assert text in render_report(summary, [])
    assert "WARNING" in render_summary(summary)


@pytest.mark.parametrize(
    ("chain", "local", "gap", "leaks"),
    [
        (14.3, 0.02, 0.0, True),
        (None, 0.02, 0.0, True),  # a chain that isn't a number has collapsed
        (14.3, 0.02, 0.2, False),  # it misses its context
        (1.6, 1.5, 0.0, False),  # it isn't better than the chain
        (14.3, None, 0.0, False),
    ],
)
def test_a_leak_needs_both_signs(
    run_summary: Summary,
    chain: float | None,
    local: float | None,
    gap: float,
    leaks: bool,
) -> None:
    summary = with_results(
        run_summary,
        ce_chain=chain,
        local_ce=[1.9, 1.9, local],
        scrambled_gap=[2.0, 2.0, gap],
    )
    assert ("block 2 predicts" in leakage.warning(summary)) == leaks
    if not leaks and gap == 0.0:
        assert "hardly uses its context" in render_report(summary, [])


def test_without_the_source_tree_the_report_says_so(run_summary: Summary) -> None:
    assert sections.published(run_summary, None)[1].startswith("Not available")


def test_levels_of_the_picture(run_summary: Summary) -> None:
    levels = report._levels(run_summary)
    assert levels == {
        "uniform guess, ln 256": math.log(256),
        "order-1 entropy": 2.46,
        "order-2 entropy": 2.01,
    }


def test_a_report_changes_nothing_of_its_summary(
    run_summary: Summary, tmp_path: Path
) -> None:
    summary = run_summary
    before = copy.deepcopy(summary)
    report.write_report(tmp_path, summary, records())
    assert summary == before
