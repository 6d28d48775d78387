"""Guardrails with their compiled expressions, in the batches in which they are evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from cstp_grpc.guardrails.cel_engine import CelEnvironment, CelPredicateBatch, CelProgram
from cstp_grpc.guardrails.cel_variables import RuleExpression
from cstp_grpc.guardrails.model import (
    Action,
    Guardrail,
    InputDeclaration,
    MissingInput,
    TextTemplate,
    Violation,
)
from cstp_grpc.guardrails.rule_selection import GuardrailGroup
from cstp_grpc.guardrails.text_templates import CompiledTemplate, compile_template

CONTEXT_PREFIX = "context."
"""Prefix of input names in expressions."""

BATCH_GUARDRAILS = 50
"""Guardrails per batch. Chosen: smaller batches need more engine calls; in a larger one, all rules are evaluated again
if one fails. SHARED_STEPS is MAX_STEPS divided by it."""
BATCH_CHARACTERS = 50_000
"""Maximum length of a batch's expressions together; the engine accepts 100 000."""


@dataclass(frozen=True, slots=True)
class CompiledGuardrail:
    """A guardrail with its position in the rule set and its compiled expressions.

    `violation` is the result if it matches, with its texts as they are written; `inputs` are the declared inputs that
    it reads, and `required` the variables of those that must be given.
    """

    position: int
    guardrail: Guardrail
    program: CelProgram
    violation: Violation
    inputs: Sequence[MissingInput]
    required: Sequence[str]
    message: CompiledTemplate | None
    suggestion: CompiledTemplate | None

    def lacks_input(self, variable: str | None, action: Action) -> bool:
        """Return whether a variable is an input that the guardrail reads and the action lacks."""
        return any(
            variable == CONTEXT_PREFIX + each.name and action.context.get(each.name) is None for each in self.inputs
        )

    def with_missing_inputs(self, violation: Violation, action: Action) -> Violation:
        """Return the violation with the inputs that the action lacks."""
        if not self.inputs:
            return violation
        missing = tuple(each for each in self.inputs if action.context.get(each.name) is None)
        return replace(violation, missing_inputs=missing) if missing else violation


MatchedRule: TypeAlias = tuple[CompiledGuardrail, Violation]


@dataclass(frozen=True, slots=True)
class GuardrailBatch:
    """Guardrails that are evaluated together."""

    rules: Sequence[CompiledGuardrail]
    selection: CelPredicateBatch


class GuardrailCompiler:
    """Compiles guardrails that read the given inputs."""

    def __init__(self, environment: CelEnvironment, inputs: Mapping[str, InputDeclaration]) -> None:
        self._environment = environment
        self._inputs = inputs

    def compile_group(self, group: GuardrailGroup) -> Sequence[GuardrailBatch]:
        """Compile the guardrails of a group."""
        rules = [self._compile(position, guardrail) for position, guardrail in group.guardrails]
        return [
            GuardrailBatch(part, self._environment.compile_batch([rule.guardrail.when for rule in part]))
            for part in batch_rules(rules)
        ]

    def _compile(self, position: int, guardrail: Guardrail) -> CompiledGuardrail:
        # The tested ones too: `!has(context.reviewer)` matches just because the caller has not sent it.
        declared = [self._inputs[name] for name in sorted(input_names_of([guardrail.when]))]
        return CompiledGuardrail(
            position,
            guardrail,
            self._environment.compile_one(guardrail.when),
            Violation(guardrail.id, guardrail.name, guardrail.message, guardrail.severity, guardrail.suggestion),
            [describe_missing_input(each) for each in declared],
            [CONTEXT_PREFIX + each.name for each in declared if each.is_required],
            self._compile_text(guardrail.message, guardrail.message_template),
            self._compile_text(guardrail.suggestion, guardrail.suggestion_template),
        )

    def _compile_text(self, text: str | None, template: TextTemplate | None) -> CompiledTemplate | None:
        return None if text is None or template is None else compile_template(text, template, self._environment)


def batch_rules(rules: Sequence[CompiledGuardrail]) -> Iterator[Sequence[CompiledGuardrail]]:
    """Yield guardrails in batches."""
    part: list[CompiledGuardrail] = []
    characters = 0
    for rule in rules:
        length = len(rule.guardrail.when.text)
        characters += length
        # Closed before the guardrail that would be too much. One alone always fits, by MAX_EXPRESSION_CHARACTERS.
        if part and (len(part) == BATCH_GUARDRAILS or characters > BATCH_CHARACTERS):
            yield part
            part, characters = [], length
        part.append(rule)
    if part:
        yield part


def describe_missing_input(declared: InputDeclaration) -> MissingInput:
    """Return how an input is described to those who have not given it."""
    return MissingInput(declared.name, declared.type, declared.description, declared.values)


def input_names_of(expressions: Sequence[RuleExpression]) -> frozenset[str]:
    """Return the names of the inputs that expressions read or test for presence."""
    return frozenset(
        name.removeprefix(CONTEXT_PREFIX)
        for expression in expressions
        for name in expression.values | expression.presences
        if name.startswith(CONTEXT_PREFIX)
    )
