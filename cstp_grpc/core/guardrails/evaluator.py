"""Evaluate actions against a rule set, and report inputs that they leave unknown.

A guardrail that cannot be evaluated counts as matched (fail closed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import cut_line, fold_name
from cstp_grpc.contract.enums import Enforcement, Reaction, Severity
from cstp_grpc.core.commands.model import NO_INVOCATION
from cstp_grpc.core.guardrails import model
from cstp_grpc.core.guardrails.cel_cost import measure_size, measure_sizes
from cstp_grpc.core.guardrails.cel_engine import CelActivation, CelEvaluationError, environment_for
from cstp_grpc.core.guardrails.cel_text import RuleExpressionError
from cstp_grpc.core.guardrails.cel_variables import COMMANDS_VARIABLE, INTENTS_VARIABLE, NOW_VARIABLE, RuleExpression
from cstp_grpc.core.guardrails.evaluation_plan import (
    CONTEXT_PREFIX,
    NOTHING_APART,
    ApartRules,
    CompiledGuardrail,
    EvaluationPlan,
    MatchedRule,
    RuleSelector,
    group_guardrails,
    input_converter,
    make_plan,
    positions_of,
)
from cstp_grpc.core.guardrails.fact_readers import CODE_READERS, FACT_READERS
from cstp_grpc.core.guardrails.guardrail_compiler import GuardrailCompiler, describe_missing_input, input_names_of
from cstp_grpc.core.guardrails.history import HISTORY_SCOPES, HistoryQuery, describe_history
from cstp_grpc.core.guardrails.inputs import IgnoredInput, InputNames, InputValueError, check_context_bounds


@dataclass(frozen=True, slots=True)
class UnknownInputPolicy:
    """The reactions to context keys that no rulebook declares, and to actions that state no declared input."""

    undeclared: Reaction = Reaction.ALLOW
    unknown_action: Reaction = Reaction.ALLOW


ALLOW_UNKNOWN = UnknownInputPolicy()
"""Reports nothing; tests of rulebooks use it."""

REACTION_SEVERITIES: Mapping[Reaction, Severity | None] = {
    Reaction.ALLOW: None,
    Reaction.WARN: Severity.WARN,
    Reaction.BLOCK: Severity.BLOCK,
}
MAX_SHOWN_CATEGORY = 80
"""Maximum length of an undeclared category in a verdict, where an ignored key has at most 100 characters."""
MAX_NAMED_INPUTS = 5
"""Maximum number of inputs that a message names."""


class UnknownInputReporter:
    """Reports undeclared keys and missing inputs of an action; `inputs` are those that the guardrails read."""

    def __init__(self, policy: UnknownInputPolicy, inputs: Sequence[model.InputDeclaration]) -> None:
        self._names = frozenset(each.name for each in inputs)
        self._undeclared = REACTION_SEVERITIES[policy.undeclared]
        severity = REACTION_SEVERITIES[policy.unknown_action]
        self._unknown_action = None if severity is None else unknown_action_violation(inputs, severity)

    def is_informed(self, context: Mapping[str, Any]) -> bool:
        names = self._names
        # A loop, since any() of a generator takes three times as long.
        for key in context:
            if key in names and context[key] is not None:
                return True
        return not names

    def find_violations(
        self, ignored: Sequence[IgnoredInput], is_informed: bool, judged: Sequence[model.Violation] = ()
    ) -> list[model.Violation]:
        """Return the violations and warnings for an action that violates the `judged` guardrails."""
        found = []
        if ignored and self._undeclared is not None:
            found.append(undeclared_input_violation(ignored, self._undeclared))
        unknown_action = self._unknown_action
        if not is_informed and unknown_action is not None:
            stopping = judged
            if unknown_action.severity is Severity.BLOCK:
                # A missing approval is not a block: a person could then allow an action that must be blocked.
                stopping = [each for each in judged if each.severity is Severity.BLOCK]
            if not stopping:
                found.append(unknown_action)
        return found


def undeclared_input_violation(ignored: Sequence[IgnoredInput], severity: Severity) -> model.Violation:
    named = [
        f"{each.name} (did you mean {each.closest}?)" if each.closest else each.name
        for each in ignored[:MAX_NAMED_INPUTS]
    ]
    more = f" and {len(ignored) - MAX_NAMED_INPUTS} more" if len(ignored) > MAX_NAMED_INPUTS else ""
    return model.Violation(
        model.UNDECLARED_INPUT_ID,
        "Undeclared Input",
        f"No guardrail declares {', '.join(named)}{more}",
        severity,
        "Use the names of declared inputs, or leave these keys out",
        model.UNDECLARED_INPUT,
    )


def unknown_action_violation(inputs: Sequence[model.InputDeclaration], severity: Severity) -> model.Violation:
    return model.Violation(
        model.UNKNOWN_ACTION_ID,
        "Unknown Action",
        "The action states none of the inputs that guardrails read, so they evaluated assumed values",
        severity,
        "State the inputs that describe the action",
        model.UNKNOWN_ACTION,
        tuple(map(describe_missing_input, inputs)),
    )


MAX_KEPT = 256
"""Maximum number of plans and of verdicts that are kept. Chosen: far more than there are combinations of conditions and
of given inputs in practice; others are made again."""


@dataclass(frozen=True, slots=True)
class PreparedAction:
    """An action, the guardrails that it can concern by id, and the values that these read.

    `resolved` is the action with declared names for other spellings; `apart` is as `EvaluationPlan` finds it.
    """

    action: model.Action
    resolved: model.Action
    rules: Mapping[str, CompiledGuardrail]
    values: Mapping[str, object]
    bound: CelActivation
    apart: ApartRules


class GuardrailEvaluator:
    """Evaluates actions against a rule set. Thread-safe.

    `server_keys` are keys of the context that the server itself reads, and which no guardrail has to know.
    """

    def __init__(
        self,
        rule_set: model.RuleSet,
        policy: UnknownInputPolicy = ALLOW_UNKNOWN,
        server_keys: frozenset[str] = frozenset(),
    ) -> None:
        self._inputs = rule_set.inputs
        self._version = rule_set.version
        self._names = InputNames(self._inputs, server_keys)
        self._categories = rule_set.categories
        self._category_names = InputNames(self._categories.values())
        self._environment = environment_for({name: declared.type for name, declared in self._inputs.items()})
        groups = group_guardrails(rule_set.guardrails)
        compiler = GuardrailCompiler(self._environment, self._inputs)
        self._selector = RuleSelector(groups)
        self._groups = [compiler.compile_group(group) for group in groups]
        guardrails = [guardrail for group in groups for _, guardrail in group.guardrails]
        self._policy = policy
        self._inputs_of_groups = [
            input_names_of([guardrail.when for _, guardrail in group.guardrails]) - server_keys for group in groups
        ]
        read = {name for guardrail in guardrails for each in guardrail.expressions for name in each.values}
        self._reads_commands = COMMANDS_VARIABLE in read
        self.reads_intents = INTENTS_VARIABLE in read
        """Whether any guardrail reads the related intents of other agents."""
        self.reads_time = NOW_VARIABLE in read or self._selector.expires
        """Whether verdicts depend on `Action.now`."""
        self.longest_history = max(
            (query.seconds for guardrail in guardrails for each in guardrail.expressions for query in each.history),
            default=0,
        )
        """The longest period in seconds whose outcomes a guardrail reads; 0 if none does."""
        # The size of all defaults, and 2 for the values that description and category are.
        self._fixed_size = 2 + sum(measure_size(declared.default).total for declared in self._inputs.values())
        self._plan_of = lru_cache(MAX_KEPT)(self._make_plan)
        """Return the plan for the groups whose bits are set."""
        self._reporter_of = lru_cache(MAX_KEPT)(self._make_reporter)
        """Return a reporter of the inputs that the groups read whose bits are set."""
        # Verdicts are immutable, and nothing matches in almost all checks.
        self._clear_verdict_of = lru_cache(MAX_KEPT)(self._make_verdict)
        """Return the verdict on an action that no guardrail matches."""

    def warm_up(self) -> None:
        """Compute the cached data of each guardrail, so that the first action does not wait for it."""
        # A plan for everything asks every program for its bounds, which it then keeps.
        make_plan([batch for group in self._groups for batch in group], self._inputs)

    def find_history_queries(self, action: model.Action) -> Sequence[HistoryQuery]:
        selected = self._selector.select(action, self._selector.period(action.now))
        return self._plan_of(selected).history

    def evaluate(self, action: model.Action) -> model.Verdict:
        """Return the verdict on an action. Raises InvalidArgument if the context is nested too deeply or too large."""
        action, size, ignored = self._resolve(action)
        period = self._selector.period(action.now)
        selected = self._selector.select(action, period)
        plan = self._plan_of(selected)
        values, assumed = plan.read_variables(action)
        matched = self._find_matches(plan, values, action, size)
        # An input informs only guardrails that apply to the agent. Fields that the caller can choose, such as the
        # category, do not matter: an action must not count as known because it names an undeclared category.
        concerning = self._selector.select_for_agent(action.agent, period)
        states_read_command = self._reads_commands and action.invocation is not NO_INVOCATION
        is_informed = states_read_command or self._reporter_of(concerning).is_informed(action.context)
        if action.is_stated_by_server:
            ignored, is_informed = (), True
        if not matched and not ignored:
            return self._clear_verdict_of(concerning, period, assumed, is_informed)
        return self._make_verdict(concerning, period, assumed, is_informed, matched, ignored)

    def prepare(self, action: model.Action) -> PreparedAction:
        """Return an action with the inputs of guardrails, to evaluate them one by one.

        Raises InvalidArgument as `evaluate` does.
        """
        resolved, size, _ = self._resolve(action)
        selected = self._selector.select(resolved, self._selector.period(resolved.now))
        plan = self._plan_of(selected)
        values, _ = plan.read_variables(resolved)
        rules = {rule.guardrail.id: rule for batch in plan.batches for rule in batch.rules}
        apart = plan.find_apart_rules(values, resolved, size)
        return PreparedAction(action, resolved, rules, values, self._environment.bind(values), apart)

    def evaluate_rule(self, prepared: PreparedAction, rule: CompiledGuardrail) -> model.Violation | None:
        """Return the violation of a guardrail that matches or cannot be evaluated, as `evaluate` finds it."""
        apart = prepared.apart.get(rule.guardrail.id)
        return self._evaluate_alone(rule, prepared.bound, prepared.values, prepared.resolved, apart)

    def evaluate_part(self, prepared: PreparedAction, part: RuleExpression) -> object:
        try:
            program = self._environment.compile_one(part)
        except RuleExpressionError as error:
            raise CelEvaluationError(str(error)) from None
        return program.evaluate(prepared.bound, measure_sizes(prepared.values))

    def find_given_key(self, action: model.Action, name: str) -> str | None:
        """Return the key by which an action gives an input, perhaps in another spelling, or None if it does not."""
        return self._names.find_given_key(action.context, name)

    def _resolve(self, action: model.Action) -> tuple[model.Action, int, tuple[IgnoredInput, ...]]:
        """Return an action with declared names for other spellings, its size, and the keys that no guardrail knows.

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
            action = action if context is action.context else replace(action, context=context)
        if self._categories and action.category:
            declared = self._categories.get(fold_name(action.category))
            if declared is None:
                closest = self._category_names.describe_unknown(action.category).closest
                if closest is not None:
                    shown = cut_line(action.category, MAX_SHOWN_CATEGORY)
                    ignored = (IgnoredInput(f'category "{shown}"', closest), *ignored)
            elif declared != action.category:
                # Expressions compare texts exactly, and another spelling must not evade them.
                action = replace(action, category=declared)
        return action, size, ignored

    def _find_matches(
        self, plan: EvaluationPlan, values: Mapping[str, object], action: model.Action, size: int
    ) -> list[MatchedRule]:
        """Return the guardrails that match or cannot be evaluated; `size` is that of the context and defaults."""
        apart = plan.find_apart_rules(values, action, size) if plan.may_need_apart(size) else NOTHING_APART
        bound = self._environment.bind(values)
        matched: list[MatchedRule] = []
        for batch in plan.batches:
            # The usual case, one engine call for fifty rules. A batch with a rule that is evaluated apart, or in which
            # any rule fails, is evaluated rule by rule, so that each failure is reported for its own rule.
            is_light = not apart or apart.keys().isdisjoint(rule.guardrail.id for rule in batch.rules)
            positions = batch.selection.matching_positions(bound) if is_light else None
            if positions is None:
                for rule in batch.rules:
                    violation = self._evaluate_alone(rule, bound, values, action, apart.get(rule.guardrail.id))
                    if violation is not None:
                        matched.append((rule, violation))
            elif positions:
                for position in positions:
                    rule = batch.rules[position]
                    matched.append((rule, self._violation_of_match(rule, bound, values, action)))
        return matched

    def _make_plan(self, selected: int) -> EvaluationPlan:
        return make_plan([batch for group in positions_of(selected) for batch in self._groups[group]], self._inputs)

    def _make_reporter(self, groups: int) -> UnknownInputReporter:
        names = frozenset[str]().union(*(self._inputs_of_groups[group] for group in positions_of(groups)))
        return UnknownInputReporter(self._policy, [self._inputs[name] for name in sorted(names)])

    def _make_verdict(
        self,
        groups: int,
        period: int,
        assumed: tuple[str, ...],
        is_informed: bool,
        matched: Sequence[MatchedRule] = (),
        ignored: tuple[IgnoredInput, ...] = (),
    ) -> model.Verdict:
        """Return a verdict with the guardrails that fired and the inputs that the action leaves unknown."""
        violations: list[model.Violation] = []
        warnings: list[model.Violation] = []
        dryrun: list[model.Violation] = []
        # Groups are evaluated one after another; answers keep the order of the rule set.
        for rule, violation in sorted(matched, key=lambda each: each[0].position):
            if rule.guardrail.enforcement is Enforcement.DRYRUN:
                dryrun.append(violation)
            else:
                (warnings if violation.severity is Severity.WARN else violations).append(violation)
        for violation in self._reporter_of(groups).find_violations(ignored, is_informed, violations):
            (warnings if violation.severity is Severity.WARN else violations).append(violation)
        return model.Verdict(
            tuple(violations),
            tuple(warnings),
            self._selector.counts[period],
            self._version,
            not violations,
            tuple(dryrun),
            assumed,
            ignored,
        )

    def _evaluate_alone(
        self,
        rule: CompiledGuardrail,
        bound: CelActivation,
        values: Mapping[str, object],
        action: model.Action,
        error: CelEvaluationError | None,
    ) -> model.Violation | None:
        """Return the violation of a guardrail that matches or cannot be evaluated; `error` is known beforehand."""
        try:
            if error is not None:
                raise error
            return self._violation_of_match(rule, bound, values, action) if rule.program.is_true(bound) else None
        except CelEvaluationError as failure:
            violation = self._error_violation(rule.guardrail, failure, action)
            # Missing inputs are named only if one of them caused the failure; otherwise sending them would not help.
            lacks_input = rule.lacks_input(failure.variable, action)
            return rule.with_missing_inputs(violation, action) if lacks_input else violation

    def _violation_of_match(
        self, rule: CompiledGuardrail, bound: CelActivation, values: Mapping[str, object], action: model.Action
    ) -> model.Violation:
        violation = rule.with_missing_inputs(rule.violation, action)
        if rule.message is None and rule.suggestion is None:
            return violation
        sizes = measure_sizes(values)
        explain = partial(self.explain_error, action=action)
        return replace(
            violation,
            message=rule.message.render(bound, sizes, explain) if rule.message else violation.message,
            suggestion=rule.suggestion.render(bound, sizes, explain) if rule.suggestion else violation.suggestion,
        )

    def explain_error(self, error: CelEvaluationError, action: model.Action) -> str:
        if error.variable is None:
            return error.message
        # The variable of answers about the past is ours; rules name what they have in common with the action.
        scopes = HISTORY_SCOPES.get(error.variable)
        read = error.variable if scopes is None else describe_history(scopes)
        return f"{read} {self._fault(error.variable, action)}"

    def _error_violation(
        self, guardrail: model.Guardrail, error: CelEvaluationError, action: model.Action
    ) -> model.Violation:
        reason = self.explain_error(error, action)
        if error.variable is None:
            suggestion = f"Check the inputs of the guardrail: {', '.join(sorted(guardrail.when.values))}"
        else:
            suggestion = self._remedy(error.variable, action)
        return model.Violation(
            guardrail.id,
            guardrail.name,
            f"Cannot be evaluated: {reason}",
            guardrail.severity,
            suggestion,
            model.EVALUATION_ERROR,
            approvers=guardrail.approvers,
        )

    def _fault(self, name: str, action: model.Action) -> str:
        try:
            if name.startswith(CONTEXT_PREFIX):
                declared = self._inputs[name.removeprefix(CONTEXT_PREFIX)]
                if (value := action.context.get(declared.name)) is not None:
                    input_converter(declared)(value)
                elif declared.is_required:
                    return "is required, but missing"
            else:
                FACT_READERS[name](action)
        except InputValueError as error:
            return str(error)
        return "is missing and has no default" if name.startswith("context.") else "is missing"

    def _remedy(self, name: str, action: model.Action) -> str:
        if name in CODE_READERS:
            return "Make the nodes of the paths readable, or ask a person"
        if name in HISTORY_SCOPES and (missing := action.history_subject.find_missing(HISTORY_SCOPES[name])):
            return f"Provide action.{missing}"
        if name == INTENTS_VARIABLE or name in HISTORY_SCOPES:
            return "Try again later, or ask a person"
        declared = self._inputs.get(name.removeprefix("context."))
        if declared is None:
            return f"Provide {name}"
        about = f": {declared.description}" if declared.description else ""
        accepted = f" of {', '.join(declared.values)}" if declared.values else ""
        return f"Provide {name} as a {declared.type}{accepted}{about}"
