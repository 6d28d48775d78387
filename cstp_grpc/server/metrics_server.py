"""The metrics of a process, served on a separate event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cstp_grpc.server.execution import EventLoopThread

if TYPE_CHECKING:
    from cstp_grpc.platform.telemetry.metrics_endpoint import MetricsEndpoint


class MetricsServer:
    """Serves an endpoint on a separate event loop, so that no call waits for it; a `BackgroundPart`."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint
        self._loop: EventLoopThread | None = None

    @property
    def url(self) -> str:
        return self._endpoint.url

    def start(self) -> None:
        self._loop = EventLoopThread("metrics-loop")
        self._loop.start()
        try:
            self._loop.run(self._endpoint.start())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.run(self._endpoint.stop())
            self._loop.stop()
            self._loop = None
