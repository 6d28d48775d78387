"""Evaluate actions against a rule set.

A guardrail that cannot be evaluated counts as matched (fail closed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from cstp_grpc.enums import Enforcement, Severity
from cstp_grpc.guardrails.action_variables import CODE_READERS, FACT_READERS, LIST_READERS
from cstp_grpc.guardrails.cel_cost import MAX_STEPS, SHARED_STEPS, measure_size
from cstp_grpc.guardrails.cel_engine import (
    LARGEST_SIZE,
    CelActivation,
    CelEnvironment,
    CelEvaluationError,
    CelPredicate,
    CelPredicateBatch,
)
from cstp_grpc.guardrails.cel_variables import INTENTS_VARIABLE, presence_variable
from cstp_grpc.guardrails.input_values import CONVERTERS, InputValueError, check_context_bounds
from cstp_grpc.guardrails.model import (
    EVALUATION_ERROR,
    Action,
    Guardrail,
    MissingInput,
    RuleSet,
    Verdict,
    Violation,
)
from cstp_grpc.guardrails.rule_selection import GuardrailGroup, RuleSelector, group_guardrails

CONTEXT_PREFIX = "context."
"""Prefix of input names in expressions."""

BATCH_GUARDRAILS = 50
"""Guardrails per batch. Chosen: smaller batches need more engine calls; in a larger one, all rules are evaluated again
if one fails. SHARED_STEPS is MAX_STEPS divided by it."""
BATCH_CHARACTERS = 50_000
"""Maximum length of a batch's expressions together; the engine accepts 100 000."""

InputReader: TypeAlias = tuple[str, str, object, Callable[[object], object]]
"""The variable of an input, its name in the context, its converted default, and what converts a value."""


@dataclass(frozen=True, slots=True)
class CompiledGuardrail:
    """A guardrail with its position in the rule set and its compiled expression.

    `violation` is the result if it matches; `inputs` are the declared inputs that it reads.
    """

    position: int
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
        if not self.inputs:
            return violation
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
        groups = group_guardrails(rule_set.guardrails)
        self._selector = RuleSelector(groups)
        self._groups = [self._compile_group(group) for group in groups]
        # Immutable, and so shared by all checks in which nothing matches, which are almost all; one for each time
        # between two expiries, since expired guardrails are not counted.
        self._clear = [
            Verdict((), (), count, rule_set.version, allowed=True) for count in self._selector.count_in_force()
        ]
        guardrails = [guardrail for group in groups for _, guardrail in group.guardrails]
        read = sorted({name for guardrail in guardrails for name in guardrail.when.values})
        self._readers = [(name, FACT_READERS[name]) for name in read if name in FACT_READERS]
        self.reads_intents = INTENTS_VARIABLE in read
        """Whether any guardrail reads the related intents of other agents."""
        self._input_readers = [self._input_reader(name) for name in read if name.startswith(CONTEXT_PREFIX)]
        rules = [rule for batches in self._groups for batch in batches for rule in batch.rules]
        self._light_size = min((rule.predicate.light_size for rule in rules), default=LARGEST_SIZE)
        # The size of all defaults, and 2 for the values that description and category are.
        self._fixed_size = 2 + sum(measure_size(declared.default).total for declared in self._inputs.values())
        self._list_names = [name for name in read if name in LIST_READERS]
        tested = sorted({name for guardrail in guardrails for name in guardrail.when.presences})
        self._presence_tests = [(presence_variable(name), *name.partition(".")[::2]) for name in tested]
        """The variable, root and last part of each name that is tested for presence."""

    @property
    def reads_time(self) -> bool:
        """Whether verdicts depend on `Action.now`."""
        return self._selector.expires

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
        period = self._selector.period(action.now)
        groups = self._selector.select(action, period)
        values = self._read_variables(action)
        # Facts that the server looks up: they come on top of the context, whose size is known already.
        for name in self._list_names:
            if name in values:
                size += measure_size(values[name]).total
        batches = [batch for group in groups for batch in self._groups[group]]
        # The cheap bound first: almost all actions are smaller than what every rule takes in a batch.
        heavy = self._find_heavy_rules(batches, values, size) if size > self._light_size else {}
        bound = self._environment.bind(values)
        matched: list[MatchedRule] = []
        for batch in batches:
            # The usual case, one engine call for fifty rules. A batch with a heavy rule, or in which any rule fails, is
            # evaluated rule by rule, so that each failure is reported for its own rule.
            is_light = not heavy or heavy.keys().isdisjoint(rule.guardrail.id for rule in batch.rules)
            positions = batch.selection.matching_positions(bound) if is_light else None
            if positions is None:
                for rule in batch.rules:
                    violation = self._evaluate_alone(rule, bound, action, heavy)
                    if violation is not None:
                        matched.append((rule, violation))
            elif positions:
                for position in positions:
                    rule = batch.rules[position]
                    matched.append((rule, rule.with_missing_inputs(rule.violation, action)))
        clear = self._clear[period]
        return verdict_of_matches(matched, clear) if matched else clear

    def _compile_group(self, group: GuardrailGroup) -> Sequence[GuardrailBatch]:
        rules = [
            CompiledGuardrail(
                position,
                item,
                self._environment.compile_one(item.when),
                violation_of_guardrail(item),
                self._inputs_of(item),
            )
            for position, item in group.guardrails
        ]
        return [
            GuardrailBatch(part, self._environment.compile_batch([rule.guardrail.when for rule in part]))
            for part in batch_rules(rules)
        ]

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

    def _find_heavy_rules(
        self, batches: Iterable[GuardrailBatch], values: Mapping[str, object], size: int
    ) -> Mapping[str, int]:
        """Return the cost of guardrails that must be evaluated alone, or not at all, by guardrail id."""
        # The exact sizes: the bound that led here takes each variable to be as large as all of them together.
        sizes = {name: measure_size(value) for name, value in values.items()}
        rules = (rule for batch in batches for rule in batch.rules if size > rule.predicate.light_size)
        steps = {rule.guardrail.id: rule.predicate.estimate_steps(sizes) for rule in rules}
        return {identifier: count for identifier, count in steps.items() if count > SHARED_STEPS}

    def _evaluate_alone(
        self, rule: CompiledGuardrail, bound: CelActivation, action: Action, heavy: Mapping[str, int]
    ) -> Violation | None:
        """Return the violation of a guardrail that matches or cannot be evaluated."""
        # Fail closed: a caller must not get past a guardrail by sending more than it can take.
        if heavy.get(rule.guardrail.id, 0) > MAX_STEPS:
            error = CelEvaluationError(f"it may take more than {MAX_STEPS} steps on what it reads")
            return self._error_violation(rule.guardrail, error, action)
        try:
            return rule.with_missing_inputs(rule.violation, action) if rule.predicate.evaluate(bound) else None
        except CelEvaluationError as error:
            violation = self._error_violation(rule.guardrail, error, action)
            # Missing inputs are named only if one of them caused the failure; otherwise sending them would not help.
            return (
                rule.with_missing_inputs(violation, action) if rule.lacks_input(error.variable, action) else violation
            )

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


MatchedRule: TypeAlias = tuple[CompiledGuardrail, Violation]


def verdict_of_matches(matched: list[MatchedRule], clear: Verdict) -> Verdict:
    """Return the verdict for the guardrails that fired; `clear` is the one if none had."""
    # Groups are evaluated one after another; answers keep the order of the rule set.
    matched.sort(key=lambda item: item[0].position)
    violations: list[Violation] = []
    warnings: list[Violation] = []
    dryrun: list[Violation] = []
    for rule, violation in matched:
        if rule.guardrail.enforcement is Enforcement.DRYRUN:
            dryrun.append(violation)
        elif violation.severity is Severity.WARN:
            warnings.append(violation)
        else:
            violations.append(violation)
    return Verdict(
        tuple(violations),
        tuple(warnings),
        clear.evaluated,
        clear.rule_set_version,
        allowed=not violations,
        dryrun=tuple(dryrun),
    )


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


def violation_of_guardrail(guardrail: Guardrail) -> Violation:
    """Return the violation that a matching guardrail causes."""
    return Violation(guardrail.id, guardrail.name, guardrail.message, guardrail.severity, guardrail.suggestion)
