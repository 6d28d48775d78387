"""Chat sessions, messages, shares, activations, events and presence."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.enums import Permission

GUIDE = "guide"
"""The agent that has a session at first, and decides who gets it."""

AGENT_PREFIX = "liaison_"
"""The prefix of the names of liaison agents; the pillar follows."""

HISTORY_MEMBER = "conversation_history"
"""The member of a shared context that holds the messages; no other part of a context may have this name."""


def liaison_agent(pillar: str) -> str:
    return AGENT_PREFIX + pillar


class SessionStatus(StrEnum):
    """Whether a session is active or closed."""

    ACTIVE = "active"
    CLOSED = "closed"


class MessageRole(StrEnum):
    """The role of a message's sender."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"


class DeliveryState(StrEnum):
    """The state of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class EventType(StrEnum):
    """The types of events."""

    SESSION_OPENED = "session_opened"
    MESSAGE_APPENDED = "message_appended"
    CONTEXT_UPDATED = "context_updated"
    CONTEXT_SHARED = "context_shared"
    LIAISON_AGENT_ACTIVATED = "liaison_agent_activated"
    SESSION_CLAIMED = "session_claimed"
    RETURNED_TO_GUIDE = "returned_to_guide"
    SESSION_CLOSED = "session_closed"
    SESSION_DELETED = "session_deleted"
    CONTEXT_DELIVERED = "context_delivered"
    DELIVERY_FAILED = "delivery_failed"
    AGENT_PRESENT = "agent_present"
    AGENT_ABSENT = "agent_absent"
    SESSION_UNCLAIMED = "session_unclaimed"
    SESSION_SILENT = "session_silent"
    SESSION_AGENT_ABSENT = "session_agent_absent"


@dataclass(frozen=True, slots=True)
class TenantCaller:
    """The authenticated agent and its tenant; `request_id` identifies the call.

    `may_route` is true if it has the permission of guides.
    """

    agent: str
    tenant: str
    request_id: str
    may_route: bool = False
    permissions: frozenset[Permission] = frozenset()


@dataclass(frozen=True, slots=True)
class Session:
    """A user's conversation, identified by tenant and id.

    `context` is a JSON object with further data for the agents. `version` counts changes from 1, not
    counting messages and claims. `opened_hash` is the hash of the opening context; `activation_key` is the key of the
    activation of the liaison agent that has the session, None while the guide has it. `claim_number` is that of the
    last claim, 0 before the first. Instants are aware, in UTC.
    """

    tenant: str
    id: str
    user_id: str
    context: Mapping[str, Any]
    opened_hash: str
    created_at: datetime
    updated_at: datetime
    active_agent: str = GUIDE
    status: SessionStatus = SessionStatus.ACTIVE
    version: int = 1
    routing_epoch: int = 0
    message_count: int = 0
    activation_key: str | None = None
    claimed_by: str | None = None
    claimed_until: datetime | None = None
    claim_number: int = 0
    closed_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        return self.status is SessionStatus.ACTIVE

    def is_claimed(self, now: datetime) -> bool:
        return self.claimed_until is not None and self.claimed_until > now


@dataclass(frozen=True, slots=True)
class MessageContent:
    """The content of a message; `message_id` makes a repetition safe."""

    role: MessageRole
    content: str
    metadata: Mapping[str, Any] | None = None
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A stored message: `sequence` counts from 1, `active_agent` had the session, `author` appended it."""

    sequence: int
    body: MessageContent
    active_agent: str
    author: str
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """A decision to hand over a session; `reason` is empty if none was given."""

    from_agent: str
    to_agent: str
    reason: str
    decided_at: datetime
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Share:
    """A context shared with an agent, after redaction, identified by tenant and id.

    `context_hash` is the SHA-256, in hex, of its canonical JSON. `next_attempt_at` is when its delivery is due, None if
    nothing is to be delivered. `execution_id` is the request that shared it, `task_id` the task that an A2A agent
    created for it.
    """

    tenant: str
    id: str
    source_agent: str
    target_agent: str
    conversation_id: str | None
    shared_context: Mapping[str, Any]
    context_hash: str
    shared_by: str
    shared_at: datetime
    execution_id: str = ""
    delivery: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    next_attempt_at: datetime | None = None
    task_id: str | None = None
    delivered_at: datetime | None = None
    traceparent: str | None = None
    """The trace of the call that shared it (W3C Trace Context), which its delivery continues; None without one."""
    context_json: str | None = field(default=None, compare=False, repr=False)
    """The canonical JSON of `shared_context`; None if nobody has written it yet."""

    @property
    def key(self) -> tuple[str, str]:
        return self.tenant, self.id

    @property
    def caused_at(self) -> datetime:
        return self.shared_at

    def __str__(self) -> str:
        """Return its name for the log, without its content."""
        return f"the share {self.id}"

    @property
    def is_to_be_delivered(self) -> bool:
        """Whether a delivery attempt is due now or later."""
        return self.next_attempt_at is not None


LEFT_REASON: Final = "it left"
NO_HEARTBEAT_REASON: Final = "no heartbeat"


@dataclass(frozen=True, slots=True)
class AgentPresence:
    """Whether the local liaison agent of a pillar is present for a tenant.

    `agent` is the token name of its last heartbeat, at `beaten_at`. `is_present` is the state in the last event; it
    stays true after `available_until` until a check notices. `since` is when that state began.
    """

    tenant: str
    pillar: str
    available_until: datetime
    agent: str | None = None
    is_present: bool = False
    since: datetime | None = None
    beaten_at: datetime | None = None

    @property
    def absence_reason(self) -> str:
        """The reason why an agent that is absent is so: its last heartbeat said that it leaves, or ran out."""
        left = not self.is_present and self.beaten_at == self.available_until
        return LEFT_REASON if left else NO_HEARTBEAT_REASON


class AlarmKind(StrEnum):
    """The kinds of alarms about a session of a liaison agent, named by their events."""

    UNCLAIMED = EventType.SESSION_UNCLAIMED.value
    SILENT = EventType.SESSION_SILENT.value
    ABSENT = EventType.SESSION_AGENT_ABSENT.value

    @property
    def event(self) -> EventType:
        return EventType(self.value)


@dataclass(frozen=True, slots=True)
class SessionHold:
    """An open session that a liaison agent has since `handed_over_at`; `claimed_at` is the last claim, or None.

    `reported` are the active alarms for which an event was written.
    """

    tenant: str
    session_id: str
    agent: str
    activation_key: str
    handed_over_at: datetime
    claimed_at: datetime | None = None
    reported: frozenset[AlarmKind] = frozenset()


@dataclass(frozen=True, slots=True)
class Event:
    """An event; `sequence` is its number within the tenant, None until it is stored.

    `agent` is the agent concerned; `data` is a JSON object.
    """

    tenant: str
    type: EventType
    agent: str
    occurred_at: datetime
    session_id: str | None = None
    user_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Activation:
    """The result of a routing; `session` is its state after the routing, `execution_id` the request that routed."""

    pillar: str
    decision: RoutingDecision
    shared_context: Mapping[str, Any]
    session: Session
    event: Event
    execution_id: str

    @property
    def key(self) -> str:
        return self.decision.idempotency_key


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Conditions that sessions must all meet; None does not restrict."""

    tenant: str
    user_id: str | None = None
    active_agent: str | None = None
    status: SessionStatus | None = None


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Conditions that events must all meet; None or empty does not restrict. `types` means any of them."""

    tenant: str
    session_id: str | None = None
    agent: str | None = None
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UserRecords:
    """How much is stored about a user of chat sessions, of each kind."""

    sessions: int
    messages: int
    shares: int
    activations: int
    events: int
