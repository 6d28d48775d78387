"""Metrics of a bridge, built only if the settings enable them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Final

import grpc
from aiohttp import web

from bridge.call_observation import BATCH, FAILURES, METHOD, UNKNOWN_METHOD, CallFailure, CallOutcome, Surface
from cstp_grpc.common.measures import Measure, MeasureKind, Readings, read_value
from cstp_grpc.platform.config import MetricsSettings
from cstp_grpc.platform.http_listener import HttpListener
from cstp_grpc.platform.telemetry.instruments import CALL_BUCKETS, Instruments
from cstp_grpc.platform.telemetry.metrics_endpoint import MetricsEndpoint, MetricsPort

PORT_SETTING: Final = "metrics.bridge_port"
CLIENT_CLOSED_REQUEST: Final = 499
"""The conventional status of calls whose callers did not wait for the answer; HTTP does not define it."""
NO_FAILURES: Final[Sequence[CallFailure]] = ()


class BridgeMetrics:
    """Counts calls when they are answered; fulfils `BridgeCallObserver`.

    All of it runs on the event loop of the bridge.
    """

    def __init__(self, surface_of_path: Mapping[str, Surface], a2a_prefix: str | None) -> None:
        """Prepare metrics; paths that begin with `a2a_prefix` are A2A over HTTP+JSON; None without A2A."""
        self._surface_of_path = surface_of_path
        self._a2a_prefix = a2a_prefix
        self._instruments = Instruments("bridge")
        self._seconds = self._instruments.histogram(
            "cstp_bridge_call_seconds",
            "Duration of requests, from their head to the end of their response; of streams, how long they were open.",
            CALL_BUCKETS,
            ("surface", "method", "status_class"),
        )
        self._refusals = self._instruments.counter(
            "cstp_bridge_refusals",
            "Calls that failed in the bridge itself, without the server, by reason.",
            ("surface", "reason"),
        )
        self._grpc_calls = 0

    def observe_request(self, request: web.BaseRequest, response: web.StreamResponse, seconds: float) -> None:
        """Count a request over HTTP; a `RequestObserver`."""
        failures = response.get(FAILURES, NO_FAILURES)
        method = request.get(METHOD, UNKNOWN_METHOD)
        status = response.status
        # JSON-RPC answers with 200 that a call failed; a batch may have failed in part.
        if failures and status < HTTPStatus.BAD_REQUEST and method != BATCH:
            status = failures[0].http_status
        self._observe(self._surface(request.path), method, status, failures, seconds)

    @contextmanager
    def observe_call(self, surface: Surface, method: str) -> Iterator[CallOutcome]:
        outcome, started, status = CallOutcome(), time.perf_counter(), CLIENT_CLOSED_REQUEST
        self._grpc_calls += 1
        try:
            yield outcome
            status = HTTPStatus.OK
        finally:
            self._grpc_calls -= 1
            failures = NO_FAILURES if outcome.failure is None else (outcome.failure,)
            if failures:
                status = failures[0].http_status
            self._observe(surface, method, status, failures, time.perf_counter() - started)

    @asynccontextmanager
    async def serve(self, settings: MetricsSettings, inner_port: int | None) -> AsyncIterator[str]:
        """Serve the metrics for the length of a block and yield their URL.

        `inner_port` is where a supervisor asks for them, in place of the configured port. Raises ConfigError and
        CannotListen.
        """
        assert settings.bridge_port is not None, "there are metrics"
        number = settings.bridge_port if inner_port is None else inner_port
        port = MetricsPort(number, PORT_SETTING, is_inner=inner_port is not None)
        endpoint = MetricsEndpoint(self._instruments.exported, settings, port)
        try:
            await endpoint.start()
            yield endpoint.url
        finally:
            await endpoint.stop()

    def add_measures(self, listener: HttpListener, channel: grpc.aio.Channel) -> None:
        """Have the state of the listener and of the channel to the server read when metrics are asked for."""
        measures = [
            Measure(
                "bridge_calls_in_progress",
                "Calls that are not answered yet.",
                lambda: {("http",): listener.in_progress_count, ("grpc",): self._grpc_calls},
                ("transport",),
            ),
            Measure(
                "bridge_connections", "Connections over HTTP that are open.", read_value(lambda: listener.open_count)
            ),
            Measure(
                "bridge_connections_closed",
                "Connections over HTTP that were closed or refused for lack of room.",
                read_value(lambda: listener.closed_count),
                kind=MeasureKind.COUNTER,
            ),
            Measure(
                "bridge_upstream_state",
                "1 for the state of the channel to the server.",
                lambda: read_states(channel),
                ("state",),
            ),
        ]
        self._instruments.add_measures(measures)

    def _surface(self, path: str) -> Surface:
        found = self._surface_of_path.get(path)
        if found is not None:
            return found
        is_a2a = self._a2a_prefix is not None and path.startswith(self._a2a_prefix)
        return Surface.A2A_HTTP if is_a2a else Surface.OTHER

    def _observe(
        self, surface: Surface, method: str, status: int, failures: Sequence[CallFailure], seconds: float
    ) -> None:
        self._seconds.observe(seconds, surface, method, f"{status // 100}xx")
        for failure in failures:
            if failure.is_own:
                self._refusals.labels(surface, failure.reason).inc()


def read_states(channel: grpc.aio.Channel) -> Readings:
    current = channel.get_state()
    return {(state.name.lower(),): float(state is current) for state in grpc.ChannelConnectivity}
