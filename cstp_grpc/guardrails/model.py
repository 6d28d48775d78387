"""The model of guardrails: rulebooks, actions, verdicts and violations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cstp_grpc.enums import Severity, Stakes
from cstp_grpc.guardrails.cel_variables import RuleExpression
from cstp_grpc.guardrails.input_values import InputType

EVALUATION_ERROR = "EVALUATION_ERROR"
"""The code of a violation whose guardrail could not be evaluated."""


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
    """What is known of the intents of other agents that resemble an action.

    `ages` are the seconds since each was announced, for those that are shared, open and not blocked; `unreadable` is
    the reason if they are unknown, else None.
    """

    ages: tuple[float, ...] = ()
    unreadable: str | None = None


NO_INTENTS = IntentFacts()
"""For actions that resemble no intent."""
UNREAD_INTENTS = IntentFacts(unreadable="nobody has looked for them")
"""For actions whose related intents were not looked up; fails closed."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action to check; `confidence` is 0 to 1, `context` holds the guardrails' inputs as JSON values."""

    description: str
    category: str | None = None
    stakes: Stakes = Stakes.MEDIUM
    confidence: float | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    code: CodeFacts = NO_CODE
    intents: IntentFacts = UNREAD_INTENTS


@dataclass(frozen=True, slots=True)
class MissingInput:
    """An input that a rulebook declares and the action's context lacks."""

    name: str
    type: str
    description: str | None = None


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a rule set; `violations` block, `warnings` do not, `evaluated` counts the guardrails."""

    violations: tuple[Violation, ...]
    warnings: tuple[Violation, ...]
    evaluated: int
    rule_set_version: str
    allowed: bool
    """Whether nothing blocks, that is, whether there are no violations."""


MAX_NAMED_RULEBOOKS = 5
"""Maximum number of rulebooks that a version names."""


@dataclass(frozen=True, slots=True)
class InputDeclaration:
    """A value that rules read from the context; `default`, a JSON value, is used if the caller gives none."""

    name: str
    type: InputType
    default: Any
    description: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A rule: if `when` is true, the action is blocked or warned about."""

    id: str
    name: str
    when: RuleExpression
    severity: Severity
    message: str
    suggestion: str | None
    description: str | None
    line: int


@dataclass(frozen=True, slots=True)
class RulebookTest:
    """An action, and the guardrails of the same rulebook that must match.

    `expect_errors` are those that cannot be evaluated; `expect_allowed` None makes no demand on the verdict.
    """

    name: str
    action: Action
    expect: frozenset[str]
    expect_errors: frozenset[str]
    expect_allowed: bool | None
    line: int


@dataclass(frozen=True, slots=True)
class Rulebook:
    """A file of guardrails with their inputs and tests; `digest` is the SHA-256 of the file."""

    file: str
    name: str
    version: str
    owner: str | None
    inputs: Mapping[str, InputDeclaration]
    guardrails: tuple[Guardrail, ...]
    tests: tuple[RulebookTest, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All loaded rulebooks, in the order in which violations are reported."""

    rulebooks: tuple[Rulebook, ...]

    @property
    def guardrails(self) -> tuple[Guardrail, ...]:
        """All guardrails."""
        return tuple(guardrail for rulebook in self.rulebooks for guardrail in rulebook.guardrails)

    @property
    def inputs(self) -> Mapping[str, InputDeclaration]:
        """All inputs by name; rulebooks that share one agree on it."""
        return {name: declared for rulebook in self.rulebooks for name, declared in rulebook.inputs.items()}

    @property
    def version(self) -> str:
        """The rulebooks as `name@version`, and 12 hexadecimal digits that change with any content.

        For instance `default@2026.1+0123456789ab`.
        """
        named = sorted(f"{rulebook.name}@{rulebook.version}" for rulebook in self.rulebooks)
        more = [f"{len(named) - MAX_NAMED_RULEBOOKS} more"] if len(named) > MAX_NAMED_RULEBOOKS else []
        digests = "".join(sorted(rulebook.digest for rulebook in self.rulebooks))
        return f"{','.join(named[:MAX_NAMED_RULEBOOKS] + more)}+{hashlib.sha256(digests.encode()).hexdigest()[:12]}"
