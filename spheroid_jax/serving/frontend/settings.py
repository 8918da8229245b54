"""What a front end allows, and how long it waits."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """Limits of a front end; seconds and bytes.

    Attributes:
      request: seconds that a request may take, its wait in the queue included.
      sweep: seconds that a trip through the stages may take; then it is tried again.
      patience: seconds that a request waits for a stage when a block has none.
      connect: seconds for a connection to a stage, its handshake included.
      ping: seconds between two pings of a stage.
      pong: seconds without an answer after which a stage is suspected to hang.
      oldest: seconds that a stage may compute on one sweep before it is suspected.
      backoff: least and most seconds before a stage is dialled again.
      rejected: seconds before one that doesn't know our token is dialled again.
      attempts: at most so many times is a request begun anew.
      queue: requests that may wait for a place; one more gets 429.
      retry_after: seconds that it is told to wait.
      stall: seconds in which a client has to take an event.
      body: bytes of a request.
      prompt: bytes of a prompt.
      length: bytes of an output.
      choices: texts of a request: prompts times ``n``.
      drain: seconds that running requests get when the front end ends.
    """

    request: float = 300.0
    sweep: float = 60.0
    patience: float = 20.0
    connect: float = 10.0
    ping: float = 1.0
    pong: float = 5.0
    oldest: float = 60.0
    backoff: tuple[float, float] = (0.1, 5.0)
    rejected: float = 30.0
    attempts: int = 16
    queue: int = 256
    retry_after: float = 1.0
    stall: float = 30.0
    body: int = 1 << 20
    prompt: int = 64 << 10
    length: int = 4096
    choices: int = 16
    drain: float = 10.0
