"""Evaluate actions against a rule set and record each check.

A guardrail that cannot be evaluated counts as matched (fail closed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from cstp_grpc.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.enums import Severity
from cstp_grpc.errors import GuardrailEvalFailed, error_reason
from cstp_grpc.guardrails.cel_cost import MAX_STEPS, SHARED_STEPS, measure_size
from cstp_grpc.guardrails.cel_engine import (
    LARGEST_SIZE,
    STAKES_ORDER,
    CelActivation,
    CelEnvironment,
    CelEvaluationError,
    CelPredicate,
    CelPredicateBatch,
)
from cstp_grpc.guardrails.cel_variables import INTENTS_VARIABLE, presence_variable
from cstp_grpc.guardrails.input_values import CONVERTERS, InputValueError, check_context_bounds, to_number, to_string
from cstp_grpc.guardrails.model import (
    EVALUATION_ERROR,
    NO_INTENTS,
    Action,
    CodeFacts,
    Guardrail,
    IntentFacts,
    MissingInput,
    RuleSet,
    Verdict,
    Violation,
)

CONTEXT_PREFIX = "context."
"""Prefix of input names in expressions."""

BATCH_GUARDRAILS = 50
"""Guardrails per batch. Chosen: smaller batches need more engine calls; in a larger one, all rules are evaluated again
if one fails. SHARED_STEPS is MAX_STEPS divided by it."""
BATCH_CHARACTERS = 50_000
"""Maximum length of a batch's expressions together; the engine accepts 100 000."""

ReadVariable = Callable[[Action], object]
"""Returns a variable's value, or None if it is absent. Raises InputValueError."""

InputReader: TypeAlias = tuple[str, str, object, Callable[[object], object]]
"""The variable of an input, its name in the context, its converted default, and what converts a value."""


@dataclass(frozen=True, slots=True)
class CompiledGuardrail:
    """A guardrail with its compiled expression.

    `violation` is the result if it matches; `inputs` are the declared inputs that it reads.
    """

    guardrail: Guardrail
    predicate: CelPredicate
    violation: Violation
    inputs: Sequence[MissingInput]

    def lacks_input(self, variable: str | None, action: Action) -> bool:
        """Return whether a variable is an input that the guardrail reads and the action lacks."""
        return any(
            variable == CONTEXT_PREFIX + each.name and action.context.get(each.name) is None for each in self.inputs
        )

    def with_missing_inputs(self, violation: Violation, action: Action) -> Violation:
        """Return the violation with the inputs that the action lacks."""
        missing = tuple(each for each in self.inputs if action.context.get(each.name) is None)
        return replace(violation, missing_inputs=missing) if missing else violation


@dataclass(frozen=True, slots=True)
class GuardrailBatch:
    """Guardrails that are evaluated together."""

    rules: Sequence[CompiledGuardrail]
    selection: CelPredicateBatch


class GuardrailEvaluator:
    """Evaluates actions against a rule set. Thread-safe."""

    def __init__(self, rule_set: RuleSet) -> None:
        self._inputs = rule_set.inputs
        self._environment = CelEnvironment({name: declared.type for name, declared in self._inputs.items()})
        guardrails = rule_set.guardrails
        # Immutable, and so shared by all checks in which nothing matches, which are almost all.
        self._clear = Verdict((), (), len(guardrails), rule_set.version, allowed=True)
        self._batches = [self._compile_batch(part) for part in batch_guardrails(guardrails)]
        read = sorted({name for guardrail in guardrails for name in guardrail.when.values})
        self._readers = [(name, FACT_READERS[name]) for name in read if name in FACT_READERS]
        self.reads_intents = INTENTS_VARIABLE in read
        """Whether any guardrail reads the related intents of other agents."""
        self._input_readers = [self._input_reader(name) for name in read if name.startswith(CONTEXT_PREFIX)]
        self._light_size = min(
            (rule.predicate.light_size for batch in self._batches for rule in batch.rules), default=LARGEST_SIZE
        )
        # The size of all defaults, and 2 for the values that description and category are.
        self._fixed_size = 2 + sum(measure_size(declared.default).total for declared in self._inputs.values())
        self._list_names = [name for name in read if name in LIST_READERS]
        tested = sorted({name for guardrail in guardrails for name in guardrail.when.presences})
        self._presence_tests = [(presence_variable(name), *name.partition(".")[::2]) for name in tested]
        """The variable, root and last part of each name that is tested for presence."""

    def evaluate(self, action: Action) -> Verdict:
        """Return the verdict on an action.

        Raises InvalidArgument if the context is nested too deeply or too large.
        """
        size = (
            check_context_bounds(action.context)
            + len(action.description)
            + len(action.category or "")
            + self._fixed_size
        )
        values = self._read_variables(action)
        # Facts that the server looks up: they come on top of the context, whose size is known already.
        for name in self._list_names:
            if name in values:
                size += measure_size(values[name]).total
        # The cheap bound first: almost all actions are smaller than what every rule takes in a batch.
        heavy = self._find_heavy_rules(values, size) if size > self._light_size else {}
        bound = self._environment.bind(values)
        matched: list[Violation] = []
        for batch in self._batches:
            # The usual case, one engine call for fifty rules. A batch with a heavy rule, or in which any rule fails, is
            # evaluated rule by rule, so that each failure is reported for its own rule.
            is_light = not heavy or heavy.keys().isdisjoint(rule.guardrail.id for rule in batch.rules)
            positions = batch.selection.matching_positions(bound) if is_light else None
            if positions is None:
                matched += [
                    violation for rule in batch.rules for violation in self._evaluate_alone(rule, bound, action, heavy)
                ]
            elif positions:
                for position in positions:
                    rule = batch.rules[position]
                    matched.append(rule.with_missing_inputs(rule.violation, action) if rule.inputs else rule.violation)
        if not matched:
            return self._clear
        violations: list[Violation] = []
        warnings: list[Violation] = []
        for violation in matched:
            (violations if violation.severity is Severity.BLOCK else warnings).append(violation)
        known = self._clear
        return Verdict(
            tuple(violations), tuple(warnings), known.evaluated, known.rule_set_version, allowed=not violations
        )

    def _compile_batch(self, guardrails: Sequence[Guardrail]) -> GuardrailBatch:
        rules = [
            CompiledGuardrail(
                item, self._environment.compile_one(item.when), violation_of_guardrail(item), self._inputs_of(item)
            )
            for item in guardrails
        ]
        return GuardrailBatch(rules, self._environment.compile_batch([item.when for item in guardrails]))

    def _inputs_of(self, guardrail: Guardrail) -> Sequence[MissingInput]:
        """Return the declared inputs that a guardrail reads or tests for presence, by name."""
        # The tested ones too: `!has(context.reviewer)` matches just because the caller has not sent it.
        names = guardrail.when.values | guardrail.when.presences
        read = {name.removeprefix(CONTEXT_PREFIX) for name in names if name.startswith(CONTEXT_PREFIX)}
        declared = [self._inputs[name] for name in sorted(read)]
        return [MissingInput(each.name, each.type, each.description) for each in declared]

    def _read_variables(self, action: Action) -> Mapping[str, object]:
        """Return the variables that guardrails read, without those that are absent or of a wrong type."""
        values: dict[str, object] = {}
        for name, read in self._readers:
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
        for name, key, default, convert in self._input_readers:
            value = context.get(key)
            if value is None:
                value = default
            else:
                try:
                    value = convert(value)
                except InputValueError:
                    continue
            if value is not None:
                values[name] = value
        for variable, root, last in self._presence_tests:
            # Present and not null, even if the value is invalid.
            value = context.get(last) if root == "context" else getattr(action, last)
            values[variable] = value is not None
        return values

    def _find_heavy_rules(self, values: Mapping[str, object], size: int) -> Mapping[str, int]:
        """Return the cost of guardrails that must be evaluated alone, or not at all, by guardrail id."""
        # The exact sizes: the bound that led here takes each variable to be as large as all of them together.
        sizes = {name: measure_size(value) for name, value in values.items()}
        rules = (rule for batch in self._batches for rule in batch.rules if size > rule.predicate.light_size)
        steps = {rule.guardrail.id: rule.predicate.estimate_steps(sizes) for rule in rules}
        return {identifier: count for identifier, count in steps.items() if count > SHARED_STEPS}

    def _evaluate_alone(
        self, rule: CompiledGuardrail, bound: CelActivation, action: Action, heavy: Mapping[str, int]
    ) -> Iterator[Violation]:
        # Fail closed: a caller must not get past a guardrail by sending more than it can take.
        if heavy.get(rule.guardrail.id, 0) > MAX_STEPS:
            error = CelEvaluationError(f"it may take more than {MAX_STEPS} steps on what it reads")
            yield self._error_violation(rule.guardrail, error, action)
            return
        try:
            if rule.predicate.evaluate(bound):
                yield rule.with_missing_inputs(rule.violation, action)
        except CelEvaluationError as error:
            violation = self._error_violation(rule.guardrail, error, action)
            # Missing inputs are named only if one of them caused the failure; otherwise sending them would not help.
            yield rule.with_missing_inputs(violation, action) if rule.lacks_input(error.variable, action) else violation

    def _error_violation(self, guardrail: Guardrail, error: CelEvaluationError, action: Action) -> Violation:
        if error.variable is None:
            reason = error.message
            suggestion = f"Check what the guardrail reads: {', '.join(sorted(guardrail.when.values))}"
        else:
            reason = f"{error.variable} {self._fault(error.variable, action)}"
            suggestion = self._remedy(error.variable)
        return Violation(
            guardrail.id,
            guardrail.name,
            f"Cannot be evaluated: {reason}",
            guardrail.severity,
            suggestion,
            EVALUATION_ERROR,
        )

    def _fault(self, name: str, action: Action) -> str:
        """Return why a variable has no value."""
        try:
            if name.startswith(CONTEXT_PREFIX):
                declared = self._inputs[name.removeprefix(CONTEXT_PREFIX)]
                if (value := action.context.get(declared.name)) is not None:
                    CONVERTERS[declared.type](value)
            else:
                FACT_READERS[name](action)
        except InputValueError as error:
            return str(error)
        return "is missing and has no default" if name.startswith("context.") else "is missing"

    def _remedy(self, name: str) -> str:
        if name in CODE_READERS:
            return "Make what governs the paths readable, or ask a person"
        if name == INTENTS_VARIABLE:
            return "Try again later, or ask a person"
        declared = self._inputs.get(name.removeprefix("context."))
        if declared is None:
            return f"Provide {name}"
        about = f": {declared.description}" if declared.description else ""
        return f"Provide {name} as a {declared.type}{about}"

    def _input_reader(self, name: str) -> InputReader:
        declared = self._inputs[name.removeprefix(CONTEXT_PREFIX)]
        convert = CONVERTERS[declared.type]
        return name, declared.name, None if declared.default is None else convert(declared.default), convert


def batch_guardrails(guardrails: Sequence[Guardrail]) -> Iterator[Sequence[Guardrail]]:
    """Yield the guardrails in batches."""
    part: list[Guardrail] = []
    characters = 0
    for guardrail in guardrails:
        characters += len(guardrail.when.text)
        # Closed before the guardrail that would be too much. One alone always fits, by MAX_EXPRESSION_CHARACTERS.
        if part and (len(part) == BATCH_GUARDRAILS or characters > BATCH_CHARACTERS):
            yield part
            part, characters = [], len(guardrail.when.text)
        part.append(guardrail)
    if part:
        yield part


def violation_of_guardrail(guardrail: Guardrail) -> Violation:
    """Return the violation that a matching guardrail causes."""
    return Violation(guardrail.id, guardrail.name, guardrail.message, guardrail.severity, guardrail.suggestion)


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


LIST_READERS: Mapping[str, ReadVariable] = {**CODE_READERS, INTENTS_VARIABLE: read_related_ages}
FACT_READERS: Mapping[str, ReadVariable] = {**ACTION_READERS, **LIST_READERS}
"""The readers of everything but the inputs."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check."""

    verdict: Verdict
    evaluated_at: datetime


def verdict_audit_fields(verdict: Verdict | None) -> dict[str, Any]:
    """Return the fields of an audit entry that record a verdict; none without one."""
    if verdict is None:
        return {}
    return {
        "allowed": verdict.allowed,
        "violations": tuple(map(GUARDRAIL_ID, verdict.violations)),
        "warnings": tuple(map(GUARDRAIL_ID, verdict.warnings)),
        "evaluated": verdict.evaluated,
        "rule_set_version": verdict.rule_set_version,
    }


GUARDRAIL_ID = attrgetter("guardrail_id")


class IntentFactsReader(Protocol):
    """Looks up which intents of other agents resemble an action."""

    async def read_facts(self, text: str, caller: str, reader: str) -> IntentFacts:
        """Return the facts for an action in words.

        The intents are those of other agents than `caller` that `reader` may read. Facts that cannot be read say why.
        """


class NoRelatedIntents:
    """Knows no intents; for checkers whose actions resemble none."""

    async def read_facts(self, text: str, caller: str, reader: str) -> IntentFacts:  # noqa: ARG002
        """Return that there are none."""
        return NO_INTENTS


class GuardrailChecker:
    """Evaluates actions against the rule set, if there is one, and records the checks."""

    def __init__(
        self,
        evaluator: GuardrailEvaluator | None,
        sink: AuditSink,
        clock: Callable[[], datetime],
        intents: IntentFactsReader | None = None,
    ) -> None:
        self._evaluator = evaluator
        self._sink = sink
        self._clock = clock
        self._intents = intents or NoRelatedIntents()

    @property
    def reads_intents(self) -> bool:
        """Whether any guardrail reads the related intents, which the action must have then."""
        return self._evaluator is not None and self._evaluator.reads_intents

    def judge(self, action: Action) -> Verdict:
        """Return the verdict without recording it. Raises GuardrailEvalFailed and InvalidArgument."""
        if self._evaluator is None:
            raise GuardrailEvalFailed("There is no usable rule set")
        return self._evaluator.evaluate(action)

    async def judge_and_record(
        self, action: Action, caller: str, claimed_agent: str | None, request_id: str, reader: str | None = None
    ) -> CheckResult:
        """Return the verdict after recording it; a failed check is recorded too, with the reason.

        `caller` is the authenticated agent, `claimed_agent` the one that the request names, which is never trusted.
        Related intents are those that `reader` may read; None means the caller. The evaluation is short enough to run
        on the event loop; the record is awaited. Raises GuardrailEvalFailed, InvalidArgument, and Unavailable if the
        record cannot be written.
        """
        verdict: Verdict | None = None
        failure: Exception | None = None
        try:
            # The lookup is a search, which rule sets that do not ask for intents need not wait for.
            if self.reads_intents:
                facts = await self._intents.read_facts(action.description, caller, caller if reader is None else reader)
                action = replace(action, intents=facts)
            verdict = self.judge(action)
        except Exception as error:  # noqa: BLE001 - it is raised once it is on record
            failure = error
        evaluated_at = self._clock()
        # Recorded before the caller gets the verdict: if this fails or the process is killed, the action was not
        # allowed.
        await self._sink.write(
            AuditEntry(
                timestamp=evaluated_at,
                event=AuditEvent.GUARDRAIL_CHECK,
                requesting_agent=caller,
                request_id=request_id,
                claimed_agent=claimed_agent,
                action=action.description,
                error=None if failure is None else error_reason(failure),
                **verdict_audit_fields(verdict),
            )
        )
        if failure is not None:
            raise failure
        assert verdict is not None
        return CheckResult(verdict, evaluated_at)
