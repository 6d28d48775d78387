"""The settings of federation: which other agents are asked, and what their answers count."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from cstp_grpc.config.settings_section import URL_PREFIX, SettingsSection
from cstp_grpc.enums import Stakes

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
        """Reject duplicate peer names."""
        names = [peer.name for peer in peers]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named more than once: {', '.join(duplicates)}")
        return peers

    @model_validator(mode="after")
    def check_count(self) -> FederationSettings:
        """Reject more peers than `max_peers`."""
        if len(self.peers) > self.max_peers:
            raise ValueError(f"peers: are {len(self.peers)}, and max_peers is {self.max_peers}")
        return self

    @model_validator(mode="after")
    def check_quorums(self) -> FederationSettings:
        """Reject a quorum that is larger than the number of required peers."""
        required = sum(peer.role == "required" for peer in self.peers)
        for number, quorum in enumerate(self.quorums):
            if quorum.allow > required:
                raise ValueError(f"quorums.{number}.allow: is {quorum.allow}, and there are {required} required peers")
        return self
