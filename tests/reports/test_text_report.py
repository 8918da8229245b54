"""Tables, sentences and picture of the comparison of methods, from made-up rows."""

import pytest

from spheroid_jax.reports.text import figure, render_report, table, verdicts


def row(name, ce, more=None, trips=None, **other):
    return {
        "name": name,
        "ce": ce,
        "ce_error": 0.05,
        "distinct": 0.9,
        "repeated": 0.01,
        "longest_run": 1.5,
        "bytes_per_trip": trips,
        "seconds_per_byte": None if trips is None else 0.5 / trips,
        **({} if more is None else {"more": more, "more_error": 0.04, "same": 0.5}),
        **other,
    }


@pytest.fixture
def summary():
    return {
        "settings": {
            "prompts": 8,
            "prompt_bytes": 6,
            "length": 8,
            "temperature": 1.0,
        },
        "model": {"config": "b3_l4", "method": "blocktrain", "round": 4},
        "judge": {"run": "runs/judge", "round": 5},
        "corpus": {"name": "embedded"},
        "rows": [
            row("real continuation", 1.5),
            row("token", 1.6, 0.0, 1.0),
            row("token+ensemble", 1.4, -0.2, 1.0),
            row("speculative=8", 1.6, 0.0, 3.0, same=1.0),
            row("windowed=2:drawn", 1.65, 0.05, 2.0),
            row("windowed=4:drawn", 1.67, 0.07, 4.0),
            row("windowed=8:drawn", 1.9, 0.3, 8.0),
            row("one_sweep:drafted", 2.0, 0.4, 8.0),
            row("first block alone", 2.1, 0.5, 1.0),
        ],
        "samples": {"prompt": "ab", "token": "line\nend"},
        "command": "python -m experiments.text",
        "seconds": 70.0,
        "environment": {"jax": "0"},
    }


def test_sentences_say_what_the_numbers_say(summary):
    lines = verdicts(summary)
    assert "1.600 nats per byte, the real continuation 1.500" in lines[0]
    assert "speculative=8 writes the same texts as token, 3.00 bytes" in lines[1]
    # 0.07 is within twice 0.04; 0.3 isn't, however many bytes it brings.
    assert "windowed=4:drawn brings most bytes a trip (4.00)" in lines[2]
    assert "one_sweep:drafted differs from token by +0.400 ± 0.040" in lines[3]
    assert "The first block alone differs from token by +0.500 ± 0.040" in lines[4]
    summary["rows"][3]["same"] = 0.75
    assert "speculative=8 writes 75% same texts" in verdicts(summary)[1]
    for number in (4, 5):
        summary["rows"][number]["more"] = 0.5
    assert not any("most bytes a trip" in line for line in verdicts(summary))


def test_the_table_has_a_line_a_method(summary):
    cells = {line[0]: line for line in table(summary).rows}
    assert cells["real continuation"][3:5] == ["-", "-"]
    assert cells["token"][1:5] == ["1.600 ± 0.050", "-", "1.00", "50%"]
    assert cells["windowed=4:drawn"][-1] == "0.25"
    assert len(table(summary, narrow=True).header) == 4


def test_the_report_keeps_a_sample_on_its_line(summary):
    assert "token: 'line\\nend'" in render_report(summary)


def test_the_picture_has_a_line_for_methods_of_one_kind(summary):
    (axes,) = figure(summary).axes
    lines = {c.get_label(): c.lines[0].get_xdata() for c in axes.containers}
    assert list(lines["windowed drawn"]) == [2.0, 4.0, 8.0]
    assert set(lines) == {
        *("token", "speculative", "windowed drawn", "one_sweep drafted"),
    }
