"""The error of checkpoints, and how causes are told in it."""


class CheckpointError(RuntimeError):
    """A checkpoint that can't be written, or mustn't be loaded; one line, with cure."""


def cause(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
