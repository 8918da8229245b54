"""Sweeps as they come over the wire, and results as they go on."""

import numpy as np

from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.host.engine import Made, Work
from spheroid_jax.serving.host.slots import RequestKey
from spheroid_jax.serving.stages import AUTOREGRESSIVE, BLOCKTRAIN, Stage
from spheroid_jax.serving.wire.codec import check_sweep, narrowed, widened
from spheroid_jax.serving.wire.messages import OF_WINDOW, Arrays, Sweep

Group = tuple[int, str, str]


def key_of(sweep: Sweep) -> RequestKey:
    """Whose sweep it is."""
    return RequestKey(sweep.frontend, sweep.request)


def check(stage: Stage, sweep: Sweep, arrays: Arrays) -> None:
    """Whether a sweep can be computed at a stage, whatever the cache holds.

    Raises:
      ServingError: it can't; one line.
    """
    try:
        check_sweep(sweep, arrays)
    except ValueError as error:
        raise ServingError(str(error)) from error
    left = stage.count - stage.index - 1
    if len(sweep.route) != left:
        raise ServingError(
            f"the route names {len(sweep.route)} stages after stage {stage.index}, "
            f"there are {left}: ask the stages in order"
        )
    if sweep.start + sweep.count > stage.places:
        raise ServingError(
            f"places {sweep.start} to {sweep.start + sweep.count - 1} are asked for, "
            f"the model has {stage.places}: begin another segment"
        )
    if stage.kind == AUTOREGRESSIVE:
        token = sweep.fill == "given" and sweep.count == sweep.known
        if not token or sweep.answer != "last":
            raise ServingError(
                "an autoregressive model knows the method token and the answer last "
                "only"
            )
    _check_arrays(stage, sweep, arrays)


def _check_arrays(stage: Stage, sweep: Sweep, arrays: Arrays) -> None:
    wanted = set()
    if not stage.first:
        wanted.add("state")
        if sweep.fill == "expected":
            wanted.add("guess")
        if sweep.answer == "ensemble":
            wanted.add("logs")
        if stage.kind == BLOCKTRAIN and sweep.fill != "written":
            wanted.add("draft")
    given = arrays.keys() - {"bytes"}
    if given != wanted:
        raise ServingError(
            f"stage {stage.index} takes {_listed(wanted)} from the stage before, with "
            f"fill {sweep.fill} and answer {sweep.answer}; {_listed(given)} came"
        )
    for name in sorted(given):
        array = arrays[name]
        if name not in OF_WINDOW and array.shape[1] != stage.width:
            raise ServingError(
                f"{name} is {array.shape[1]} wide, the model {stage.width}: the stage "
                "before serves another model"
            )
        # Minus infinity is a log-probability like another; plus infinity is none.
        of_window = np.isnan(array) | (array == np.inf)
        bad = of_window if name in OF_WINDOW else ~np.isfinite(array)
        if bad.any():
            raise ServingError(f"{name} of the stage before isn't finite")


def _listed(names: set[str]) -> str:
    return " and ".join(sorted(names)) or "nothing"


def group_of(sweep: Sweep, padded: int) -> Group:
    """Which sweeps the same program can take: those of one length, padded."""
    # Where all bytes are decided there is nothing to fill: fewer programs, and larger
    # batches. A later stage takes what ``fill`` has the stage before send.
    fill = sweep.fill
    if sweep.known == sweep.count and fill not in ("expected", "written"):
        fill = "given"
    return padded, fill, sweep.answer


def work_of(sweep: Sweep, arrays: Arrays, slot: int) -> Work:
    """A sweep as a row of a batch."""
    floats = {
        name: widened(arrays[name])
        for name in ("state", "guess", *OF_WINDOW)
        if name in arrays
    }
    return Work(
        slot=slot,
        start=sweep.start,
        index=sweep.index,
        known=sweep.known,
        count=sweep.count,
        bytes=arrays["bytes"],
        seed=sweep.seed,
        temperature=sweep.temperature,
        top_k=sweep.top_k,
        top_p=sweep.top_p,
        **floats,
    )


def passed_on(sweep: Sweep, made: Made) -> Arrays:
    """The arrays for the next stage."""
    arrays = {"bytes": made.bytes}
    for name in ("state", "guess", *OF_WINDOW):
        array = getattr(made, name)
        if array is not None:
            if name in OF_WINDOW:
                array = array[sweep.known - 1 :]
            arrays[name] = narrowed(array, sweep.wire_dtype)
    return arrays


def result_of(sweep: Sweep, made: Made) -> Arrays:
    """The arrays for the front end: w bytes, and what else it asked for."""
    window = slice(sweep.known - 1, sweep.count)
    arrays = {"bytes": made.bytes[window]}
    if sweep.fill == "drafted" and made.context is not None:
        arrays["context"] = made.context
    if sweep.want_logprobs and made.logprob is not None:
        arrays["logprob"] = made.logprob[window]
    return arrays
