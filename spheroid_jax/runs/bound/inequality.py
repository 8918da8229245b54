"""The inequality under CGAD's theorem, checked on numbers: a table over alpha."""

from typing import Any

import numpy as np

from spheroid_jax.optim.staleness import staleness_weight

ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_POINTS = 20_001


def inequality(alphas: tuple[float, ...], tau_cut: float) -> list[dict[str, Any]]:
    """Largest ``tau sigma(tau)`` over real tau, by alpha, with and without the gate.

    CGAD (arXiv 2605.09126) bounds the staleness term by ``1 / (e alpha)``, which the
    exponential alone reaches at ``tau = 1 / alpha``.

    Args:
      alphas: decays per round of age, above 0.
      tau_cut: age at which the gate is shut, rounds.

    Returns:
      For each alpha: ``bound``, the bound; ``decay`` and ``gated``, the largest values
      found; ``decay_at`` and ``gated_at``, where.
    """
    rows = []
    for alpha in alphas:
        # Every maximum lies below 1 / alpha; the grid has that point on it.
        taus = np.linspace(0.0, 4.0 / alpha, _POINTS)
        row: dict[str, Any] = {"alpha": alpha, "bound": 1.0 / (np.e * alpha)}
        for name, cut in (("decay", None), ("gated", tau_cut)):
            product = taus * np.asarray(staleness_weight(taus, alpha, cut), float)
            best = int(np.argmax(product))
            row |= {name: float(product[best]), f"{name}_at": float(taus[best])}
        rows.append(row)
    return rows
