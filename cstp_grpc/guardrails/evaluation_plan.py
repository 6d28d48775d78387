"""What has to be read and evaluated for the guardrails that an action can concern, with their compiled expressions.

Variables that are no inputs are the action, its code, the related intents and the past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from cstp_grpc.guardrails.cel_cost import MAX_STEPS, MAX_TOTAL_STEPS, SHARED_STEPS, measure_size, measure_sizes
from cstp_grpc.guardrails.cel_engine import (
    LARGEST_SIZE,
    STAKES_ORDER,
    CelEnvironment,
    CelEvaluationError,
    CelPredicateBatch,
    CelProgram,
)
from cstp_grpc.guardrails.cel_variables import (
    INTENTS_VARIABLE,
    MENTIONS_VARIABLE,
    NOW_VARIABLE,
    RuleExpression,
    normalize_words,
    presence_variable,
)
from cstp_grpc.guardrails.history import HISTORY_SCOPES, HistoryQuery, HistoryScope
from cstp_grpc.guardrails.input_values import (
    CONVERTERS,
    ConvertValue,
    InputValueError,
    accept_values,
    to_number,
    to_string,
)
from cstp_grpc.guardrails.model import (
    Action,
    CodeFacts,
    Guardrail,
    InputDeclaration,
    MissingInput,
    TextTemplate,
    Violation,
)
from cstp_grpc.guardrails.rule_selection import GuardrailGroup
from cstp_grpc.guardrails.text_templates import CompiledTemplate, compile_template

ReadVariable = Callable[[Action], object]
"""Returns a variable's value, or None if it is absent. Raises InputValueError."""


def read_now(action: Action) -> object:
    """Return the instant of the check. Raises InputValueError if there is none, as in tests that fix none."""
    if action.now is None:
        raise InputValueError("is not given; tests fix it with `now`")
    return action.now


def read_words(action: Action) -> object:
    """Return the words of the description and of the announced context. Raises InputValueError."""
    return normalize_words(to_string(f"{action.description} {action.announced_context}"))


def read_category(action: Action) -> object:
    """Return the action's category, or None. Raises InputValueError."""
    return None if action.category is None else to_string(action.category)


def read_confidence(action: Action) -> object:
    """Return the action's confidence, or None. Raises InputValueError."""
    return None if action.confidence is None else to_number(action.confidence)


ACTION_READERS: Mapping[str, ReadVariable] = {
    "action.description": lambda action: to_string(action.description),
    "action.category": read_category,
    "action.stakes": lambda action: STAKES_ORDER[action.stakes],
    "action.confidence": read_confidence,
    "action.project": lambda action: None if action.project is None else to_string(action.project),
    "agent.id": lambda action: to_string(action.agent),
    "agent.permissions": lambda action: sorted(action.permissions),
    NOW_VARIABLE: read_now,
}


def code_reader(texts: Callable[[CodeFacts], tuple[str, ...]]) -> ReadVariable:
    """Return a function that reads facts about the action's code; incomplete facts are an error."""

    def read(action: Action) -> object:
        # Even if some notes were read: the one that matters may be among the others.
        if action.code.unreadable is not None:
            raise InputValueError(f"cannot be read: {action.code.unreadable}")
        return [to_string(text) for text in texts(action.code)]

    return read


CODE_READERS: Mapping[str, ReadVariable] = {
    # The paths come from the call, and so are known even if nothing about them can be read.
    "code.paths": lambda action: [to_string(path) for path in action.code.paths],
    "code.boundaries.never": code_reader(lambda code: code.never),
    "code.boundaries.ask_first": code_reader(lambda code: code.ask_first),
    "code.boundaries.always": code_reader(lambda code: code.always),
    "code.checks": code_reader(lambda code: code.checks),
    "code.pitfalls": code_reader(lambda code: code.pitfalls),
}


def read_related_ages(action: Action) -> object:
    """Return the ages of the related intents in seconds. Raises InputValueError if they are unknown."""
    if action.intents.unreadable is not None:
        raise InputValueError(f"cannot be read: {action.intents.unreadable}")
    return list(action.intents.ages)


def history_reader(scopes: Sequence[HistoryScope], queries: Sequence[HistoryQuery]) -> ReadVariable:
    """Return a function that reads the answers to queries of the same scopes, by their keys."""

    def read(action: Action) -> object:
        # Before it is asked whether anything was read: who states no category must be told that.
        if (missing := action.history_subject.find_missing(scopes)) is not None:
            raise InputValueError(f"needs action.{missing}, which is missing")
        if action.history.unreadable is not None:
            raise InputValueError(f"cannot be read: {action.history.unreadable}")
        return {query.key: action.history.count(query) for query in queries}

    return read


HISTORY_READERS: Mapping[str, ReadVariable] = {
    name: history_reader(scopes, ()) for name, scopes in HISTORY_SCOPES.items()
}
"""Readers of no answers, which say why there are none."""
LARGE_READERS: Mapping[str, ReadVariable] = {
    **CODE_READERS,
    INTENTS_VARIABLE: read_related_ages,
    MENTIONS_VARIABLE: read_words,
}
"""The readers of what may be as large as a context, and counts as such."""
FACT_READERS: Mapping[str, ReadVariable] = {**ACTION_READERS, **LARGE_READERS, **HISTORY_READERS}
"""The readers of everything but the inputs."""


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
            Violation(
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

    def _compile_text(self, template: TextTemplate | None) -> CompiledTemplate | None:
        return None if template is None else compile_template(template, self._environment)


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


InputReader: TypeAlias = tuple[str, str, object, ConvertValue]
"""The variable of an input, its name in the context, its converted default, and what converts a value."""

ApartRules: TypeAlias = Mapping[str, CelEvaluationError | None]
"""The guardrails that are not evaluated in a batch, by id; with the reason, those that are not evaluated at all."""


NOTHING_APART: ApartRules = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """The guardrails that an action can concern, and what has to be read for them.

    `presence_tests` are the variable, root and last part of each name that is tested for presence; `light_size` is the
    size up to which all guardrails may be evaluated in batches; `demanding` are those that read required inputs.
    """

    batches: Sequence[GuardrailBatch]
    readers: Sequence[tuple[str, ReadVariable]]
    input_readers: Sequence[InputReader]
    presence_tests: Sequence[tuple[str, str, str]]
    large_names: Sequence[str]
    light_size: int
    demanding: Sequence[CompiledGuardrail]
    history: Sequence[HistoryQuery]

    def read_variables(self, action: Action) -> tuple[Mapping[str, object], tuple[str, ...]]:
        """Return the variables that guardrails read, and the names of the inputs that took their defaults.

        Variables that are absent or of a wrong type are left out.
        """
        values: dict[str, object] = {}
        for name, read in self.readers:
            try:
                value = read(action)
            except InputValueError:
                # Left out: a rule that reads it then fails in the engine, and counts as matched.
                continue
            if value is not None:
                values[name] = value
        # Inlined: rulebooks declare many inputs, of which a call has few, and a function call for each would take most
        # of the time of a check.
        context = action.context
        assumed = []
        for name, key, default, convert in self.input_readers:
            value = context.get(key)
            if value is None:
                if default is not None:
                    assumed.append(key)
                    values[name] = default
            else:
                try:
                    values[name] = convert(value)
                except InputValueError:
                    continue
        for variable, root, last in self.presence_tests:
            # Present and not null, even if the value is invalid.
            value = context.get(last) if root == "context" else getattr(action, last)
            values[variable] = value is not None
        return values, tuple(assumed)

    def may_need_apart(self, size: int) -> bool:
        """Return whether any guardrail may not be evaluated in its batch, for a context and defaults of this size."""
        return size > self.light_size or bool(self.large_names) or bool(self.demanding)

    def find_apart_rules(self, values: Mapping[str, object], action: Action, size: int) -> ApartRules:
        """Return the guardrails that cannot be evaluated in a batch; `size` is that of the context and defaults."""
        # Facts that the server looks up: they come on top of the context, whose size is known already.
        for name in self.large_names:
            value = values.get(name)
            # A plain text, the usual case, at once.
            if isinstance(value, str) and value.isascii():
                size += 1 + len(value)
            else:
                size += measure_size(value).total
        # The cheap bound first: almost all actions are smaller than what every rule takes in a batch.
        apart = self._find_heavy_rules(values, size) if size > self.light_size else {}
        for rule in self.demanding:
            for name in rule.required:
                if action.context.get(name.removeprefix(CONTEXT_PREFIX)) is None:
                    apart[rule.guardrail.id] = CelEvaluationError("a required input is missing", name)
                    break
        return apart

    def _find_heavy_rules(self, values: Mapping[str, object], size: int) -> dict[str, CelEvaluationError | None]:
        """Return the guardrails that take too many steps for a batch."""
        # The exact sizes: the bound that led here takes each variable to be as large as all of them together.
        sizes = measure_sizes(values)
        found: dict[str, CelEvaluationError | None] = {}
        total = 0
        for batch in self.batches:
            for rule in batch.rules:
                steps = rule.program.estimate_steps(sizes) if size > rule.program.light_size else 0
                # Fail closed: a caller must not get past a guardrail by sending more than it can take.
                if steps > MAX_STEPS:
                    text = f"it may take more than {MAX_STEPS} steps on what it reads"
                    found[rule.guardrail.id] = CelEvaluationError(text)
                elif steps > SHARED_STEPS:
                    found[rule.guardrail.id] = None
                    total += steps
        if total <= MAX_TOTAL_STEPS:
            return found
        # All of them, so that the order of the rules decides nothing.
        text = f"with the other guardrails it may take more than {MAX_TOTAL_STEPS} steps on what they read"
        return {identifier: error or CelEvaluationError(text) for identifier, error in found.items()}


def make_plan(batches: Sequence[GuardrailBatch], inputs: Mapping[str, InputDeclaration]) -> EvaluationPlan:
    """Return the plan for the guardrails in these batches."""
    rules = [rule for batch in batches for rule in batch.rules]
    expressions = [expression for rule in rules for expression in rule.guardrail.expressions]
    read = sorted({name for expression in expressions for name in expression.values})
    tested = sorted({name for expression in expressions for name in expression.presences})
    history = sorted({query for expression in expressions for query in expression.history})
    readers = {**FACT_READERS, **group_history_readers(history)} if history else FACT_READERS
    return EvaluationPlan(
        batches=batches,
        readers=[(name, readers[name]) for name in read if name in readers],
        input_readers=[
            input_reader(inputs[name.removeprefix(CONTEXT_PREFIX)]) for name in read if name.startswith(CONTEXT_PREFIX)
        ],
        presence_tests=[(presence_variable(name), *split_variable(name)) for name in tested],
        large_names=[name for name in read if name in LARGE_READERS],
        light_size=min((rule.program.light_size for rule in rules), default=LARGEST_SIZE),
        demanding=[rule for rule in rules if rule.required],
        history=history,
    )


def group_history_readers(queries: Sequence[HistoryQuery]) -> dict[str, ReadVariable]:
    """Return the readers of the variables that hold the answers to queries."""
    grouped: dict[str, list[HistoryQuery]] = {}
    for query in queries:
        grouped.setdefault(query.variable, []).append(query)
    return {name: history_reader(HISTORY_SCOPES[name], asked) for name, asked in grouped.items()}


def input_reader(declared: InputDeclaration) -> InputReader:
    """Return how an input is read."""
    convert = input_converter(declared)
    default = None if declared.default is None else convert(declared.default)
    return CONTEXT_PREFIX + declared.name, declared.name, default, convert


def input_converter(declared: InputDeclaration) -> ConvertValue:
    """Return the function that checks and converts the values of an input."""
    convert = CONVERTERS[declared.type]
    return accept_values(convert, declared.values) if declared.values else convert


def split_variable(name: str) -> tuple[str, str]:
    """Return the root and the rest of a dotted name."""
    root, _, rest = name.partition(".")
    return root, rest
