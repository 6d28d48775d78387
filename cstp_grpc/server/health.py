"""The standard health service, with details beside the services."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

INDEX = "index"
"""The name under which the vector index is asked for; search answers without it, only slower."""

Status = Any
"""A health_pb2.HealthCheckResponse.ServingStatus; it comes without types."""

SERVING: Status = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Status = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN: Status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

Send = Callable[[Any], None]
"""Sends an answer of a stream, or None to end it; waits until it is on its way."""


class Watcher:
    """Whoever watches a service: is told its state, and each other one that it comes to."""

    def __init__(self, status: Callable[[], Status], send: Send) -> None:
        self._status = status
        self._send = send
        self._told: Status = None
        self._ended = False
        self._lock = threading.Lock()

    def tell(self) -> None:
        """Tell the state, unless it has been told."""
        with self._lock:
            status = self._status()
            if status != self._told and not self._ended:
                self._told = status
                self._send(health_pb2.HealthCheckResponse(status=status))

    def end(self) -> None:
        """End the watch."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._send(None)


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it comes without types
    """Serves grpc.health.v1.Health; `details` says by name whether a part is well at the moment of asking.

    Clients choose servers by a watch each, so that a watch holds no thread. Nothing is sent under the lock that the end
    of a watch needs: gRPC ends it on the one thread that also says when something is sent, and both would wait for
    ever, as they do in the servicer that comes with gRPC.
    """

    def __init__(self, details: Mapping[str, Callable[[], bool]]) -> None:
        self._details = dict(details)
        self._statuses: dict[str, Status] = {"": SERVING}
        self._watchers: dict[Watcher, str] = {}
        self._stopping = False
        self._lock = threading.Lock()

    def Check(  # noqa: N802 - the generated name
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Tell the state of the server, a service or a detail."""
        detail = self._details.get(request.service)
        status = self._status(request.service) if detail is None else SERVING if detail() else NOT_SERVING
        if status == UNKNOWN:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return health_pb2.HealthCheckResponse()
        return health_pb2.HealthCheckResponse(status=status)

    def Watch(  # noqa: N802 - the generated name
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext, send: Send
    ) -> None:
        """Tell the state of the server or a service, and each other one that it comes to."""
        service = request.service
        watcher = Watcher(lambda: self._status(service), send)
        with self._lock:
            self._watchers[watcher] = service
        if not context.add_callback(lambda: self._forget(watcher)):
            self._forget(watcher)
            return
        watcher.tell()

    # To gRPC this means that it is given a function that sends, and that the stream goes on when Watch returns.
    Watch.experimental_non_blocking = True  # type: ignore[attr-defined]

    def set(self, service: str, status: Status) -> None:
        """Change the state of a service; that of a server which stops stays."""
        with self._lock:
            if self._stopping:
                return
            self._statuses[service] = status
            watchers = [watcher for watcher, watched in self._watchers.items() if watched == service]
        for watcher in watchers:
            watcher.tell()

    def enter_graceful_shutdown(self) -> None:
        """Say of all services that they are not served any more."""
        with self._lock:
            self._stopping = True
            self._statuses = dict.fromkeys(self._statuses, NOT_SERVING)
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.tell()

    def end_watches(self) -> None:
        """End what need not have an end, for a server that stops would wait for it."""
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.end()

    def _status(self, service: str) -> Status:
        return self._statuses.get(service, UNKNOWN)

    def _forget(self, watcher: Watcher) -> None:
        with self._lock:
            self._watchers.pop(watcher, None)
