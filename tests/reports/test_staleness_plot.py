"""The picture of the weight of an age."""

from pathlib import Path

import numpy as np

from spheroid_jax.reports.staleness_plot import main, staleness_figure


def test_it_shows_what_the_formula_says(tmp_path: Path) -> None:
    left, right = staleness_figure().axes
    cgad = left.get_lines()[0]
    ages, weights = (np.asarray(x) for x in cgad.get_data())
    assert weights[0] == 1
    np.testing.assert_allclose(weights[ages == 16], [0.02038], rtol=1e-3)
    np.testing.assert_array_equal(weights[ages >= 32], 0)
    # On the right no curve crosses the line of its bound, drawn after it.
    lines = right.get_lines()
    for curve, bound in zip(lines[::2], lines[1::2], strict=True):
        assert max(curve.get_ydata()) <= bound.get_ydata()[0] * (1 + 1e-5)
    assert main([str(tmp_path / "weight.png")]) == 0
    assert (tmp_path / "weight.png").read_bytes().startswith(b"\x89PNG")
