"""Settings of listeners, numbers of processes and rate limits."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SecretStr, model_validator

from cstp_grpc.contract.call_origin import MIN_BRIDGE_KEY_CHARACTERS
from cstp_grpc.platform.config.environment import is_loopback
from cstp_grpc.platform.config.settings_section import URL, URL_PREFIX, SettingsSection

HOST_AND_PORT = r"(\[[0-9A-Fa-f:.]+\]|[^\s/:]+):[0-9]{1,5}"
TARGET = rf"^{HOST_AND_PORT}$"
SECURE_TARGET = rf"^(grpcs://)?{HOST_AND_PORT}$"

Port = Annotated[int, Field(ge=0, le=65535)]
WorkerCount = Annotated[int, Field(ge=1, le=256)] | Literal["auto"]


class ServeSettings(SettingsSection):
    """The processes that `cstp serve` runs. More than one of a kind needs Linux, which distributes connections over
    them."""

    workers: WorkerCount = 1
    """The number of processes on the port of the gRPC server; `auto` starts one for each core."""
    bridge_workers: WorkerCount | None = None
    """The number of processes on the ports of the bridge. [default: `workers`]"""
    insecure: bool = False
    """True serves other machines without TLS, and lets a separate bridge call a remote server without TLS. Tokens can
    then be read in transit. Same as `--insecure`."""
    behind_proxy: bool = False
    """True serves other machines without TLS, for a proxy that terminates TLS and is listed in `server.trusted_proxies`
    and `grpc.trusted_proxies`. Use the network to keep all other clients from these ports."""

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
    """Origins whose pages may call the bridge; `*` means any. Empty turns CORS off."""
    public_url: str | None = None
    """The public URL of the bridge. [default: taken from the request]"""
    trusted_proxies: list[str] = []
    """Addresses or networks of proxies whose `Forwarded` and `X-Forwarded-*` headers are trusted to name the client.
    Networks with many public addresses are refused."""
    max_connections: int = Field(default=1000, ge=1)
    """The maximum number of HTTP connections, or fewer if the system limits the open files of the process. Above it,
    the oldest connection that waits for a request is closed."""
    idle_seconds: float = Field(default=75.0, gt=0)
    """How long an HTTP connection may wait for the headers of its first or next request. Set it longer
    than the idle timeout of a proxy in front."""
    max_body_bytes: int = Field(default=1_048_576, ge=1024)
    """The maximum size of a request body. A larger one is answered with HTTP 413."""
    max_values: int = Field(default=20_000, ge=1000)
    """The maximum number of values in the JSON of a request body, nested values included. A body with more is answered
    with HTTP 413. The context of a guardrail check has a lower limit: `cstp.guardrails.max_values`."""
    max_batch: int = Field(default=50, ge=1, le=1000)
    """The maximum number of calls in one JSON-RPC batch."""
    grpc_target: str | None = None
    """The gRPC server to forward to: `host:port`, or `grpcs://host:port` with TLS. A remote server needs `grpcs://` or
    `--insecure`. [default: the server of this configuration]"""
    grpc_ca_file: Path | None = None
    """A PEM file of trusted CA certificates for the gRPC server, instead of the system's."""
    grpc_client_certificate: Path | None = None
    """A PEM file with the client certificate of the bridge and its key, for a gRPC server that asks for one."""
    timeout_seconds: float = Field(default=30.0, gt=0)
    """The timeout of a forwarded call."""
    tls: TlsSettings | None = None
    """The certificate of the bridge, for HTTP and for A2A over gRPC. [default: no TLS]"""


class ConsoleSettings(SettingsSection):
    """The console: pages for people, in a browser. `cstp console` and `cstp serve --dev` run it."""

    enabled: bool = True
    """False leaves it out of `cstp serve --dev`."""
    host: str = "127.0.0.1"
    """The address it listens on."""
    port: Port = 8200
    """The port it listens on; 0 chooses a free one."""
    public_url: str | None = Field(default=None, pattern=r"^https?://[^\s/?#@]+$")
    """The URL by which browsers reach it, without a path, such as `https://console.example.com`. The bridge redirects
    browsers that open `/` to it. [default: its own address]"""
    idle_minutes: float = Field(default=30.0, gt=0, le=1440)
    """Minutes without input after which a person is signed out."""
    session_hours: float = Field(default=12.0, gt=0, le=168)
    """Hours after which a person is signed out in any case."""
    tls: TlsSettings | None = None
    """The certificate of the console. [default: no TLS]"""

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach it over https."""
        return self.tls is not None or (self.public_url or "").startswith("https://")


class TlsSettings(SettingsSection):
    """The certificate that identifies a server."""

    certificate: Path
    """A PEM file with the server's certificate, followed by its intermediate certificates. New connections use changed
    files without a restart."""
    key: Path
    """A PEM file with its private key."""
    client_ca: Path | None = None
    """A PEM file of CA certificates that sign client certificates, read again when it changes. If set, clients are
    asked for a certificate."""
    client_certificates: Literal["required", "optional"] = "required"
    """Whether clients need a certificate, or may connect without one and send a token. gRPC servers cannot ask for a
    certificate without requiring it: `grpc.tls` accepts only `required`, and with `optional`, A2A over gRPC asks for no
    certificate."""


class PushSettings(SettingsSection):
    """Push notifications: A2A clients receive changes of their tasks at addresses that they register."""

    enabled: bool = True
    """False turns push notifications off, also on the agent card."""
    allow: list[Annotated[str, Field(pattern=URL_PREFIX)]] = []
    """Additional prefixes of allowed addresses, for instance `http://hooks.internal:8080/a2a/`. They may be in your own
    network. Public `https` addresses are always allowed."""
    allow_loopback: bool = False
    """True also allows addresses on this machine, over `http` too; `cstp serve --dev` sets it."""
    delivery_hours: float = Field(default=24.0, gt=0, le=8760)
    """How long the delivery of a notification is retried before it is given up."""


class A2aSettings(SettingsSection):
    """A2A, which the bridge serves over HTTP on its own port, and over gRPC on `grpc_port`."""

    enabled: bool = True
    """False disables A2A: no agent card, no A2A over HTTP or gRPC, no tasks and no push notifications."""
    grpc_host: str = "127.0.0.1"
    """The address that A2A over gRPC listens on."""
    grpc_port: Port = 50052
    """The port that A2A over gRPC listens on; 0 chooses a free one."""
    public_grpc_target: str | None = Field(default=None, pattern=TARGET)
    """The public `host:port` of A2A over gRPC, for the agent cards. Without it, the cards do not list gRPC, because
    some clients refuse a card with an interface of another origin."""
    public_cstp_target: str | None = Field(default=None, pattern=SECURE_TARGET)
    """The public `host:port` of the CSTP gRPC server, for the agent card; `grpcs://host:port` with TLS. [default: the
    host of the request and the port of the server]"""
    require_extension: bool = False
    """True refuses A2A clients that do not activate the CSTP extension."""
    task_days: float = Field(default=30, gt=0, le=3650)
    """Days until a task and its conversation are deleted after their last change."""
    subscriptions_per_caller: int = Field(default=100, ge=1)
    """The maximum number of open streams of waiting tasks at a bridge, for one token or client certificate."""
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
    """The maximum number of calls of one agent in progress, including calls that wait for their message. More are
    refused with RATE_LIMITED."""
    max_calls: int = Field(default=2000, ge=1)
    """The maximum number of calls of all agents in progress. More are refused with RATE_LIMITED."""
    shed_from_calls: int = Field(default=64, ge=0)
    """The number of searches, imports, listings and analyses in progress from which more are refused with RATE_LIMITED,
    while they delay checks and announcements. 0 disables this."""
    max_message_bytes: int = Field(default=4_194_304, ge=65_536)
    """The maximum size of a message, in both directions."""
    max_values: int = Field(default=200_000, ge=1000)
    """The maximum number of values in each structured field of a message. The context of a chat session may have
    130000, and that of a guardrail check fewer: `cstp.guardrails.max_values`."""
    message_seconds: float = Field(default=10.0, gt=0)
    """How long a message may take to arrive; applies to each message of a stream."""
    max_depth: int = Field(default=24, ge=1, le=24)
    """The maximum nesting depth of structured data."""
    drain_seconds: float = Field(default=10.0, ge=0)
    """How long calls in progress may go on after a stop signal."""
    trusted_proxies: list[str] = []
    """Addresses or networks of proxies in front of the server whose `x-forwarded-for` header is trusted. The server
    counts wrong tokens by the address in it; without it, all callers behind a proxy count as one. Networks with many
    public addresses are refused."""
    tls: TlsSettings | None = None
    """The certificate of the server. [default: no TLS]"""

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
    """Metrics for Prometheus, on their own ports."""

    port: Port | None = None
    """The port of the gRPC server's metrics, under `/metrics`; 0 chooses a free one. [default: no metrics are
    collected]"""
    bridge_port: Port | None = None
    """The port of the bridge's metrics."""
    host: str = "127.0.0.1"
    """The address that the metrics listen on. If other machines can reach it, a token is required, or `tls` with
    required client certificates."""
    token: SecretStr | None = Field(default=None, min_length=8)
    """The bearer token for reading the metrics; write `${NAME}` to read it from the environment. If other machines can
    reach the metrics, it needs at least 24 characters."""
    tls: TlsSettings | None = None
    """The certificate of these ports. [default: no TLS]"""
    agent_classes: dict[AgentClassName, list[Annotated[str, Field(min_length=1, max_length=200)]]] = Field(
        default={}, max_length=20
    )
    """Classes of agents in metrics, each with patterns of agents' names such as `ci-*`; the first match applies. Other
    agents are `peer`, `anonymous` or `agent`, and callers without a valid token `unauthenticated`."""

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
    """The URL of the collector, such as `http://collector:4317`; with `https`, the connection is encrypted. [default:
    nothing is sent]"""
    traces: bool = True
    """Whether spans are recorded and sent."""
    metrics: bool = True
    """Whether metrics are sent, the same as `metrics.port` serves."""
    sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """The share of traces starting at this server that is recorded. For traces of callers, their sampling decision
    applies."""
    traces_seconds: float = Field(default=5.0, ge=0.05, le=60)
    """How often spans are sent. A full batch is sent earlier."""
    metrics_seconds: float = Field(default=60.0, ge=0.05, le=3600)
    """How often metrics are sent."""
    service_name: str = Field(default="cstp", min_length=1, max_length=200)
    """The name of the service in traces and metrics."""
    headers: dict[str, SecretStr] = {}
    """Headers for the collector, such as a token; write `${NAME}` to read them from the environment."""
    ca_file: Path | None = None
    """A PEM file of trusted CA certificates for the collector, instead of the system's."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=60)
    """The timeout for sending a batch. A batch that times out is dropped."""


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


RATE = r"^[1-9]\d*\s*(/|per)\s*([1-9]\d*\s*)?(second|minute|hour|day)s?$"
Rate = Annotated[str, Field(pattern=RATE)]


class SharedRateLimitSettings(SettingsSection):
    """A Redis server in which several CSTP servers count calls together (extra `redis`)."""

    url: SecretStr
    """Its URL: `redis://:PASSWORD@HOST:PORT/DATABASE`, or `rediss://…` with TLS. Valkey works, too."""
    timeout_seconds: float = Field(default=0.25, gt=0, le=10)
    """The maximum time that a call waits for Redis in total."""
    on_failure: Literal["local", "refuse"] = "local"
    """How to treat calls while Redis does not answer: with `local`, each server counts by itself, so the effective
    limit is multiplied by the number of servers; `refuse` refuses calls with UNAVAILABLE."""
    key_prefix: str = Field(default="cstp", pattern=r"^[A-Za-z0-9_.:-]{1,64}$")
    """The prefix of its keys. Servers with the same prefix share limits, so use another prefix for other servers."""


class RateLimitSettings(SettingsSection):
    """How often an agent may call."""

    enabled: bool = True
    """False lifts all limits."""
    per_agent: Rate = "600/minute"
    """The limit for each agent and method. A large call counts as several."""
    methods: dict[str, Rate] = {}
    """Limits for each agent and a specific method, by its JSON-RPC name: `cstp.announceIntent: 60/minute`."""
    overall: Rate | None = None
    """The limit for all agents and methods together."""
    redis: SharedRateLimitSettings | None = None
    """The Redis server in which several servers count calls together. [default: each machine counts by itself]"""
    wrong_tokens: Rate | None = "20/minute"
    """The limit of wrong tokens from one address, counted by each server. Further ones are refused with RATE_LIMITED.
    Valid tokens of 24 characters or more, and those of `cstp token`, are never refused by this limit. null disables it.
    """
