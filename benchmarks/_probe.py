"""Somebody who looks at a coordinator's pages while it works."""

import contextlib
import http.client
import threading
import time

PROBE = 0.1  # seconds between two looks at /healthz


class Probe(threading.Thread):
    """Asks for ``/healthz`` again and again, and watches the dashboard's events."""

    def __init__(self, port: int) -> None:
        """Not started yet."""
        super().__init__(daemon=True)
        self._port, self._ended = port, threading.Event()
        self.seconds: list[float] = []
        self.errors: list[str] = []

    def run(self) -> None:
        """Until it is told to end."""
        threading.Thread(target=self._watch, daemon=True).start()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while not self._ended.wait(PROBE):
            began = time.monotonic()
            try:
                connection.request("GET", "/healthz")
                answer = connection.getresponse()
                answer.read()
            except OSError as error:
                self.errors.append(f"/healthz: {error!r}")
                return
            self.seconds.append(time.monotonic() - began)
            if answer.status != 200:
                self.errors.append(f"/healthz: {answer.status}")

    def end(self) -> None:
        """Asks no more."""
        self._ended.set()
        self.join()

    def _watch(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/events")
            answer = connection.getresponse()
            while not self._ended.is_set() and answer.readline():
                pass
