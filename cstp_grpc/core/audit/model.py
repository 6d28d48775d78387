"""The entries of the audit trail, the filter on them, and the port that domains write them to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.enums import PeerStatus, Stakes
from cstp_grpc.core.commands.model import NO_INVOCATION, Invocation

if TYPE_CHECKING:
    # Only for its type: commands load this module, and must not load SQLAlchemy.
    from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

MAX_ACTION: Final = 4000
"""Maximum characters of an action in an entry; a request may name a thousand long paths."""


class AuditEvent(StrEnum):
    """The kind of event that an entry records."""

    GUARDRAIL_CHECK = "guardrail_check"
    INTENT_ANNOUNCED = "intent_announced"
    INTENT_CLOSED = "intent_closed"
    DECISION_RECORDED = "decision_recorded"
    DECISION_IMPORTED = "decision_imported"
    DECISION_REVIEWED = "decision_reviewed"
    DECISION_SHARED = "decision_shared"
    DECISION_UNSHARED = "decision_unshared"
    DECISION_UPDATED = "decision_updated"
    DECISION_LINKED = "decision_linked"
    DECISION_DELETED = "decision_deleted"
    CONTEXT_READ = "context_read"
    LEARNING_REPORTED = "learning_reported"
    LEARNING_REVIEWED = "learning_reviewed"
    NODE_CREATED = "node_created"
    SESSION_OPENED = "session_opened"
    SESSION_CONTEXT_UPDATED = "session_context_updated"
    CONTEXT_SHARED = "context_shared"
    SESSION_ROUTED = "session_routed"
    SESSION_RETURNED = "session_returned"
    SESSION_CLAIMED = "session_claimed"
    SESSION_CLOSED = "session_closed"
    SESSION_DELETED = "session_deleted"
    VERDICTS_MERGED = "verdicts_merged"
    CALLBACK_SENT = "callback_sent"
    PUSH_NOTIFICATION_SENT = "push_notification_sent"
    CALLS_REFUSED = "calls_refused"
    CONTENT_REMOVED = "content_removed"
    ENTRIES_REMOVED = "entries_removed"
    APPROVAL_REQUESTED = "approval_requested"
    APPROVAL_GRANTED = "approval_granted"
    APPROVAL_DENIED = "approval_denied"
    APPROVAL_REVOKED = "approval_revoked"
    APPROVAL_USED = "approval_used"
    APPROVAL_EXPIRED = "approval_expired"
    TOKEN_CREATED = "token_created"  # noqa: S105 - the name of an event
    TOKEN_ROTATED = "token_rotated"  # noqa: S105 - the name of an event
    TOKEN_REVOKED = "token_revoked"  # noqa: S105 - the name of an event
    AGENT_ERASED = "agent_erased"
    SUBJECT_ERASED = "subject_erased"
    NOTIFICATION_SENT = "notification_sent"
    VERIFICATION_FAILED = "verification_failed"
    RECORDS_OVERSEEN = "records_overseen"


JUDGMENTS: Final = (AuditEvent.GUARDRAIL_CHECK, AuditEvent.INTENT_ANNOUNCED)
"""The events whose actions are stored for replays."""
JUDGED_TEXTS: Final = frozenset(
    (
        *JUDGMENTS,
        AuditEvent.VERDICTS_MERGED,
        AuditEvent.APPROVAL_REQUESTED,
        AuditEvent.APPROVAL_GRANTED,
        AuditEvent.APPROVAL_DENIED,
        AuditEvent.APPROVAL_REVOKED,
        AuditEvent.APPROVAL_USED,
        AuditEvent.APPROVAL_EXPIRED,
    )
)
"""The events whose texts are descriptions of such actions by callers."""


@dataclass(frozen=True, slots=True)
class AuditedPeer:
    """A peer's answer about an action or an intent; `allowed` is None if it gave no verdict."""

    agent: str
    status: PeerStatus
    allowed: bool | None = None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One event; the fields are those of the contract's AuditEntry, which documents each of them.

    `timestamp` is aware, in UTC. `id` is None until the entry is stored.
    """

    timestamp: datetime
    event: AuditEvent
    requesting_agent: str
    request_id: str
    claimed_agent: str | None = None
    action: str | None = None
    allowed: bool | None = None
    violations: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    evaluated: int = 0
    rule_set_version: str | None = None
    correlation_id: str | None = None
    decision_id: str | None = None
    error: str | None = None
    peers: tuple[AuditedPeer, ...] = ()
    intent_revision: int | None = None
    count: int | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None
    dryrun: tuple[str, ...] = ()
    judged: JudgedAction | None = None
    """The action that was evaluated; None also if the listing does not read it, or it is not stored."""
    approval_id: str | None = None
    id: int | None = None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Conditions that entries must all meet; None does not restrict. Instants are inclusive."""

    event: AuditEvent | None = None
    requesting_agent: str | None = None
    allowed: bool | None = None
    guardrail_id: str | None = None
    request_id: str | None = None
    correlation_id: str | None = None
    decision_id: str | None = None
    error: str | None = None
    approval_id: str | None = None
    after: datetime | None = None
    before: datetime | None = None
    words: tuple[str, ...] = ()
    """Words that the action contains, in upper or lower case."""
    category: str | None = None
    """The category of the evaluated action; likewise the next two. None of them matches if the action is not stored."""
    stakes: tuple[Stakes, ...] = ()
    project: str | None = None
    with_judged: bool = False
    """Only the verdicts on checked and announced actions, with the actions."""


class AuditSink(Protocol):
    """Stores audit entries: the audit trail, or nothing."""

    def append(self, unit_of_work: UnitOfWork, entry: AuditEntry) -> None:
        """Add an entry within a transaction, so that both are stored or neither is."""

    async def write(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk, without blocking the event loop. Raises Unavailable."""

    async def write_all(self, entries: Sequence[AuditEntry]) -> None:
        """Add entries in one transaction, as `write` adds one. Raises Unavailable."""

    def record(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk; for threads. Raises Unavailable."""


class NullAuditSink:
    """Stores nothing; for servers without an audit trail."""

    def append(self, unit_of_work: UnitOfWork, entry: AuditEntry) -> None:
        """Do nothing."""

    async def write(self, entry: AuditEntry) -> None:
        """Do nothing."""

    async def write_all(self, entries: Sequence[AuditEntry]) -> None:
        """Do nothing."""

    def record(self, entry: AuditEntry) -> None:
        """Do nothing."""


def truncate_action(text: str) -> str:
    return text if len(text) <= MAX_ACTION else f"{text[: MAX_ACTION - 1]}…"


@dataclass(frozen=True, slots=True)
class JudgedAction:
    """An action as guardrails evaluated it, without its description and its agent, which its audit entry has.

    `permissions` are those of the agent at the time. `approval_required` is whether an approval alone was needed.
    """

    category: str | None = None
    stakes: Stakes = Stakes.MEDIUM
    confidence: float | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    project: str | None = None
    announced_context: str = ""
    paths: tuple[str, ...] = ()
    permissions: frozenset[str] = frozenset()
    approval_required: bool = False
    invocation: Invocation = NO_INVOCATION
