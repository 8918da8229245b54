"""Programs that are compiled while a server already listens: those of a usual text.

So that not the first who asks waits for all of them. A text of somebody who is faster
waits for what each stage compiles at that moment, and goes first then.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from spheroid_jax.serving.host.host import Shape, StageHost
from spheroid_jax.serving.methods import Method, usual_method
from spheroid_jax.serving.packing import bucket
from spheroid_jax.serving.planner import Request, itinerary
from spheroid_jax.serving.stages import BLOCKTRAIN, Stage

PROMPT, OUTPUT = 16, 64  # bytes of a usual text
_ACCEPTANCE = 0.7  # of drafts: windows shrink by it towards the end of a text


def usual(stage: Stage, method: Method | None) -> list[Shape]:
    """What a usual text alone needs of a stage, in the order in which it needs it.

    Args:
      stage: one of the model.
      method: where a request names none; None: the model's own.
    """
    if method is None:
        method = usual_method(stage.kind, stage.count)
    request = Request(min(PROMPT, stage.places), OUTPUT, method, _ACCEPTANCE)
    found = {
        (bucket(trip.positions, stage.places), trip.fill)
        for trip in itinerary(request, stage.places)
        if stage.kind == BLOCKTRAIN or trip.fill == "given"
    }
    # The prompt comes first, and windows shrink.
    longest_first = sorted(found, key=lambda each: (-each[0], each[1]))
    return [Shape(1, *each) for each in longest_first]


async def warm(
    hosts: Sequence[StageHost],
    method: Method | None,
    stopped: asyncio.Event,
    tell: Callable[[str], None],
) -> None:
    """Compiles at all stages at once, until all is done or ``stopped`` is set.

    What fails here fails once more where it is asked for, and is told then.
    """
    before = time.monotonic()
    plans = [usual(host.stage, method) for host in hosts]

    async def each(host: StageHost, shapes: list[Shape]) -> None:
        for shape in shapes:
            # A program that is begun is ended: its thread can't be stopped.
            if stopped.is_set():
                return
            await host.warm([shape])

    turns = (each(*one) for one in zip(hosts, plans, strict=True))
    failed = [
        error
        for error in await asyncio.gather(*turns, return_exceptions=True)
        if isinstance(error, BaseException)
    ]
    if failed:
        tell(f"couldn't compile ahead: {' '.join(str(failed[0]).split())[:200]}")
    elif not stopped.is_set():
        seconds = time.monotonic() - before
        tell(f"is warm: programs of a usual text took {seconds:.1f} s to compile")
