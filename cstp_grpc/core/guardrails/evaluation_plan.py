"""The batches and readers for the guardrails that an action can concern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from cstp_grpc.core.guardrails.cel_cost import MAX_STEPS, MAX_TOTAL_STEPS, SHARED_STEPS, measure_size, measure_sizes
from cstp_grpc.core.guardrails.cel_engine import LARGEST_SIZE, CelEvaluationError
from cstp_grpc.core.guardrails.cel_variables import COMMANDS_VARIABLE, INTENDS_VARIABLE, presence_variable
from cstp_grpc.core.guardrails.command_variable import commands_reader
from cstp_grpc.core.guardrails.fact_readers import (
    FACT_READERS,
    LARGE_READERS,
    ReadVariable,
    group_history_readers,
    intentions_reader,
)
from cstp_grpc.core.guardrails.guardrail_compiler import CONTEXT_PREFIX, CompiledGuardrail, GuardrailBatch
from cstp_grpc.core.guardrails.history import HistoryQuery
from cstp_grpc.core.guardrails.inputs import CONVERTERS, ConvertValue, InputValueError, accept_values
from cstp_grpc.core.guardrails.model import Action, InputDeclaration, Violation

MatchedRule: TypeAlias = tuple[CompiledGuardrail, Violation]


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


def input_reader(declared: InputDeclaration) -> InputReader:
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
