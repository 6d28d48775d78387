"""What is judged and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cstp_grpc.vocabulary import Severity, Stakes

EVALUATION_ERROR = "EVALUATION_ERROR"
"""The code of a violation whose guardrail could not be evaluated."""


@dataclass(frozen=True, slots=True)
class CodeRules:
    """What is written down about the code that an action is about: items of lists, each on one line.

    `paths` are those that were named; `unreadable` says why something that is written down about them could not be
    read, None where all of it was.
    """

    paths: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    ask_first: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    pitfalls: tuple[str, ...] = ()
    unreadable: str | None = None


NO_CODE = CodeRules()
"""For actions that name no code."""


@dataclass(frozen=True, slots=True)
class Action:
    """What an agent wants to do; `confidence` is 0 to 1, `context` holds the guardrails' inputs as JSON values."""

    description: str
    category: str | None = None
    stakes: Stakes = Stakes.MEDIUM
    confidence: float | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    code: CodeRules = NO_CODE


@dataclass(frozen=True, slots=True)
class MissingInput:
    """An input that a rulebook declares and the action's context does not give."""

    name: str
    type: str
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """A guardrail that matched, or, with `code` EVALUATION_ERROR, one that could not be evaluated.

    `missing_inputs` are those that the guardrail reads and the action does not give, by name.
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
    """The judgement of a whole rule set; `violations` block, `warnings` do not, `evaluated` counts the guardrails."""

    violations: tuple[Violation, ...]
    warnings: tuple[Violation, ...]
    evaluated: int
    rule_set_version: str

    @property
    def allowed(self) -> bool:
        """Whether nothing blocks."""
        return not self.violations
