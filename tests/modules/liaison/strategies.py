"""Chat sessions, and what happens to them, for property tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import Any

from hypothesis import strategies as st

from cstp_grpc.modules.liaison.model import (
    Activation,
    DeliveryState,
    Event,
    EventType,
    MessageContent,
    MessageRole,
    RoutingDecision,
    Session,
    SessionStatus,
    Share,
)

EXACT = 2**53 - 1
TENANT = "acme"

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
"""Texts that every database keeps as they are."""

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
"""Texts within JSON, where NUL is escaped."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-EXACT, EXACT) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
CONTEXTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(TEXTS, JSON, max_size=3)
INSTANTS = st.datetimes(timezones=st.just(UTC))
COUNTS = st.integers(0, 2**31 - 1)

SESSIONS = st.builds(
    Session,
    tenant=st.just(TENANT),
    id=NAMES,
    user_id=NAMES,
    context=CONTEXTS,
    opened_hash=NAMES,
    created_at=INSTANTS,
    updated_at=INSTANTS,
    active_agent=NAMES,
    status=st.sampled_from(SessionStatus),
    version=COUNTS,
    routing_epoch=COUNTS,
    message_count=COUNTS,
    activation_key=st.none() | NAMES,
    claimed_by=st.none() | NAMES,
    claimed_until=st.none() | INSTANTS,
    closed_at=st.none() | INSTANTS,
)
CONTENTS = st.builds(
    MessageContent,
    role=st.sampled_from(MessageRole),
    content=NAMES,
    metadata=st.none() | CONTEXTS,
    message_id=st.none(),
)
SHARES = st.builds(
    Share,
    tenant=st.just(TENANT),
    id=NAMES,
    source_agent=NAMES,
    target_agent=NAMES,
    conversation_id=st.none() | NAMES,
    shared_context=CONTEXTS,
    context_hash=NAMES,
    shared_by=NAMES,
    shared_at=INSTANTS,
    delivery=st.sampled_from(DeliveryState),
    attempts=COUNTS,
    next_attempt_at=st.none() | INSTANTS,
    task_id=st.none() | NAMES,
    delivered_at=st.none() | INSTANTS,
    traceparent=st.none() | st.just("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
)
EVENTS = st.builds(
    Event,
    tenant=st.just(TENANT),
    type=st.sampled_from(EventType),
    agent=NAMES,
    occurred_at=INSTANTS,
    session_id=st.none() | NAMES,
    user_id=st.none() | NAMES,
    data=CONTEXTS,
)
DECISIONS = st.builds(
    RoutingDecision, from_agent=TEXTS, to_agent=TEXTS, reason=TEXTS, decided_at=INSTANTS, idempotency_key=NAMES
)
ACTIVATIONS = st.builds(
    Activation,
    pillar=TEXTS,
    decision=DECISIONS,
    shared_context=CONTEXTS,
    session=SESSIONS,
    event=st.builds(lambda event, sequence: replace(event, sequence=sequence), EVENTS, st.none() | COUNTS),
    execution_id=TEXTS,
)
