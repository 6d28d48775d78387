"""Enums and names that all domains share; the contract's enums have the same values in capitals."""

from __future__ import annotations

from enum import StrEnum

LIAISON_SUPERVISOR = "liaison-supervisor"
"""The agent name under which the supervisor takes sessions from liaison agents; no token has it."""
INTENT_LAYER_AGENT = "intent-layer"
"""The agent name under which the journal stores the content of nodes; no token has it."""

SERVER_AGENTS = frozenset({LIAISON_SUPERVISOR, INTENT_LAYER_AGENT})
"""The names under which the server itself acts."""

DEFAULT_TENANT = "default"
"""The tenant of agents without a configured one."""

UNREACHABLE_GUARDRAIL = "federation-unreachable"
"""The guardrail id of a peer that gave no verdict. It is not where verdicts are merged, since the command, which only
shows them, would load all of that."""
QUORUM_GUARDRAIL = "federation-quorum"
"""The guardrail id of a missed quorum of peers."""


class Stakes(StrEnum):
    """The stakes of an action, in rising order."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class RulePreset(StrEnum):
    """The packaged rules of a server without rulebooks of its own."""

    DEFAULT = "default"
    """The default rulebook alone."""
    STANDARD = "standard"
    """The default rulebook, words of danger, and the packs that read commands."""
    STRICT = "strict"
    """Commands that cannot be read before they run are blocked, too."""
    PARANOID = "paranoid"
    """Destructive actions inside the project need approval, too."""


class Shell(StrEnum):
    """The language of a command text."""

    BASH = "bash"
    """POSIX shells, bash and zsh."""
    POWERSHELL = "powershell"


class Outcome(StrEnum):
    """The outcome of a decision."""

    SUCCESS = "success"
    FAILURE = "failure"
    PARTIAL = "partial"
    ABANDONED = "abandoned"


class DecisionStatus(StrEnum):
    """The state of a decision in its life cycle."""

    PROPOSED = "proposed"
    DECIDED = "decided"
    REVIEWED = "reviewed"
    SUPERSEDED = "superseded"


class Severity(StrEnum):
    """The effect of a matching guardrail."""

    BLOCK = "block"
    WARN = "warn"
    APPROVE = "approve"


class Enforcement(StrEnum):
    """Whether a guardrail counts: a dry run is only reported, and a disabled one is not evaluated."""

    ENFORCE = "enforce"
    DRYRUN = "dryrun"
    DISABLED = "disabled"


class RuleOutcome(StrEnum):
    """The result of a guardrail for an action."""

    MATCHED = "matched"
    NOT_MATCHED = "not_matched"
    UNEVALUABLE = "unevaluable"
    """It counts as matched."""
    SKIPPED = "skipped"
    """It does not apply to the action, or is disabled or expired."""


class InputOrigin(StrEnum):
    """Where the value of an input comes from."""

    GIVEN = "given"
    DEFAULT = "default"
    MISSING = "missing"
    INVALID = "invalid"
    """It is given, but of another type or not accepted."""


class Reaction(StrEnum):
    """The server's reaction to an action that it cannot evaluate as its rules intend."""

    ALLOW = "allow"
    WARN = "warn"
    BLOCK = "block"


class JudgedContent(StrEnum):
    """The content of evaluated actions that the audit trail keeps."""

    FULL = "full"
    DESCRIPTION = "description"
    NOTHING = "nothing"


class Visibility(StrEnum):
    """Who may read a decision or an intent, in addition to its agent."""

    PRIVATE = "private"
    SHARED = "shared"


class TaskState(StrEnum):
    """The state of an A2A task; only submitted, working and waiting tasks can change."""

    SUBMITTED = "submitted"
    INPUT_REQUIRED = "input_required"
    AUTH_REQUIRED = "auth_required"
    WORKING = "working"
    COMPLETED = "completed"
    REJECTED = "rejected"
    FAILED = "failed"
    CANCELED = "canceled"


class ReadyReason(StrEnum):
    """Why something is in the ready queue of an agent, in the order of the queue."""

    OVERDUE_REVIEW = "overdue_review"
    UNCLOSED_INTENT = "unclosed_intent"
    DRIFT = "drift"
    STALE_DECISION = "stale_decision"


class ApprovalStatus(StrEnum):
    """The state of an approval request; only pending and granted ones change."""

    PENDING = "pending"
    GRANTED = "granted"
    DENIED = "denied"
    USED = "used"
    EXPIRED = "expired"
    REVOKED = "revoked"


class PushFormat(StrEnum):
    """The A2A version of a push notification."""

    A2A_1_0 = "1.0"
    A2A_0_3 = "0.3"


class PeerStatus(StrEnum):
    """The result of a call to a peer."""

    ANSWERED = "answered"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed_out"
    NOT_UNDERSTOOD = "not_understood"
    SKIPPED = "skipped"


class Permission(StrEnum):
    """A permission that a token may grant."""

    QUERY = "query"
    CHECK = "check"
    ANNOUNCE = "announce"
    RECORD = "record"
    REVIEW = "review"
    ADMIN = "admin"
    CONVERSE = "converse"
    ROUTE = "route"
    ERASE = "erase"
    APPROVE = "approve"
    OVERSEE = "oversee"
    MIGRATE = "migrate"


class NodeRule(StrEnum):
    """A rule for nodes, whose severity a project may set."""

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
    """The severity of a violated rule; `off` hides it."""

    ERROR = "error"
    WARNING = "warning"
    OFF = "off"
