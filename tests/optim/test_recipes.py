"""Outer optimizers from a line of text: what can be written, and what it builds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax import config
from spheroid_jax.optim import (
    adam_decay,
    cgad,
    polynomial_nesterov,
    staleness_nesterov,
    staleness_weight,
)
from spheroid_jax.optim.recipes import (
    OPTIMIZERS,
    Outer,
    Recipe,
    RecipeError,
    build_outer,
    parse_recipe,
)

DEFAULTS = dict(config.delayed().outer)
FRAGMENTS = {"a": "fragment_0", "b": "fragment_1"}
PARAMS = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([0.5])}
AGES = (0, 2, 1, 0, 5)


def choices(recipe: Recipe) -> dict[str, Any]:
    return {"fragments": FRAGMENTS} if recipe.name == "pa_cgad" else {}


def path(outer: Outer) -> Any:
    """Parameters after five updates of different ages, as a round makes them."""
    params, state = PARAMS, outer.transformation.init(PARAMS)
    for i, age in enumerate(AGES):
        given = jnp.float32(age)
        weight = 1.0 if outer.weigh is None else outer.weigh(given)
        gradient = jax.tree.map(lambda p, w=weight, i=i: w * (p + 0.3 * i), params)
        updates, state = outer.transformation.update(gradient, state, params, age=given)
        params = optax.apply_updates(params, updates)
    return params


def close(a: Any, b: Any) -> None:
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6), a, b
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"'' is no outer optimizer: use sgd or weighted_sgd or nesterov or"),
        ("adamm", r"'adamm' is no outer optimizer"),
        ("sgd momentum=0.9", r"sgd has no momentum: it takes learning_rate"),
        ("sgd learning_rate", r"'learning_rate' sets nothing: write field=value"),
        ("sgd learning_rate=fast", r"learning_rate=fast is not a number"),
        ("sgd learning_rate=nan", r"learning_rate=nan is not a number"),
        ("sgd learning_rate=", r"learning_rate= is not a number"),
        ("cgad gate=shut", r"gate=shut is unknown: use pre or post or both"),
        ("delayed_nesterov period=1.5", r"period=1.5 is not a whole number"),
    ],
)
def test_what_can_not_be_read_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as error:
        parse_recipe(text, DEFAULTS)
    assert "\n" not in str(error.value)


def test_what_nobody_sets_is_missing() -> None:
    with pytest.raises(RecipeError, match="adam needs b1: add b1=VALUE"):
        parse_recipe("adam learning_rate=1", {})
    with pytest.raises(RecipeError, match="delayed_nesterov needs period"):
        parse_recipe("delayed_nesterov learning_rate=1 momentum=0", {})


def test_a_word_that_nobody_sets_is_the_first_of_its_kind() -> None:
    assert parse_recipe("cgad", DEFAULTS).choices == {"gate": "pre"}
    assert parse_recipe("pa_cgad", DEFAULTS).choices == {"ages": "fragment"}


def test_a_recipe_overrides_the_defaults_and_takes_no_others() -> None:
    recipe = parse_recipe("cgad gate=post alpha=0 tau_cut=inf", DEFAULTS)
    assert recipe.choices == {"gate": "post"}
    assert recipe.numbers == {
        "learning_rate": DEFAULTS["learning_rate"],
        "b1": DEFAULTS["b1"],
        "b2": DEFAULTS["b2"],
        "eps": DEFAULTS["eps"],
        "alpha": 0.0,
        "tau_cut": np.inf,
    }
    late = parse_recipe("delayed_nesterov period=7", DEFAULTS)
    assert late.choices == {"period": 7}


@pytest.mark.parametrize("name", config.RECIPES)
def test_every_recipe_moves_parameters_and_may_be_traced(name: str) -> None:
    """A grid of learning rates is one program, and equals a member."""
    recipe = parse_recipe(config.RECIPES[name], DEFAULTS)

    def run(numbers: Any) -> Any:
        traced = Recipe(recipe.name, numbers, recipe.choices)
        return path(build_outer(traced, **choices(recipe)))

    grid = {k: jnp.full(2, v, jnp.float32) for k, v in recipe.numbers.items()}
    grid["learning_rate"] = grid["learning_rate"] * jnp.array([1.0, 0.5])
    together: Any = jax.jit(jax.vmap(run))
    several = together(grid)
    rate = float(grid["learning_rate"][1])
    numbers = dict(recipe.numbers) | {"learning_rate": rate}
    outer = build_outer(Recipe(recipe.name, numbers, recipe.choices), **choices(recipe))
    concrete = jax.jit(lambda: path(outer))()
    close(jax.tree.map(lambda leaf: leaf[1], several), concrete)
    moved = jax.tree.map(lambda a, b: np.all(a != b), concrete, PARAMS)
    assert all(jax.tree.leaves(moved))
    together({k: 0.9 * v for k, v in grid.items()})
    assert together._cache_size() == 1


def test_every_optimizer_has_a_recipe() -> None:
    recipes = (*config.RECIPES.values(), *config.NETWORK_RECIPES.values())
    used = {text.split()[0] for text in recipes}
    assert used == set(OPTIMIZERS)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("cgad gate=pre", cgad(0.1, alpha=0.3, tau_cut=4.0)),
        ("cgad gate=post", cgad(0.1, alpha=0.3, tau_cut=4.0, gate="post")),
        ("cgad gate=both", cgad(0.1, alpha=0.3, tau_cut=4.0, gate="both")),
        ("adam_decay", adam_decay(0.1, alpha=0.3)),
        ("polynomial_nesterov exponent=0.7", polynomial_nesterov(0.1, 0.9, 0.7)),
        (
            "staleness_nesterov mode=input",
            staleness_nesterov(0.1, momentum=0.9, alpha=0.3, mode="input"),
        ),
    ],
)
def test_weights_and_the_rest_are_what_the_optimizer_does_by_itself(
    text: str, own: optax.GradientTransformationExtraArgs
) -> None:
    numbers = {"learning_rate": 0.1, "alpha": 0.3, "tau_cut": 4.0}
    outer = build_outer(parse_recipe(text, DEFAULTS | numbers))
    by_parts, by_itself = jax.jit(lambda: (path(outer), path(Outer(None, own))))()
    close(by_parts, by_itself)


def test_what_partial_sync_knows_of_ages() -> None:
    """Its own gate is shut by the fragment's age alone where it says so."""
    delay = build_outer(parse_recipe("pa_cgad ages=delay", DEFAULTS), fragments="all")
    assert delay.weigh is not None
    age = jnp.float32(3)
    assert float(delay.weigh(age)) == pytest.approx(float(staleness_weight(age)))
    for ages in ("fragment", "none"):
        recipe = parse_recipe(f"pa_cgad ages={ages}", DEFAULTS)
        assert build_outer(recipe, fragments="all").weigh is None

    def moments(ages: str, age: float) -> Any:
        recipe = parse_recipe(f"pa_cgad ages={ages}", DEFAULTS)
        optimizer = build_outer(recipe, fragments="all").transformation
        _, state = optimizer.update(PARAMS, optimizer.init(PARAMS), age=age)
        return state.mu["b"][0]

    assert moments("none", 3.0) == moments("none", 0.0) == moments("delay", 3.0)
    ratio = moments("fragment", 3.0) / moments("fragment", 0.0)
    assert float(ratio) == pytest.approx(float(staleness_weight(age)), rel=1e-5)
