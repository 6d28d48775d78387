"""The one message of a unary call is read here, once it is known who sends it, and not for ever."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from cstp_grpc.errors import DeadlineExceeded, InvalidArgument
from cstp_grpc.server.interceptors.chain import Call, Proceed

CROWD = 4
"""How many calls of one agent may wait for their messages before each of them has less time."""

CROWD_SECONDS = 1.0
"""How long each of a crowd may wait."""


@dataclass(slots=True)
class Wait:
    """A call that waits for its message; `agent` is None where nobody has asked who it is."""

    agent: str | None
    since: float
    ended: bool = False
    """Whether it was ended because it waited too long."""


class Receiving:
    """Waits for messages, for each at most `seconds`; a thread ends the calls whose message has not come by then.

    Whoever waits holds a thread of the server, and callers may be slow, or mean it: so that an agent cannot hold them
    all, each of its calls has CROWD_SECONDS at the most where more than CROWD of them wait.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: dict[grpc.ServicerContext, Wait] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="receiving", daemon=True)

    def start(self) -> None:
        """Begin to end calls."""
        self._thread.start()

    def stop(self) -> None:
        """End no more calls."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def __call__(self, call: Call, request: Any, proceed: Proceed) -> Any:
        """Read the message of a unary call; a stream's messages are left to who reads them. Raises as `message`."""
        if call.method.client_streaming:
            return proceed(call, request)
        return proceed(call, self.message(request, call.context, call.agent))

    def message(self, requests: Iterator[Any], context: grpc.ServicerContext, agent: str | None = None) -> Any:
        """Return the message of a unary call.

        Raises InvalidArgument where none is sent, DeadlineExceeded where none came in time, and RpcError where the
        caller leaves.
        """
        wait = Wait(agent, time.monotonic())
        with self._lock:
            self._waiting[context] = wait
        try:
            return next(requests)
        except StopIteration:
            # A call that was ended may look as if its caller had sent all.
            if wait.ended:
                raise late(wait) from None
            raise InvalidArgument("The method takes one message, and none was sent") from None
        except grpc.RpcError:
            if wait.ended:
                raise late(wait) from None
            raise
        finally:
            with self._lock:
                self._waiting.pop(context, None)

    def _run(self) -> None:
        pause = self._longest_pause()
        while not self._stopping.wait(pause):
            pause = self._end_overdue()

    def _longest_pause(self) -> float:
        """Return for how many seconds a call that begins now may surely wait."""
        return min(self._seconds, CROWD_SECONDS)

    def _end_overdue(self) -> float:
        """End the calls that waited long enough, and return the seconds until the next one may have.

        Under the lock, so that no call is ended whose message has arrived.
        """
        pause = self._longest_pause()
        with self._lock:
            now = time.monotonic()
            crowds = Counter(wait.agent for wait in self._waiting.values())
            for context, wait in list(self._waiting.items()):
                crowded = wait.agent is not None and crowds[wait.agent] > CROWD
                left = wait.since + (self._longest_pause() if crowded else self._seconds) - now
                if left > 0:
                    pause = min(pause, left)
                    continue
                wait.ended = True
                context.cancel()
                del self._waiting[context]
        return pause


def late(wait: Wait) -> DeadlineExceeded:
    """Return the error for a call that was ended."""
    return DeadlineExceeded(f"The message did not arrive within {time.monotonic() - wait.since:.1f} s")
