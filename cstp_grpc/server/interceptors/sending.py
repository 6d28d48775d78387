"""The answers of streams are sent here, as they come, as long as somebody reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from cstp_grpc.server.interceptors.chain import Call, Proceed
from cstp_grpc.server.status import REQUEST_ID


class Sending:
    """Sends what servicers of server-streaming methods return, and closes it however the call ends.

    The interceptors are around all of it: what is raised while answers come is answered like what is raised before. A
    servicer has admitted the call when it returns, which the caller is told at once by the initial metadata: they have
    the request id, which those of a refused call lack.
    """

    def __init__(self) -> None:
        self._open: set[grpc.ServicerContext] = set()
        self._lock = threading.Lock()

    def ending(self, servicer: Callable[[Any, grpc.ServicerContext], Iterator[Any]]) -> Proceed:
        """Return the end of the way: the servicer, and the sending of what it returns."""

        def end(call: Call, request: Any) -> None:
            with self._lock:
                self._open.add(call.context)
            try:
                self._send(call, servicer(request, call.context))
            finally:
                with self._lock:
                    self._open.discard(call.context)

        return end

    def interrupt(self) -> None:
        """End all streams, also those whose callers do not read what is sent."""
        with self._lock:
            for context in self._open:
                context.cancel()

    def _send(self, call: Call, answers: Iterator[Any]) -> None:
        assert call.send is not None, f"{call.method.path} answers with a stream"
        try:
            call.context.send_initial_metadata(((REQUEST_ID, call.request_id),))
            # Asked before each answer: a call that is over no longer says so to whoever waits for the next one.
            while call.context.is_active():
                answer = next(answers, None)
                call.send(answer)
                if answer is None:
                    return
        finally:
            if close := getattr(answers, "close", None):
                close()
