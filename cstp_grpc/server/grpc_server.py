"""The gRPC server around the servicers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cstp_grpc.certificates import ServerCertificate
from cstp_grpc.client.contract import methods
from cstp_grpc.config import GrpcSettings, Settings, join
from cstp_grpc.reflection import SERVICE_NAMES, SymbolPool, build_reflection_handlers
from cstp_grpc.server.health import Health
from cstp_grpc.server.interceptors.auth import Authentication
from cstp_grpc.server.interceptors.chain import Chain, Interceptor, Pools
from cstp_grpc.server.interceptors.errors import ErrorAnswers, RefusalSink, refuse_expired
from cstp_grpc.server.interceptors.rate_limit import RateLimiting
from cstp_grpc.server.interceptors.receiving import Receiving
from cstp_grpc.server.interceptors.request_id import request_id
from cstp_grpc.server.interceptors.sending import Sending
from cstp_grpc.server.interceptors.validation import Validation

OPEN_STREAMS = 2
"""Threads for streams that need no token: reflection."""

OPEN_CALLS = 16
"""Threads for unary calls that need no token: health. Each is held by a caller for `grpc.message_seconds` at most."""

REFUSALS = 4
"""Threads beside those of the streams of answers that may be open, on which others are refused."""

SENDING_GRACE = 1.0
"""Seconds for streams of answers to end by themselves when the server stops."""

INTERRUPTED_GRACE = 1.0
"""Seconds for calls that are interrupted after draining to notice it."""

LOOPBACK = "127.0.0.1"

PING_MILLISECONDS = 30_000
"""How long a caller with open calls may be silent before it is asked whether it is there, and may take to answer."""


Servicer: TypeAlias = tuple[Callable[[Any, grpc.Server], None], object]
"""The generated function that adds a servicer to a server, and the servicer."""


class CannotListen(Exception):
    """The server cannot listen where it was told to."""


@dataclass(frozen=True, slots=True)
class Listening:
    """The ports of a server; `private` is the loopback one without TLS, None where there is none."""

    port: int
    private: int | None


class GrpcServer:
    """Serves the contract, health and reflection; `details` are what health tells beside the services.

    `receiving` is the one among the interceptors; it begins and ends with the server. `answer_streams` is how many
    streams of answers the servicers let be open at once. With a certificate it speaks TLS.
    """

    def __init__(
        self,
        settings: GrpcSettings,
        interceptors: Sequence[Interceptor],
        servicers: Iterable[Servicer],
        details: Mapping[str, Callable[[], bool]],
        receiving: Receiving,
        answer_streams: int,
        certificate: ServerCertificate | None = None,
    ) -> None:
        self._settings = settings
        self._certificate = certificate
        self._receiving = receiving
        self._sending = Sending()
        self._calls = ThreadPoolExecutor(settings.workers, thread_name_prefix="call")
        self._pools = Pools(
            streams=ThreadPoolExecutor(settings.stream_workers, thread_name_prefix="stream"),
            answers=ThreadPoolExecutor(answer_streams + REFUSALS, thread_name_prefix="answers"),
            open_streams=ThreadPoolExecutor(OPEN_STREAMS, thread_name_prefix="open-stream"),
            open_calls=ThreadPoolExecutor(OPEN_CALLS, thread_name_prefix="open-call"),
        )
        chain = Chain(interceptors, methods(), receiving, self._sending, self._pools)
        self._server = grpc.server(self._calls, interceptors=[chain], options=options(settings))
        for add, servicer in servicers:
            add(servicer, self._server)
        self._health = Health(details)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._services = sorted({method.service for method in methods().values()})
        shown = [*self._services, health.SERVICE_NAME, *SERVICE_NAMES]
        reflected = reflection.ReflectionServicer(shown, SymbolPool())
        self._server.add_generic_rpc_handlers(build_reflection_handlers(reflected))

    def start(self, *, private: bool = False) -> Listening:
        """Listen, and say where. Raises CannotListen.

        With `private` a server that speaks TLS listens without it too, on a free loopback port.
        """
        port = self._listen(join(self._settings.host, self._settings.port))
        secret = self._server.add_insecure_port(join(LOOPBACK, 0)) if private and self._certificate else None
        self._receiving.start()
        self._server.start()
        for service in self._services:
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        return Listening(port, secret)

    def _listen(self, address: str) -> int:
        try:
            if self._certificate:
                return self._server.add_secure_port(address, self._certificate.grpc_credentials())
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {address}: is the port taken? Set grpc.port to another") from error

    def stop(self, drain_seconds: float) -> None:
        """Refuse new calls, let those in progress end for up to `drain_seconds`, then stop.

        Streams of answers, which need not have an end, are interrupted before.
        """
        self._health.enter_graceful_shutdown()
        stopped = self._server.stop(drain_seconds)
        if not stopped.wait(min(drain_seconds, SENDING_GRACE)):
            self._health.end_watches()
            self._sending.interrupt()
        stopped.wait(drain_seconds + INTERRUPTED_GRACE)
        self._receiving.stop()
        pools = self._pools
        for pool in (self._calls, pools.streams, pools.answers, pools.open_streams, pools.open_calls):
            pool.shutdown(wait=False, cancel_futures=True)


def options(settings: GrpcSettings) -> list[tuple[str, int]]:
    """Return the channel options of the server."""
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        # Two servers on one port would each get a part of the calls.
        ("grpc.so_reuseport", 0),
        # A caller that vanished without a word would keep its streams, of which there are not many, for hours.
        ("grpc.keepalive_time_ms", PING_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", PING_MILLISECONDS),
        # Callers that watch ask likewise whether the server is there.
        ("grpc.http2.min_ping_interval_without_data_ms", PING_MILLISECONDS // 2),
    ]


def interceptors(settings: Settings, receiving: Receiving, refusals: RefusalSink) -> list[Interceptor]:
    """Return what happens around every call, the first outermost.

    The request id comes first, since errors and the log carry it. Errors come next, so that whatever follows may
    simply raise; they add to `refusals` what is refused. Work for callers that no longer wait is refused before it
    costs anything. Authentication precedes rate limits, which count by agent; both precede `receiving`, so that
    nobody waits for strangers, and validation, so that nobody judges what they send. Raises ConfigError.
    """
    validation = Validation(settings.grpc.max_depth)
    for method in methods().values():
        validation.warm(method.request)
    found: list[Interceptor] = [request_id, ErrorAnswers(refusals), refuse_expired]
    tokens = settings.auth.tokens if settings.auth.enabled else None
    found.append(Authentication(tokens, methods().values()))
    if settings.rate_limits.enabled:
        found.append(RateLimiting(settings.rate_limits, methods()))
    return [*found, receiving, validation]
