r"""Cosine-Gated Adam-Decay: Adam whose gradients count less the older they are."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from spheroid_jax.optim._adam import adam_step, moments
from spheroid_jax.optim._arguments import Hyperparameter, at, check_adam
from spheroid_jax.optim._trees import flatten
from spheroid_jax.optim.staleness import check_staleness, leaf_weights, weight_function

GATES = ("pre", "post", "both")
CLOSED = ("decay", "skip")
Gate = Literal["pre", "post", "both"]
Closed = Literal["decay", "skip"]


class ScaleByCgadState(NamedTuple):
    """State of :func:`scale_by_cgad` and :func:`cgad`."""

    count: Any  # updates so far; int32, shape ()
    mu: optax.Updates  # first moment; float32 unless mu_dtype says otherwise
    nu: optax.Updates  # second moment; float32


def scale_by_cgad(
    b1: Hyperparameter = 0.9,
    b2: Hyperparameter = 0.999,
    eps: Hyperparameter = 1e-8,
    eps_root: Hyperparameter = 0.0,
    mu_dtype: jax.typing.DTypeLike | None = None,
    alpha: Hyperparameter = 0.2,
    tau_cut: Hyperparameter | None = 32.0,
    gate: Gate = "pre",
    closed: Closed = "decay",
) -> optax.GradientTransformationExtraArgs:
    r"""Rescales updates according to Cosine-Gated Adam-Decay.

    See :func:`cgad`, which is this and a learning rate.

    Args:
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      eps_root: added inside that root.
      mu_dtype: dtype of the first moment; None for float32.
      alpha: rate of the exponential, per outer update.
      tau_cut: the age from which the weight is 0; None for no gate.
      gate: whether the weight multiplies the gradient that enters the moments
        (``pre``, as published), the normalised step (``post``), or ``both``.
      closed: what an update does whose weights are all 0: ``decay`` or ``skip``.

    Returns:
      The transformation; ``update`` takes ``age``.

    Raises:
      ValueError: on bad concrete arguments, or, from ``update``, if the ages don't
        match the updates.
    """
    return _cgad(None, b1, b2, eps, eps_root, mu_dtype, alpha, tau_cut, gate, closed)


def cgad(
    learning_rate: Hyperparameter,
    b1: Hyperparameter = 0.9,
    b2: Hyperparameter = 0.999,
    eps: Hyperparameter = 1e-8,
    eps_root: Hyperparameter = 0.0,
    mu_dtype: jax.typing.DTypeLike | None = None,
    *,
    alpha: Hyperparameter = 0.2,
    tau_cut: Hyperparameter | None = 32.0,
    gate: Gate = "pre",
    closed: Closed = "decay",
) -> optax.GradientTransformationExtraArgs:
    r"""Cosine-Gated Adam-Decay, an outer optimizer for stale pseudo-gradients.

    .. math::

        g &= \sigma(\tau) \, \Delta, \qquad
          \sigma(\tau) = \tfrac12 \bigl(1 + \cos(\pi \tau / \tau_{cut})\bigr)
          \, e^{-\alpha \tau} \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad
          v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        \theta &\leftarrow \theta - \eta \,
          \frac{m / (1 - \beta_1^t)}
          {\sqrt{v / (1 - \beta_2^t) + \bar\varepsilon} + \varepsilon}

    where :math:`\Delta` is a pseudo-gradient, sent minus returned, and :math:`\tau` its
    age in outer updates. ``update`` takes it as ``age``: one number (0 if not given),
    or a tree of numbers that stand at or above the updates' leaves. At age 0 this is
    ``optax.adam``, bit for bit on float32.

    Moments are kept in float32 whatever the dtype of the parameters; updates come back
    in the dtype of the gradients. A gradient of None leaves its moments alone.

    .. note::
        A constant age cancels: Adam divides by the size of what enters it, so that
        weights :math:`\sigma` throughout are exactly Adam with
        :math:`\varepsilon / \sigma`. Only ages that vary make a difference under
        ``gate="pre"``.

    .. warning::
        A closed gate does not mean no motion. From ``tau_cut`` on a gradient enters as
        zero: the moments decay by exactly :math:`\beta_1` and :math:`\beta_2`, the
        count advances, and the momentum that is left still moves the parameters (after
        50 equal gradients, 30 such updates move them by a further 9.3 learning rates).
        ``closed="skip"`` makes such an update return zeros and leave the state alone.

    Args:
      learning_rate: a number, an array or a schedule, as every other hyper-parameter.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      eps_root: added inside that root.
      mu_dtype: dtype of the first moment; None for float32.
      alpha: rate of the exponential, per outer update.
      tau_cut: the age from which the weight is 0; None for no gate.
      gate: whether the weight multiplies the gradient that enters the moments
        (``pre``, as published), the normalised step (``post``), or ``both``.
      closed: what an update does whose weights are all 0: ``decay`` (as published) or
        ``skip``.

    Returns:
      The transformation; ``update`` takes ``age``.

    Raises:
      ValueError: on bad concrete arguments, or, from ``update``, if the ages don't
        match the updates.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> f = lambda x: jnp.sum(x**2)
      >>> tx = cgad(0.1)
      >>> params = jnp.array([1.0, 2.0])
      >>> state = tx.init(params)
      >>> for age in (0, 1, 2, 4, 8):
      ...     u, state = tx.update(jax.grad(f)(params), state, params, age=age)
      ...     params = optax.apply_updates(params, u)
      ...     print(f"{f(params):.4f}")
      4.4200
      3.8883
      3.4079
      2.9883
      2.6396

    References:
      *Cosine-Gated Adam-Decay*, arXiv 2605.09126. ``gate="post"``, ``gate="both"`` and
      ``closed="skip"`` are not in the paper.
    """
    return _cgad(
        learning_rate, b1, b2, eps, eps_root, mu_dtype, alpha, tau_cut, gate, closed
    )


def adam_decay(
    learning_rate: Hyperparameter,
    b1: Hyperparameter = 0.9,
    b2: Hyperparameter = 0.999,
    eps: Hyperparameter = 1e-8,
    eps_root: Hyperparameter = 0.0,
    mu_dtype: jax.typing.DTypeLike | None = None,
    *,
    alpha: Hyperparameter = 0.2,
    gate: Gate = "pre",
) -> optax.GradientTransformationExtraArgs:
    r"""Adam-Decay: :func:`cgad` with the exponential alone.

    .. math::

        g = e^{-\alpha \tau} \, \Delta

    Args:
      learning_rate: a number, an array or a schedule, as every other hyper-parameter.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      eps_root: added inside that root.
      mu_dtype: dtype of the first moment; None for float32.
      alpha: rate of the exponential, per outer update.
      gate: where the weight goes, as in :func:`cgad`.

    Returns:
      The transformation; ``update`` takes ``age``.

    Raises:
      ValueError: as :func:`cgad`.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> f = lambda x: jnp.sum(x**2)
      >>> tx = adam_decay(0.1)
      >>> params = jnp.array([1.0, 2.0])
      >>> state = tx.init(params)
      >>> for age in (0, 1, 2, 4, 8):
      ...     u, state = tx.update(jax.grad(f)(params), state, params, age=age)
      ...     params = optax.apply_updates(params, u)
      ...     print(f"{f(params):.4f}")
      4.4200
      3.8882
      3.4073
      2.9860
      2.6332

    References:
      The baseline of *Cosine-Gated Adam-Decay*, arXiv 2605.09126.
    """
    return cgad(
        learning_rate,
        b1,
        b2,
        eps,
        eps_root,
        mu_dtype,
        alpha=alpha,
        tau_cut=None,
        gate=gate,
    )


def check_gate(gate: str) -> None:
    """Raises a ValueError unless the name is one of ``GATES``."""
    if gate not in GATES:
        raise ValueError(f"gate must be one of {GATES}, got {gate!r}")


def _cgad(
    learning_rate: Hyperparameter | None,
    b1: Hyperparameter,
    b2: Hyperparameter,
    eps: Hyperparameter,
    eps_root: Hyperparameter,
    mu_dtype: jax.typing.DTypeLike | None,
    alpha: Hyperparameter,
    tau_cut: Hyperparameter | None,
    gate: Gate,
    closed: Closed,
) -> optax.GradientTransformationExtraArgs:
    """CGAD, with minus the learning rate unless that is None."""
    check_adam(b1, b2, eps, eps_root)
    check_staleness(alpha, tau_cut)
    check_gate(gate)
    if closed not in CLOSED:
        raise ValueError(f"closed must be one of {CLOSED}, got {closed!r}")

    def init(params: optax.Params) -> ScaleByCgadState:
        mu, nu = moments(params, mu_dtype)
        return ScaleByCgadState(jnp.zeros([], jnp.int32), mu, nu)

    def update(
        updates: optax.Updates,
        state: ScaleByCgadState,
        params: optax.Params | None = None,
        *,
        age: Any = 0,
        **extra_args: Any,
    ) -> tuple[optax.Updates, ScaleByCgadState]:
        del params, extra_args
        leaves, treedef = flatten(updates)
        weight = weight_function(alpha, tau_cut, state.count)
        weights = leaf_weights(weight, age, updates)
        arrived = _any_open(weights) if closed == "skip" else None
        count = optax.safe_increment(state.count)
        settings = {
            "b1": b1,
            "b2": b2,
            "eps": eps,
            "eps_root": eps_root,
            "rate": learning_rate,
        }
        results = adam_step(
            leaves,
            treedef.flatten_up_to(state.mu),
            treedef.flatten_up_to(state.nu),
            count,
            weights,
            gate=gate,
            arrived=arrived,
            **{name: at(value, state.count) for name, value in settings.items()},
        )
        steps, mu, nu = (treedef.unflatten([r[i] for r in results]) for i in range(3))
        if arrived is not None:
            count = jnp.where(arrived, count, state.count)
        return steps, ScaleByCgadState(count, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def _any_open(weights: list[Any]) -> jax.Array:
    """Whether the weight of any leaf is other than exactly 0; NaN is."""
    open_ = jnp.bool_(False)
    for weight in weights:
        open_ |= False if weight is None else weight != 0
    return open_
