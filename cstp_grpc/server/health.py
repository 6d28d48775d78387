"""The standard health service, with details beside the services."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import grpc
from grpc_health.v1 import health, health_pb2

INDEX = "index"
"""The name under which the vector index is asked for; search answers without it, only slower."""


class Health(health.HealthServicer):  # type: ignore[misc]  # it comes without types
    """Serves grpc.health.v1.Health; `details` says by name whether a part is well at the moment of asking."""

    def __init__(self, details: Mapping[str, Callable[[], bool]]) -> None:
        super().__init__()
        self._details = dict(details)

    def Check(  # noqa: N802 - the generated name
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Tell the state of the server, a service or a detail."""
        detail = self._details.get(request.service)
        if detail is None:
            return super().Check(request, context)
        well = detail()
        status = health_pb2.HealthCheckResponse.SERVING if well else health_pb2.HealthCheckResponse.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=status)
