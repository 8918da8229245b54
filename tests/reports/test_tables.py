import pytest

from spheroid_jax.reports.tables import Table, duration, gib, nats, si, signed

TABLE = Table(
    ["method", "CE", "note"],
    [["End-to-end", "1.5", "a|b"], ["x", "12.25", ""]],
    "lrl",
)


def test_markdown_is_aligned_and_escaped() -> None:
    assert TABLE.markdown() == (
        "| method     |    CE | note |\n"
        "| ---------- | ----: | ---- |\n"
        "| End-to-end |   1.5 | a\\|b |\n"
        "| x          | 12.25 |      |\n"
    )


def test_text_for_the_screen() -> None:
    assert TABLE.text() == (
        "method         CE  note\n"
        "-----------------------\n"
        "End-to-end    1.5  a|b\n"
        "x           12.25\n"
    )


def test_a_table_must_be_rectangular() -> None:
    with pytest.raises(ValueError, match="2 columns, but"):
        Table(["a", "b"], [["1"]], "lr")
    with pytest.raises(ValueError, match="2 columns, but"):
        Table(["a", "b"], [], "l")
    with pytest.raises(ValueError, match="letters l and r"):
        Table(["a", "b"], [], "lc")


def test_no_value_is_a_dash() -> None:
    for show in (nats, signed, si, gib):
        assert show(None) == show(float("nan")) == show(float("inf")) == "-"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (999, "999"),
        (1000, "1k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (-3_154_000, "-3.15M"),
        (12_345_678, "12.3M"),
        (1e21, "1000E"),
    ],
)
def test_counts_round_before_they_choose_a_suffix(value: float, text: str) -> None:
    assert si(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (59.4, "59s"), (59.6, "1m00s"), (3599.6, "1h00m"), (86_399, "23h59m")],
)
def test_durations_carry(seconds: float, text: str) -> None:
    assert duration(seconds) == text
