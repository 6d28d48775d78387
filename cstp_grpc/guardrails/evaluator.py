"""Evaluate actions against a rule set.

A guardrail that cannot be evaluated counts as matched (fail closed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cstp_grpc.enums import Enforcement, Severity
from cstp_grpc.guardrails.action_variables import CODE_READERS, FACT_READERS, LIST_READERS, ReadVariable
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
from cstp_grpc.guardrails.input_names import InputNames
from cstp_grpc.guardrails.input_values import CONVERTERS, InputValueError, check_context_bounds
from cstp_grpc.guardrails.model import (
    EVALUATION_ERROR,
    Action,
    Guardrail,
    IgnoredInput,
    MissingInput,
    RuleSet,
    Verdict,
    Violation,
)
from cstp_grpc.guardrails.rule_selection import GuardrailGroup, RuleSelector, group_guardrails, positions_of
from cstp_grpc.guardrails.unknown_inputs import (
    ALLOW_UNKNOWN,
    InputFindings,
    UnknownInputPolicy,
    UnknownInputReporter,
)

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


MatchedRule: TypeAlias = tuple[CompiledGuardrail, Violation]


@dataclass(frozen=True, slots=True)
class GuardrailBatch:
    """Guardrails that are evaluated together."""

    rules: Sequence[CompiledGuardrail]
    selection: CelPredicateBatch


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """The guardrails that an action can concern, and what has to be read for them.

    `presence_tests` are the variable, root and last part of each name that is tested for presence; `light_size` is the
    size up to which all guardrails may be evaluated in batches.
    """

    batches: Sequence[GuardrailBatch]
    readers: Sequence[tuple[str, ReadVariable]]
    input_readers: Sequence[InputReader]
    presence_tests: Sequence[tuple[str, str, str]]
    list_names: Sequence[str]
    light_size: int


MAX_KEPT = 256
"""Maximum number of plans and of verdicts that are kept. Chosen: far more than there are combinations of conditions and
of given inputs in practice; others are made again."""


class GuardrailEvaluator:
    """Evaluates actions against a rule set. Thread-safe.

    `server_keys` are keys of the context that the server itself reads, and which no guardrail has to know.
    """

    def __init__(
        self,
        rule_set: RuleSet,
        policy: UnknownInputPolicy = ALLOW_UNKNOWN,
        server_keys: frozenset[str] = frozenset(),
    ) -> None:
        self._inputs = rule_set.inputs
        self._version = rule_set.version
        self._names = InputNames(self._inputs, server_keys)
        self._environment = CelEnvironment({name: declared.type for name, declared in self._inputs.items()})
        groups = group_guardrails(rule_set.guardrails)
        self._selector = RuleSelector(groups)
        self._groups = [self._compile_group(group) for group in groups]
        self._counts = self._selector.count_in_force()
        guardrails = [guardrail for group in groups for _, guardrail in group.guardrails]
        self._read_inputs = frozenset(
            name.removeprefix(CONTEXT_PREFIX)
            for guardrail in guardrails
            for name in guardrail.when.values | guardrail.when.presences
            if name.startswith(CONTEXT_PREFIX)
        ).difference(server_keys)
        read_inputs = [self._inputs[name] for name in sorted(self._read_inputs)]
        self._unknowns = UnknownInputReporter(policy, read_inputs)
        self.reads_intents = any(INTENTS_VARIABLE in guardrail.when.values for guardrail in guardrails)
        """Whether any guardrail reads the related intents of other agents."""
        # The size of all defaults, and 2 for the values that description and category are.
        self._fixed_size = 2 + sum(measure_size(declared.default).total for declared in self._inputs.values())
        # Both are only ever added to, by assignments that are atomic; made twice, they are the same.
        self._plans: dict[int, EvaluationPlan] = {}
        self._clear: dict[tuple[int, tuple[str, ...], bool], Verdict] = {}

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
        ignored: tuple[IgnoredInput, ...] = ()
        if not self._names.knows_all(action.context):
            context, ignored = self._names.resolve(action.context)
            action = replace(action, context=context)
        period = self._selector.period(action.now)
        selected = self._selector.select(action, period)
        plan = self._plans.get(selected) or self._make_plan(selected)
        values, assumed = read_variables(plan, action)
        matched = self._find_matches(plan, values, action, size)
        if action.is_stated_by_server:
            findings = InputFindings(assumed, (), is_informed=True)
        else:
            findings = InputFindings(assumed, ignored, self._is_informed(action.context))
        if matched or findings.ignored:
            return self._build_verdict(matched, period, findings)
        # Nothing matches in almost all checks, and verdicts are immutable.
        key = period, assumed, findings.is_informed
        clear = self._clear.get(key)
        if clear is None:
            clear = self._build_verdict([], period, findings)
            if len(self._clear) < MAX_KEPT:
                self._clear[key] = clear
        return clear

    def _find_matches(
        self, plan: EvaluationPlan, values: Mapping[str, object], action: Action, size: int
    ) -> list[MatchedRule]:
        """Return the guardrails that match or cannot be evaluated; `size` is the size of the context and defaults."""
        # Facts that the server looks up: they come on top of the context, whose size is known already.
        for name in plan.list_names:
            if name in values:
                size += measure_size(values[name]).total
        # The cheap bound first: almost all actions are smaller than what every rule takes in a batch.
        heavy = find_heavy_rules(plan.batches, values, size) if size > plan.light_size else {}
        bound = self._environment.bind(values)
        matched: list[MatchedRule] = []
        for batch in plan.batches:
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
        return matched

    def _make_plan(self, selected: int) -> EvaluationPlan:
        """Return the plan for the groups whose bits are set."""
        batches = [batch for group in positions_of(selected) for batch in self._groups[group]]
        expressions = [rule.guardrail.when for batch in batches for rule in batch.rules]
        read = sorted({name for expression in expressions for name in expression.values})
        tested = sorted({name for expression in expressions for name in expression.presences})
        plan = EvaluationPlan(
            batches=batches,
            readers=[(name, FACT_READERS[name]) for name in read if name in FACT_READERS],
            input_readers=[self._input_reader(name) for name in read if name.startswith(CONTEXT_PREFIX)],
            presence_tests=[(presence_variable(name), *split_variable(name)) for name in tested],
            list_names=[name for name in read if name in LIST_READERS],
            light_size=min(
                (rule.predicate.light_size for batch in batches for rule in batch.rules), default=LARGEST_SIZE
            ),
        )
        if len(self._plans) < MAX_KEPT:
            self._plans[selected] = plan
        return plan

    def _is_informed(self, context: Mapping[str, Any]) -> bool:
        """Return whether any input is given that any guardrail reads, or none of them reads any."""
        read = self._read_inputs
        return not read or any(value is not None for key, value in context.items() if key in read)

    def _build_verdict(self, matched: list[MatchedRule], period: int, findings: InputFindings) -> Verdict:
        """Return the verdict for the guardrails that fired, and for what the action leaves unknown."""
        # Groups are evaluated one after another; answers keep the order of the rule set.
        matched.sort(key=lambda item: item[0].position)
        found = [(violation, rule.guardrail.enforcement) for rule, violation in matched]
        dryrun = tuple(each for each, enforcement in found if enforcement is Enforcement.DRYRUN)
        enforced = [each for each, enforcement in found if enforcement is not Enforcement.DRYRUN]
        enforced += self._unknowns.find_violations(findings, enforced)
        violations = tuple(each for each in enforced if each.severity is not Severity.WARN)
        return Verdict(
            violations,
            tuple(each for each in enforced if each.severity is Severity.WARN),
            self._counts[period],
            self._version,
            allowed=not violations,
            dryrun=dryrun,
            assumed=findings.assumed,
            ignored=findings.ignored,
        )

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


def read_variables(plan: EvaluationPlan, action: Action) -> tuple[Mapping[str, object], tuple[str, ...]]:
    """Return the variables that guardrails read, and the names of the inputs that took their defaults.

    Variables that are absent or of a wrong type are left out.
    """
    values: dict[str, object] = {}
    for name, read in plan.readers:
        try:
            value = read(action)
        except InputValueError:
            # Left out: a rule that reads it then fails in the engine, and counts as matched.
            continue
        if value is not None:
            values[name] = value
    # Inlined: rulebooks declare many inputs, of which a call has few, and a function call for each would take most of
    # the time of a check.
    context = action.context
    assumed = []
    for name, key, default, convert in plan.input_readers:
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
    for variable, root, last in plan.presence_tests:
        # Present and not null, even if the value is invalid.
        value = context.get(last) if root == "context" else getattr(action, last)
        values[variable] = value is not None
    return values, tuple(assumed)


def find_heavy_rules(batches: Iterable[GuardrailBatch], values: Mapping[str, object], size: int) -> Mapping[str, int]:
    """Return the cost of guardrails that must be evaluated alone, or not at all, by guardrail id."""
    # The exact sizes: the bound that led here takes each variable to be as large as all of them together.
    sizes = {name: measure_size(value) for name, value in values.items()}
    rules = (rule for batch in batches for rule in batch.rules if size > rule.predicate.light_size)
    steps = {rule.guardrail.id: rule.predicate.estimate_steps(sizes) for rule in rules}
    return {identifier: count for identifier, count in steps.items() if count > SHARED_STEPS}


def split_variable(name: str) -> tuple[str, str]:
    """Return the root and the rest of a dotted name."""
    root, _, rest = name.partition(".")
    return root, rest


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
