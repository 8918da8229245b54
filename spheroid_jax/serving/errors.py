"""What goes wrong in serving, in one line each."""


class ServingError(ValueError):
    """A request, a model or a setting that can't be served; one line with the cure."""
