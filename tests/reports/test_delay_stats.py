import math

import pytest

from spheroid_jax.reports.delays.stats import (
    Paired,
    answer,
    change,
    differences,
    paired,
    spread_factor,
)
from spheroid_jax.reports.delays.summary import Cell


def cell(*losses: float) -> Cell:
    return Cell(losses, tuple(not loss < 5.5 for loss in losses), {})


def test_a_cell_has_the_sample_deviation_of_its_finite_seeds() -> None:
    found = cell(1.0, 2.0, math.nan, 3.0)
    assert (found.mean, found.std, found.lost) == (2.0, 1.0, 1)
    assert found.score == math.inf, "a lost seed is never the lowest"
    assert cell(1.0).std is None
    assert math.isnan(cell(math.nan).mean)


def test_differences_are_taken_within_a_seed() -> None:
    ours, theirs = cell(1.1, 3.1, 8.1), cell(1.0, 3.0, 8.0)
    found = paired([ours], [theirs])
    assert found is not None
    assert found.mean == pytest.approx(0.1)
    assert found.error == pytest.approx(0.0, abs=1e-12), "seeds differ, the gap doesn't"
    assert found.outcome == "higher"


def test_the_standard_error_is_that_of_the_mean_of_the_differences() -> None:
    found = paired([cell(0.9, 1.8, 2.7)], [cell(1.0, 2.0, 3.0)])
    assert found is not None
    assert found.mean == pytest.approx(-0.2)
    assert found.error == pytest.approx(0.1 / math.sqrt(3))
    assert found.bound == pytest.approx(4.302653 * 0.1 / math.sqrt(3))  # t, 2 dof


def test_several_cells_are_one_difference_per_seed() -> None:
    found = paired([cell(1.0, 2.0), cell(5.0, 5.0)], [cell(1.2, 2.2), cell(4.0, 4.4)])
    assert found is not None
    assert found.mean == pytest.approx(((-0.2 + 1.0) / 2 + (-0.2 + 0.6) / 2) / 2)
    assert found.seeds == 2


def test_a_seed_that_one_side_lost_is_in_neither() -> None:
    found = paired([cell(1.0, math.nan, 3.0)], [cell(1.5, 2.0, 3.5)])
    assert found == Paired(-0.5, 0.0, 2)
    assert paired([cell(math.nan)], [cell(1.0)]) is None
    assert paired([], []) is None
    assert differences({1: cell(math.nan), 2: cell(1.0)}, {1: cell(1.0)}) == {}


@pytest.mark.parametrize(
    ("mean", "error", "outcome", "better", "same"),
    [
        (-0.2, 0.01, "lower", "yes", "no"),
        (0.2, 0.01, "higher", "no", "no"),
        (-0.02, 0.001, "lower", "yes", "yes"),
        (0.0001, 0.00001, "level", "no", "yes"),
        (-0.003, 0.002, "none", "no", "yes"),  # -0.003 - 4.3 * 0.002 > -0.05
        (-0.1, 0.1, "none", "unsure", "unsure"),  # a gain of 0.05 is well possible
        (-0.2, 0.06, "suggestive", "unsure", "unsure"),  # 3.3 errors, t says 4.3
        (-0.2, None, "one seed", "unsure", "unsure"),
        (0.0, None, "one seed", "unsure", "unsure"),
    ],
)
def test_what_three_seeds_tell(
    mean: float, error: float | None, outcome: str, better: str, same: str
) -> None:
    found = Paired(mean, error, 1 if error is None else 3)
    assert (found.outcome, found.better, found.same) == (outcome, better, same)


def test_a_difference_in_words() -> None:
    text = str(Paired(-0.003, 0.002, 3))
    assert text.startswith("-0.003 (standard error 0.002, 3 seeds: no difference")
    assert str(Paired(-0.3, None, 1)) == "-0.300 (one seed can't tell)"
    assert str(Paired(0.3, 0.001, 3)).endswith("3 seeds: higher)")
    assert change(-0.0002) == "+0.000"


def test_the_factor_of_a_ratio_of_deviations_is_the_root_of_f() -> None:
    assert spread_factor(5, 5) == pytest.approx(math.sqrt(6.3882), rel=1e-4)
    assert spread_factor(2, 2) == pytest.approx(math.sqrt(161.45), rel=1e-4)
    assert spread_factor(1, 5) == math.inf


def test_a_run_without_a_loss_is_not_lower_than_one_with() -> None:
    fine, lost = cell(2.0, 2.1, 2.2), cell(math.nan, math.nan, math.nan)
    some = cell(1.0, 1.1, math.nan)
    assert answer([fine], [lost]) == "yes"
    assert answer([lost], [fine]) == "no"
    assert answer([lost], [lost]) == "unsure"
    assert answer([some], [fine]) == "unsure", "the seeds that are left are no sample"
    assert answer([fine], [some]) == "unsure"
    assert answer([cell(1.5, 1.6, 1.7)], [fine]) == "yes"
    assert answer([fine, fine], [fine, lost]) == "yes"
