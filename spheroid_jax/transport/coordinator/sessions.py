"""Which process speaks for a worker: the newest that has asked for anything.

A process that only registers ousts nobody: it may find the worker's folder taken, and
end. Who has been ousted stays so, whatever it repeats, and whenever it arrives.
"""

import dataclasses
from typing import Any

from spheroid_jax.transport.protocol import ProtocolError

_KEPT = 16  # processes of a worker that are remembered


@dataclasses.dataclass
class Sessions:
    """The processes of one worker.

    Attributes:
      known: their sessions, in the order in which each first registered.
      speaker: the session that speaks for the worker; empty before any has.
      here: those that have registered since the coordinator was started.
      admitted: digest of the token with which the newest did; None: it needed none.
      shut: whether that token is valid no longer.
    """

    known: list[str] = dataclasses.field(default_factory=list)
    speaker: str = ""
    here: set[str] = dataclasses.field(default_factory=set)
    admitted: str | None = None
    shut: bool = False

    def register(self, name: str, session: str, admitted: str | None) -> bool:
        """A process of the worker ``name`` presents itself; True: it is a new one.

        Raises:
          ProtocolError: a newer one speaks.
        """
        self._refuse_older(name, session)
        is_new = session not in self.here
        if session not in self.known:
            self.known.append(session)
        self.here.add(session)
        self.admitted, self.shut = admitted, False
        self._forget()
        return is_new

    def check(self, name: str, session: str) -> None:
        """Whether this process may speak.

        Raises:
          ProtocolError: it must register first, its token was revoked, or a newer one
            speaks.
        """
        if self.shut:
            raise ProtocolError(
                f"the token of {name} was revoked: ask who runs the coordinator for "
                "another",
                status=401,
                code="unauthorized",
            )
        self._refuse_older(name, session)
        if session not in self.here:
            raise ProtocolError(
                f"worker {name} is not registered: register first",
                status=409,
                code="unknown",
            )

    def speak(self, name: str, session: str) -> bool:
        """As :meth:`check`; it speaks for the worker from now on. True: a new speaker.

        A speaker of before the coordinator's restart is a new one, too.
        """
        self.check(name, session)
        changed = session != self.speaker
        self.speaker = session
        return changed

    def state(self) -> dict[str, Any]:
        """What is to outlive a restart of the coordinator."""
        return {"known": list(self.known), "speaker": self.speaker}

    @classmethod
    def restored(cls, state: dict[str, Any]) -> "Sessions":
        """Takes up a :meth:`state`; all must register anew."""
        return cls(list(state["known"]), str(state["speaker"]))

    def _refuse_older(self, name: str, session: str) -> None:
        if session not in self.known or self.speaker not in self.known:
            return
        if self.known.index(session) < self.known.index(self.speaker):
            raise ProtocolError(
                f"another process has taken over as {name}: end this one, or give it a "
                f"token of its own (python -m experiments.tokens --add=OTHER)",
                status=409,
                code="superseded",
            )

    def _forget(self) -> None:
        # Never the speaker. A process that is forgotten has to register anew.
        while len(self.known) > _KEPT:
            oldest = next(session for session in self.known if session != self.speaker)
            self.known.remove(oldest)
            self.here.discard(oldest)
