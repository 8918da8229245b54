"""A front end's parts, put together."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from spheroid_jax.serving.frontend.admission import Admission
from spheroid_jax.serving.frontend.link import Dial
from spheroid_jax.serving.frontend.metrics import Metrics, Now
from spheroid_jax.serving.frontend.requests import Writer
from spheroid_jax.serving.frontend.settings import Settings
from spheroid_jax.serving.frontend.stages import Stages
from spheroid_jax.serving.methods import Method
from spheroid_jax.serving.wire.messages import WireDtype

log = logging.getLogger(__name__)


class Frontend(NamedTuple):
    """What answers.

    Attributes:
      stages: that compute; used while ``stages.connected()`` is entered.
      writer: that writes texts with them.
      admission: of texts.
      metrics: that count.
      settings: limits.
      method: where a request names none; None: ``speculative=16`` for a model of
        blocks, else ``token``.
      since: when this began to serve, seconds since 1970.
    """

    stages: Stages
    writer: Writer
    admission: Admission
    metrics: Metrics
    settings: Settings
    method: Method | None
    since: int


def assemble(
    addresses: Iterable[str],
    dial: Dial,
    identity: bytes,
    settings: Settings,
    method: Method | None = None,
    wire_dtype: WireDtype = "float32",
    say: Callable[[str], None] = log.warning,
) -> Frontend:
    """A front end; nothing is connected yet.

    Args:
      addresses: of the stages, in any order.
      dial: connects to one, as ``identity``.
      identity: 16 bytes, by which stages know this front end.
      settings: limits.
      method: where a request names none.
      wire_dtype: of what stages send each other.
      say: told what an operator has to know, a line each.
    """
    stages = Stages(addresses, dial, settings, say)
    admission = Admission(lambda: stages.capacity, settings.queue, settings.retry_after)
    stages.listen(admission.changed)

    def now() -> Now:
        samples = stages.samples()
        return Now(admission.waiting, admission.inside, stages.capacity, samples)

    metrics = Metrics(now)
    writer = Writer(stages, settings, metrics, identity, wire_dtype)
    since = int(time.time())
    return Frontend(stages, writer, admission, metrics, settings, method, since)
