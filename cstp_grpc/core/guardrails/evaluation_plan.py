"""Which guardrails an action can concern, and what has to be read and evaluated for these.

They are selected by equality, before any expression is evaluated. Guardrails with the same conditions form a group.
Each group is a bit; every value that a condition names has the bits of the groups that accept it, so that selecting
takes one look-up per condition, however many groups there are. Then the variables are read that the selected ones name:
inputs, the action, its code, the related intents and the past.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cstp_grpc.common.unicode_text import fold_name
from cstp_grpc.core.guardrails.cel_cost import (
    MAX_STEPS,
    MAX_TOTAL_STEPS,
    SHARED_STEPS,
    measure_size,
    measure_sizes,
)
from cstp_grpc.core.guardrails.cel_engine import (
    LARGEST_SIZE,
    STAKES_ORDER,
    CelEvaluationError,
    CelPredicateBatch,
    CelProgram,
)
from cstp_grpc.core.guardrails.cel_variables import (
    COMMANDS_VARIABLE,
    INTENDS_VARIABLE,
    INTENTS_VARIABLE,
    MENTIONS_VARIABLE,
    NOW_VARIABLE,
    normalize_words,
    presence_variable,
)
from cstp_grpc.core.guardrails.command_variable import commands_reader
from cstp_grpc.core.guardrails.history import HISTORY_SCOPES, HistoryQuery, HistoryScope
from cstp_grpc.core.guardrails.inputs import (
    CONVERTERS,
    ConvertValue,
    InputValueError,
    accept_values,
    to_number,
    to_string,
)
from cstp_grpc.core.guardrails.model import (
    Action,
    CodeFacts,
    Guardrail,
    InputDeclaration,
    MissingInput,
    Violation,
)
from cstp_grpc.core.guardrails.plain_sentences import Intention, IntentionFinder

if TYPE_CHECKING:
    # It compiles what is planned here.
    from cstp_grpc.core.guardrails.rule_compilation import CompiledTemplate, GroupConditions, GuardrailGroup


class RuleSelector:
    """Selects the groups that an action can concern, as bits in the order of the given sequence."""

    def __init__(self, groups: Sequence[GuardrailGroup]) -> None:
        conditions = [group.conditions for group in groups]
        tests = [(ConditionMask([test.accepted(each) for each in conditions]), test) for test in CONDITIONS]
        self._tests = [(mask, test.read, test.accepts_absent) for mask, test in tests if mask.restricts]
        self._agent_masks = [mask for mask, test in tests if mask.restricts and test.is_agent]
        self._expiries = sorted({each.expires for each in conditions if each.expires is not None})
        # The groups in force before the first expiry, between the first and the second, and so on.
        self._in_force = [(1 << len(groups)) - 1] + [
            bits_of(each.expires is None or each.expires > instant for each in conditions) for instant in self._expiries
        ]
        self._sizes = [len(group.guardrails) for group in groups]

    @property
    def expires(self) -> bool:
        """Whether any guardrail expires."""
        return bool(self._expiries)

    def period(self, now: datetime | None) -> int:
        """Return how many of the instants at which guardrails expire have passed; without an instant none has."""
        return bisect_right(self._expiries, now) if now is not None and self._expiries else 0

    def count_in_force(self) -> list[int]:
        """Return the number of guardrails that are not expired, for each period."""
        return [sum(self._sizes[group] for group in positions_of(bits)) for bits in self._in_force]

    def select(self, action: Action, period: int) -> int:
        """Return the bits of the groups that an action can concern."""
        selected = self._in_force[period]
        for mask, read, accepts_absent in self._tests:
            value = read(action)
            if value is not None or not accepts_absent:
                selected &= mask.accepting(value)
        return selected

    def select_for_agent(self, agent: str, period: int) -> int:
        """Return the bits of the groups that are in force for an agent, whatever it says of its action."""
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
        """Whether any group has the condition."""
        return bool(self._by_value)

    def accepting(self, value: str | None) -> int:
        """Return the bits of the groups that accept a value; None is accepted only without the condition."""
        return self._unrestricted if value is None else self._by_value.get(value, self._unrestricted)


def fold_names(names: Iterable[str]) -> frozenset[str]:
    """Return names as rules compare them."""
    return frozenset(map(fold_name, names))


def fold_optional(name: str | None) -> str | None:
    """Return a name as rules compare it, or None if it is missing or blank."""
    return fold_name(name or "") or None


ReadText = Callable[[Action], str | None]
GetAccepted: TypeAlias = "Callable[[GroupConditions], Collection[str]]"


class Condition(NamedTuple):
    """The values that a group accepts, and the action's value.

    `accepts_absent` is whether an action without one is accepted, `is_agent` whether it is the authenticated agent,
    which the caller cannot choose.
    """

    accepted: GetAccepted
    read: ReadText
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
    """Yield the positions of the bits that are set, in rising order."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


ReadVariable = Callable[[Action], object]
"""Returns a variable's value, or None if it is absent. Raises InputValueError."""


def read_now(action: Action) -> object:
    """Return the instant of the check. Raises InputValueError if there is none, as in tests that fix none."""
    if action.now is None:
        raise InputValueError("is not given; tests fix it with `now`")
    return action.now


def read_words(action: Action) -> object:
    """Return the words of the description, the announced context and the command. Raises InputValueError."""
    # Hooks describe a command by itself, cut to the length of a description.
    command = "" if action.command in (None, action.description) else action.command
    return normalize_words(to_string(f"{action.description} {action.announced_context} {command}"))


def words_beside_command(action: Action) -> str:
    """Return the description of an action without the text of its command, which rules read as commands."""
    words, command = action.description, action.command
    if command is None:
        return words
    if command.startswith(words):
        return ""
    # Hooks and tool guards describe a call by its arguments, in JSON. Only with its quotation marks: a short command
    # would take letters out of the words.
    return words.replace(json.dumps(command, ensure_ascii=False), " ").replace(json.dumps(command), " ")


def intentions_reader(sought: Iterable[Intention]) -> ReadVariable:
    """Return a function that finds which of these intentions the sentences of an action have."""
    finder = IntentionFinder(sought)

    def read(action: Action) -> object:
        return finder.find(to_string(f"{words_beside_command(action)}\n\n{action.announced_context}"))

    return read


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
    "action.command": lambda action: None if action.command is None else to_string(action.command),
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
FACT_READERS: Mapping[str, ReadVariable] = {
    **ACTION_READERS,
    **LARGE_READERS,
    **HISTORY_READERS,
    COMMANDS_VARIABLE: commands_reader(()),
    INTENDS_VARIABLE: intentions_reader(()),
}
"""The readers of everything but the inputs."""

CONTEXT_PREFIX = "context."
"""Prefix of input names in expressions."""


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
        return any(
            variable == CONTEXT_PREFIX + each.name and action.context.get(each.name) is None for each in self.inputs
        )

    def with_missing_inputs(self, violation: Violation, action: Action) -> Violation:
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
    # Sorted, since answers name what was assumed in this order, whichever process gives them.
    read = sorted({name for expression in expressions for name in expression.values})
    tested = sorted({name for expression in expressions for name in expression.presences})
    history = sorted({query for expression in expressions for query in expression.history})
    phrases = {phrase for expression in expressions for phrase in expression.phrases}
    intentions = {intention for expression in expressions for intention in expression.intentions}
    readers = {
        **FACT_READERS,
        **group_history_readers(history),
        COMMANDS_VARIABLE: commands_reader(phrases),
        INTENDS_VARIABLE: intentions_reader(intentions),
    }
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
    root, _, rest = name.partition(".")
    return root, rest
