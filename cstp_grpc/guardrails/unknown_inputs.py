"""Report what an action leaves unknown: keys that no guardrail knows, and all inputs that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cstp_grpc.enums import Reaction, Severity
from cstp_grpc.guardrails.compiled_guardrails import describe_missing_input
from cstp_grpc.guardrails.model import (
    UNDECLARED_INPUT,
    UNDECLARED_INPUT_ID,
    UNKNOWN_ACTION,
    UNKNOWN_ACTION_ID,
    IgnoredInput,
    InputDeclaration,
    Violation,
)


@dataclass(frozen=True, slots=True)
class UnknownInputPolicy:
    """What the server does about keys that no guardrail knows, and about actions of which it was told nothing."""

    undeclared: Reaction = Reaction.ALLOW
    unknown_action: Reaction = Reaction.ALLOW


ALLOW_UNKNOWN = UnknownInputPolicy()
"""Reports nothing, as in tests of rulebooks, which are about their rules."""


REACTION_SEVERITIES: Mapping[Reaction, Severity | None] = {
    Reaction.ALLOW: None,
    Reaction.WARN: Severity.WARN,
    Reaction.BLOCK: Severity.BLOCK,
}
MAX_NAMED_INPUTS = 5
"""Maximum number of inputs that a message names."""


class UnknownInputReporter:
    """Reports what an action leaves unknown, by a policy; `inputs` are those that any guardrail reads."""

    def __init__(self, policy: UnknownInputPolicy, inputs: Sequence[InputDeclaration]) -> None:
        self._undeclared = REACTION_SEVERITIES[policy.undeclared]
        severity = REACTION_SEVERITIES[policy.unknown_action]
        self._unknown_action = None if severity is None else unknown_action_violation(inputs, severity)

    def find_violations(self, ignored: Sequence[IgnoredInput], is_informed: bool, *, is_allowed: bool) -> Unknowns:
        """Return the violations and warnings for an action that guardrails allow, or do not."""
        if is_informed and not ignored:
            return NOTHING_UNKNOWN
        found = []
        if ignored and self._undeclared is not None:
            found.append(undeclared_input_violation(ignored, self._undeclared))
        # What is not allowed anyway is not taken to be harmless because nothing is said of it.
        if not is_informed and is_allowed and self._unknown_action is not None:
            found.append(self._unknown_action)
        violations = tuple(each for each in found if each.severity is Severity.BLOCK)
        return violations, tuple(each for each in found if each.severity is Severity.WARN)


Unknowns: TypeAlias = tuple[tuple[Violation, ...], tuple[Violation, ...]]
"""Violations and warnings."""
NOTHING_UNKNOWN: Unknowns = ((), ())


def undeclared_input_violation(ignored: Sequence[IgnoredInput], severity: Severity) -> Violation:
    """Return the violation for keys that no guardrail knows."""
    named = [
        f"{each.name} (did you mean {each.closest}?)" if each.closest else each.name
        for each in ignored[:MAX_NAMED_INPUTS]
    ]
    more = f" and {len(ignored) - MAX_NAMED_INPUTS} more" if len(ignored) > MAX_NAMED_INPUTS else ""
    return Violation(
        UNDECLARED_INPUT_ID,
        "Undeclared Input",
        f"No guardrail knows {', '.join(named)}{more}",
        severity,
        "Use the names of declared inputs, or leave these keys out",
        UNDECLARED_INPUT,
    )


def unknown_action_violation(inputs: Sequence[InputDeclaration], severity: Severity) -> Violation:
    """Return the violation for an action of which no guardrail was told anything; `inputs` are those that they read."""
    return Violation(
        UNKNOWN_ACTION_ID,
        "Unknown Action",
        "The action states none of the inputs that guardrails read, so they have judged what it is assumed to be",
        severity,
        "State what is true of the action",
        UNKNOWN_ACTION,
        tuple(map(describe_missing_input, inputs)),
    )
