"""The settings of other agents: peers and liaison agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from cstp_grpc.contract.enums import Stakes
from cstp_grpc.platform.config.settings_section import URL_PREFIX, AgentName, SettingsSection

PEER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
# No user name before the host, since an `@` is excluded: it would be a secret that the log prints.
PEER_URL = r"^((grpcs?|https?)://)?[^\s/@]+(/\S*)?$"

Category = Annotated[str, Field(min_length=1, max_length=100)]
Tag = Annotated[str, Field(min_length=1, max_length=100)]


class PeerSettings(SettingsSection):
    """Another agent whose verdict counts."""

    name: str = Field(pattern=PEER_NAME)
    """The name of the peer in answers."""
    url: str = Field(pattern=PEER_URL)
    """Its address: `grpc://host:port` or `grpcs://host:port`, or the `http://` or `https://` URL of its bridge or of
    its agent card, which ends with `.json`."""
    token: SecretStr | None = None
    """The bearer token for it; write `${NAME}` to take it from the environment."""
    role: Literal["required", "advisory"] = "advisory"
    """An action needs the permission of every `required` peer; an `advisory` peer only warns."""
    categories: list[Category] = []
    """The categories for which the peer is asked; empty means all."""
    timeout_seconds: float = Field(default=2.0, gt=0, le=60)
    """The timeout for its answer."""
    trust: float = Field(default=1.0, gt=0, le=1)
    """The weight of its decisions: their scores are multiplied by it when the decisions of several agents are merged.
    """
    ca_file: Path | None = None
    """A PEM file of the authorities that certify it, in place of the system's."""
    card_key: Path | None = None
    """A file with the public key of its agent card's signature, in PEM or as a JSON Web Key; `url` must then be that of
    the card. With several keys, one of them must have signed it. Any other card is refused, and the token is not sent.
    """


class DefaultScope(SettingsSection):
    """Calls that are federated if they state no scope: calls of these categories and calls of these stakes."""

    categories: list[Category] = []
    """The categories."""
    stakes: list[Stakes] = []
    """The stakes."""


class QuorumSettings(SettingsSection):
    """Actions on which required peers vote, instead of each having a veto."""

    allow: int = Field(ge=1)
    """The number of required peers that must allow the action."""
    categories: list[Category] = []
    """Their categories; empty means all."""
    stakes: list[Stakes] = []
    """Their stakes; empty means all."""


class ShareSettings(SettingsSection):
    """The shared decisions that peers find: those with one of the categories and one of the tags."""

    categories: list[Category] = []
    """The categories; empty means all."""
    tags: list[Tag] = []
    """The tags; empty means all."""


class CallbackSettings(SettingsSection):
    """Feedback after the answer, sent to the `url` of the announcing agent."""

    allow: list[Annotated[str, Field(pattern=URL_PREFIX)]] = []
    """Prefixes of allowed addresses, for instance `https://agents.example.com/cstp/`; empty turns callbacks off."""
    late_seconds: float = Field(default=30.0, gt=0, le=600)
    """The timeout of a peer whose answer is sent late."""
    window_days: float = Field(default=30.0, gt=0, le=3650)
    """Days during which an agent is notified if a decision fails that it received as a precedent."""
    delivery_hours: float = Field(default=24.0, gt=0, le=8760)
    """How long the delivery of a notification is retried before it is given up."""


class FederationSettings(SettingsSection):
    """Peers: other agents that are asked too, and the weight of their answers."""

    peers: list[PeerSettings] = []
    """The peers."""
    default_for: DefaultScope = DefaultScope()
    """The calls that ask peers if they state no scope."""
    quorums: list[QuorumSettings] = []
    """The actions on which required peers vote; the first matching entry applies."""
    share: ShareSettings = ShareSettings()
    """The decisions that peers find on this server."""
    timeout_seconds: float = Field(default=5.0, gt=0, le=60)
    """The timeout of all peers together, or the caller's deadline if that is earlier."""
    max_hops: int = Field(default=1, ge=1, le=8)
    """The maximum number of hops from agent to agent. With 1, peers do not ask their own peers."""
    max_peers: int = Field(default=16, ge=1, le=64)
    """The maximum number of peers; a call may ask all of them."""
    max_calls: int = Field(default=4, ge=1, le=256)
    """The maximum number of calls that wait for peers. More are refused."""
    breaker_failures: int = Field(default=5, ge=1, le=1000)
    """The number of consecutive failures after which a peer is not asked for `breaker_seconds`."""
    breaker_seconds: float = Field(default=10.0, gt=0, le=3600)
    """How long a failing peer is not asked. Then one call tries it again."""
    callbacks: CallbackSettings = CallbackSettings()
    """Feedback after the answer."""

    @field_validator("peers")
    @classmethod
    def check_names(cls, peers: list[PeerSettings]) -> list[PeerSettings]:
        names = [peer.name for peer in peers]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named more than once: {', '.join(duplicates)}")
        return peers

    @model_validator(mode="after")
    def check_count(self) -> FederationSettings:
        if len(self.peers) > self.max_peers:
            raise ValueError(f"peers: are {len(self.peers)}, and max_peers is {self.max_peers}")
        return self

    @model_validator(mode="after")
    def check_quorums(self) -> FederationSettings:
        required = sum(peer.role == "required" for peer in self.peers)
        for number, quorum in enumerate(self.quorums):
            if quorum.allow > required:
                raise ValueError(f"quorums.{number}.allow: is {quorum.allow}, and there are {required} required peers")
        return self


GUIDE = "guide"
"""The fallback that returns sessions to the guide."""
PILLARS = ("content", "insights", "journey", "solution")


class RedactionSettings(SettingsSection):
    """Values that are removed from every context for liaison agents."""

    path: str = Field(min_length=1, max_length=1000)
    """An RFC 9535 JSONPath: `$.conversation_history[*].metadata`, `$..password`."""
    action: Literal["drop", "mask"] = "drop"
    """`drop` removes the value, `mask` replaces it with `[redacted]`."""


class PillarSettings(SettingsSection):
    """The liaison agent of a pillar."""

    kind: Literal["local", "a2a", "grpc", "jsonrpc"] = "local"
    """`local` watches this server with its own token; `a2a` is an A2A agent, `grpc` and `jsonrpc` are CSTP servers."""
    agent: AgentName | list[AgentName] | None = None
    """The local agent, by the name of its token, or several agents that each serve the sessions of their own tenant.
    [default: `liaison_` and the pillar]"""
    url: str | None = Field(default=None, min_length=1)
    """The address of a remote agent: its agent card or the site that serves it, `grpc://` or `grpcs://`, or a bridge.
    """
    token: SecretStr | None = None
    """The bearer token for it; write `${NAME}` to take it from the environment."""
    ca_file: Path | None = None
    """A PEM file of the authorities that certify it, in place of the system's."""
    delivery: Literal["outbox", "confirm"] = "outbox"
    """`outbox` hands the session over immediately and retries the delivery of the context. With `confirm`, a remote
    agent must accept the context first."""

    fallback: str | None = Field(default=None, min_length=1, max_length=63)
    """Where sessions go when one of `fallback_on` happens: `guide`, or another pillar, and the guide if that pillar
    cannot accept them. [default: they stay]"""
    fallback_on: list[Literal["unclaimed", "silent", "absent"]] = ["unclaimed", "silent", "absent"]
    """The events that send a session to the fallback; `unclaimed` and `absent` apply to local agents only."""

    @model_validator(mode="after")
    def check_kind(self) -> PillarSettings:
        if self.kind == "local":
            if self.url or self.token or self.ca_file:
                raise ValueError("url, token and ca_file are for remote agents; a local one watches by itself")
            if self.delivery == "confirm":
                raise ValueError("delivery: confirm is for remote agents; a local one claims the session by itself")
        elif not self.url:
            raise ValueError(f"url is needed where kind is {self.kind}")
        elif self.agent:
            raise ValueError("agent is for local agents")
        return self


class RetentionSettings(SettingsSection):
    """How long data of chat sessions is kept. By default, it stays until it is deleted."""

    session_days: float | None = Field(default=None, gt=0, le=36_500)
    """Days after its last change, messages included, until a session is deleted with all its data, whether it is closed
    or not."""
    message_days: float | None = Field(default=None, gt=0, le=36_500)
    """Days until a message of an ongoing session is deleted."""
    share_days: float | None = Field(default=None, gt=0, le=36_500)
    """Days until a shared context is deleted, unless its delivery is pending or a liaison agent has an active session
    with it."""
    event_days: float | None = Field(default=None, gt=0, le=36_500)
    """Days until an event is deleted. Watchers that resume later miss it."""


class LiaisonSettings(SettingsSection):
    """Chat sessions and their routing to liaison agents."""

    enabled: bool = True
    """False disables it: no thread runs for it, and its methods are unknown over both transports."""
    pillars: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")], PillarSettings] = {
        name: PillarSettings() for name in PILLARS
    }
    """The pillars and their liaison agents. If set, they replace the default pillars content, insights, journey and
    solution, which are all local."""
    direct_handover: bool = False
    """True allows routing a session from one liaison agent to another without the guide."""
    redaction: list[RedactionSettings] = []
    """Values that are dropped or masked in every context before it is shared."""
    retention: RetentionSettings = RetentionSettings()
    """When chat sessions and their data are deleted."""
    max_context_bytes: int = Field(default=262_144, ge=1024, le=327_680)
    """The maximum size of a context that is shared or stored in a session, in bytes of its JSON after redaction. An
    answer may contain two contexts, and a message takes up to 5.5 times the size of its JSON."""
    audit_content: bool = False
    """True stores shared contexts in the audit trail, cut at 4000 characters, instead of only their hashes."""
    heartbeat_seconds: float = Field(default=30.0, ge=1, le=86_400)
    """How long a local agent counts as available after a heartbeat."""
    claim_seconds: float = Field(default=60.0, ge=1, le=86_400)
    """How long a claim of a session by an instance of a local agent lasts."""
    probe_seconds: float = Field(default=2.0, gt=0, le=60)
    """The timeout for checking whether a remote agent is available."""
    availability_seconds: float = Field(default=5.0, ge=0, le=3600)
    """How long the availability of an agent is cached."""
    delivery_seconds: float = Field(default=10.0, gt=0, le=60)
    """The timeout for a remote agent to accept a context. An A2A agent accepts it by starting its task."""
    delivery_hours: float = Field(default=24.0, gt=0, le=8760)
    """How long a delivery is retried before it is given up."""
    unclaimed_seconds: float | None = Field(default=None, ge=1, le=2_592_000)
    """How long a session of a local agent may be unclaimed, after the hand-over or the end of the last claim, before
    the event session_unclaimed reports it. [default: never]"""
    silent_seconds: float | None = Field(default=None, ge=1, le=2_592_000)
    """How long a session of a liaison agent may have no message, change or claim before the event session_silent
    reports it. [default: never]"""
    absent_seconds: float = Field(default=10.0, ge=0, le=2_592_000)
    """How long a local agent may be absent before session_agent_absent reports each of its sessions. This leaves time
    for another instance to start."""
    max_watchers: int = Field(default=32, ge=1, le=256)
    """The maximum number of open event streams. More are refused."""
    watchers_per_agent: int = Field(default=8, ge=1, le=256)
    """The maximum number of open event streams for one agent."""

    @model_validator(mode="after")
    def check_fallbacks(self) -> LiaisonSettings:
        for pillar, settings in self.pillars.items():
            if settings.fallback is not None and GUIDE in self.pillars:
                raise ValueError(f"no pillar may be called {GUIDE} where there are fallbacks, since it names the guide")
            # Each chain is followed to its end, so that the message can name the whole cycle.
            passed = [pillar]
            target = settings.fallback
            while target is not None and target != GUIDE:
                if target not in self.pillars:
                    raise ValueError(f"pillars.{passed[-1]}.fallback: there is no pillar {target}")
                if target in passed:
                    raise ValueError(f"pillars.{pillar}.fallback leads back: {' to '.join([*passed, target])}")
                passed.append(target)
                target = self.pillars[target].fallback
        return self

    def fallbacks_of(self, pillar: str) -> tuple[str, ...]:
        # It ends, because check_fallbacks rejects cycles.
        chain: list[str] = []
        target = self.pillars[pillar].fallback
        while target is not None and target != GUIDE:
            chain.append(target)
            target = self.pillars[target].fallback
        return tuple(chain)
