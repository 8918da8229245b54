"""Outer optimizers by name.

A pseudo-gradient is *sent minus returned*, a descent-sign gradient, so that any optax
optimizer serves: ``sgd(1.0)`` lands exactly on the mean of what was returned.
"""

import optax

OUTER_OPTIMIZERS = ("sgd", "nesterov")


def outer_optimizer(
    name: str, learning_rate: float = 1.0, momentum: float = 0.9
) -> optax.GradientTransformation:
    """Builds an outer optimizer.

    Args:
      name: ``sgd`` (BlockTrain's mean, with learning rate 1) or ``nesterov``
        (DiLoCo, arXiv 2311.08105, with 0.7 and 0.9).
      learning_rate: on the mean pseudo-gradient.
      momentum: Nesterov's, in the sum convention; not used by ``sgd``.

    Raises:
      ValueError: if the name is unknown.
    """
    if name == "sgd":
        return optax.sgd(learning_rate)
    if name == "nesterov":
        return optax.sgd(learning_rate, momentum=momentum, nesterov=True)
    raise ValueError(f"outer optimizer must be one of {OUTER_OPTIMIZERS}, got {name!r}")
