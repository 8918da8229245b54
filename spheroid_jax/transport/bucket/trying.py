"""Trying again what a bucket refuses, for as long as that makes sense."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.http.retry import Again, Pace, Tools, Tries
from spheroid_jax.transport.link import LinkError

_Result = TypeVar("_Result")
_FOR_GOOD = ("forbidden", "missing", "credentials")


class Trying:
    """Calls what asks a bucket until it works.

    Attributes:
      has_met: whether the bucket and the coordinator were there once: from then on
        credentials that are refused may be about to be renewed.
    """

    def __init__(
        self, where: str, pace: Pace, tools: Tools, notice: Callable[[str], None]
    ) -> None:
        """``where`` names the bucket, ``notice`` gets a line before each pause."""
        self._where, self._pace, self._tools = where, pace, tools
        self._notice = notice
        self.has_met = False

    async def __call__(
        self,
        what: str,
        attempt: Callable[[], Awaitable[_Result]],
        patience: float | None = None,
    ) -> _Result:
        """Tries until it works.

        Args:
          what: for messages, such as "registering".
          attempt: makes everything anew.
          patience: seconds; default that of the pace.

        Raises:
          LinkError: It didn't for long, or can't.
        """

        async def once() -> _Result:
            try:
                return await attempt()
            except BucketError as error:
                if not self.has_met and error.code in _FOR_GOOD:
                    raise LinkError(str(error), code=error.code) from error
                raise Again(str(error), cure="is the bucket there?") from error

        tries = Tries(
            what,
            self._where,
            patience=self._pace.patience if patience is None else patience,
            pace=self._pace,
            tools=self._tools,
            notice=self._notice,
        )
        return await tries.run(once)
