"""What outer optimizers and swept fields are called in tables and sentences."""

from collections.abc import Mapping
from typing import Any

_METHODS = {
    "nesterov": "Nesterov",
    "sgd": "SGD",
    "adam": "Age-blind Adam",
    "adam_decay": "Adam-Decay",
    "cgad": "CGAD",
    "cgad_post": "CGAD, gate after",
    "cgad_both": "CGAD, both gates",
    "pa_cgad": "PA-CGAD",
    "pa_delay": "CGAD by fragment",
    "pa_adam": "Adam by fragment",
    "sdm_input": "SDM, gradient discounted",
    "sdm_momentum": "SDM, momentum discounted",
    "polynomial": "Polynomial Nesterov",
    "delayed_nesterov": "Delayed Nesterov",
    "staleness_nesterov": "Discounted Nesterov",
    "polynomial_nesterov": "Polynomial Nesterov",
    "fadas": "FADAS",
}
_FIELDS = {"delay.tau": "tau", "outer.alpha": "alpha", "train.local_steps": "H"}


def method_label(method: str, recipe: Mapping[str, str]) -> str:
    """The name of a method for readers; an unknown key names itself.

    Args:
      method: its key.
      recipe: its fields; Nesterov's learning rate and momentum join the name.

    >>> method_label("nesterov", {"learning_rate": "0.7", "momentum": "0.9"})
    'Nesterov 0.7/0.9'
    >>> method_label("adam", {"learning_rate": "0.003"}), method_label("mine", {})
    ('Age-blind Adam', 'mine')
    """
    own = {"learning_rate", "momentum"} <= recipe.keys()
    if own and recipe.get("name", "nesterov") == "nesterov" and "nesterov" in method:
        return f"Nesterov {recipe['learning_rate']}/{recipe['momentum']}"
    if method.startswith("nesterov "):
        return method.capitalize()
    return _METHODS.get(method, method)


def field_label(field: str) -> str:
    """The short name of a dotted field of the config.

    >>> field_label("delay.tau"), field_label("sync.drop")
    ('tau', 'drop')
    """
    return _FIELDS.get(field, field.rsplit(".", 1)[-1])


def value_label(value: Any) -> str:
    """A setting as text.

    >>> value_label(8), value_label(0.25), value_label("fixed"), value_label(None)
    ('8', '0.25', 'fixed', 'as configured')
    """
    if value is None:
        return "as configured"
    return f"{value:g}" if isinstance(value, float) else str(value)


def panel_label(field: str, value: Any) -> str:
    """The title of a panel.

    >>> panel_label("delay.kind", "fixed"), panel_label("delay.tau", 8)
    ('fixed ages', 'tau = 8')
    """
    if field == "delay.kind":
        return f"{value_label(value)} ages"
    return f"{field_label(field)} = {value_label(value)}"


def listing(items: list[str], last: str = "and") -> str:
    """Items as a clause.

    >>> listing(["a"]), listing(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return f" {last} ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))
