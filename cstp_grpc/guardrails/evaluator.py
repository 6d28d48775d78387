"""Judging actions by a rule set; a rule that cannot be evaluated counts as one that matched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cstp_grpc.guardrails.evaluation_cost import MAX_STEPS, SHARED_STEPS, measure
from cstp_grpc.guardrails.expression import (
    LARGEST_SIZE,
    STAKES_ORDER,
    Bound,
    Environment,
    EvaluationError,
    Predicate,
    Selection,
)
from cstp_grpc.guardrails.model import EVALUATION_ERROR, Action, CodeRules, MissingInput, Verdict, Violation
from cstp_grpc.guardrails.ruleset import Guardrail, Input, RuleSet
from cstp_grpc.guardrails.scanner import presence_variable
from cstp_grpc.guardrails.values import CONVERTERS, Unusable, check_bounds, to_number, to_string
from cstp_grpc.vocabulary import Severity

CONTEXT = "context."
"""What the names of inputs begin with in expressions."""

CHUNK_RULES = 50
"""How many rules are evaluated in one go: fewer cost more calls, more cost more where one of them errs."""
CHUNK_CHARACTERS = 50_000
"""How long the expressions of a chunk may be together; the engine takes 100 000."""

Read = Callable[[Action], object]
"""Returns a variable's value, None where it is absent. Raises Unusable."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A guardrail, ready to be evaluated.

    `violation` is what it answers if it matches; `inputs` are the declared ones that it reads.
    """

    guardrail: Guardrail
    predicate: Predicate
    violation: Violation
    inputs: Sequence[MissingInput]

    def misses(self, variable: str | None, action: Action) -> bool:
        """Return whether a variable is an input that the rule reads and the action does not give."""
        return any(variable == CONTEXT + each.name and action.context.get(each.name) is None for each in self.inputs)

    def answer(self, violation: Violation, action: Action) -> Violation:
        """Return a violation with the inputs that the action does not give."""
        missing = tuple(each for each in self.inputs if action.context.get(each.name) is None)
        return replace(violation, missing_inputs=missing) if missing else violation


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rules that are evaluated together."""

    rules: Sequence[Rule]
    selection: Selection


class Evaluator:
    """Judges actions by a rule set. It may be used by several threads at once."""

    def __init__(self, rule_set: RuleSet) -> None:
        self._inputs = rule_set.inputs
        self._environment = Environment({name: declared.type for name, declared in self._inputs.items()})
        guardrails = rule_set.guardrails
        self._clear = Verdict((), (), len(guardrails), rule_set.version)
        self._chunks = [self._chunk(part) for part in split(guardrails)]
        read = sorted({name for guardrail in guardrails for name in guardrail.when.values})
        self._readers = [(name, self._reader(name)) for name in read if not name.startswith("stakes.")]
        self._light_size = min(
            (rule.predicate.light_size for chunk in self._chunks for rule in chunk.rules), default=LARGEST_SIZE
        )
        # Of the defaults, and of the values that the action's texts are.
        self._fixed_size = 2 + sum(measure(declared.default).total for declared in self._inputs.values())
        self._code_names = [name for name in read if name in CODE_READERS]
        tested = sorted({name for guardrail in guardrails for name in guardrail.when.presences})
        self._tested = [(presence_variable(name), given(name)) for name in tested]

    def evaluate(self, action: Action) -> Verdict:
        """Return the verdict on an action.

        Raises InvalidArgument where the context is too deep or too large to be looked at.
        """
        size = check_bounds(action.context) + len(action.description) + len(action.category or "") + self._fixed_size
        values = self._values(action)
        size += sum(measure(values[name]).total for name in self._code_names if name in values)
        heavy = self._find_heavy_rules(values, size) if size > self._light_size else {}
        bound = self._environment.bind(values)
        found: list[Violation] = []
        for chunk in self._chunks:
            shared = not heavy or heavy.keys().isdisjoint(rule.guardrail.id for rule in chunk.rules)
            holding = chunk.selection.holding(bound) if shared else None
            if holding is None:
                found += [violation for rule in chunk.rules for violation in self._judge(rule, bound, action, heavy)]
            elif holding:
                matching = [chunk.rules[position] for position in holding]
                found += [rule.answer(rule.violation, action) for rule in matching]
        if not found:
            return self._clear
        violations = [violation for violation in found if violation.severity is Severity.BLOCK]
        warnings = [violation for violation in found if violation.severity is not Severity.BLOCK]
        return Verdict(tuple(violations), tuple(warnings), self._clear.evaluated, self._clear.rule_set_version)

    def _chunk(self, guardrails: Sequence[Guardrail]) -> Chunk:
        rules = [
            Rule(item, self._environment.predicate(item.when), matched(item), self._inputs_of(item))
            for item in guardrails
        ]
        return Chunk(rules, self._environment.selection([item.when for item in guardrails]))

    def _inputs_of(self, guardrail: Guardrail) -> Sequence[MissingInput]:
        """Return the declared inputs that a guardrail reads, or asks whether they are given, by name."""
        names = guardrail.when.values | guardrail.when.presences
        read = {name.removeprefix(CONTEXT) for name in names if name.startswith(CONTEXT)}
        declared = [self._inputs[name] for name in sorted(read)]
        return [MissingInput(each.name, each.type, each.description) for each in declared]

    def _values(self, action: Action) -> Mapping[str, object]:
        """Return the variables that rules read; one that is absent or of a wrong type is left out."""
        values: dict[str, object] = {}
        for name, read in self._readers:
            try:
                value = read(action)
            except Unusable:
                continue
            if value is not None:
                values[name] = value
        for name, is_given in self._tested:
            values[name] = is_given(action)
        return values

    def _find_heavy_rules(self, values: Mapping[str, object], size: int) -> Mapping[str, int]:
        """Return the steps of rules that must be evaluated alone, or not at all, by the rules' identifiers."""
        sizes = {name: measure(value) for name, value in values.items()}
        rules = (rule for chunk in self._chunks for rule in chunk.rules if size > rule.predicate.light_size)
        steps = {rule.guardrail.id: rule.predicate.estimate_steps(sizes) for rule in rules}
        return {identifier: count for identifier, count in steps.items() if count > SHARED_STEPS}

    def _judge(self, rule: Rule, bound: Bound, action: Action, heavy: Mapping[str, int]) -> Iterator[Violation]:
        if heavy.get(rule.guardrail.id, 0) > MAX_STEPS:
            error = EvaluationError(f"it may take more than {MAX_STEPS} steps on what it reads")
            yield self._unjudged(rule.guardrail, error, action)
            return
        try:
            if rule.predicate.holds(bound):
                yield rule.answer(rule.violation, action)
        except EvaluationError as error:
            unjudged = self._unjudged(rule.guardrail, error, action)
            # Giving inputs helps only if one of them is what could not be read.
            yield rule.answer(unjudged, action) if rule.misses(error.variable, action) else unjudged

    def _unjudged(self, guardrail: Guardrail, error: EvaluationError, action: Action) -> Violation:
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
        """Return what is wrong with a variable that has no value."""
        try:
            self._reader(name)(action)
        except Unusable as error:
            return str(error)
        return "is missing and has no default" if name.startswith("context.") else "is missing"

    def _remedy(self, name: str) -> str:
        if name in CODE_READERS:
            return "Make what governs the paths readable, or ask a person"
        declared = self._inputs.get(name.removeprefix("context."))
        if declared is None:
            return f"Provide {name}"
        about = f": {declared.description}" if declared.description else ""
        return f"Provide {name} as a {declared.type}{about}"

    def _reader(self, name: str) -> Read:
        if name in ACTION_READERS:
            return ACTION_READERS[name]
        if name in CODE_READERS:
            return CODE_READERS[name]
        return input_reader(self._inputs[name.removeprefix("context.")])


def split(guardrails: Sequence[Guardrail]) -> Iterator[Sequence[Guardrail]]:
    """Return the guardrails in chunks."""
    part: list[Guardrail] = []
    characters = 0
    for guardrail in guardrails:
        characters += len(guardrail.when.text)
        if part and (len(part) == CHUNK_RULES or characters > CHUNK_CHARACTERS):
            yield part
            part, characters = [], len(guardrail.when.text)
        part.append(guardrail)
    if part:
        yield part


def matched(guardrail: Guardrail) -> Violation:
    """Return what a guardrail answers where it matches."""
    return Violation(guardrail.id, guardrail.name, guardrail.message, guardrail.severity, guardrail.suggestion)


def input_reader(declared: Input) -> Read:
    """Return what reads an input from an action's context."""
    name, convert = declared.name, CONVERTERS[declared.type]
    default = None if declared.default is None else convert(declared.default)

    def read(action: Action) -> object:
        value = action.context.get(name)
        return default if value is None else convert(value)

    return read


def given(name: str) -> Callable[[Action], bool]:
    """Return what tells whether a variable has a value that is not null, usable or not."""
    root, _, last = name.partition(".")
    if root == "context":
        return lambda action: action.context.get(last) is not None
    return lambda action: getattr(action, last) is not None


def read_category(action: Action) -> object:
    """Return the action's category, if it has one. Raises Unusable."""
    return None if action.category is None else to_string(action.category)


def read_confidence(action: Action) -> object:
    """Return the action's confidence, if it has one. Raises Unusable."""
    return None if action.confidence is None else to_number(action.confidence)


ACTION_READERS: Mapping[str, Read] = {
    "action.description": lambda action: to_string(action.description),
    "action.category": read_category,
    "action.stakes": lambda action: STAKES_ORDER[action.stakes],
    "action.confidence": read_confidence,
}


def code_reader(texts: Callable[[CodeRules], tuple[str, ...]]) -> Read:
    """Return what reads texts about an action's code; a part of them would be as good as none."""

    def read(action: Action) -> object:
        if action.code.unreadable is not None:
            raise Unusable(f"cannot be read: {action.code.unreadable}")
        return [to_string(text) for text in texts(action.code)]

    return read


CODE_READERS: Mapping[str, Read] = {
    # Which paths were named is known also where nothing of what governs them can be read.
    "code.paths": lambda action: [to_string(path) for path in action.code.paths],
    "code.boundaries.never": code_reader(lambda code: code.never),
    "code.boundaries.ask_first": code_reader(lambda code: code.ask_first),
    "code.boundaries.always": code_reader(lambda code: code.always),
    "code.checks": code_reader(lambda code: code.checks),
    "code.pitfalls": code_reader(lambda code: code.pitfalls),
}
