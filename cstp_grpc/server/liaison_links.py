"""The ways to liaison agents elsewhere: A2A agents, and other CSTP servers over gRPC and JSON-RPC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cstp_grpc import errors
from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.client.jsonrpc import ENDPOINT, endpoint, exchange, tls_context
from cstp_grpc.client.tls import channel_credentials
from cstp_grpc.client.transport import channel_options, grpc_address, scheme_of
from cstp_grpc.client.words import told
from cstp_grpc.config import PillarSettings
from cstp_grpc.errors import CstpError, InvalidArgument
from cstp_grpc.liaison.agents import DeliveryFailed, DeliveryRefused, Parcel, Receipt
from cstp_grpc.liaison.canonical import digest
from cstp_grpc.liaison.documents import decision_json
from cstp_grpc.liaison.model import Share
from cstp_grpc.server.authorities import read_authorities
from cstp_grpc.vocabulary import DEFAULT_TENANT

if TYPE_CHECKING:
    from cstp_grpc.client.a2a_peer import A2aPeer

ONCE: Final = RetryPolicy(attempts=1)
"""Whoever delivers repeats by itself."""
MAX_HOPS: Final = 4
"""How many servers one after the other may pass a context on; more point at each other."""
HOPS: Final = re.compile(r"via([0-9]):")
"""What the key of a share begins with that another server passed on."""
SCHEMES: Final[Mapping[str, frozenset[str]]] = {
    "grpc": frozenset({"grpc", "grpcs"}),
    "jsonrpc": frozenset({"http", "https"}),
}
PASSING: Final = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.RateLimited,
    errors.InternalError,
    errors.QueryFailed,
    errors.GuardrailEvalFailed,
    errors.LiaisonAgentUnavailable,
    errors.SessionUpdateFailed,
)
"""Answers of a server that may be others later."""
NOT_REACHABLE: Final = "not reachable"
NOT_IN_TIME: Final = "no answer in time"
STATUS_WORDS: Final[Mapping[grpc.StatusCode, str]] = {
    grpc.StatusCode.UNAVAILABLE: NOT_REACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: NOT_IN_TIME,
}


class Away(Exception):
    """An agent cannot be reached now; the message is a few words fit for callers, the cause is for the log."""


class Link(Protocol):
    """Reaches an agent, within so many seconds."""

    def probe(self, seconds: float) -> None:
        """Return where the agent is there. Raises Away."""

    def deliver(self, parcel: Parcel, seconds: float) -> Receipt:
        """Hand over a parcel. Raises DeliveryRefused, DeliveryFailed."""

    def close(self) -> None:
        """Give back what is held open."""


class A2aLink:
    """Reaches an A2A agent."""

    def __init__(self, settings: PillarSettings) -> None:
        # Importing the SDK takes a fifth of the start, and few servers have a pillar that needs it.
        from cstp_grpc.client import a2a_peer

        self._errors = a2a_peer
        self._peer: A2aPeer = a2a_peer.A2aPeer(
            address_of(settings), token_of(settings), root_certificates=read_authorities(settings.ca_file)
        )

    def probe(self, seconds: float) -> None:
        """Return where the agent shows a card that can be used. Raises Away."""
        try:
            self._peer.probe(seconds)
        except self._errors.PeerError as error:
            raise Away(str(error)) from error.__cause__

    def deliver(self, parcel: Parcel, seconds: float) -> Receipt:
        """Send a parcel as a message. Raises DeliveryRefused, DeliveryFailed."""
        share = parcel.share
        context_id = share.conversation_id and outward(share.tenant, share.conversation_id)
        try:
            task_id = self._peer.send(parcel_json(parcel), outward(share.tenant, share.id), context_id, seconds)
        except self._errors.PeerRefuses as error:
            raise DeliveryRefused(str(error)) from error.__cause__
        except self._errors.PeerError as error:
            raise DeliveryFailed(str(error)) from error.__cause__
        return Receipt(task_id)

    def close(self) -> None:
        """End calls in progress."""
        self._peer.close()


class CstpLink:
    """Reaches a CSTP server, which shares the context with its own liaison agent of that name."""

    def __init__(self, settings: PillarSettings, health: Health) -> None:
        self._health = health
        self._client = CstpClient(
            address_of(settings),
            token_of(settings),
            retries=ONCE,
            root_certificates=read_authorities(settings.ca_file),
        )

    def probe(self, seconds: float) -> None:
        """Return where the server is well. Raises Away."""
        self._health.probe(seconds)

    def deliver(self, parcel: Parcel, seconds: float) -> Receipt:
        """Have a parcel shared. Raises DeliveryRefused, DeliveryFailed."""
        share = parcel.share
        try:
            self._client.liaison.share_context_to_agent(
                share.source_agent,
                share.target_agent,
                share.shared_context,
                conversation_id=share.conversation_id and outward(share.tenant, share.conversation_id),
                idempotency_key=passed_on(share),
                timeout=seconds,
            )
        except CstpError as error:
            kind = DeliveryFailed if isinstance(error, PASSING) else DeliveryRefused
            raise kind(words_of(error)) from error
        return Receipt()

    def close(self) -> None:
        """Close the connections."""
        self._health.close()
        self._client.close()


class Health(Protocol):
    """Asks a CSTP server whether it is well."""

    def probe(self, seconds: float) -> None:
        """Return where it is. Raises Away."""

    def close(self) -> None:
        """Give back what is held open."""


class GrpcHealth:
    """Asks the standard health service."""

    def __init__(self, settings: PillarSettings) -> None:
        target = address_of(settings)
        address = grpc_address(target)
        if scheme_of(target) == "grpcs":
            credentials = channel_credentials(read_authorities(settings.ca_file))
            self._channel = grpc.secure_channel(address, credentials, channel_options(address))
        else:
            self._channel = grpc.insecure_channel(address, channel_options(address))
        self._stub = health_pb2_grpc.HealthStub(self._channel)

    def probe(self, seconds: float) -> None:
        """Return where the server serves. Raises Away."""
        try:
            answer = self._stub.Check(health_pb2.HealthCheckRequest(), timeout=seconds)
        except grpc.RpcError as error:
            raise Away(STATUS_WORDS.get(error.code(), "no answer about its health")) from error
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise Away("not serving")

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


class BridgeHealth:
    """Asks a bridge for its health."""

    def __init__(self, settings: PillarSettings) -> None:
        url = endpoint(address_of(settings))
        self._url = url._replace(path=url.path.removesuffix(ENDPOINT) + "/health")
        self._tls = tls_context(read_authorities(settings.ca_file))

    def probe(self, seconds: float) -> None:
        """Return where the bridge and its server are well. Raises Away."""
        try:
            answer = exchange("GET", self._url, {"accept": "application/json"}, None, seconds, self._tls)
        except CstpError as error:
            raise Away(words_of(error)) from error
        if answer.status != 200:
            raise Away("not serving")

    def close(self) -> None:
        """Do nothing: no connection outlives its call."""


def link_of(settings: PillarSettings) -> Link:
    """Return what reaches the agent of a pillar. Raises InvalidArgument, and OSError where ca_file cannot be read."""
    if settings.kind == "a2a":
        return A2aLink(settings)
    if scheme_of(address_of(settings)) not in SCHEMES[settings.kind]:
        wanted = " or ".join(f"{scheme}://" for scheme in sorted(SCHEMES[settings.kind]))
        raise InvalidArgument.field("url", f"must begin with {wanted} where kind is {settings.kind}")
    return CstpLink(settings, GrpcHealth(settings) if settings.kind == "grpc" else BridgeHealth(settings))


def address_of(settings: PillarSettings) -> str:
    """Return where the remote agent is."""
    assert settings.url, "checked with the settings"
    return settings.url


def token_of(settings: PillarSettings) -> str | None:
    """Return the token for the remote agent."""
    return None if settings.token is None else settings.token.get_secret_value()


def parcel_json(parcel: Parcel) -> dict[str, Any]:
    """Return a parcel as A2A agents are given it."""
    share, decision = parcel.share, parcel.decision
    found: dict[str, Any] = {
        "intent_type": "share_context_to_agent" if decision is None else "route_to_liaison_agent",
        "share_id": share.id,
        "source_agent": share.source_agent,
        "target_agent": share.target_agent,
        "target_pillar": parcel.pillar,
    }
    if share.conversation_id is not None:
        found["chat_session_id"] = share.conversation_id
    if decision is not None:
        found["routing_reason"] = decision.reason
        found["routing_decision"] = decision_json(decision)
    return {**found, "context_hash": share.context_hash, "shared_context": dict(share.shared_context)}


def outward(tenant: str, identifier: str) -> str:
    """Return the identifier by which others know what has this one in a tenant.

    All tenants reach an agent with the same token, and each chooses its identifiers by itself.
    """
    return identifier if tenant == DEFAULT_TENANT else digest([tenant, identifier])


def passed_on(share: Share) -> str:
    """Return the key by which another server knows a share; it tells how many passed it on before.

    That of the default tenant is its own, so that a server which is given it again knows it. Raises DeliveryRefused
    where too many passed it on.
    """
    key = outward(share.tenant, share.id)
    if key == share.id:
        return key
    before = HOPS.match(share.id)
    hops = int(before[1]) + 1 if before else 1
    if hops > MAX_HOPS:
        raise DeliveryRefused("passed on by too many servers: do they point at each other?")
    return f"via{hops}:{key}"


def words_of(error: CstpError) -> str:
    """Return what callers are told of a failed call; only what a server itself says is told on."""
    if isinstance(error, errors.ServerUnreachable):
        return NOT_REACHABLE
    if isinstance(error, errors.DeadlineExceeded):
        return NOT_IN_TIME
    return told(f"answered {error.reason}", error.message if error.request_id else "")
