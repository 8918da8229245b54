"""What outer optimizers over a network are called in tables."""

from collections.abc import Mapping

_METHODS = {
    "mean": "Mean",
    "mean_weighted": "Mean, weighed by age",
    "nesterov": "Nesterov",
    "nesterov_weighted": "Nesterov, weighed by age",
    "adam": "Adam",
    "cgad": "CGAD",
    "cgad_both": "CGAD, both gates",
}


def method_label(method: str, recipe: Mapping[str, str] | None = None) -> str:
    """The name of a method for readers; an unknown key names itself.

    >>> method_label("mean_weighted"), method_label("mine")
    ('Mean, weighed by age', 'mine')
    """
    del recipe
    return _METHODS.get(method, method)
