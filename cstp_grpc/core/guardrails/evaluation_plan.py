"""Select the guardrails that an action can concern, and plan the variables and conditions to evaluate.

They are selected by equality, before any expression is evaluated. Guardrails with the same conditions form a group.
Each group is a bit; every value that a condition names has the bits of the groups that accept it, so that selecting
takes one look-up per condition, however many groups there are. The plan then lists the variables and batches of the
selected guardrails.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import fold_name
from cstp_grpc.contract.enums import Enforcement
from cstp_grpc.core.guardrails import fact_readers, model
from cstp_grpc.core.guardrails.cel_cost import MAX_STEPS, MAX_TOTAL_STEPS, SHARED_STEPS, measure_size, measure_sizes
from cstp_grpc.core.guardrails.cel_engine import LARGEST_SIZE, CelEvaluationError, CelPredicateBatch, CelProgram
from cstp_grpc.core.guardrails.cel_variables import COMMANDS_VARIABLE, INTENDS_VARIABLE, presence_variable
from cstp_grpc.core.guardrails.history import HistoryQuery
from cstp_grpc.core.guardrails.inputs import CONVERTERS, ConvertValue, InputValueError, accept_values
from cstp_grpc.core.guardrails.text_templates import CompiledTemplate


@dataclass(frozen=True, slots=True)
class GroupConditions:
    """The conditions that the guardrails of a group share."""

    match: model.RuleMatch
    scope: model.RuleScope
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class GuardrailGroup:
    """Guardrails with the same conditions, each with its position in the rule set."""

    conditions: GroupConditions
    guardrails: Sequence[tuple[int, model.Guardrail]]


def group_guardrails(guardrails: Sequence[model.Guardrail]) -> list[GuardrailGroup]:
    groups: dict[GroupConditions, list[tuple[int, model.Guardrail]]] = {}
    for position, item in enumerate(guardrails):
        if item.enforcement is not Enforcement.DISABLED:
            conditions = GroupConditions(item.match, item.scope, item.expires)
            groups.setdefault(conditions, []).append((position, item))
    return [GuardrailGroup(conditions, members) for conditions, members in groups.items()]


class RuleSelector:
    """Selects the groups that an action can concern, as bits in the order of the given sequence."""

    def __init__(self, groups: Sequence[GuardrailGroup]) -> None:
        conditions = [group.conditions for group in groups]
        tests = [(ConditionMask([test.accepted(each) for each in conditions]), test) for test in CONDITIONS]
        self._tests = [(mask, test.read, test.accepts_absent) for mask, test in tests if mask.restricts]
        self._agent_masks = [mask for mask, test in tests if mask.restricts and test.is_agent]
        self._expiries = sorted({each.expires for each in conditions if each.expires is not None})
        self.expires = bool(self._expiries)
        # The groups in force before the first expiry, between the first and the second, and so on.
        self._in_force = [(1 << len(groups)) - 1] + [
            bits_of(each.expires is None or each.expires > instant for each in conditions) for instant in self._expiries
        ]
        sizes = [len(group.guardrails) for group in groups]
        self.counts = [sum(sizes[group] for group in positions_of(bits)) for bits in self._in_force]
        """The number of guardrails that are not expired, for each period."""

    def period(self, now: datetime | None) -> int:
        """Return how many of the instants at which guardrails expire have passed; without an instant none has."""
        return bisect_right(self._expiries, now) if now is not None and self._expiries else 0

    def select(self, action: model.Action, period: int) -> int:
        """Return the bits of the groups that an action can concern."""
        selected = self._in_force[period]
        for mask, read, accepts_absent in self._tests:
            value = read(action)
            if value is not None or not accepts_absent:
                selected &= mask.accepting(value)
        return selected

    def select_for_agent(self, agent: str, period: int) -> int:
        """Return the bits of the groups that are in force for an agent, for any action."""
        selected = self._in_force[period]
        folded = fold_name(agent)
        for mask in self._agent_masks:
            selected &= mask.accepting(folded)
        return selected


class ConditionMask:
    """For each value that a condition names, the bits of the groups that accept it."""

    def __init__(self, accepted: Sequence[Collection[str]]) -> None:
        # Groups without this condition accept every value.
        self._unrestricted = bits_of(not values for values in accepted)
        self._by_value = {
            value: self._unrestricted | bits_of(value in values for values in accepted)
            for value in {each for values in accepted for each in values}
        }

    @property
    def restricts(self) -> bool:
        return bool(self._by_value)

    def accepting(self, value: str | None) -> int:
        """Return the bits of the groups that accept a value; None is accepted only without the condition."""
        return self._unrestricted if value is None else self._by_value.get(value, self._unrestricted)


def fold_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(fold_name, names))


def fold_optional(name: str | None) -> str | None:
    return fold_name(name or "") or None


class Condition(NamedTuple):
    """The values that a group accepts, and the action's value.

    `accepts_absent` is whether an action without one is accepted, `is_agent` whether it is the authenticated agent,
    which the caller cannot choose.
    """

    accepted: Callable[[GroupConditions], Collection[str]]
    read: Callable[[model.Action], str | None]
    accepts_absent: bool = False
    is_agent: bool = False


CONDITIONS: Sequence[Condition] = (
    Condition(lambda group: group.match.stakes, lambda action: action.stakes),
    Condition(lambda group: fold_names(group.match.categories), lambda action: fold_optional(action.category)),
    Condition(lambda group: fold_names(group.match.agents), lambda action: fold_name(action.agent), is_agent=True),
    Condition(lambda group: fold_names(group.match.projects), lambda action: fold_optional(action.project)),
    Condition(lambda group: fold_names(group.scope.agents), lambda action: fold_name(action.agent), is_agent=True),
    # Fail closed: an action that names no project would leave the scope of every project.
    Condition(
        lambda group: fold_names(group.scope.projects),
        lambda action: fold_optional(action.project),
        accepts_absent=True,
    ),
)


def bits_of(flags: Iterable[bool]) -> int:
    """Return a number whose bits are the flags, the first of them lowest."""
    return sum(1 << position for position, flag in enumerate(flags) if flag)


def positions_of(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


CONTEXT_PREFIX = "context."
"""Prefix of input names in expressions."""


@dataclass(frozen=True, slots=True)
class CompiledGuardrail:
    """A guardrail with its position in the rule set and its compiled expressions.

    `violation` is the result if it matches, with its texts as they are written; `inputs` are the declared inputs that
    it reads, and `required` the variables of those that must be given.
    """

    position: int
    guardrail: model.Guardrail
    program: CelProgram
    violation: model.Violation
    inputs: Sequence[model.MissingInput]
    required: Sequence[str]
    message: CompiledTemplate | None
    suggestion: CompiledTemplate | None

    def lacks_input(self, variable: str | None, action: model.Action) -> bool:
        return any(
            variable == CONTEXT_PREFIX + each.name and action.context.get(each.name) is None for each in self.inputs
        )

    def with_missing_inputs(self, violation: model.Violation, action: model.Action) -> model.Violation:
        if not self.inputs:
            return violation
        missing = tuple(each for each in self.inputs if action.context.get(each.name) is None)
        return replace(violation, missing_inputs=missing) if missing else violation


@dataclass(frozen=True, slots=True)
class GuardrailBatch:
    """Guardrails that are evaluated together."""

    rules: Sequence[CompiledGuardrail]
    selection: CelPredicateBatch


MatchedRule: TypeAlias = tuple[CompiledGuardrail, model.Violation]

InputReader: TypeAlias = tuple[str, str, object, ConvertValue]
"""The variable of an input, its name in the context, its converted default, and the converter of its values."""

ApartRules: TypeAlias = Mapping[str, CelEvaluationError | None]
"""The guardrails that are not evaluated in a batch, by id; with the reason, those that are not evaluated at all."""

NOTHING_APART: ApartRules = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """The guardrails that an action can concern, and the variables to read for them.

    `presence_tests` are the variable, root and last part of each name that is tested for presence; `light_size` is the
    size up to which all guardrails may be evaluated in batches; `demanding` are those that read required inputs.
    """

    batches: Sequence[GuardrailBatch]
    readers: Sequence[tuple[str, fact_readers.ReadVariable]]
    input_readers: Sequence[InputReader]
    presence_tests: Sequence[tuple[str, str, str]]
    large_names: Sequence[str]
    light_size: int
    demanding: Sequence[CompiledGuardrail]
    history: Sequence[HistoryQuery]

    def read_variables(self, action: model.Action) -> tuple[Mapping[str, object], tuple[str, ...]]:
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
        # Inlined: rulebooks declare many inputs and a call states few of them, so that a function call for each would
        # take most of the time of a check.
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

    def find_apart_rules(self, values: Mapping[str, object], action: model.Action, size: int) -> ApartRules:
        """Return the guardrails that cannot be evaluated in a batch; `size` is that of the context and defaults."""
        # Facts that the server looks up: they come on top of the context, whose size is known already.
        for name in self.large_names:
            value = values.get(name)
            # A plain text, the usual case, at once.
            if isinstance(value, str) and value.isascii():
                size += 1 + len(value)
            else:
                size += measure_size(value).total
        # The cheap bound first: almost all actions are smaller than the limit of every rule in a batch.
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
                    text = f"it may take more than {MAX_STEPS} steps on its inputs"
                    found[rule.guardrail.id] = CelEvaluationError(text)
                elif steps > SHARED_STEPS:
                    found[rule.guardrail.id] = None
                    total += steps
        if total <= MAX_TOTAL_STEPS:
            return found
        # All of them, so that the order of the rules decides nothing.
        text = f"with the other guardrails it may take more than {MAX_TOTAL_STEPS} steps on their inputs"
        return {identifier: error or CelEvaluationError(text) for identifier, error in found.items()}


def make_plan(batches: Sequence[GuardrailBatch], inputs: Mapping[str, model.InputDeclaration]) -> EvaluationPlan:
    """Return the plan for the guardrails in these batches."""
    rules = [rule for batch in batches for rule in batch.rules]
    expressions = [expression for rule in rules for expression in rule.guardrail.expressions]
    # Sorted, so that the answers of all processes name the assumed inputs in the same order.
    read = sorted({name for expression in expressions for name in expression.values})
    tested = sorted({name for expression in expressions for name in expression.presences})
    parted = [(name, *name.partition(".")) for name in tested]
    history = sorted({query for expression in expressions for query in expression.history})
    phrases = {phrase for expression in expressions for phrase in expression.phrases}
    intentions = {intention for expression in expressions for intention in expression.intentions}
    readers = {
        **fact_readers.FACT_READERS,
        **fact_readers.group_history_readers(history),
        COMMANDS_VARIABLE: fact_readers.commands_reader(phrases),
        INTENDS_VARIABLE: fact_readers.intentions_reader(intentions),
    }
    return EvaluationPlan(
        batches=batches,
        readers=[(name, readers[name]) for name in read if name in readers],
        input_readers=[
            input_reader(inputs[name.removeprefix(CONTEXT_PREFIX)]) for name in read if name.startswith(CONTEXT_PREFIX)
        ],
        presence_tests=[(presence_variable(name), root, last) for name, root, _, last in parted],
        large_names=[name for name in read if name in fact_readers.LARGE_READERS],
        light_size=min((rule.program.light_size for rule in rules), default=LARGEST_SIZE),
        demanding=[rule for rule in rules if rule.required],
        history=history,
    )


def input_reader(declared: model.InputDeclaration) -> InputReader:
    convert = input_converter(declared)
    default = None if declared.default is None else convert(declared.default)
    return CONTEXT_PREFIX + declared.name, declared.name, default, convert


def input_converter(declared: model.InputDeclaration) -> ConvertValue:
    """Return the function that checks and converts the values of an input."""
    convert = CONVERTERS[declared.type]
    return accept_values(convert, declared.values) if declared.values else convert
