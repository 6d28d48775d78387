"""Remote liaison agents: clients for A2A agents and CSTP servers, health probes, and cached availability."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.client.grpc_transport import channel_options
from cstp_grpc.client.http_client import HttpClient
from cstp_grpc.client.json_rpc import ENDPOINT_PATH, jsonrpc_url, send_http_request
from cstp_grpc.client.targets import MAX_RESPONSE_BYTES, grpc_address, target_scheme
from cstp_grpc.client.tls import channel_credentials, raise_config_errors, read_ca_file, tls_context
from cstp_grpc.common.canonical_json import hash_canonical_json
from cstp_grpc.common.unicode_text import to_single_line
from cstp_grpc.contract import errors
from cstp_grpc.contract.enums import DEFAULT_TENANT
from cstp_grpc.contract.errors import CstpError, InvalidArgument, LiaisonAgentUnavailable
from cstp_grpc.contract.rpc_errors import append_reason
from cstp_grpc.modules.liaison import agents
from cstp_grpc.modules.liaison.model import Share, liaison_agent
from cstp_grpc.platform.config import LiaisonSettings, PillarSettings
from cstp_grpc.platform.storage.delivery_queue import DeliveryFailed, DeliveryRejected

if TYPE_CHECKING:
    from cstp_grpc.client.a2a_client import A2aClient

logger = logging.getLogger(__name__)


SINGLE_ATTEMPT: Final = RetryPolicy(attempts=1)
"""A single attempt: the delivery queue retries by itself."""
MAX_HOPS: Final = 4
"""How many servers may forward a context one after another. Chosen: more indicate a loop."""
HOP_PREFIX: Final = re.compile(r"via([0-9]):")
"""Prefix of the key of a share that another server forwarded."""
SCHEMES_OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    "grpc": frozenset({"grpc", "grpcs"}),
    "jsonrpc": frozenset({"http", "https"}),
}
TRANSIENT_ERRORS: Final = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.RateLimited,
    errors.InternalError,
    errors.QueryFailed,
    errors.GuardrailEvalFailed,
    errors.LiaisonAgentUnavailable,
    errors.SessionUpdateFailed,
)
"""Errors of a server after which a retry may succeed."""
NOT_REACHABLE: Final = "not reachable"
NOT_IN_TIME: Final = "no answer in time"
STATUS_TEXTS: Final[Mapping[grpc.StatusCode, str]] = {
    grpc.StatusCode.UNAVAILABLE: NOT_REACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: NOT_IN_TIME,
}


class AgentUnreachable(Exception):
    """An agent is unreachable; the message is a short text for callers, the cause is for the log."""


class AgentClient(Protocol):
    """Reaches a remote agent within some seconds."""

    def probe(self, seconds: float) -> None:
        """Check that the agent answers within `seconds`. Raises AgentUnreachable."""

    def deliver(self, parcel: agents.DeliveryRequest, seconds: float) -> str | None:
        """Deliver a parcel and return the agent's task, if any. Raises DeliveryRejected, DeliveryFailed."""

    def close(self) -> None:
        """Close connections."""


class A2aAgentClient:
    """Reaches an A2A agent."""

    def __init__(self, settings: PillarSettings) -> None:
        # Imported late: the SDK takes a fifth of the start (measured), and few servers have a pillar that needs it.
        from cstp_grpc.client import a2a_client

        self._errors = a2a_client
        self._peer: A2aClient = a2a_client.A2aClient(
            agent_address(settings), agent_token(settings), root_certificates=read_ca_file(settings.ca_file)
        )

    def probe(self, seconds: float) -> None:
        """Check that the agent serves a usable card. Raises AgentUnreachable."""
        try:
            self._peer.probe(seconds)
        except self._errors.A2aSendError as error:
            raise AgentUnreachable(str(error)) from error.__cause__

    def deliver(self, parcel: agents.DeliveryRequest, seconds: float) -> str | None:
        """Send a parcel as a message, until the agent begins with it. Raises DeliveryRejected, DeliveryFailed."""
        share = parcel.share
        context_id = share.conversation_id and tenant_scoped_id(share.tenant, share.conversation_id)
        try:
            return self._peer.send(
                parcel_json(parcel), tenant_scoped_id(share.tenant, share.id), context_id, seconds, share.task_id
            )
        except self._errors.A2aPermanentError as error:
            raise DeliveryRejected(str(error)) from error.__cause__
        except self._errors.A2aTransientError as error:
            raise DeliveryFailed(str(error), task_id=error.task_id) from error.__cause__

    def close(self) -> None:
        """Cancel calls in progress."""
        self._peer.close()


class CstpAgentClient:
    """Reaches a CSTP server, which shares the context with its own liaison agent of that name."""

    def __init__(self, settings: PillarSettings, health: HealthProbe) -> None:
        self._health = health
        self._client = CstpClient(
            agent_address(settings),
            agent_token(settings),
            retries=SINGLE_ATTEMPT,
            root_certificates=read_ca_file(settings.ca_file),
        )

    def probe(self, seconds: float) -> None:
        """Check that the server is healthy. Raises AgentUnreachable."""
        self._health.probe(seconds)

    def deliver(self, parcel: agents.DeliveryRequest, seconds: float) -> str | None:
        """Share the context of a parcel on the server. Raises DeliveryRejected, DeliveryFailed."""
        share = parcel.share
        try:
            self._client.liaison.share_context_to_agent(
                share.source_agent,
                share.target_agent,
                share.shared_context,
                conversation_id=share.conversation_id and tenant_scoped_id(share.tenant, share.conversation_id),
                idempotency_key=forwarded_idempotency_key(share),
                timeout=seconds,
            )
        except CstpError as error:
            kind = DeliveryFailed if isinstance(error, TRANSIENT_ERRORS) else DeliveryRejected
            raise kind(public_failure_text(error)) from error
        return None

    def close(self) -> None:
        self._health.close()
        self._client.close()


class HealthProbe(Protocol):
    """Checks the health of a CSTP server."""

    def probe(self, seconds: float) -> None:
        """Check that the server is healthy. Raises AgentUnreachable."""

    def close(self) -> None:
        """Close connections."""


class GrpcHealthProbe:
    """Calls the standard gRPC health service."""

    def __init__(self, settings: PillarSettings) -> None:
        target = agent_address(settings)
        address = grpc_address(target)
        if target_scheme(target) == "grpcs":
            credentials = channel_credentials(read_ca_file(settings.ca_file))
            self._channel = grpc.secure_channel(address, credentials, channel_options(address))
        else:
            self._channel = grpc.insecure_channel(address, channel_options(address))
        self._stub = health_pb2_grpc.HealthStub(self._channel)

    def probe(self, seconds: float) -> None:
        """Check that the server is serving. Raises AgentUnreachable."""
        try:
            answer = self._stub.Check(health_pb2.HealthCheckRequest(), timeout=seconds)
        except grpc.RpcError as error:
            raise AgentUnreachable(STATUS_TEXTS.get(error.code(), "no answer about its health")) from error
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise AgentUnreachable("not serving")

    def close(self) -> None:
        self._channel.close()


class HttpHealthProbe:
    """Requests the health endpoint of a bridge."""

    def __init__(self, settings: PillarSettings) -> None:
        url = jsonrpc_url(agent_address(settings))
        self._url = url._replace(path=url.path.removesuffix(ENDPOINT_PATH) + "/health")
        tls = tls_context(read_ca_file(settings.ca_file), url.scheme)
        self._http = HttpClient(tls, max_bytes=MAX_RESPONSE_BYTES)

    def probe(self, seconds: float) -> None:
        """Check that the bridge and its server are healthy. Raises AgentUnreachable."""
        try:
            answer = send_http_request(self._http, "GET", self._url, {"accept": "application/json"}, None, seconds)
        except CstpError as error:
            raise AgentUnreachable(public_failure_text(error)) from error
        if answer.status != 200:
            raise AgentUnreachable("not serving")

    def close(self) -> None:
        """Do nothing: each request has its own connection."""


def build_agent_client(settings: PillarSettings) -> AgentClient:
    """Build the client for the agent of a pillar. Raises InvalidArgument, and OSError if ca_file is unreadable."""
    if settings.kind == "a2a":
        return A2aAgentClient(settings)
    if target_scheme(agent_address(settings)) not in SCHEMES_OF_KIND[settings.kind]:
        expected = " or ".join(f"{scheme}://" for scheme in sorted(SCHEMES_OF_KIND[settings.kind]))
        raise InvalidArgument.field("url", f"must begin with {expected} where kind is {settings.kind}")
    return CstpAgentClient(
        settings, GrpcHealthProbe(settings) if settings.kind == "grpc" else HttpHealthProbe(settings)
    )


def agent_address(settings: PillarSettings) -> str:
    assert settings.url, "checked with the settings"
    return settings.url


def agent_token(settings: PillarSettings) -> str | None:
    return None if settings.token is None else settings.token.get_secret_value()


def parcel_json(parcel: agents.DeliveryRequest) -> dict[str, Any]:
    """Return a parcel as the JSON object that A2A agents receive."""
    share, decision = parcel.share, parcel.decision
    found: dict[str, Any] = {
        "intent_type": "share_context_to_agent" if decision is None else "route_to_liaison_agent",
        "share_id": share.id,
        "source_agent": share.source_agent,
        "target_agent": share.target_agent,
        "target_pillar": parcel.pillar,
    }
    if share.conversation_id is not None:
        # As the tenant calls it; only the ids by which the agent tells messages apart are scoped.
        found["chat_session_id"] = share.conversation_id
    if decision is not None:
        found["routing_reason"] = decision.reason
        found["routing_decision"] = agents.decision_json(decision)
    return {**found, "context_hash": share.context_hash, "shared_context": dict(share.shared_context)}


def tenant_scoped_id(tenant: str, identifier: str) -> str:
    """Return the identifier sent to remote agents: unchanged for the default tenant, else a hash of tenant and
    identifier.

    All tenants reach an agent with the same token, and each chooses its own identifiers.
    """
    return identifier if tenant == DEFAULT_TENANT else hash_canonical_json([tenant, identifier])


def forwarded_idempotency_key(share: Share) -> str:
    """Return the idempotency key of a share for the next server, with the hop count.

    In the default tenant it is the share's own id, so that a server recognizes a share that it forwarded. Raises
    DeliveryRejected beyond MAX_HOPS.
    """
    key = tenant_scoped_id(share.tenant, share.id)
    if key == share.id:
        return key
    before = HOP_PREFIX.match(share.id)
    hops = int(before[1]) + 1 if before else 1
    if hops > MAX_HOPS:
        raise DeliveryRejected("passed on by too many servers: do they point at each other?")
    return f"via{hops}:{key}"


def public_failure_text(error: CstpError) -> str:
    """Return the text about a failed call for callers; only messages written by a server are included."""
    if isinstance(error, errors.ServerUnreachable):
        return NOT_REACHABLE
    if isinstance(error, errors.DeadlineExceeded):
        return NOT_IN_TIME
    # A request id shows that a CSTP server wrote the message; texts of proxies and libraries go to the log only.
    return append_reason(f"answered {error.reason}", error.message if error.request_id else "")


class RemoteAgent:
    """The remote liaison agent of a pillar, reached by a client."""

    def __init__(
        self,
        pillar: str,
        link: AgentClient,
        settings: LiaisonSettings,
        *,
        confirms: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.confirms = confirms
        self._pillar = pillar
        self._name = liaison_agent(pillar)
        self._client = link
        self._delivery_seconds = settings.delivery_seconds
        self._availability = AvailabilityCache(
            self._name, link.probe, settings.probe_seconds, settings.availability_seconds, clock
        )
        self._failing = False

    def check(self, tenant: str) -> None:  # noqa: ARG002 - it serves all tenants alike
        """Probe the agent, or use the last result if it is recent enough. Raises LiaisonAgentUnavailable."""
        reason, seconds = self._availability.probe_cached()
        if reason is not None:
            raise LiaisonAgentUnavailable(
                f"{self._name} is not available: {reason}",
                metadata={"target_pillar": self._pillar, "reason": reason},
                retry_after=seconds,
            )

    def deliver(self, parcel: agents.DeliveryRequest) -> str | None:
        """Deliver a parcel. Raises DeliveryRejected, DeliveryFailed."""
        try:
            task_id = self._client.deliver(parcel, self._delivery_seconds)
        except DeliveryRejected as error:
            logger.warning("%s refuses the share %s: %s", self._name, parcel.share.id, describe_with_cause(error))
            raise
        except DeliveryFailed as error:
            # Logged once: the queue tries again and again for hours.
            if not self._failing:
                logger.warning("nothing can be delivered to %s: %s", self._name, describe_with_cause(error))
            self._failing = True
            raise
        self._failing = False
        return task_id

    def close(self) -> None:
        self._availability.close()
        self._client.close()


class AvailabilityCache:
    """The cached availability of an agent: concurrent callers share one probe.

    Nobody waits longer than `seconds`, even if the probe takes longer.
    """

    def __init__(
        self, name: str, probe: Callable[[float], None], seconds: float, remembered: float, clock: Callable[[], float]
    ) -> None:
        self._name = name
        self._probe = probe
        self._seconds = seconds
        self._remembered = remembered
        self._clock = clock
        # One thread: a probe that hangs delays only the next probe of the same agent.
        self._pool = ThreadPoolExecutor(1, f"probe-{name}")
        # Guards `_flight`, `_reason` and `_known_until`. Not held while a probe is waited for. `_away` belongs to the
        # probing thread.
        self._entering = Lock()
        self._flight: Future[str | None] | None = None
        self._reason: str | None = None
        self._known_until: float | None = None
        self._away = False

    def probe_cached(self) -> tuple[str | None, float]:
        """Return why the agent is unavailable, or None if it is available, and the seconds that this stays cached."""
        with self._entering:
            remaining = 0.0 if self._known_until is None else self._known_until - self._clock()
            if remaining > 0:
                return self._reason, remaining
            # One probe at a time; callers that come while it runs wait for its result.
            if self._flight is None or self._flight.done():
                self._flight = self._pool.submit(self._try)
            flight = self._flight
        try:
            reason = flight.result(self._seconds)
        except TimeoutError:
            # The probe goes on in its thread, and its result replaces this one.
            reason = NOT_IN_TIME
            self._remember(reason)
        return reason, self._remembered

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _try(self) -> str | None:
        reason = None
        try:
            self._probe(self._seconds)
        except AgentUnreachable as error:
            reason = str(error)
            if not self._away:
                logger.warning("%s is not available: %s", self._name, describe_with_cause(error))
        except Exception:
            reason = "no answer that can be understood"
            if not self._away:
                logger.exception("%s is not available", self._name)
        self._away = reason is not None
        self._remember(reason)
        return reason

    def _remember(self, reason: str | None) -> None:
        with self._entering:
            self._reason = reason
            self._known_until = self._clock() + self._remembered


def build_remote_agent(name: str, settings: PillarSettings, liaison: LiaisonSettings) -> RemoteAgent:
    """Build the configured remote agent of a pillar, which the caller must close. Raises ConfigError."""
    with raise_config_errors(f"liaison.pillars.{name}", settings.ca_file):
        link = build_agent_client(settings)
    return RemoteAgent(name, link, liaison, confirms=settings.delivery == "confirm")


def describe_with_cause(error: Exception) -> str:
    cause = error.__cause__
    return str(error) if cause is None else to_single_line(f"{error} ({type(cause).__name__}: {cause})")
