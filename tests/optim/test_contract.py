"""What any optax user may expect of a transformation, asked of each of ours.

The properties are those that optax checks of its own optimizers.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from spheroid_jax import optim

PARAMS = {"w": jnp.array([[1.0, -2.0, 0.5]]), "b": [jnp.array([0.3]), jnp.float32(2.0)]}
FRAGMENTS = {"w": "matrix", "b": "rest"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A transformation with settings under which it converges in a few steps."""

    factory: Callable[..., optax.GradientTransformation]
    rate: float
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    static: tuple[str, ...] = ()  # not to be injected
    copies: int = 2  # of the parameters in its state
    takes_rate: bool = True


def screened(learning_rate: Any) -> optax.GradientTransformation:
    return optim.skip_nonfinite(optim.cgad(learning_rate))


CASES = {
    "scale_by_staleness": Case(
        optim.scale_by_staleness, 0.002, copies=0, takes_rate=False
    ),
    "scale_by_cgad": Case(optim.scale_by_cgad, 0.05, takes_rate=False),
    "cgad": Case(optim.cgad, 0.05),
    "cgad post": Case(optim.cgad, 0.05, {"gate": "post"}),
    "cgad both": Case(optim.cgad, 0.05, {"gate": "both"}),
    "cgad skip": Case(optim.cgad, 0.05, {"closed": "skip"}),
    "adam_decay": Case(optim.adam_decay, 0.05),
    "pa_cgad": Case(optim.pa_cgad, 0.05, {"fragments": FRAGMENTS}, ("fragments",)),
    "delayed_nesterov": Case(optim.delayed_nesterov, 1e-3, static=("period",)),
    "staleness_nesterov": Case(optim.staleness_nesterov, 1e-3, copies=1),
    "staleness_nesterov both": Case(
        optim.staleness_nesterov, 1e-3, {"mode": "both"}, copies=1
    ),
    "polynomial_nesterov": Case(optim.polynomial_nesterov, 1e-3, copies=1),
    "fadas": Case(optim.fadas, 0.05, copies=3),
    "skip_nonfinite": Case(screened, 0.05),
    "adamw_8bit": Case(
        optim.adamw_8bit, 0.05, {"weight_decay": 0.0}, ("block_size", "min_size")
    ),
}
# Settings of one implementation needn't all be asked how it gets on with others.
VARIANTS = (
    *("scale_by_cgad", "cgad post", "cgad both", "adam_decay"),
    *("staleness_nesterov both", "polynomial_nesterov"),
)
MAIN = [name for name in CASES if name not in VARIANTS]


def parametrize(names: list[str]) -> pytest.MarkDecorator:
    slow = {name: [pytest.mark.slow] for name in VARIANTS}
    cases = [pytest.param(CASES[n], marks=slow.get(n, []), id=n) for n in names]
    return pytest.mark.parametrize("case", cases)


every = parametrize(list(CASES))
implementation = parametrize(MAIN)


def build(case: Case, **others: Any) -> optax.GradientTransformationExtraArgs:
    settings = {**case.settings, **others}
    if case.takes_rate:
        settings.setdefault("learning_rate", case.rate)
        return case.factory(**settings)
    return optax.chain(case.factory(**settings), optax.scale(-case.rate))


def cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def assert_close(one: Any, other: Any, rtol: float = 1e-6) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-9)


def after(tx: Any, params: Any = PARAMS, calls: int = 3, **extra: Any) -> Any:
    """Updates summed over some calls, and the state then."""
    state, total = tx.init(params), None
    for n in range(calls):
        gradient = jax.tree.map(lambda p, n=n: (n + 1) * p, params)
        steps, state = tx.update(gradient, state, params, age=n, **extra)
        total = steps if total is None else jax.tree.map(jnp.add, total, steps)
    return total, state


@implementation
def test_extra_arguments_of_others_are_ignored(case: Case) -> None:
    tx = build(case)
    plain, _ = after(tx)
    extra, _ = after(tx, value=jnp.float32(3), obj_fn=lambda x: x, tau=7)
    assert_close(extra, plain)
    # Nor does anyone have to know about ages.
    tx.update(PARAMS, tx.init(PARAMS), PARAMS)


@implementation
def test_a_second_call_compiles_nothing_and_donated_buffers_are_reused(
    case: Case,
) -> None:
    tx, traces = build(case), []

    def update(params: Any, state: Any, gradient: Any, age: Any) -> Any:
        traces.append(None)
        steps, state = tx.update(gradient, state, params, age=age)
        return optax.apply_updates(params, steps), state

    compiled = jax.jit(update, donate_argnums=(0, 1))
    params = jax.tree.map(jnp.array, PARAMS)
    state = jax.tree.map(jnp.array, tx.init(params))
    given = [  # a flag that is written but never read can't be donated
        leaf for leaf in jax.tree.leaves((params, state)) if leaf.dtype == jnp.float32
    ]
    first = compiled(params, state, PARAMS, jnp.float32(0))
    assert all(leaf.is_deleted() for leaf in given)
    second = compiled(*first, PARAMS, jnp.float32(3))
    third = compiled(*second, PARAMS, jnp.float32(40))
    assert len(traces) == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(third))


def parabola(p: jax.Array) -> jax.Array:
    return jnp.sum((p - jnp.array([1.0, -1.5])) ** 2)


def rosenbrock(p: jax.Array) -> jax.Array:
    return (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2


@every
def test_it_converges(case: Case) -> None:
    settings = {"fragments": "all"} if "fragments" in case.settings else {}
    tx = build(case, **settings)

    def descend(function: Any, steps: int) -> jax.Array:
        def step(carry: Any, _: Any) -> Any:
            p, state = carry
            u, state = tx.update(jax.grad(function)(p), state, p, age=0)
            return (optax.apply_updates(p, u), state), None

        start = jnp.array([-0.5, 1.0])
        return jax.lax.scan(step, (start, tx.init(start)), length=steps)[0][0]

    on_parabola, on_valley = jax.jit(
        lambda: (descend(parabola, 1500), descend(rosenbrock, 20_000))
    )()
    np.testing.assert_allclose(on_parabola, [1.0, -1.5], atol=1e-2)
    np.testing.assert_allclose(on_valley, [1.0, 1.0], atol=3e-2)


@every
def test_params_in_the_state_can_be_mapped(case: Case) -> None:
    # optax finds them by calling init with a placeholder in place of the parameters.
    tx = build(case)
    state = tx.init(PARAMS)
    mapped = optax.tree_utils.tree_map_params(
        tx, lambda _, spec: spec, state, jax.tree.map(lambda _: "spec", PARAMS)
    )
    specs = [leaf for leaf in jax.tree.leaves(mapped) if isinstance(leaf, str)]
    assert len(specs) == case.copies * len(jax.tree.leaves(PARAMS))


@every
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_injected_hyperparameters_change_nothing(case: Case, dtype: Any) -> None:
    inject = optax.inject_hyperparams(
        case.factory, static_args=case.static, hyperparam_dtype=jnp.float32
    )
    params = cast(PARAMS, dtype)
    direct, _ = after(build(case), params)
    injected, _ = after(build(dataclasses.replace(case, factory=inject)), params)
    for a, b in zip(jax.tree.leaves(direct), jax.tree.leaves(injected), strict=True):
        assert a.dtype == b.dtype == dtype
    # 1 - 0.999 in float32 is off by 5e-5.
    assert_close(injected, direct, rtol=1e-3 if dtype == jnp.float32 else 1e-2)


@every
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_dtypes_are_kept_and_zeros_stay_finite(case: Case, dtype: Any) -> None:
    tx, params = build(case), cast(PARAMS, dtype)
    state = tx.init(params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    for gradient, age in ((zeros, 0), (params, 50), (params, 1), (zeros, 0)):
        steps, new = tx.update(gradient, state, params, age=age)
        for leaf in jax.tree.leaves(steps):
            assert leaf.dtype == dtype
            assert np.isfinite(np.float32(leaf)).all()
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
        state = new


@every
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_the_state_fits_both_branches_of_a_condition(case: Case, dtype: Any) -> None:
    tx, params = build(case), cast(PARAMS, dtype)

    def maybe(state: Any, yes: Any) -> Any:
        return jax.lax.cond(
            yes,
            lambda s: tx.update(params, s, params, age=2.0),
            lambda s: (jax.tree.map(jnp.zeros_like, params), s),
            state,
        )

    # Tracing is enough: branches that differ in a dtype are refused.
    jax.eval_shape(maybe, tx.init(params), True)


@implementation
def test_it_works_behind_multi_steps(case: Case) -> None:
    tx = build(case)
    multi = optax.MultiSteps(tx, every_k_schedule=2)
    update = jax.jit(multi.update)
    doubled = jax.tree.map(lambda p: 2 * p, PARAMS)
    first, state = update(PARAMS, multi.init(PARAMS), PARAMS, age=9)
    assert all(not leaf.any() for leaf in jax.tree.leaves(first))
    second, _ = update(doubled, state, PARAMS, age=2)
    mean = jax.tree.map(lambda p: 1.5 * p, PARAMS)
    expected, _ = tx.update(mean, tx.init(PARAMS), PARAMS, age=2)
    assert_close(second, expected, rtol=1e-5)


@implementation
def test_it_works_masked_and_partitioned(case: Case) -> None:
    tx = build(case)
    whole, _ = after(tx)
    masked, _ = after(optax.masked(tx, {"w": True, "b": False}))
    assert_close(masked["w"], whole["w"])
    assert_close(masked["b"], jax.tree.map(lambda p: 6 * p, PARAMS["b"]))
    parts = optax.partition(
        {"ours": tx, "none": optax.set_to_zero()}, {"w": "none", "b": "ours"}
    )
    split, _ = after(parts)
    assert_close(split["b"], whole["b"])
    assert not split["w"].any()


@implementation
def test_it_works_among_other_transformations(case: Case) -> None:
    tx = build(case)
    chained = optax.chain(
        optax.zero_nans(),
        optax.clip(1e6),
        optax.clip_by_global_norm(1e6),
        optax.add_decayed_weights(0.0),
        tx,
        optax.scale(1.0),
    )
    assert_close(after(chained)[0], after(tx)[0], rtol=1e-5)


@implementation
def test_it_works_behind_apply_if_finite(case: Case) -> None:
    tx = optax.apply_if_finite(build(case), 3)
    update = jax.jit(tx.update)
    bad = jax.tree.map(lambda p: p * jnp.nan, PARAMS)
    steps, state = update(bad, tx.init(PARAMS), PARAMS, age=1)
    assert all(not leaf.any() for leaf in jax.tree.leaves(steps))
    steps, _ = update(PARAMS, state, PARAMS, age=1)
    expected, _ = build(case).update(PARAMS, build(case).init(PARAMS), PARAMS, age=1)
    assert_close(steps, expected, rtol=1e-5)


@parametrize([name for name in MAIN if CASES[name].takes_rate])
def test_the_learning_rate_may_be_a_schedule(case: Case) -> None:
    scheduled, state = after(build(case, learning_rate=lambda _: case.rate))
    assert_close(scheduled, after(build(case))[0])
    assert jax.tree.leaves(state)
    halved = build(
        case, learning_rate=optax.piecewise_constant_schedule(case.rate, {1: 0.0})
    )
    frozen, _ = after(halved)
    first, _ = after(build(case), calls=1)
    assert_close(frozen, first)  # from the second update on the rate is 0


@implementation
def test_flax_passes_the_age_on(case: Case) -> None:
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    settings = {"fragments": "all"} if "fragments" in case.settings else {}
    tx = build(case, **settings)
    params = nnx.state(model, nnx.Param)
    gradient = jax.tree.map(jnp.ones_like, params)
    expected, _ = tx.update(gradient, tx.init(params), params, age=jnp.float32(3))
    before = jax.tree.map(jnp.array, params)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    optimizer.update(model, gradient, age=jnp.float32(3))
    moved = jax.tree.map(jnp.subtract, nnx.state(model, nnx.Param), before)
    assert_close(moved, expected, rtol=1e-3)


@implementation
def test_none_in_place_of_a_leaf_stays_none(case: Case) -> None:
    tx = build(case)
    params = {"w": PARAMS["w"], "b": [None, PARAMS["b"][1]]}
    state = tx.init(params)
    for age in (0, {"w": 1, "b": 2}):
        if isinstance(age, dict) and "fragments" in case.settings:
            continue  # its ages are by fragment
        steps, state = tx.update(params, state, params, age=age)
        assert steps["b"][0] is None
    moved = optax.apply_updates(params, steps)
    assert moved["b"][0] is None
    assert np.isfinite(moved["w"]).all()


@pytest.mark.parametrize("name", ["cgad", "pa_cgad"])
def test_injection_in_half_precision_is_refused(name: str) -> None:
    # Unless told otherwise injection takes the parameters' dtype, in which 0.999 is 1
    # and the first update 0 / 0.
    case = CASES[name]
    tx = build(
        dataclasses.replace(
            case,
            factory=optax.inject_hyperparams(case.factory, static_args=case.static),
        )
    )
    with pytest.raises(ValueError, match="hyperparam_dtype=jnp.float32"):
        jax.eval_shape(tx.init, cast(PARAMS, jnp.bfloat16))
