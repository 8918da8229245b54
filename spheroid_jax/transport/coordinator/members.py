"""Workers of a run: who is there, who speaks for whom, and who holds which slot."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from spheroid_jax.transport.assignment import Slot, assign
from spheroid_jax.transport.coordinator.member import Member
from spheroid_jax.transport.coordinator.sessions import Sessions
from spheroid_jax.transport.protocol import Register

_COUNTED = ("accepted", "late", "rejected", "age_sum", "down", "up")
_MISSING = 3  # rounds without an update after which a spare comes first


class Members:
    """All workers, and which slot each of the live ones holds."""

    def __init__(self, blocks: int, replicas: int, lease: float) -> None:
        """No workers yet; slots are ``blocks`` x ``replicas``."""
        self._blocks, self._replicas, self._lease = blocks, replicas, lease
        self._by_name: dict[str, Member] = {}
        self.held: dict[str, Slot] = {}
        self.last_trained = [-1] * blocks
        self.updates = [0] * blocks

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_name.values())

    def live(self) -> list[Member]:
        """Workers with a lease, in order of joining."""
        found = [member for member in self if member.live]
        return sorted(found, key=lambda member: member.order)

    def get(self, name: str) -> Member:
        """The worker of that name, known from now on."""
        if name not in self._by_name:
            self._by_name[name] = Member(name, len(self._by_name))
        return self._by_name[name]

    def register(
        self, name: str, request: Register, now: float, admitted: str | None = None
    ) -> bool:
        """A process of the worker starts; it speaks for it once it asks for anything.

        Its lease and slot are those of the process before it: they run out unless it
        asks for work in time.

        Args:
          name: the worker's.
          request: what the process says of itself.
          now: by the coordinator's clock.
          admitted: digest of the token that let it in; None: it needed none.

        Returns:
          Whether this process hasn't registered before.

        Raises:
          ProtocolError: a newer process speaks for the worker.
        """
        member = self.get(name)
        is_new = member.sessions.register(name, request.session, admitted)
        # Shown on terminals.
        member.device = "".join(c if c.isprintable() else " " for c in request.device)
        # No sign of life: a process that fails as it starts, again and again, would
        # keep the slot for ever.
        if not member.live:
            member.seen = now
        member.came = now
        return is_new

    def known(self, name: str, session: str) -> Member:
        """The worker that this process speaks for, or may.

        Raises:
          ProtocolError: it must register first, or a newer process speaks.
        """
        member = self.get(name) if name in self._by_name else Member(name, 0)
        member.sessions.check(name, session)
        return member

    def speaks(self, name: str, session: str) -> bool:
        """Whether this process, registered, has spoken for the worker.

        Raises:
          ProtocolError: as of :meth:`known`.
        """
        return self.known(name, session).sessions.speaker == session

    def speaking(
        self, name: str, session: str, now: float, *, ready: bool = False
    ) -> Member:
        """As :meth:`known`, for a sign of life: renews the lease.

        The process speaks for the worker from now on, and those before it never again.
        It has a lease from when it is ``ready`` for work, and after a silence again.
        """
        member = self.known(name, session)
        if member.sessions.speak(name, session) or not member.heard:
            # What it said of the round was of the process before.
            member.heard, member.ready = True, False
            member.working = member.after = -1
            member.failed, member.judged = 0, -1
        if session == member.sessions.known[-1]:
            member.came = None
        member.ready |= ready
        member.told &= not ready
        if member.ready and not member.live:
            member.order = 1 + max((m.order for m in self), default=0)
            member.live = True
        member.seen = now
        return member

    def start(self, name: str, now: float) -> bool:
        """A sign of life of a process that starts; True: the first after a silence.

        It renews no lease: one that fails as it starts, again and again, would keep
        the slot for ever.
        """
        member = self.get(name)
        is_first = not self.is_starting(member, now)
        member.came = now
        return is_first

    def is_starting(self, member: Member, now: float) -> bool:
        """Whether the newest that is heard of the worker is a process that starts."""
        if member.came is None or now - member.came >= self._lease:
            return False
        return not member.live or not member.heard or member.seen < member.came

    def starting(self, now: float) -> int:
        """How many workers start."""
        return sum(self.is_starting(member, now) for member in self)

    def awaited(self, now: float, since: float, within: float) -> list[Member]:
        """Those who may still come to hear that the run is over.

        Args:
          now: by the coordinator's clock.
          since: when this coordinator was started; it can't know who was there just
            before.
          within: seconds; who was silent for longer than a lease and these is gone.
        """
        longest = self._lease + within
        return [
            m
            for m in self
            if not m.told and now - max(m.seen, m.came or since, since) <= longest
        ]

    def leave(self, member: Member) -> None:
        """Takes the worker's lease and slot away."""
        member.live, member.working = False, -1
        self.held.pop(member.name, None)

    def expire(self, now: float) -> list[Member]:
        """Those whose lease has run out; they have none any more.

        Who began to start and is silent is forgotten, too.
        """
        for member in self:
            if member.came is not None and now - member.came >= self._lease:
                member.came = None
        silent = [m for m in self.live() if now - m.seen > self._lease]
        for member in silent:
            self.leave(member)
        return silent

    def shut_out(self, digests: Mapping[str, str | None]) -> list[Member]:
        """Those whose token is no longer valid; they have no lease any more.

        Args:
          digests: of the tokens by name; None for one that is revoked. A name that
            isn't there needs none.
        """
        found = []
        for member in self:
            name, sessions = member.name, member.sessions
            if sessions.here:
                valid = sessions.admitted == digests.get(name)
            else:  # of before a restart
                valid = name not in digests or digests[name] is not None
            if valid or sessions.shut:
                continue
            if member.live or sessions.here:
                found.append(member)
            sessions.shut = True
            self.leave(member)
            member.ready, member.told, member.came = False, True, None
        return found

    def next_expiry(self) -> float:
        """When the next lease, or start, is over if nobody is heard of."""
        signs = [m.seen for m in self.live()]
        signs += [m.came for m in self if m.came is not None]
        return min(signs, default=float("inf")) + self._lease

    def count_missing(self, heard: Collection[Slot]) -> None:
        """A round is closed; these slots were heard in it."""
        for name, slot in self.held.items():
            member = self.get(name)
            member.missing = 0 if slot in heard else member.missing + 1

    def reassign(self) -> None:
        """Gives slots out anew, as a round opens.

        Who has held one for long and delivers nothing, dead but for its signs of life,
        is behind the spares.
        """
        spares = len(self.live()) - self._blocks * self._replicas
        silent = [m for m in self.live() if m.missing >= _MISSING]
        for member in sorted(silent, key=lambda m: -m.missing)[: max(0, spares)]:
            self.held.pop(member.name, None)
            member.order = 1 + max(m.order for m in self)
            member.missing = 0
        self.held = assign(
            [m.name for m in self.live()],
            self.held,
            self._blocks,
            self._replicas,
            self._waited(),
        )

    def fill(self, taken: set[Slot], through: Collection[str] = ()) -> None:
        """Gives free slots to those without one, in the middle of a round.

        Nobody moves.

        Args:
          taken: slots that need nobody any more.
          through: workers that have nothing (more) for this round; what they hold
            is free for others.
        """
        waiting = {m.name for m in self.live()} - self.held.keys() - {*through}
        if not waiting:
            return
        for name in through:
            if self.held.get(name) not in taken:
                self.held.pop(name, None)
        # Asked by every spare at all news: mostly there is nothing to give.
        if len(taken.union(self.held.values())) >= self._blocks * self._replicas:
            return
        # What is taken counts as held, also by those who are gone: others are free.
        gone = sorted(taken - set(self.held.values()))
        holders = {f"/{number}": slot for number, slot in enumerate(gone)}
        names = [m.name for m in self.live() if m.name in {*self.held, *waiting}]
        found = assign(
            [*holders, *names],
            {**holders, **self.held},
            self._blocks,
            self._replicas,
            self._waited(),
            pinned=(*holders, *self.held),
        )
        for name in waiting & found.keys():
            self.held[name] = found[name]

    def recall(self, held: Mapping[str, Sequence[int]], now: float) -> None:
        """Takes up leases and slots of before a restart; they run out as any."""
        for order, (name, slot) in enumerate(held.items()):
            member = self.get(name)
            member.live, member.seen, member.order = True, now, order
            self.held[name] = Slot(*slot)

    def _waited(self) -> list[int]:
        """Larger for blocks that were trained later, or then more often."""
        pairs = list(zip(self.last_trained, self.updates, strict=True))
        ranks = {pair: rank for rank, pair in enumerate(sorted({*pairs}))}
        return [ranks[pair] for pair in pairs]

    def counts(self) -> dict[str, Any]:
        """What is to outlive a restart."""
        return {
            m.name: {name: getattr(m, name) for name in (*_COUNTED, "phases", "device")}
            for m in self
        }

    def sessions(self) -> dict[str, Any]:
        """Who speaks for whom, as of :meth:`restore`."""
        return {m.name: m.sessions.state() for m in self if m.sessions.known}

    def restore(self, sessions: Mapping[str, dict[str, Any]]) -> None:
        """Takes up the sessions of before a restart."""
        for name, state in sessions.items():
            self.get(name).sessions = Sessions.restored(state)

    def recount(self, counts: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes up the counts of before a restart."""
        for name, counted in counts.items():
            member = self.get(name)
            for field, value in counted.items():
                if field == "phases":
                    member.phases = {**member.phases, **value}
                else:
                    setattr(member, field, value)
