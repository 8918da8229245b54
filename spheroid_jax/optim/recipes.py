"""Outer optimizers from a line of text, such as ``"nesterov learning_rate=0.7"``.

A recipe names an outer optimizer and sets what it differs in; everything else comes
from the defaults that it is resolved with. The numbers of a resolved recipe may be
traced, so that one compiled program serves a grid of them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import optax
from jax import Array

from spheroid_jax.optim.cgad import cgad
from spheroid_jax.optim.fadas import fadas
from spheroid_jax.optim.nesterov import delayed_nesterov, staleness_nesterov
from spheroid_jax.optim.pa_cgad import pa_cgad
from spheroid_jax.optim.staleness import polynomial_weight, staleness_weight

Numbers = Mapping[str, Any]
Weigh = Callable[[Array], Array]


class RecipeError(ValueError):
    """A recipe can't be read; the message names the cause and the cure."""


class Outer(NamedTuple):
    """An outer optimizer as a round uses it.

    Attributes:
      weigh: weight of a pseudo-gradient by its age, applied to each worker's before
        the mean, or None for one. With equal ages this equals what the optimizer
        would do by itself; with unequal ones only this is exact.
      transformation: takes the mean, and ``age``, the mean age of what arrived.
    """

    weigh: Weigh | None
    transformation: optax.GradientTransformationExtraArgs


@dataclasses.dataclass(frozen=True)
class Recipe:
    """An outer optimizer with all that it takes.

    Attributes:
      name: key of ``OPTIMIZERS``.
      numbers: its hyper-parameters; may be traced once resolved.
      choices: what shapes the program: words, and whole numbers.
    """

    name: str
    numbers: Mapping[str, Any]
    choices: Mapping[str, Any]


def _sgd(n: Numbers, c: Numbers) -> Outer:
    return _plain(optax.sgd(n["learning_rate"]))


def _weighted_sgd(n: Numbers, c: Numbers) -> Outer:
    return Outer(partial(staleness_weight, **_gate(n)), _sgd(n, c).transformation)


def _nesterov(n: Numbers, c: Numbers) -> Outer:
    return _plain(_momentum(n))


def _adam(n: Numbers, c: Numbers) -> Outer:
    return _plain(optax.adam(**_adam_numbers(n)))


def _adam_decay(n: Numbers, c: Numbers) -> Outer:
    weigh = partial(staleness_weight, alpha=n["alpha"], tau_cut=None)
    return Outer(weigh, _adam(n, c).transformation)


def _cgad(n: Numbers, c: Numbers) -> Outer:
    gate = _gate(n)
    weigh = None if c["gate"] == "post" else partial(staleness_weight, **gate)
    if c["gate"] == "pre":
        return Outer(weigh, _adam(n, c).transformation)
    return Outer(weigh, cgad(**_adam_numbers(n), **gate, gate="post"))


def _pa_cgad(n: Numbers, c: Numbers) -> Outer:
    gate = _gate(n)
    shut = gate if c["ages"] == "fragment" else {"alpha": 0.0, "tau_cut": None}
    by_fragment = pa_cgad(fragments=c["fragments"], **_adam_numbers(n), **shut)
    weigh = partial(staleness_weight, **gate) if c["ages"] == "delay" else None
    return Outer(weigh, by_fragment)


def _delayed_nesterov(n: Numbers, c: Numbers) -> Outer:
    return _plain(
        delayed_nesterov(n["learning_rate"], momentum=n["momentum"], period=c["period"])
    )


def _staleness_nesterov(n: Numbers, c: Numbers) -> Outer:
    weigh = partial(staleness_weight, alpha=n["alpha"], tau_cut=None)
    if c["mode"] == "input":
        return Outer(weigh, _nesterov(n, c).transformation)
    return _plain(
        staleness_nesterov(
            n["learning_rate"],
            momentum=n["momentum"],
            alpha=n["alpha"],
            mode=c["mode"],
        )
    )


def _polynomial_nesterov(n: Numbers, c: Numbers) -> Outer:
    weigh = partial(polynomial_weight, exponent=n["exponent"])
    return Outer(weigh, _nesterov(n, c).transformation)


def _fadas(n: Numbers, c: Numbers) -> Outer:
    return _plain(fadas(**_adam_numbers(n), tau_c=n["tau_c"]))


def _momentum(n: Numbers) -> optax.GradientTransformation:
    return optax.sgd(n["learning_rate"], momentum=n["momentum"], nesterov=True)


def _gate(n: Numbers) -> dict[str, Any]:
    return {"alpha": n["alpha"], "tau_cut": n["tau_cut"]}


def _adam_numbers(n: Numbers) -> dict[str, Any]:
    return {name: n[name] for name in _ADAM}


def _plain(transformation: optax.GradientTransformation) -> Outer:
    return Outer(None, optax.with_extra_args_support(transformation))


class _Kind(NamedTuple):
    numbers: tuple[str, ...]
    choices: Mapping[str, Any]  # allowed words, or the type int
    build: Callable[[Numbers, Numbers], Outer]


_ADAM = ("learning_rate", "b1", "b2", "eps")
_NESTEROV = ("learning_rate", "momentum")
OPTIMIZERS: Mapping[str, _Kind] = {
    "sgd": _Kind(("learning_rate",), {}, _sgd),
    "weighted_sgd": _Kind(("learning_rate", "alpha", "tau_cut"), {}, _weighted_sgd),
    "nesterov": _Kind(_NESTEROV, {}, _nesterov),
    "adam": _Kind(_ADAM, {}, _adam),
    "adam_decay": _Kind((*_ADAM, "alpha"), {}, _adam_decay),
    "cgad": _Kind(
        (*_ADAM, "alpha", "tau_cut"), {"gate": ("pre", "post", "both")}, _cgad
    ),
    # ages: what shuts the gate, max(delay, the fragment's age), the delay, or nothing.
    "pa_cgad": _Kind(
        (*_ADAM, "alpha", "tau_cut"),
        {"ages": ("fragment", "delay", "none")},
        _pa_cgad,
    ),
    "delayed_nesterov": _Kind(_NESTEROV, {"period": int}, _delayed_nesterov),
    "staleness_nesterov": _Kind(
        (*_NESTEROV, "alpha"),
        {"mode": ("input", "momentum", "both")},
        _staleness_nesterov,
    ),
    "polynomial_nesterov": _Kind((*_NESTEROV, "exponent"), {}, _polynomial_nesterov),
    "fadas": _Kind((*_ADAM, "tau_c"), {}, _fadas),
}


def parse_recipe(text: str, defaults: Mapping[str, Any]) -> Recipe:
    """Reads ``"name field=value ..."``; what it doesn't set comes from ``defaults``.

    A choice among words that neither makes is the first of them.

    >>> recipe = parse_recipe("nesterov momentum=0.5", {"learning_rate": 0.7})
    >>> recipe.name, dict(recipe.numbers)
    ('nesterov', {'learning_rate': 0.7, 'momentum': 0.5})

    Raises:
      RecipeError: there is no such optimizer, it has no such field, or the value
        isn't one that the field can take.
    """
    name, *words = text.split() or [""]
    if name not in OPTIMIZERS:
        raise RecipeError(f"{name!r} is no outer optimizer: use {_list(OPTIMIZERS)}")
    kind = OPTIMIZERS[name]
    fields = (*kind.numbers, *kind.choices)
    settings: dict[str, Any] = {
        f: allowed[0] for f, allowed in kind.choices.items() if allowed is not int
    }
    settings |= {f: defaults[f] for f in fields if f in defaults}
    for word in words:
        field, equals, value = word.partition("=")
        if not equals:
            raise RecipeError(f"{word!r} sets nothing: write field=value")
        if field not in fields:
            raise RecipeError(f"{name} has no {field}: it takes {_list(fields)}")
        settings[field] = _value(kind, field, value)
    if missing := [field for field in fields if field not in settings]:
        raise RecipeError(f"{name} needs {missing[0]}: add {missing[0]}=VALUE")
    return Recipe(
        name,
        {f: float(settings[f]) for f in kind.numbers},
        {f: settings[f] for f in kind.choices},
    )


def build_outer(recipe: Recipe, **choices: Any) -> Outer:
    """The outer optimizer of a recipe.

    Args:
      recipe: its numbers may be traced.
      **choices: further static ones: ``fragments``, the label tree of ``pa_cgad``.
    """
    kind = OPTIMIZERS[recipe.name]
    return kind.build(recipe.numbers, dict(recipe.choices) | choices)


def _value(kind: _Kind, field: str, text: str) -> Any:
    allowed = kind.choices.get(field, float)
    if isinstance(allowed, tuple):
        if text not in allowed:
            raise RecipeError(f"{field}={text} is unknown: use {_list(allowed)}")
        return text
    try:
        value = allowed(text)
        if value != value:  # float takes "nan"
            raise ValueError
    except ValueError:
        what = "a whole number" if allowed is int else "a number"
        raise RecipeError(f"{field}={text} is not {what}") from None
    return value


def _list(names: Any) -> str:
    return " or ".join(map(str, names))
