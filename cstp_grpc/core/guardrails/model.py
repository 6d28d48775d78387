"""The model of guardrails: rulebooks, actions, verdicts and violations."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from cstp_grpc.common.lazy_dataclass import dataclass, field, replace
from cstp_grpc.common.unicode_text import fold_name
from cstp_grpc.contract.enums import ApprovalStatus, Enforcement, Severity, Stakes
from cstp_grpc.core.commands.model import NO_INVOCATION, Invocation
from cstp_grpc.core.guardrails.cel_variables import RuleExpression
from cstp_grpc.core.guardrails.history import UNREAD_HISTORY, HistoryFacts, HistorySubject
from cstp_grpc.core.guardrails.inputs import IgnoredInput, InputType

EVALUATION_ERROR = "EVALUATION_ERROR"
"""The code of a violation whose guardrail could not be evaluated."""
UNDECLARED_INPUT_ID = "undeclared-input"
"""The guardrail id of the violation for keys of the context that no guardrail knows."""
UNDECLARED_INPUT = "UNDECLARED_INPUT"
"""Its code."""
UNKNOWN_ACTION_ID = "unknown-action"
"""The guardrail id of the violation for an action that states no declared input."""
UNKNOWN_ACTION = "UNKNOWN_ACTION"
"""Its code."""


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """The written rules and notes about the code that an action touches: items of lists, each on one line.

    `paths` are the named paths; `unreadable` is the reason if any of the notes could not be read, else None.
    """

    paths: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    ask_first: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    pitfalls: tuple[str, ...] = ()
    unreadable: str | None = None


NO_CODE = CodeFacts()
"""For actions that name no code."""


@dataclass(frozen=True, slots=True)
class IntentFacts:
    """The intents of other agents that resemble an action.

    `ages` are the seconds since each was announced, for those that are shared, open and not blocked; `unreadable` is
    the reason if they are unknown, else None.
    """

    ages: tuple[float, ...] = ()
    unreadable: str | None = None


NO_INTENTS = IntentFacts()
"""For actions that resemble no intent."""
UNREAD_INTENTS = IntentFacts(unreadable="they were not looked up")
"""For actions whose related intents were not looked up; fails closed."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action to check; `confidence` is 0 to 1, `context` holds the guardrails' inputs as JSON values.

    `agent` is the authenticated agent that acts, empty without one. `now` has an offset; None, as in tests of rulebooks
    without `now`, is before every expiry.
    """

    description: str
    category: str | None = None
    stakes: Stakes = Stakes.MEDIUM
    confidence: float | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    code: CodeFacts = NO_CODE
    intents: IntentFacts = UNREAD_INTENTS
    is_stated_by_server: bool = False
    """Whether the server itself wrote the context, whose names the caller could not choose."""
    project: str | None = None
    agent: str = ""
    permissions: frozenset[str] = frozenset()
    """The permissions of the agent, as values of `enums.Permission`."""
    now: datetime | None = None
    announced_context: str = ""
    """The further text of an announcement."""
    history: HistoryFacts = UNREAD_HISTORY
    invocation: Invocation = NO_INVOCATION
    """The command that is about to run, or the files that a tool accesses."""

    @property
    def command(self) -> str | None:
        return self.invocation.command or None

    @property
    def history_subject(self) -> HistorySubject:
        return HistorySubject(self.agent, self.category, self.project)


@dataclass(frozen=True, slots=True)
class MissingInput:
    """An input that a rulebook declares and the action's context lacks."""

    name: str
    type: str
    description: str | None = None
    values: tuple[str, ...] = ()
    """The texts that it may be; empty for all."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A guardrail that matched or, with `code` EVALUATION_ERROR, could not be evaluated.

    `missing_inputs` are those that the guardrail reads and the action lacks, ordered by name.
    """

    guardrail_id: str
    name: str
    message: str
    severity: Severity
    suggestion: str | None = None
    code: str | None = None
    missing_inputs: tuple[MissingInput, ...] = ()
    approvers: tuple[str, ...] = ()
    """The agents that may approve the action, of those with the permission; empty for all of these."""


@dataclass(frozen=True, slots=True)
class VerdictApproval:
    """The approval request on which a verdict rests; `digest` is that of the agent and its action.

    `expires_at` is aware, and `comment` is that of the approver. `instructions` are the operator's: how a pending
    request gets decided.
    """

    id: str
    digest: str
    status: ApprovalStatus
    expires_at: datetime
    comment: str | None = None
    instructions: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a rule set; `violations` block or need approval, `warnings` do neither.

    `evaluated` counts the guardrails in force. `dryrun` are those that would block, need approval or warn if they were
    enforced. `assumed` are the inputs that took their defaults, and `ignored` the keys of the context that no guardrail
    knows, both by name. `check_id` is empty unless a peer stated it.
    """

    violations: tuple[Violation, ...]
    warnings: tuple[Violation, ...]
    evaluated: int
    rule_set_version: str
    allowed: bool
    """Whether nothing blocks and no approval is missing, that is, whether there are no violations."""
    dryrun: tuple[Violation, ...] = ()
    assumed: tuple[str, ...] = ()
    ignored: tuple[IgnoredInput, ...] = ()
    check_id: str = ""
    approval: VerdictApproval | None = None
    """The approval request, if one is needed and approvals are served."""

    @property
    def approval_required(self) -> bool:
        """Whether the action is not allowed only because a person has not approved it, and none has denied it."""
        return is_approval_missing(self.violations) and not self.is_denied

    @property
    def is_denied(self) -> bool:
        return self.approval is not None and self.approval.status is ApprovalStatus.DENIED

    def approved_by(self, approval: VerdictApproval) -> Verdict:
        """Return the verdict that allows an approved action; guardrails that required the approval become warnings."""
        return replace(
            self, violations=(), warnings=(*self.violations, *self.warnings), allowed=True, approval=approval
        )


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check."""

    verdict: Verdict
    evaluated_at: datetime


def is_approval_missing(violations: Collection[Violation]) -> bool:
    """Return True if there are violations, and approval can resolve each of them."""
    return bool(violations) and all(each.severity is Severity.APPROVE for each in violations)


MAX_NAMED_RULEBOOKS = 5
"""Maximum number of rulebooks that a version names."""


@dataclass(frozen=True, slots=True)
class InputDeclaration:
    """A value that rules read from the context; `default`, a JSON value, is used if the caller gives none.

    Nothing that reads a `required` one is evaluated without it. `values` are the texts that it, or each item of a list,
    may be; empty for all.
    """

    name: str
    type: InputType
    default: Any
    description: str | None
    line: int
    is_required: bool = False
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """Values that an action must have for a guardrail to be evaluated; an empty set accepts everything.

    An action without a category or project matches no set of them.
    """

    stakes: frozenset[Stakes] = frozenset()
    categories: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    projects: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RuleScope:
    """The authenticated agents and the projects that a guardrail applies to; an empty set means all.

    An action that names no project is in the scope of every project: leaving the project out must not evade a rule.
    """

    agents: frozenset[str] = frozenset()
    projects: frozenset[str] = frozenset()


EVERY_ACTION = RuleMatch()
EVERYBODY = RuleScope()


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """A text with expressions between its parts: a part, an expression, a part, and so on, ending in a part."""

    parts: tuple[str, ...]
    expressions: tuple[RuleExpression, ...]

    @property
    def outline(self) -> str:
        """The text with `${…}` in the place of each expression, for those who may not read expressions."""
        return "${…}".join(self.parts)


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A rule: if the action matches and `when` is true, it is blocked, warned about or needs approval.

    From `expires` on, which is aware, the rule does nothing; None means never.
    """

    id: str
    name: str
    when: RuleExpression
    severity: Severity
    message: str
    suggestion: str | None
    description: str | None
    line: int
    match: RuleMatch = EVERY_ACTION
    scope: RuleScope = EVERYBODY
    enforcement: Enforcement = Enforcement.ENFORCE
    expires: datetime | None = None
    owner: str | None = None
    tags: tuple[str, ...] = ()
    approvers: tuple[str, ...] = ()
    """The agents that may approve, of those with the permission; empty for all of these."""
    message_template: TextTemplate | None = None
    """The message where it holds expressions; likewise the suggestion."""
    suggestion_template: TextTemplate | None = None

    def is_in_force(self, now: datetime | None) -> bool:
        """Return whether it is enabled and has not expired; without an instant nothing has."""
        expired = now is not None and self.expires is not None and self.expires <= now
        return self.enforcement is not Enforcement.DISABLED and not expired

    @property
    def expressions(self) -> Iterator[RuleExpression]:
        yield self.when
        for template in (self.message_template, self.suggestion_template):
            if template is not None:
                yield from template.expressions


@dataclass(frozen=True, slots=True)
class RulebookTest:
    """An action, and the guardrails of the same rulebook that must match.

    `expect_errors` are those that cannot be evaluated; `expect_allowed` and `expect_approval` None make no demand on
    the verdict.
    """

    name: str
    action: Action
    expect: frozenset[str]
    expect_errors: frozenset[str]
    expect_allowed: bool | None
    line: int
    expect_approval: bool | None = None


@dataclass(frozen=True, slots=True)
class ParsedRulebook:
    """A file of guardrails with their inputs and tests; `digest` is the SHA-256 of the file."""

    file: str
    name: str
    version: str
    owner: str | None
    inputs: Mapping[str, InputDeclaration]
    guardrails: tuple[Guardrail, ...]
    tests: tuple[RulebookTest, ...]
    digest: str
    extended: tuple[ParsedRulebook, ...] = ()
    """The rulebooks that it extends, and those that they extend, each once."""
    categories: tuple[str, ...] = ()
    """The categories that it declares."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All loaded rulebooks, in the order in which violations are reported."""

    rulebooks: tuple[ParsedRulebook, ...]

    @property
    def guardrails(self) -> tuple[Guardrail, ...]:
        return tuple(guardrail for rulebook in self.rulebooks for guardrail in rulebook.guardrails)

    @property
    def inputs(self) -> Mapping[str, InputDeclaration]:
        """All inputs by name; rulebooks that share one agree on it."""
        return {name: declared for rulebook in self.rulebooks for name, declared in rulebook.inputs.items()}

    @property
    def categories(self) -> Mapping[str, str]:
        """The declared categories by the form in which they are compared."""
        return {fold_name(name): name for rulebook in self.rulebooks for name in rulebook.categories}

    @property
    def version(self) -> str:
        """The rulebooks as `name@version`, and 12 hexadecimal digits that change with any content.

        For instance `default@2026.1+0123456789ab`.
        """
        named = sorted(f"{rulebook.name}@{rulebook.version}" for rulebook in self.rulebooks)
        more = [f"{len(named) - MAX_NAMED_RULEBOOKS} more"] if len(named) > MAX_NAMED_RULEBOOKS else []
        digests = "".join(sorted(rulebook.digest for rulebook in self.rulebooks))
        return f"{','.join(named[:MAX_NAMED_RULEBOOKS] + more)}+{hashlib.sha256(digests.encode()).hexdigest()[:12]}"
