"""Settings of what listens, how many processes serve, and who may call how often."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from cstp_grpc.config.settings_section import URL_PREFIX, SettingsSection
from cstp_grpc.enums import DEFAULT_TENANT, INTENT_LAYER_AGENT, LIAISON_SUPERVISOR, Permission

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
    """Addresses or networks whose `Forwarded` and `X-Forwarded-*` headers are believed."""
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
    context of a guardrail check may hold 10000."""
    max_batch: int = Field(default=50, ge=1, le=1000)
    """The most calls in one JSON-RPC batch."""
    grpc_target: str | None = None
    """The gRPC server it forwards to, `host:port` or with `grpcs://` before it; when absent, the one of this
    configuration."""
    grpc_ca_file: Path | None = None
    """A PEM file of the authorities that certify the gRPC server, in place of the system's."""
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
    """The `host:port` by which others reach A2A over gRPC; when absent, the host of the request and the port above."""
    public_cstp_target: str | None = Field(default=None, pattern=SECURE_TARGET)
    """The `host:port` by which others reach the gRPC server of CSTP, for the agent card, with `grpcs://` before it
    where they do so over TLS; when absent, the host of the request and the port of the server."""
    require_extension: bool = False
    """True refuses A2A clients that do not activate the CSTP extension."""
    task_days: float = Field(default=30, gt=0, le=3650)
    """How long a task and its conversation are kept after their last change."""
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
    max_message_bytes: int = Field(default=4_194_304, ge=65_536)
    """The largest message, in and out."""
    max_values: int = Field(default=200_000, ge=1000)
    """The most values in each piece of structured data of a message; the context of a chat session may hold 130000."""
    message_seconds: float = Field(default=10.0, gt=0)
    """How long a message of a call may take to arrive, each one of a stream."""
    max_depth: int = Field(default=24, ge=1, le=24)
    """How deep structured data may be nested."""
    drain_seconds: float = Field(default=10.0, ge=0)
    """How long calls in progress may go on after a stop signal."""
    tls: TlsSettings | None = None
    """The certificate of the server; without one it is plain."""

    @model_validator(mode="before")
    @classmethod
    def refuse_retired_keys(cls, values: Any) -> Any:
        """Reject removed keys."""
        if isinstance(values, dict) and (retired := sorted(RETIRED_GRPC_KEYS.keys() & values.keys())):
            raise ValueError("; ".join(f"{key}: {RETIRED_GRPC_KEYS[key]}" for key in retired))
        return values


CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The CPU quota of a container (cgroup v2), in microseconds per period: `200000 100000` is two cores, `max 100000` is
no limit.
"""


def count_workers(settings: ServeSettings) -> int:
    """Return the number of processes that serve gRPC."""
    return count_cores() if settings.workers == "auto" else settings.workers


def count_bridges(settings: ServeSettings) -> int:
    """Return the number of bridge processes."""
    number = settings.workers if settings.bridge_workers is None else settings.bridge_workers
    return count_cores() if number == "auto" else number


def count_cores() -> int:
    """Return the cores that this process may use, limited by the container's quota; 1 where ports cannot be shared."""
    if sys.platform != "linux":
        return 1
    # The affinity counts what cpusets and taskset leave; a quota limits time, which the affinity does not show.
    return min(len(os.sched_getaffinity(0)), read_quota(CPU_QUOTA))


def read_quota(path: Path) -> int:
    """Return the cores of a CPU quota, rounded up; all cores if it is unlimited or unreadable."""
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


class AuthSettings(SettingsSection):
    """Who may call."""

    enabled: bool = True
    """False lets anyone in as the agent `anonymous` with every permission; accepted on loopback only."""
    tokens: list[TokenSettings] = []
    """The tokens that are accepted."""

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
        """Reject an agent that has tokens of two tenants."""
        tenants: dict[str, str] = {}
        for token in tokens:
            if tenants.setdefault(token.name, token.tenant) != token.tenant:
                raise ValueError(f"{token.name} has tokens of two tenants")
        return tokens


RATE = r"^[1-9]\d*\s*(/|per)\s*([1-9]\d*\s*)?(second|minute|hour|day)s?$"
Rate = Annotated[str, Field(pattern=RATE)]


class RateLimitSettings(SettingsSection):
    """How often an agent may call."""

    enabled: bool = True
    """False lifts all limits."""
    per_agent: Rate = "600/minute"
    """For each agent and method."""
    methods: dict[str, Rate] = {}
    """For each agent and a given method, by its JSON-RPC name: `cstp.announceIntent: 60/minute`."""
    overall: Rate | None = None
    """For all agents and methods together."""
