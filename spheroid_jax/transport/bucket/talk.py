"""The coordinator's talk with one worker: what it says is heard, and answered.

A worker may have several processes for a while. All speak, and are answered, at the
same place, so that some of what they say is lost; each says it again. Who of them is to
end is the coordinator's to say.
"""

from typing import Any

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.layout import Answer, Envelope, Refusal, Said
from spheroid_jax.transport.bucket.store import Found
from spheroid_jax.transport.bucket.voice import House, Place, Voice
from spheroid_jax.transport.protocol import (
    Leave,
    Message,
    ProtocolError,
    Register,
)

_VOICES = 4  # processes that are listened to; of more, the newest
_TOLD = 8  # processes that are told to end, in every answer; the newest


class Talk:
    """A name under ``workers/`` and the conversation with its processes."""

    def __init__(self, house: House, name: str) -> None:
        """Nothing is known of it."""
        self._house, self.name = house, name
        self._place = Place(name)
        self._voices: dict[str, Voice] = {}  # by session
        self._past: set[str] = set()  # sessions that are over
        self._seen: dict[str, bytes] = {}  # generations
        self._complained = ""  # of its messages

    async def look(self) -> None:
        """Hears and answers what is new.

        Raises:
          BucketError: something can't be read or written; the next look does it.
        """
        if self._house.keys is not None:
            key = self._house.keys(self.name)
            await self._shut_out(key)
            if key is None:
                return  # not even read
        try:
            hello = await self._new(layout.hello(self.name))
            if hello is not None:
                await self._greet(hello)
            said = await self._new(layout.pulse(self.name))
            if said is not None:
                await self._hear(said)
        except ProtocolError as error:
            # Nobody is answered: the answer's place belongs to the true worker.
            if self._complained != str(error):  # it may lie there for long
                self._complained = str(error)
                self._house.say(f"a message under {self.name} is ignored: {error}")
        for voice in list(self._voices.values()):
            await voice.provide()
        # One at a look, or none of them could see its own.
        for voice in [v for v in self._voices.values() if v.untold][:1]:
            await voice.tell()

    async def close(self) -> None:
        """Ends what is under way."""
        for voice in self._voices.values():
            await voice.close()

    async def _shut_out(self, key: bytes | None) -> None:
        """Tells processes whose token was revoked, or replaced, in their own words."""
        for voice in list(self._voices.values()):
            if voice.key == key:
                continue
            voice.refuse(
                ProtocolError(
                    f"the token of {self.name} was revoked: ask who runs the "
                    "coordinator for another",
                    status=401,
                    code="unauthorized",
                )
            )
            await voice.tell()
            self._end(voice)

    def _end(self, voice: Voice) -> None:
        """This process is listened to no more."""
        self._voices.pop(voice.session, None)
        self._past.add(voice.session)

    def _oust(self, voice: Voice) -> None:
        """A newer process has taken over from this one."""
        self._end(voice)
        self._place.ousted = [*self._place.ousted, voice.session][-_TOLD:]

    async def _new(self, key: str) -> Found | None:
        """The object, if it is another one than before."""
        try:
            found = await self._house.store.read(key, unless=self._seen.get(key))
        except BucketError as error:
            if error.code != "too_large":
                raise
            raise ProtocolError(str(error), status=413, code="too_large") from error
        if found is not None:
            self._seen[key] = found.generation
        return found

    def _opened(
        self, found: Found, kind: layout.Kind, body: type[Message]
    ) -> tuple[Envelope, Message, bytes | None] | None:
        """A message to be heard, and its key; None: it is to be passed over."""
        house, key = self._house, None
        if house.keys is not None:
            # Of this moment: it may have been revoked while the message was read.
            key = house.keys(self.name)
            if key is None:
                return None
        envelope = layout.unseal(found.content, kind, house.run.run, key)
        if envelope.worker != self.name:
            raise ProtocolError(f"it is in the name of {envelope.worker}")
        if envelope.subject != house.run.epoch:
            return None  # a worker that doesn't know yet of our start
        return envelope, layout.opened(envelope, body), key

    async def _greet(self, found: Found) -> None:
        opened = self._opened(found, "hello", Register)
        if opened is None:
            return
        envelope, request, key = opened
        if request.session != envelope.session:
            raise ProtocolError("its session isn't that of its envelope")
        if envelope.session in self._past:
            raise ProtocolError("it was said before, in a session that is over")
        voice = self._voices.get(envelope.session)
        if voice is None:
            voice = Voice(self._house, self._place, envelope.session, key)
        elif envelope.counter <= voice.counter:
            raise ProtocolError("it was said before")
        try:
            registered = await self._house.coordinator.register(self.name, request)
        except ProtocolError as error:
            voice.greeted(envelope.counter, Answer(envelope.counter))
            voice.refuse(error)
            if error.code == "superseded":
                self._oust(voice)
            await voice.tell()
            return
        self._house.tally.heard(self.name, request.session, None, len(found.content))
        voice.greeted(envelope.counter, Answer(envelope.counter, registered=registered))
        # The newest last.
        self._voices.pop(envelope.session, None)
        self._voices[envelope.session] = voice
        while len(self._voices) > _VOICES:
            oldest = next(iter(self._voices.values()))
            oldest.forget_question()
            self._oust(oldest)
        await voice.tell()

    async def _hear(self, found: Found) -> None:
        opened = self._opened(found, "said", Said)
        if opened is None:
            return
        envelope, said, _ = opened
        if envelope.session in self._past:
            return  # it will see that it is over
        voice = self._voices.get(envelope.session)
        if voice is None:
            # Of a process whose greeting isn't here yet.
            del self._seen[layout.pulse(self.name)]
            return
        if envelope.counter <= voice.counter:
            raise ProtocolError("it was said before")
        voice.counter = envelope.counter
        asks = said.ask
        sessions = {said.heartbeat.session, *((asks.session,) if asks else ())}
        if sessions != {voice.session}:
            raise ProtocolError("its session isn't that of its envelope")
        await self._take(voice, said, len(found.content))
        await voice.tell()

    async def _take(self, voice: Voice, said: Said, size: int) -> None:
        """Does what a process says, and has what is to be told."""
        changes: dict[str, Any] = {"heard": voice.counter, "refusal": None}
        house = self._house
        try:
            if said.leave:
                voice.forget_question()
                await house.coordinator.leave(self.name, Leave(voice.session))
            else:
                pulse = await house.coordinator.heartbeat(self.name, said.heartbeat)
                changes["pulse"] = pulse
        except ProtocolError as error:
            changes["refusal"] = Refusal.of(error)
            if error.code == "superseded":
                voice.forget_question()
                self._oust(voice)
        else:
            house.tally.heard(self.name, voice.session, said.moved, size)
            voice.want(said.wants or [])
            asks = said.ask
            if asks is not None and said.asked > voice.asked and not said.leave:
                whole = said.wants is None
                voice.ask(asks, said.asked, whole=whole, ousted=self._oust)
        voice.change(**changes)
