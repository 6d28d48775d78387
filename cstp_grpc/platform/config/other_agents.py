"""The settings of other agents: peers and what their answers count, and liaison agents with what they are handed."""

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
    """Another agent that is asked."""

    name: str = Field(pattern=PEER_NAME)
    """The name that its answers are shown with."""
    url: str = Field(pattern=PEER_URL)
    """Where it is: `grpc://` or `grpcs://` and host and port, the `http://` or `https://` address of its bridge, or of
    its agent card, which ends with `.json`."""
    token: SecretStr | None = None
    """The bearer token for it; write `${NAME}` to take it from the environment."""
    role: Literal["required", "advisory"] = "advisory"
    """Nothing is allowed that a `required` peer does not allow; an `advisory` one only warns."""
    categories: list[Category] = []
    """The categories that it speaks for; empty means all."""
    timeout_seconds: float = Field(default=2.0, gt=0, le=60)
    """How long it may take to answer."""
    trust: float = Field(default=1.0, gt=0, le=1)
    """The weight of its decisions: their scores are multiplied by it where those of several agents are merged."""
    ca_file: Path | None = None
    """A PEM file of the authorities that certify it, in place of the system's."""
    card_key: Path | None = None
    """A file with the public key that must have signed its agent card, whose URL is then needed: in PEM, or a JSON Web
    Key. If there are several, one of them must. Any other card is refused, and the token is not sent for it."""


class DefaultScope(SettingsSection):
    """Calls whose scope is federated where they state none: those of these categories and those of these stakes."""

    categories: list[Category] = []
    """The categories."""
    stakes: list[Stakes] = []
    """The stakes."""


class QuorumSettings(SettingsSection):
    """Actions on which required peers vote, in the stead of each having a veto."""

    allow: int = Field(ge=1)
    """How many required peers must allow them."""
    categories: list[Category] = []
    """Their categories; empty means all."""
    stakes: list[Stakes] = []
    """Their stakes; empty means all."""


class ShareSettings(SettingsSection):
    """Which shared decisions peers find: those of one of the categories and with one of the tags."""

    categories: list[Category] = []
    """The categories; empty means all."""
    tags: list[Tag] = []
    """The tags; empty means all."""


class CallbackSettings(SettingsSection):
    """Feedback that comes after the answer, sent to the address that an announcing agent gave as its `url`."""

    allow: list[Annotated[str, Field(pattern=URL_PREFIX)]] = []
    """What such addresses may begin with, for instance `https://agents.example.com/cstp/`; empty turns callbacks
    off."""
    late_seconds: float = Field(default=30.0, gt=0, le=600)
    """How long a peer may take whose answer is sent late."""
    window_days: float = Field(default=30.0, gt=0, le=3650)
    """For how long an agent is told that a decision failed which was cited to it as similar."""
    delivery_hours: float = Field(default=24.0, gt=0, le=8760)
    """How long a notification is tried before it is given up."""


class FederationSettings(SettingsSection):
    """Other agents that are asked too, and what their answers count."""

    peers: list[PeerSettings] = []
    """The agents that are asked."""
    default_for: DefaultScope = DefaultScope()
    """The calls that ask peers where they state no scope."""
    quorums: list[QuorumSettings] = []
    """The actions on which required peers vote; the first that fits counts."""
    share: ShareSettings = ShareSettings()
    """What peers find here."""
    timeout_seconds: float = Field(default=5.0, gt=0, le=60)
    """How long all peers together may take; less where the caller's deadline is nearer."""
    max_hops: int = Field(default=1, ge=1, le=8)
    """How many agents one after the other may ask each other; with 1 peers answer by themselves."""
    max_peers: int = Field(default=16, ge=1, le=64)
    """The most peers there may be, each of which one call may ask."""
    max_calls: int = Field(default=4, ge=1, le=256)
    """How many calls may wait for peers at once; more are refused."""
    breaker_failures: int = Field(default=5, ge=1, le=1000)
    """After how many failures in a row a peer is not asked for a while."""
    breaker_seconds: float = Field(default=10.0, gt=0, le=3600)
    """For how long; then one call tries it again."""
    callbacks: CallbackSettings = CallbackSettings()
    """Feedback that comes after the answer."""

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
    """What no context carries to a liaison agent."""

    path: str = Field(min_length=1, max_length=1000)
    """An RFC 9535 JSONPath: `$.conversation_history[*].metadata`, `$..password`."""
    action: Literal["drop", "mask"] = "drop"
    """`drop` leaves it out, `mask` puts `[redacted]` in its place."""


class PillarSettings(SettingsSection):
    """The liaison agent of a pillar."""

    kind: Literal["local", "a2a", "grpc", "jsonrpc"] = "local"
    """`local` watches this server with its own token; `a2a` is an A2A agent, `grpc` and `jsonrpc` are CSTP servers."""
    agent: AgentName | list[AgentName] | None = None
    """The local agent, by the name of its token, or several, of which each serves the sessions of its own tenant; when
    absent, `liaison_` and the pillar."""
    url: str | None = Field(default=None, min_length=1)
    """Where a remote agent is: its agent card or the site that has it, `grpc://` or `grpcs://`, or the address of a
    bridge."""
    token: SecretStr | None = None
    """The bearer token for it; write `${NAME}` to take it from the environment."""
    ca_file: Path | None = None
    """A PEM file of the authorities that certify it, in place of the system's."""
    delivery: Literal["outbox", "confirm"] = "outbox"
    """`outbox` hands the session over and delivers the context until the agent has it; with `confirm` a remote agent
    must accept it first."""

    fallback: str | None = Field(default=None, min_length=1, max_length=63)
    """Where its sessions go when one of `fallback_on` happens: `guide`, or another pillar, and the guide if that cannot
    take them; when absent, they stay."""
    fallback_on: list[Literal["unclaimed", "silent", "absent"]] = ["unclaimed", "silent", "absent"]
    """What sends a session to the fallback: `unclaimed` and `absent` are for local agents."""

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
    """How long what is kept of chat sessions stays; what is absent stays until it is deleted."""

    session_days: float | None = Field(default=None, gt=0, le=36_500)
    """Days after its last change, messages included, until a session is deleted with everything that was kept of it,
    whether it is closed or not."""
    message_days: float | None = Field(default=None, gt=0, le=36_500)
    """Days until a message is deleted from a session that goes on."""
    share_days: float | None = Field(default=None, gt=0, le=36_500)
    """Days until a shared context is deleted, unless it is still to be delivered, or a liaison agent has an active
    session by it."""
    event_days: float | None = Field(default=None, gt=0, le=36_500)
    """Days until an event is deleted; whoever watches again later misses it."""


class LiaisonSettings(SettingsSection):
    """Handing chat sessions to liaison agents."""

    enabled: bool = True
    """False leaves it out: no thread runs for it, and its methods are unknown over both transports."""
    pillars: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")], PillarSettings] = {
        name: PillarSettings() for name in PILLARS
    }
    """The pillars and their liaison agents; what is given here replaces the default ones, content, insights, journey
    and solution, all local."""
    direct_handover: bool = False
    """True lets a session go from one liaison agent to another without the guide."""
    redaction: list[RedactionSettings] = []
    """What is dropped from or masked in every context before it is shared."""
    retention: RetentionSettings = RetentionSettings()
    """When chat sessions and what belongs to them are deleted."""
    max_context_bytes: int = Field(default=262_144, ge=1024, le=327_680)
    """The largest context that is shared, in bytes of its JSON after redaction, and that a session keeps. An answer may
    hold two, whose messages take up to 5.5 times their JSON."""
    audit_content: bool = False
    """True keeps shared contexts in the audit trail, cut at 4000 characters, and not their hashes alone."""
    heartbeat_seconds: float = Field(default=30.0, ge=1, le=86_400)
    """How long a local agent counts as available after a heartbeat."""
    claim_seconds: float = Field(default=60.0, ge=1, le=86_400)
    """How long an instance of a local agent has a session after it claimed it."""
    probe_seconds: float = Field(default=2.0, gt=0, le=60)
    """How long a remote agent may take to show that it is there."""
    availability_seconds: float = Field(default=5.0, ge=0, le=3600)
    """How long it is remembered whether an agent is there."""
    delivery_seconds: float = Field(default=10.0, gt=0, le=60)
    """How long a remote agent may take to accept a context; an A2A agent accepts it by beginning its task."""
    delivery_hours: float = Field(default=24.0, gt=0, le=8760)
    """How long a delivery is tried before it is given up."""
    unclaimed_seconds: float | None = Field(default=None, ge=1, le=2_592_000)
    """How long nobody may have claimed a session of a local agent, since it was handed over or the last claim ended,
    before the event session_unclaimed tells of it; never when absent."""
    silent_seconds: float | None = Field(default=None, ge=1, le=2_592_000)
    """How long nothing may happen in a session of a liaison agent, no message, change or claim, before the event
    session_silent tells of it; never when absent."""
    absent_seconds: float = Field(default=10.0, ge=0, le=2_592_000)
    """How long a local agent may be absent before session_agent_absent tells of each session that it has; time for
    another instance to come."""
    max_watchers: int = Field(default=32, ge=1, le=256)
    """Streams of events that may be open at once, more are refused."""
    watchers_per_agent: int = Field(default=8, ge=1, le=256)
    """Streams of events that one agent may have open at once."""

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
