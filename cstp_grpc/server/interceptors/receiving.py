"""The one message of a unary call is read here, once it is known who sends it, and not for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from cstp_grpc.errors import DeadlineExceeded, InvalidArgument
from cstp_grpc.server.interceptors.chain import Call, Proceed


class Receiving:
    """Waits for messages, for each at most `seconds`; a thread ends the calls whose message has not come by then.

    Whoever waits holds a thread of the server, and callers may be slow, or mean it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: dict[grpc.ServicerContext, float] = {}
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
        return proceed(call, self.message(request, call.context))

    def message(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """Return the message of a unary call.

        Raises InvalidArgument where none is sent, DeadlineExceeded where none came in time, and RpcError where the
        caller leaves.
        """
        until = time.monotonic() + self._seconds
        with self._lock:
            self._waiting[context] = until
        try:
            return next(requests)
        except StopIteration:
            raise InvalidArgument("The method takes one message, and none was sent") from None
        except grpc.RpcError:
            if time.monotonic() < until:
                raise
            raise DeadlineExceeded(f"The message did not arrive within {self._seconds:g} s") from None
        finally:
            with self._lock:
                self._waiting.pop(context, None)

    def _run(self) -> None:
        pause = self._seconds
        while not self._stopping.wait(pause):
            pause = self._end_overdue()

    def _end_overdue(self) -> float:
        """End the calls that waited long enough, and return the seconds until the next one may have.

        Under the lock, so that no call is ended whose message has arrived. Those that wait are in the order in which
        they began, and one that begins later waits longer than the thread pauses.
        """
        with self._lock:
            now = time.monotonic()
            for context, until in list(self._waiting.items()):
                if until > now:
                    return until - now
                context.cancel()
                del self._waiting[context]
        return self._seconds
