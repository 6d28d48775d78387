"""The standard health service, with details beside the services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cstp_grpc.server.interceptors.call import Context

INDEX: Final = "index"
"""The name under which the vector index is asked for; search answers without it, only slower."""

Status = Any
"""A health_pb2.HealthCheckResponse.ServingStatus; it comes without types."""

SERVING: Status = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Status = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN: Status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it comes without types
    """Serves grpc.health.v1.Health; `details` says by name whether a part is well at the moment of asking.

    For one event loop. Unlike the servicer that comes with gRPC it sends nothing while it holds what a change of state
    waits for, so that a watcher that reads nothing holds nobody up.
    """

    def __init__(self, details: Mapping[str, Callable[[], bool]]) -> None:
        self._details = dict(details)
        self._statuses: dict[str, Status] = {"": SERVING}
        self._changes: set[asyncio.Event] = set()
        """One for each watch."""
        self._stopping = False

    async def Check(  # noqa: N802 - the generated name
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Tell the state of the server, a service or a detail."""
        detail = self._details.get(request.service)
        status = self._status(request.service) if detail is None else SERVING if detail() else NOT_SERVING
        if status == UNKNOWN:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return health_pb2.HealthCheckResponse()
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802 - the generated name
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> None:
        """Tell the state of the server or a service, and each other one that it comes to."""
        changed = asyncio.Event()
        self._changes.add(changed)
        told: Status = None
        try:
            while True:
                changed.clear()
                status = self._status(request.service)
                if status != told:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    told = status
                await changed.wait()
        finally:
            self._changes.discard(changed)

    def set(self, service: str, status: Status) -> None:
        """Change the state of a service; that of a server which stops, or has failed, stays."""
        if not self._stopping:
            self._statuses[service] = status
            self._notify()

    def enter_graceful_shutdown(self) -> None:
        """Say of all services that they are not served any more."""
        self._stopping = True
        self._statuses = dict.fromkeys(self._statuses, NOT_SERVING)
        self._notify()

    def fail(self) -> None:
        """Say for good that no service is served, because the server must be restarted."""
        self.enter_graceful_shutdown()

    def _notify(self) -> None:
        for changed in self._changes:
            changed.set()

    def _status(self, service: str) -> Status:
        return self._statuses.get(service, UNKNOWN)
