"""What has to be read and evaluated for the guardrails that an action can concern."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from cstp_grpc.guardrails.action_variables import FACT_READERS, LARGE_READERS, ReadVariable
from cstp_grpc.guardrails.cel_cost import MAX_STEPS, SHARED_STEPS, measure_size
from cstp_grpc.guardrails.cel_engine import LARGEST_SIZE, CelEvaluationError
from cstp_grpc.guardrails.cel_variables import presence_variable
from cstp_grpc.guardrails.compiled_guardrails import CONTEXT_PREFIX, CompiledGuardrail, GuardrailBatch
from cstp_grpc.guardrails.input_values import CONVERTERS, ConvertValue, InputValueError, accept_values
from cstp_grpc.guardrails.model import Action, InputDeclaration

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
        apart = dict(self._find_heavy_rules(values, size)) if size > self.light_size else {}
        for rule in self.demanding:
            for name in rule.required:
                if action.context.get(name.removeprefix(CONTEXT_PREFIX)) is None:
                    apart[rule.guardrail.id] = CelEvaluationError("a required input is missing", name)
                    break
        return apart

    def _find_heavy_rules(
        self, values: Mapping[str, object], size: int
    ) -> Iterator[tuple[str, CelEvaluationError | None]]:
        # The exact sizes: the bound that led here takes each variable to be as large as all of them together.
        sizes = {name: measure_size(value) for name, value in values.items()}
        for batch in self.batches:
            for rule in batch.rules:
                steps = rule.program.estimate_steps(sizes) if size > rule.program.light_size else 0
                # Fail closed: a caller must not get past a guardrail by sending more than it can take.
                if steps > MAX_STEPS:
                    text = f"it may take more than {MAX_STEPS} steps on what it reads"
                    yield rule.guardrail.id, CelEvaluationError(text)
                elif steps > SHARED_STEPS:
                    yield rule.guardrail.id, None


def make_plan(batches: Sequence[GuardrailBatch], inputs: Mapping[str, InputDeclaration]) -> EvaluationPlan:
    """Return the plan for the guardrails in these batches."""
    rules = [rule for batch in batches for rule in batch.rules]
    expressions = [expression for rule in rules for expression in rule.guardrail.expressions]
    read = sorted({name for expression in expressions for name in expression.values})
    tested = sorted({name for expression in expressions for name in expression.presences})
    return EvaluationPlan(
        batches=batches,
        readers=[(name, FACT_READERS[name]) for name in read if name in FACT_READERS],
        input_readers=[
            input_reader(inputs[name.removeprefix(CONTEXT_PREFIX)]) for name in read if name.startswith(CONTEXT_PREFIX)
        ],
        presence_tests=[(presence_variable(name), *split_variable(name)) for name in tested],
        large_names=[name for name in read if name in LARGE_READERS],
        light_size=min((rule.program.light_size for rule in rules), default=LARGEST_SIZE),
        demanding=[rule for rule in rules if rule.required],
    )


def input_reader(declared: InputDeclaration) -> InputReader:
    """Return how an input is read."""
    convert = input_converter(declared)
    default = None if declared.default is None else convert(declared.default)
    return CONTEXT_PREFIX + declared.name, declared.name, default, convert


def input_converter(declared: InputDeclaration) -> ConvertValue:
    """Return what checks and converts the values of an input."""
    convert = CONVERTERS[declared.type]
    return accept_values(convert, declared.values) if declared.values else convert


def split_variable(name: str) -> tuple[str, str]:
    """Return the root and the rest of a dotted name."""
    root, _, rest = name.partition(".")
    return root, rest
