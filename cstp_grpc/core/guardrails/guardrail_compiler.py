"""Compile guardrails: groups with the same conditions, and batches that are evaluated together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from cstp_grpc.core.guardrails import model
from cstp_grpc.core.guardrails.cel_engine import CelEnvironment, CelPredicateBatch
from cstp_grpc.core.guardrails.cel_text import RuleExpressionError
from cstp_grpc.core.guardrails.cel_variables import RuleExpression
from cstp_grpc.core.guardrails.evaluation_plan import CONTEXT_PREFIX, CompiledGuardrail, GuardrailBatch, GuardrailGroup
from cstp_grpc.core.guardrails.text_templates import CompiledTemplate


def find_expired_guardrails(guardrails: Iterable[model.Guardrail], now: datetime) -> list[model.Guardrail]:
    return [item for item in guardrails if item.expires is not None and item.expires <= now]


BATCH_GUARDRAILS = 50
"""Guardrails per batch. Chosen: smaller batches need more engine calls; in a larger one, all rules are evaluated again
if one fails. SHARED_STEPS is MAX_STEPS divided by it."""
BATCH_CHARACTERS = 50_000
"""Maximum length of a batch's expressions together; the engine accepts 100 000."""


class GuardrailCompiler:
    """Compiles guardrails that read the given inputs."""

    def __init__(self, environment: CelEnvironment, inputs: Mapping[str, model.InputDeclaration]) -> None:
        self._environment = environment
        self._inputs = inputs

    def compile_group(self, group: GuardrailGroup) -> Sequence[GuardrailBatch]:
        rules = [self._compile(position, guardrail) for position, guardrail in group.guardrails]
        return [GuardrailBatch(part, self._compile_batch(part)) for part in batch_rules(rules)]

    def _compile_batch(self, rules: Sequence[CompiledGuardrail]) -> CelPredicateBatch:
        try:
            return self._environment.compile_batch(tuple(rule.guardrail.when for rule in rules))
        except RuleExpressionError:
            # Each alone, for the message about the one that fails.
            for rule in rules:
                _ = rule.program.program
            raise

    def _compile(self, position: int, guardrail: model.Guardrail) -> CompiledGuardrail:
        # The tested ones too: `!has(context.reviewer)` matches just because the caller has not sent it.
        declared = [self._inputs[name] for name in sorted(input_names_of([guardrail.when]))]
        return CompiledGuardrail(
            position,
            guardrail,
            self._environment.defer_one(guardrail.when),
            model.Violation(
                guardrail.id,
                guardrail.name,
                guardrail.message,
                guardrail.severity,
                guardrail.suggestion,
                approvers=guardrail.approvers,
            ),
            [describe_missing_input(each) for each in declared],
            [CONTEXT_PREFIX + each.name for each in declared if each.is_required],
            self._compile_text(guardrail.message_template),
            self._compile_text(guardrail.suggestion_template),
        )

    def _compile_text(self, template: model.TextTemplate | None) -> CompiledTemplate | None:
        if template is None:
            return None
        return CompiledTemplate(template, [self._environment.compile_one(part) for part in template.expressions])


def batch_rules(rules: Sequence[CompiledGuardrail]) -> Iterator[Sequence[CompiledGuardrail]]:
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


def describe_missing_input(declared: model.InputDeclaration) -> model.MissingInput:
    return model.MissingInput(declared.name, declared.type, declared.description, declared.values)


def input_names_of(expressions: Sequence[RuleExpression]) -> frozenset[str]:
    """Return the names of the inputs that expressions read or test for presence."""
    return frozenset(
        name.removeprefix(CONTEXT_PREFIX)
        for expression in expressions
        for name in expression.values | expression.presences
        if name.startswith(CONTEXT_PREFIX)
    )
