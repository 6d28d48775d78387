"""The liaison agents of the pillars, and what they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

from cstp_grpc.errors import FieldViolation, InvalidPillar
from cstp_grpc.liaison.model import LIAISON, RoutingDecision, Share

SHOWN = 100
"""How many characters of a name that is none are told back."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A share on its way to the liaison agent of a pillar; `decision` is None where no session was handed over."""

    share: Share
    decision: RoutingDecision | None
    pillar: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """An agent has a parcel; `task_id` is the task that it made of it, None where it made none."""

    task_id: str | None = None


class DeliveryRefused(Exception):
    """The agent will not have it, and trying again does not help; the message is fit for callers."""


class DeliveryFailed(Exception):
    """The agent does not have it yet, but may have it later; the message is fit for callers."""


class LiaisonAgent(Protocol):
    """Serves a pillar."""

    @property
    def confirms(self) -> bool:
        """Whether it must accept a context before a session is handed over."""

    def check(self, tenant: str) -> None:
        """Return where the agent serves the tenant now. Raises LiaisonAgentUnavailable."""


class RememberedLiaisonAgent(LiaisonAgent, Protocol):
    """One that may be known to serve a tenant without asking anybody."""

    def is_known_to_serve(self, tenant: str) -> bool:
        """Whether `check` would return, as far as is known by now."""


@runtime_checkable
class RemoteLiaisonAgent(LiaisonAgent, Protocol):
    """One that contexts are delivered to; any other takes them by itself."""

    def deliver(self, parcel: Parcel) -> Receipt:
        """Hand over a parcel; the same one again is the same to the agent. Raises DeliveryRefused, DeliveryFailed."""


def is_remote(agent: LiaisonAgent) -> TypeGuard[RemoteLiaisonAgent]:
    """Return whether contexts are delivered to an agent."""
    # isinstance looks up every member of the protocol, which takes 20 us; this is called for every routing.
    return hasattr(agent, "deliver")


def is_remembered(agent: LiaisonAgent) -> TypeGuard[RememberedLiaisonAgent]:
    """Return whether an agent may be known to serve a tenant without asking anybody."""
    return hasattr(agent, "is_known_to_serve")


class LiaisonAgents:
    """The configured liaison agents, by pillar."""

    def __init__(self, agents: Mapping[str, LiaisonAgent]) -> None:
        self._agents = dict(agents)

    def of_pillar(self, pillar: str) -> LiaisonAgent:
        """Return the agent of a pillar. Raises InvalidPillar."""
        agent = self._agents.get(pillar)
        if agent is None:
            raise self._invalid("target_pillar", pillar, list(self._agents))
        return agent

    def of_agent(self, name: str) -> tuple[str, LiaisonAgent]:
        """Return the pillar and the agent of a name, `liaison_content`. Raises InvalidPillar."""
        pillar = name.removeprefix(LIAISON)
        agent = self._agents.get(pillar) if name.startswith(LIAISON) else None
        if agent is None:
            raise self._invalid("target_agent", name, [LIAISON + each for each in self._agents])
        return pillar, agent

    def _invalid(self, field: str, given: str, names: list[str]) -> InvalidPillar:
        description = f"must be one of {', '.join(names)}" if names else "no pillar is configured"
        return InvalidPillar(
            f"{field}: {description}",
            violations=[FieldViolation(field, description)],
            metadata={field: given[:SHOWN], "reason": "there is no such pillar"},
        )
