"""This process as one of a group: it joins, hears when another ends, and leaves."""

import socket
import sys
import threading
import time
from types import TracebackType
from typing import Any, NoReturn, Self

import jax

from spheroid_jax.distributed.errors import CURE, DistributedError
from spheroid_jax.distributed.group import Group, host_and_port
from spheroid_jax.distributed.native_output import Helper
from spheroid_jax.distributed.together import lost_peer, several, state
from spheroid_jax.leaving import leave_at_once

_POLL = 0.5  # seconds between looks at whether another process has ended
_LINGER = 4.0  # seconds that process 0, which tells the others, waits for them to leave
_HEARSAY = 4 * _POLL  # seconds in which a peer's last words arrive
_ENDED, _LEFT = "spheroid/ended/", "spheroid/left/"


class Member:
    """This process as a member of a group, inside a ``with`` block.

    At the end of the block it waits for all others; if the block fails it tells them
    why, and :meth:`end` then ends this process. A group of one does nothing.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._leaving = threading.Event()
        self._announced = False
        self._helper: Helper | None = None

    def __enter__(self) -> Self:
        """Joins.

        Raises:
          DistributedError: the processes don't come together.
        """
        if self._group.several:
            self._join()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not several():
            return
        if error is not None:
            if lost_peer(error):
                # It may have said why, and then the watch ends this process with that.
                time.sleep(_HEARSAY)
            self._announce(_reason(error))
            return
        self._leaving.set()
        jax.distributed.shutdown()

    def end(self, status: int) -> int:
        """Ends this process after a failure; returns ``status`` in a group of one.

        Python's ordinary exit would wait for the others, who are gone.
        """
        if not self._group.several:
            return status
        # The failure has been told; that XLA misses the others now says nothing new.
        if self._helper is not None:
            self._helper.last_words("")
        self._exit(status)

    def _join(self) -> None:
        group = self._group
        arguments: dict[str, Any] = {}
        if not group.detect:
            _check_coordinator(group)
            arguments = {
                "coordinator_address": group.coordinator,
                "num_processes": group.processes,
                "process_id": group.process,
                "cluster_detection_method": "deactivate",
            }
        # SIGTERM is ours: JAX' own service for preemptions would swallow it.
        jax.config.update("jax_enable_preemption_service", False)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        self._helper = helper = Helper()
        all_of_them = f"all {group.processes}" if group.processes > 1 else "all"
        helper.expect(
            f"error: not {all_of_them} processes came together within "
            f"{group.join_timeout} s: start every one, with the same --coordinator "
            "and --processes, or raise --join-timeout"
        )
        try:
            jax.distributed.initialize(
                **arguments,
                initialization_timeout=group.join_timeout,
                heartbeat_timeout_seconds=group.heartbeat_timeout,
            )
        except (RuntimeError, ValueError) as error:
            raise DistributedError(_join_failure(group, error)) from error
        helper.expect(
            f"error: process {state().process_id} of {state().num_processes} ends: "
            f"{{who}} died or can't be reached; {CURE}"
        )
        threading.Thread(
            target=self._watch, args=(helper,), name="peers", daemon=True
        ).start()

    def _announce(self, reason: str) -> None:
        """Tells the others that this process ends."""
        if self._announced:
            return
        self._announced = True
        try:
            state().client.key_value_set(f"{_ENDED}{state().process_id}", reason)
        except Exception:
            return  # process 0 is gone, and so the others end anyway

    def _exit(self, status: int) -> NoReturn:
        self._leaving.set()
        if several():
            self._announce("failed")
            self._linger()
        leave_at_once(status)

    def _linger(self) -> None:
        """Process 0 is the one through whom the others hear; it goes last."""
        client, deadline = state().client, time.monotonic() + _LINGER
        try:
            client.key_value_set(f"{_LEFT}{state().process_id}", "")
            while state().process_id == 0 and time.monotonic() < deadline:
                if len(client.key_value_dir_get(_LEFT)) == state().num_processes:
                    return
                time.sleep(_POLL / 4)
        except Exception:
            return  # the service is gone, and with it whom to wait for

    def _watch(self, helper: Helper) -> None:
        """Ends this process soon after another has said that it ends."""
        me = str(state().process_id)
        while not self._leaving.wait(_POLL):
            try:
                found = state().client.key_value_dir_get(_ENDED)
            except Exception:
                return  # process 0 is gone: XLA ends this process
            ended = {key.rsplit("/", 1)[-1]: reason for key, reason in found}
            ended.pop(me, None)
            if ended and not self._announced and not self._leaving.is_set():
                number, reason = min(ended.items())
                if sys.stderr.isatty():
                    print("\x1b[?25h", end="", file=sys.stderr)  # a bar hides it
                helper.last_words(f"error: process {number} {reason}")
                self._exit(1)


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return f"was stopped; {CURE}"
    if lost_peer(error):
        return f"lost another process; {CURE}"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"failed: {text[:400]}"


def _check_coordinator(group: Group) -> None:
    """Raises DistributedError where XLA would end the process with a stack trace."""
    host, port = host_and_port(group.coordinator)
    if group.process == 0:
        _check_free(port)
        return
    deadline = time.monotonic() + group.join_timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise DistributedError(
                    f"no coordinator at {group.coordinator} within "
                    f"{group.join_timeout} s ({error.strerror or error}): start "
                    "process 0 there, mend --coordinator, or raise --join-timeout"
                ) from error
        time.sleep(0.1)


def _check_free(port: int) -> None:
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        with socket.create_server(
            ("", port), family=family, dualstack_ipv6=family == socket.AF_INET6
        ):
            return
    except OSError as error:
        raise DistributedError(
            f"process 0 can't listen on port {port} ({error.strerror}): name a free "
            "one in --coordinator of every process"
        ) from error


def _join_failure(group: Group, error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    if group.detect:
        return (
            f"--distributed finds no group of processes here ({text}): run it under "
            "SLURM, Open MPI or Kubernetes, or write --coordinator=HOST:PORT "
            "--processes=N --process=I"
        )
    return f"can't join the processes at {group.coordinator}: {text}"
