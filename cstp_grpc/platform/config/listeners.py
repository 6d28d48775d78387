"""Settings of what listens, how many processes serve, and who may call how often."""

from __future__ import annotations

import math
import os
import re
import sys
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from cstp_grpc.common.confusable_names import NameIndex
from cstp_grpc.contract.call_origin import MIN_BRIDGE_KEY_CHARACTERS
from cstp_grpc.contract.enums import DEFAULT_TENANT, INTENT_LAYER_AGENT, LIAISON_SUPERVISOR, Permission
from cstp_grpc.platform.config.environment import is_loopback
from cstp_grpc.platform.config.identity import CertificateAgentSettings, JwtIssuerSettings
from cstp_grpc.platform.config.settings_section import URL, URL_PREFIX, SettingsSection

HOST_AND_PORT = r"(\[[0-9A-Fa-f:.]+\]|[^\s/:]+):[0-9]{1,5}"
TARGET = rf"^{HOST_AND_PORT}$"
SECURE_TARGET = rf"^(grpcs://)?{HOST_AND_PORT}$"

Port = Annotated[int, Field(ge=0, le=65535)]
WorkerCount = Annotated[int, Field(ge=1, le=256)] | Literal["auto"]


class ServeSettings(SettingsSection):
    """The processes that `cstp serve` runs. More than one of a kind need Linux, which spreads connections over them."""

    workers: WorkerCount = 1
    """How many processes serve on the port of the gRPC server; `auto` is one for each core."""
    bridge_workers: WorkerCount | None = None
    """How many processes serve on the ports of the bridge; when absent, as many as `workers`."""
    insecure: bool = False
    """True serves without TLS beyond this machine, and has a bridge alone call a server there without it, where tokens
    can be read on their way; as `--insecure`."""
    behind_proxy: bool = False
    """True serves without TLS beyond this machine for a proxy that terminates it, which `server.trusted_proxies` and
    `grpc.trusted_proxies` name. Keep all others from these ports by the network."""

    @model_validator(mode="after")
    def check_platform(self) -> ServeSettings:
        """Reject several processes on one port where the system does not distribute connections over them."""
        if sys.platform != "linux" and any(each not in (None, 1) for each in (self.workers, self.bridge_workers)):
            raise ValueError("more than one worker needs Linux, which spreads connections over them")
        return self


class ServerSettings(SettingsSection):
    """The HTTP bridge."""

    host: str = "127.0.0.1"
    """The address it listens on."""
    port: Port = 8100
    """The port it listens on; 0 chooses a free one."""
    cors_origins: list[str] = []
    """Origins whose pages may call it; `*` is any. Empty turns CORS off."""
    public_url: str | None = None
    """The address that others reach it by; when absent, taken from the request."""
    trusted_proxies: list[str] = []
    """Addresses or networks whose `Forwarded` and `X-Forwarded-*` headers are believed: for whom a proxy calls.
    Networks that hold much of the internet are refused."""
    max_connections: int = Field(default=1000, ge=1)
    """The most connections over HTTP at once, or fewer where the system lets the process open fewer files. Beyond them
    the oldest one that waits for a request is closed."""
    idle_seconds: float = Field(default=75.0, gt=0)
    """How long a connection over HTTP may wait for the head of its first or its next request; longer than a proxy in
    front keeps one that is idle."""
    max_body_bytes: int = Field(default=1_048_576, ge=1024)
    """The largest request body; a larger one is answered with HTTP 413."""
    max_values: int = Field(default=20_000, ge=1000)
    """The most values in the JSON of a request body, nested ones included; one with more is answered with HTTP 413. The
    context of a guardrail check may hold fewer: `cstp.guardrails.max_values`."""
    max_batch: int = Field(default=50, ge=1, le=1000)
    """The most calls in one JSON-RPC batch."""
    grpc_target: str | None = None
    """The gRPC server it forwards to, `host:port` or with `grpcs://` before it; when absent, the one of this
    configuration. On another machine it needs `grpcs://`, or `--insecure`."""
    grpc_ca_file: Path | None = None
    """A PEM file of the authorities that certify the gRPC server, in place of the system's."""
    grpc_client_certificate: Path | None = None
    """A PEM file with the certificate that the bridge shows a gRPC server that asks for one, and its key."""
    timeout_seconds: float = Field(default=30.0, gt=0)
    """How long a forwarded call may take."""
    tls: TlsSettings | None = None
    """The certificate of the bridge, for HTTP and for A2A over gRPC; without one both are plain."""


class TlsSettings(SettingsSection):
    """With which certificate a server shows who it is."""

    certificate: Path
    """A PEM file with the certificate of the server, followed by those that certify it. New connections get what is new
    in the files, without a restart."""
    key: Path
    """A PEM file with its private key."""
    client_ca: Path | None = None
    """A PEM file of the authorities that certify clients, read again when it changes; with it clients are asked for a
    certificate."""
    client_certificates: Literal["required", "optional"] = "required"
    """Whether a client without a certificate is let in to send a token. The gRPC servers cannot ask without requiring
    one: there it is `required` for `grpc.tls`, and for A2A over gRPC nobody is asked where it is `optional`."""


class PushSettings(SettingsSection):
    """Push notifications: A2A clients are told of changes of their tasks at addresses that they name."""

    enabled: bool = True
    """False turns them off, and the card says so."""
    allow: list[Annotated[str, Field(pattern=URL_PREFIX)]] = []
    """What addresses may begin with besides those with `https` on the internet, for instance
    `http://hooks.internal:8080/a2a/`; these may be anywhere, also in the own network."""
    allow_loopback: bool = False
    """True notifies programs on this machine too, also over `http`; `cstp serve --dev` sets it."""
    delivery_hours: float = Field(default=24.0, gt=0, le=8760)
    """How long a notification is tried before it is given up."""


class A2aSettings(SettingsSection):
    """The A2A peer, which the bridge serves: over HTTP on its own port, over gRPC on this one."""

    enabled: bool = True
    """False leaves it out: no agent card, no A2A over HTTP or gRPC, no tasks and no push notifications."""
    grpc_host: str = "127.0.0.1"
    """The address that A2A over gRPC listens on."""
    grpc_port: Port = 50052
    """The port that A2A over gRPC listens on; 0 chooses a free one."""
    public_grpc_target: str | None = Field(default=None, pattern=TARGET)
    """The `host:port` by which others reach A2A over gRPC, which puts it on the agent cards. Without it they name no
    gRPC, because some clients refuse a card with an interface of another origin."""
    public_cstp_target: str | None = Field(default=None, pattern=SECURE_TARGET)
    """The `host:port` by which others reach the gRPC server of CSTP, for the agent card, with `grpcs://` before it
    where they do so over TLS; when absent, the host of the request and the port of the server."""
    require_extension: bool = False
    """True refuses A2A clients that do not activate the CSTP extension."""
    task_days: float = Field(default=30, gt=0, le=3650)
    """How long a task and its conversation are kept after their last change."""
    subscriptions_per_caller: int = Field(default=100, ge=1)
    """Streams about tasks that wait, which one token or client certificate may have open at a bridge at once."""
    push: PushSettings = PushSettings()
    """Push notifications."""


RETIRED_GRPC_KEYS: Final = {
    "workers": "calls wait on an event loop and hold no threads; remove the key, or bound the calls in progress with "
    "max_calls and max_calls_per_agent",
    "stream_workers": "open streams hold no threads; remove the key, or bound the calls in progress with max_calls and "
    "max_calls_per_agent",
}
"""Removed keys of `grpc` and what replaces them. They are errors with advice: ignoring a limit would weaken it."""


class GrpcSettings(SettingsSection):
    """The gRPC server."""

    host: str = "127.0.0.1"
    """The address it listens on."""
    port: Port = 50051
    """The port it listens on; 0 chooses a free one."""
    max_calls_per_agent: int = Field(default=200, ge=1)
    """How many calls of one agent may be in progress at once, those that wait for their message included; more are
    refused as RATE_LIMITED."""
    max_calls: int = Field(default=2000, ge=1)
    """The same for the calls of all agents."""
    shed_from_calls: int = Field(default=64, ge=0)
    """How many searches, imports, listings and analyses may be in progress before they are refused as RATE_LIMITED for
    as long as they make checks and announcements late; 0 refuses none."""
    max_message_bytes: int = Field(default=4_194_304, ge=65_536)
    """The largest message, in and out."""
    max_values: int = Field(default=200_000, ge=1000)
    """The most values in each piece of structured data of a message; the context of a chat session may hold 130000, and
    that of a guardrail check fewer: `cstp.guardrails.max_values`."""
    message_seconds: float = Field(default=10.0, gt=0)
    """How long a message of a call may take to arrive, each one of a stream."""
    max_depth: int = Field(default=24, ge=1, le=24)
    """How deep structured data may be nested."""
    drain_seconds: float = Field(default=10.0, ge=0)
    """How long calls in progress may go on after a stop signal."""
    trusted_proxies: list[str] = []
    """Addresses or networks of proxies in front of the server whose `x-forwarded-for` is believed. It says for whose
    wrong tokens they call, and without it all callers behind a proxy are one. Networks that hold much of the
    internet are refused."""
    tls: TlsSettings | None = None
    """The certificate of the server; without one it is plain."""

    @model_validator(mode="after")
    def check_client_certificates(self) -> GrpcSettings:
        """Reject asking for certificates without requiring them, which gRPC's library cannot do."""
        if self.tls is not None and self.tls.client_certificates == "optional":
            raise ValueError("tls.client_certificates: gRPC asks all clients for a certificate or none: required it is")
        return self

    @model_validator(mode="before")
    @classmethod
    def refuse_retired_keys(cls, values: Any) -> Any:
        if isinstance(values, dict) and (retired := sorted(RETIRED_GRPC_KEYS.keys() & values.keys())):
            raise ValueError("; ".join(f"{key}: {RETIRED_GRPC_KEYS[key]}" for key in retired))
        return values


AGENT_CLASS_NAME = r"^[a-z][a-z0-9_]{0,31}$"
AgentClassName = Annotated[str, Field(pattern=AGENT_CLASS_NAME)]


class MetricsSettings(SettingsSection):
    """Metrics for Prometheus, which fetches them from ports of their own."""

    port: Port | None = None
    """The port that those of the gRPC server are served on, under `/metrics`; 0 chooses a free one. When absent, it
    counts nothing."""
    bridge_port: Port | None = None
    """The same for those of the bridge."""
    host: str = "127.0.0.1"
    """The address they are served on. Beyond this machine they need a token, or `tls` that requires certificates of
    clients."""
    token: SecretStr | None = Field(default=None, min_length=8)
    """The bearer token that whoever fetches them sends; write `${NAME}` to take it from the environment. Beyond this
    machine it has at least 24 characters."""
    tls: TlsSettings | None = None
    """The certificate of these ports; without one they are plain."""
    agent_classes: dict[AgentClassName, list[Annotated[str, Field(min_length=1, max_length=200)]]] = Field(
        default={}, max_length=20
    )
    """Classes by which metrics tell agents apart, each with patterns of agents' names such as `ci-*`; the first that
    matches counts. Other agents are `peer`, `anonymous` or `agent`, and callers without a valid token
    `unauthenticated`."""

    @model_validator(mode="after")
    def check_exposure(self) -> MetricsSettings:
        """Reject metrics for everybody: they tell which rules there are, and how busy agents are."""
        is_certified = (
            self.tls is not None and self.tls.client_ca is not None and self.tls.client_certificates == "required"
        )
        if self.port is self.bridge_port is None or is_certified or is_loopback(self.host):
            return self
        if self.token is None:
            raise ValueError(f"host is {self.host}, where others reach it, so token must be given")
        # Nobody counts wrong tokens here, so that a short one could be found by trying.
        if len(self.token.get_secret_value()) < MIN_BRIDGE_KEY_CHARACTERS:
            raise ValueError(
                f"host is {self.host}, where others reach it, so token must have at least "
                f"{MIN_BRIDGE_KEY_CHARACTERS} characters"
            )
        return self


class OtlpSettings(SettingsSection):
    """Traces and metrics for a collector of OpenTelemetry, over OTLP with gRPC. Needs the extra `otel`."""

    endpoint: str | None = Field(default=None, pattern=URL)
    """The collector, such as `http://collector:4317`; with `https` it is encrypted. When absent, nothing is sent."""
    traces: bool = True
    """Whether spans are recorded and sent."""
    metrics: bool = True
    """Whether metrics are sent, the same as `metrics.port` serves."""
    sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """The share of traces that begin here and are recorded; those of callers are if theirs are."""
    traces_seconds: float = Field(default=5.0, ge=0.05, le=60)
    """How often spans are sent, or as soon as there are many."""
    metrics_seconds: float = Field(default=60.0, ge=0.05, le=3600)
    """How often metrics are sent."""
    service_name: str = Field(default="cstp", min_length=1, max_length=200)
    """The name of the service in traces and metrics."""
    headers: dict[str, SecretStr] = {}
    """Headers that the collector wants, such as a token; write `${NAME}` to take them from the environment."""
    ca_file: Path | None = None
    """A PEM file of the authorities that certify the collector, in place of the system's."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=60)
    """How long the collector may take for a batch; what it does not take in time is dropped."""


CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The CPU quota of a container (cgroup v2), in microseconds per period: `200000 100000` is two cores, `max 100000` is
no limit.
"""


def count_workers(settings: ServeSettings) -> int:
    return count_cores() if settings.workers == "auto" else settings.workers


def count_bridges(settings: ServeSettings) -> int:
    number = settings.workers if settings.bridge_workers is None else settings.bridge_workers
    return count_cores() if number == "auto" else number


def count_cores() -> int:
    """Return the cores that this process may use, limited by the container's quota; 1 where ports cannot be shared."""
    if sys.platform != "linux":
        return 1
    # The affinity counts what cpusets and taskset leave; a quota limits time, which the affinity does not show.
    return min(len(os.sched_getaffinity(0)), read_quota(CPU_QUOTA))


def read_quota(path: Path) -> int:
    try:
        quota, period = path.read_text(encoding="ascii").split()
        return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return os.cpu_count() or 1


EXPECTED_PERMISSIONS: Final = {
    Permission.ANNOUNCE: "announce",
    Permission.RECORD: "record",
    Permission.ADMIN: "administer",
}
"""Permissions that some token should have and none has by default, each with a verb for messages."""


class TokenSettings(SettingsSection):
    """A bearer token and the agent that it identifies. An agent may have several."""

    name: str = Field(min_length=1, max_length=200)
    """The agent's name."""
    token: SecretStr = Field(min_length=8)
    """The token; write `${NAME}` to take it from the environment."""
    permissions: frozenset[Permission] = frozenset({Permission.QUERY, Permission.CHECK})
    """What the agent may do: query, check, announce, record, review, admin, converse, route, erase, approve."""
    tenant: str = Field(default=DEFAULT_TENANT, min_length=1, max_length=200)
    """The tenant whose chat sessions the agent sees; all tokens of an agent have the same one."""
    peer: bool = False
    """True for the token of a peer, another server; an agent named like one of `federation.peers` is one too.
    `federation.share` narrows what peers see."""


BRIDGE_KEY_FORM: Final = re.compile(rf"[!-~]{{{MIN_BRIDGE_KEY_CHARACTERS},200}}")


class ManagedTokenSettings(SettingsSection):
    """Tokens that administrators make, rotate and revoke while servers run, by `cstp token`."""

    enabled: bool = True
    """False leaves them out: those that exist are not accepted, and the methods of AdminService are unknown over both
    transports."""
    default_days: float = Field(default=365.0, gt=0, le=3650)
    """How long a token is accepted if the request for it says nothing."""
    max_days: float = Field(default=3650.0, gt=0, le=3650)
    """How long a token may be accepted at the most."""
    keep_days: float = Field(default=90.0, gt=0, le=36_500)
    """Days until a token that expired or was revoked is removed from the lists; the audit trail goes on naming it. The
    newest one of an agent stays as long as no other does, since it says whose tenant the agent belongs to."""

    @model_validator(mode="after")
    def check_days(self) -> ManagedTokenSettings:
        if self.default_days > self.max_days:
            raise ValueError("default_days must not be greater than max_days")
        return self


class AuthSettings(SettingsSection):
    """Who may call."""

    enabled: bool = True
    """False lets anyone in as the agent `anonymous` with every permission, but for making tokens; accepted on loopback
    only, and not with `serve.behind_proxy`."""
    tokens: list[TokenSettings] = []
    """The tokens that are accepted."""
    managed_tokens: ManagedTokenSettings = ManagedTokenSettings()
    """Tokens that administrators make while servers run."""
    jwt: list[JwtIssuerSettings] = []
    """Issuers whose JWTs are accepted as bearer tokens, too."""
    certificates: list[CertificateAgentSettings] = []
    """Agents that are identified by their client certificates; `client_ca` beside a listener's certificate asks for
    them."""
    bridge_key: SecretStr | None = None
    """What a server recognizes a bridge by that runs elsewhere, of which it then believes from where calls come; the
    same in the settings of both. `cstp serve` makes one for its own bridge."""

    @model_validator(mode="after")
    def check_certificate_agents(self) -> AuthSettings:
        """Reject certificates of our own agents, an agent with two tenants, and names that look alike."""
        tenants = {token.name: token.tenant for token in self.tokens}
        for each in self.certificates:
            if each.name in (INTENT_LAYER_AGENT, LIAISON_SUPERVISOR):
                raise ValueError(f"certificates: no agent may be called {each.name}, which acts by itself")
            if tenants.setdefault(each.name, each.tenant) != each.tenant:
                raise ValueError(f"certificates: {each.name} has credentials of two tenants")
        names = NameIndex(tenants)
        for name in tenants:
            if other := names.find_lookalike(name):
                raise ValueError(f"the names of the agents {other!r} and {name!r} look alike; rename one of them")
        return self

    @property
    def tenants(self) -> dict[str, str]:
        tenants = {certificate.name: certificate.tenant for certificate in self.certificates}
        return tenants | {token.name: token.tenant for token in self.tokens}

    @field_validator("jwt")
    @classmethod
    def check_issuers(cls, issuers: list[JwtIssuerSettings]) -> list[JwtIssuerSettings]:
        """Reject an issuer that is named twice, whose settings would be a guess, and issuers that share agents."""
        names = [issuer.issuer for issuer in issuers]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named twice: {', '.join(duplicates)}")
        # Whatever their tenants: what an agent has left is found by its name alone.
        for one, other in permutations(issuers, 2):
            if other.agent_prefix.startswith(one.agent_prefix):
                raise ValueError(
                    f"{one.issuer} and {other.issuer} could name the same agent; give each an agent_prefix, none of "
                    "which begins with another"
                )
        return issuers

    @field_validator("bridge_key")
    @classmethod
    def check_bridge_key(cls, key: SecretStr | None) -> SecretStr | None:
        """Reject a key that could be guessed or that no header can carry."""
        if key is not None and not BRIDGE_KEY_FORM.fullmatch(key.get_secret_value()):
            raise ValueError(f"must be at least {MIN_BRIDGE_KEY_CHARACTERS} visible ASCII characters")
        return key

    @property
    def lets_anyone_in(self) -> bool:
        """Whether there is a way by which someone could call."""
        return not self.enabled or bool(self.tokens or self.jwt or self.certificates)

    @property
    def has_managed_tokens(self) -> bool:
        """Whether tokens are made while servers run."""
        # Security: one that just anyone made without authentication would be accepted once that is on.
        return self.enabled and self.managed_tokens.enabled

    def missing_permissions(self) -> list[Permission]:
        """Return which of announce, record and admin no token has."""
        granted = {permission for token in self.tokens for permission in token.permissions}
        return [permission for permission in EXPECTED_PERMISSIONS if self.enabled and permission not in granted]

    @field_validator("tokens")
    @classmethod
    def check_tokens(cls, tokens: list[TokenSettings]) -> list[TokenSettings]:
        """Reject ambiguous tokens: duplicates, and names reserved for our own agents."""
        names: dict[str, str] = {}
        for token in tokens:
            if token.name == INTENT_LAYER_AGENT:
                raise ValueError(f"no agent may be called {INTENT_LAYER_AGENT}, which keeps what nodes say")
            if token.name == LIAISON_SUPERVISOR:
                raise ValueError(
                    f"no agent may be called {LIAISON_SUPERVISOR}, which takes sessions from liaison agents"
                )
            text = token.token.get_secret_value()
            # Also under one name: the two could have different permissions, and which ones a call has would be a guess.
            if text in names:
                raise ValueError(f"{names[text]} and {token.name} have the same token")
            names[text] = token.name
        return tokens

    @field_validator("tokens")
    @classmethod
    def check_tenants(cls, tokens: list[TokenSettings]) -> list[TokenSettings]:
        tenants: dict[str, str] = {}
        for token in tokens:
            if tenants.setdefault(token.name, token.tenant) != token.tenant:
                raise ValueError(f"{token.name} has tokens of two tenants")
        return tokens


RATE = r"^[1-9]\d*\s*(/|per)\s*([1-9]\d*\s*)?(second|minute|hour|day)s?$"
Rate = Annotated[str, Field(pattern=RATE)]


class SharedRateLimitSettings(SettingsSection):
    """A Redis in which several servers count calls together (extra `redis`)."""

    url: SecretStr
    """Its URL: `redis://:PASSWORD@HOST:PORT/DATABASE`, with TLS `rediss://…`. Valkey will do, too."""
    timeout_seconds: float = Field(default=0.25, gt=0, le=10)
    """How long a call may wait for it, for all that it asks."""
    on_failure: Literal["local", "refuse"] = "local"
    """What becomes of calls while it does not answer: `local` has each server count by itself, so that a limit may be
    exceeded as many times as there are servers; `refuse` refuses them as UNAVAILABLE."""
    key_prefix: str = Field(default="cstp", pattern=r"^[A-Za-z0-9_.:-]{1,64}$")
    """What its keys begin with. Servers share limits if they have the same prefix, so others need another one."""


class RateLimitSettings(SettingsSection):
    """How often an agent may call."""

    enabled: bool = True
    """False lifts all limits."""
    per_agent: Rate = "600/minute"
    """For each agent and method. A large call counts as several."""
    methods: dict[str, Rate] = {}
    """For each agent and a given method, by its JSON-RPC name: `cstp.announceIntent: 60/minute`."""
    overall: Rate | None = None
    """For all agents and methods together."""
    redis: SharedRateLimitSettings | None = None
    """Where several servers count calls together; without it, those of each machine are counted apart."""
    wrong_tokens: Rate | None = "20/minute"
    """For wrong tokens from one address, each server for itself; beyond it they are refused as RATE_LIMITED. Tokens of
    24 characters or more and those of `cstp token` are never kept out by it; null lifts it."""
