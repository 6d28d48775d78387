"""The words that every domain shares; the contract's enums spell the same values in capitals."""

from __future__ import annotations

from enum import StrEnum

LIAISON_SUPERVISOR = "liaison-supervisor"
"""The agent that takes chat sessions from liaison agents; no token has the name."""
INTENT_LAYER_AGENT = "intent-layer"
"""The agent in whose name the journal keeps what nodes say; nobody calls by this name."""

DEFAULT_TENANT = "default"
"""The tenant of agents that none is configured for."""


class Stakes(StrEnum):
    """How much is at risk, in rising order."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Outcome(StrEnum):
    """How a decision turned out."""

    SUCCESS = "success"
    FAILURE = "failure"
    PARTIAL = "partial"
    ABANDONED = "abandoned"


class DecisionStatus(StrEnum):
    """Where a decision stands in its life."""

    PROPOSED = "proposed"
    DECIDED = "decided"
    REVIEWED = "reviewed"
    SUPERSEDED = "superseded"


class Severity(StrEnum):
    """What a matching guardrail does."""

    BLOCK = "block"
    WARN = "warn"


class Visibility(StrEnum):
    """Who may read a decision besides the agent that recorded it."""

    PRIVATE = "private"
    SHARED = "shared"


class TaskState(StrEnum):
    """Where a task of a conversation stands; one that is submitted, at work or waits for input can change."""

    SUBMITTED = "submitted"
    INPUT_REQUIRED = "input_required"
    WORKING = "working"
    COMPLETED = "completed"
    REJECTED = "rejected"
    FAILED = "failed"
    CANCELED = "canceled"


class PushFormat(StrEnum):
    """In which version of A2A a push notification is written."""

    A2A_1_0 = "1.0"
    A2A_0_3 = "0.3"


class PeerStatus(StrEnum):
    """What became of asking a peer."""

    ANSWERED = "answered"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed_out"
    NOT_UNDERSTOOD = "not_understood"
    SKIPPED = "skipped"


class Permission(StrEnum):
    """What an agent may have been granted."""

    QUERY = "query"
    CHECK = "check"
    ANNOUNCE = "announce"
    RECORD = "record"
    REVIEW = "review"
    ADMIN = "admin"
    CONVERSE = "converse"
    ROUTE = "route"
    ERASE = "erase"


class NodeRule(StrEnum):
    """A rule that nodes are judged by, whose severity a project may set."""

    MISSING_SECTION = "missing-section"
    EMPTY_SECTION = "empty-section"
    DUPLICATE_SECTION = "duplicate-section"
    OVER_BUDGET = "over-budget"
    OVER_TARGET = "over-target"
    DEAD_DOWNLINK = "dead-downlink"
    DOWNLINK_WITHOUT_NODE = "downlink-without-node"
    MISSING_DOWNLINK = "missing-downlink"
    MISSING_ENTRY_POINT = "missing-entry-point"
    ABSOLUTE_PATH = "absolute-path"
    MISPLACED_CLAUDE_MD = "misplaced-claude-md"
    DIFFERENT_FILES = "different-files"
    DEAD_IMPORT = "dead-import"
    NOT_UTF8 = "not-utf-8"
    UNREADABLE_FILE = "unreadable-file"
    UNREADABLE_FOLDER = "unreadable-folder"
    STALE = "stale"


class RuleSeverity(StrEnum):
    """How bad a breach of a rule is; what is off is not told."""

    ERROR = "error"
    WARNING = "warning"
    OFF = "off"
