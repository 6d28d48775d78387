"""Callers of chat sessions, and what they do and see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cstp_grpc.modules.liaison.model import (
    Event,
    EventFilter,
    MessageContent,
    MessageRole,
    Session,
    TenantCaller,
    liaison_agent,
)
from cstp_grpc.modules.liaison.routing import RoutingRequest
from tests.modules.liaison.room import Room

TENANT = "acme"
GUIDES = TenantCaller("alice", TENANT, "request-1")
CONTEXT = {"topic": "files"}
SECONDS = 60.0


def serving(pillar: str) -> TenantCaller:
    """Return the local agent of a pillar."""
    return TenantCaller(liaison_agent(pillar), TENANT, "request-2")


def opened(room: Room) -> Session:
    """Return a session with a message."""
    session, _ = room.sessions.open(GUIDES, "ada", "s-1", {"shared_intent": "move"})
    room.sessions.append(GUIDES, "s-1", MessageContent(MessageRole.USER, "Hello"))
    return session


def asked(pillar: str = "content", context: Mapping[str, Any] | None = None) -> RoutingRequest:
    """Return a request to route the session."""
    return RoutingRequest(pillar, "ada", "s-1", "because", context)


def state(room: Room) -> tuple[Session, Sequence[Event]]:
    """Return the state of the session that everybody sees."""
    return room.sessions.get(GUIDES, "s-1", "ada"), room.history.events(EventFilter(TENANT), 0, 100).events


THREADS = 6
