"""The current rules of a server: their listing, their explanation, and the last attempt to load others."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import fold_name
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.guardrails.evaluation_plan import fold_names
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.explanation import GuardrailExplainer, GuardrailExplanation
from cstp_grpc.core.guardrails.guardrail_compiler import input_names_of
from cstp_grpc.core.guardrails.model import Action, CheckResult, Guardrail, InputDeclaration, ParsedRulebook, RuleSet
from cstp_grpc.core.guardrails.parsing import RulebookProblem
from cstp_grpc.core.guardrails.rulebook import rulebook_root
from cstp_grpc.core.guardrails.rulebook_files import RulebookFile, packaged_rulebook_path
from cstp_grpc.platform.storage import pagination

if TYPE_CHECKING:
    # Only for their types: commands load this module, and must not load SQLAlchemy.
    from cstp_grpc.core.guardrails.checker import GuardrailChecker
    from cstp_grpc.platform.storage.background_work import RunBlocking

ItemT = TypeVar("ItemT")
MadeT = TypeVar("MadeT")


@dataclass(frozen=True, slots=True)
class ListedGuardrail:
    """A guardrail with its rulebook and the names of the inputs that it reads."""

    guardrail: Guardrail
    rulebook: ParsedRulebook
    inputs: Sequence[str]


@dataclass(frozen=True, slots=True)
class ListedInput:
    """An input with the ids of the guardrails that read it."""

    declared: InputDeclaration
    guardrail_ids: Sequence[str]


class RuleListing:
    """The rules in force, which were loaded at an instant."""

    def __init__(self, rule_set: RuleSet, loaded_at: datetime) -> None:
        self.rule_set = rule_set
        self.version = rule_set.version
        self.loaded_at = loaded_at
        self.count = len(rule_set.guardrails)
        self._guardrails = [
            ListedGuardrail(guardrail, rulebook, sorted(input_names_of(tuple(guardrail.expressions))))
            for rulebook in rule_set.rulebooks
            for guardrail in rulebook.guardrails
        ]
        readers: dict[str, list[str]] = {name: [] for name in sorted(rule_set.inputs)}
        for listed in self._guardrails:
            for name in listed.inputs:
                readers[name].append(listed.guardrail.id)
        self.inputs = [ListedInput(rule_set.inputs[name], ids) for name, ids in readers.items()]

    def list_guardrails(self, request: pagination.PageRequest) -> pagination.Page[ListedGuardrail]:
        """Return a page in the order of the rule set. Raises InvalidArgument for a token of another listing."""
        return self._page(("guardrails",), self._guardrails, request, lambda each: each, estimate_guardrail_bytes)

    def list_inputs(self, request: pagination.PageRequest) -> pagination.Page[ListedInput]:
        """Return a page of the inputs by name. Raises InvalidArgument for a token of another listing."""
        return self._page(("inputs",), self.inputs, request, lambda each: each, estimate_input_bytes)

    def guardrails_for(self, agent: str, project: str | None, now: datetime) -> list[ListedGuardrail]:
        """Return the guardrails that can concern actions of an agent at an instant, in the order of the rule set.

        Without a project, guardrails of every project are included.
        """
        return [listed for listed in self._guardrails if can_concern(listed.guardrail, agent, project, now)]

    def explain_guardrails(
        self,
        request: pagination.PageRequest,
        ids: Collection[str],
        explain: Callable[[Guardrail], GuardrailExplanation],
    ) -> pagination.Page[tuple[ListedGuardrail, GuardrailExplanation]]:
        """Return a page of explanations of the guardrails with these ids, or of all without any.

        Raises InvalidArgument for an id that no guardrail has, and for a token of another listing.
        """
        unknown = set(ids).difference(listed.guardrail.id for listed in self._guardrails)
        if unknown:
            raise InvalidArgument.field("guardrail_ids", f"no guardrail is called {', '.join(sorted(unknown))}")
        chosen = [listed for listed in self._guardrails if not ids or listed.guardrail.id in ids]
        # Explained one by one, as far as the page goes.
        return self._page(
            ("explanations", *sorted(ids)),
            chosen,
            request,
            lambda listed: (listed, explain(listed.guardrail)),
            lambda explained: estimate_explanation_bytes(explained[1]),
        )

    def _page(
        self,
        kind: tuple[str, ...],
        items: Sequence[ItemT],
        request: pagination.PageRequest,
        make: Callable[[ItemT], MadeT],
        size_of: Callable[[MadeT], int],
    ) -> pagination.Page[MadeT]:
        """Return a page of the results of `make`; at least one, whatever its size."""
        # Of other rules a token would be a place in another list.
        conditions = (*kind, self.version)
        start = int(pagination.decode_page_token(request.token, conditions, (int,))[0]) if request.token else 0
        # A made-up token may hold any number; a negative one would count from the end.
        start = max(start, 0)
        found: list[MadeT] = []
        left = pagination.MAX_BYTES
        for made in map(make, items[start:][: request.limit]):
            left -= size_of(made)
            if left < 0 and found:
                break
            found.append(made)
        end = start + len(found)
        token = pagination.encode_page_token(conditions, (end,)) if end < len(items) else ""
        return pagination.Page(tuple(found), token)


def can_concern(rule: Guardrail, agent: str, project: str | None, now: datetime) -> bool:
    """Return True if a guardrail can concern an action of an agent in a project, None if that is not known."""
    if not rule.is_in_force(now):
        return False
    if any(agents and fold_name(agent) not in fold_names(agents) for agents in (rule.match.agents, rule.scope.agents)):
        return False
    # Not known, so nothing is left out because of it.
    if project is None:
        return True
    return all(
        not projects or fold_name(project) in fold_names(projects)
        for projects in (rule.scope.projects, rule.match.projects)
    )


def estimate_guardrail_bytes(listed: ListedGuardrail) -> int:
    rule = listed.guardrail
    texts = (rule.id, rule.name, rule.description, rule.suggestion, rule.owner, rule.when.source, listed.rulebook.name)
    return pagination.estimate_message_bytes(
        (*texts, *rule.tags, *rule.match.categories, *rule.approvers, *listed.inputs)
    )


def estimate_input_bytes(listed: ListedInput) -> int:
    declared = listed.declared
    # A default is as large as its JSON at most six times over; see MAX_BYTES.
    texts = (declared.name, declared.description, str(declared.default), *declared.values, *listed.guardrail_ids)
    return pagination.estimate_message_bytes(texts)


def estimate_explanation_bytes(explanation: GuardrailExplanation) -> int:
    rule, violation = explanation.guardrail, explanation.violation
    texts = [rule.id, rule.name, rule.when.source, explanation.reason]
    if violation is not None:
        texts += [violation.message, violation.suggestion]
    for part in explanation.parts:
        texts += [part.expression, part.value, part.error]
    for each in explanation.inputs:
        texts += [each.name, each.value, each.given_as, each.problem]
    # Each part and input is a message of its own, which has numbers as well as texts.
    return pagination.estimate_message_bytes(texts) + 16 * (len(explanation.parts) + len(explanation.inputs))


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """One version of the rules, the files that it was read from, and the objects that answer calls."""

    files: tuple[RulebookFile, ...]
    rule_set: RuleSet
    evaluator: GuardrailEvaluator
    listing: RuleListing


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """An attempt to load rules that failed; the paths in `problems` are relative to the folder of the rulebooks."""

    failed_at: datetime
    problems: Sequence[RulebookProblem]


@dataclass(frozen=True, slots=True)
class RulesState:
    """The rules in force, and the failure of the last attempt to load others; None if it succeeded."""

    loaded: LoadedRules
    failure: FailedLoad | None = None


class RulesInForce:
    """The rules that a server evaluates, which are replaced as a whole. Thread-safe.

    An answer takes `state` or `current` once, so that all of it comes from one version.
    """

    def __init__(self, loaded: LoadedRules) -> None:
        # Replaced by one assignment, which is atomic: readers see no half of it, and wait for no lock.
        self.state = RulesState(loaded)
        self.replacements = 0
        """The number of replacements."""
        self.failures = 0
        """The number of failed loads. Only the loading thread writes both numbers."""
        self._followers: list[Callable[[LoadedRules], object]] = []

    @property
    def current(self) -> LoadedRules:
        return self.state.loaded

    def follow(self, follower: Callable[[LoadedRules], object]) -> None:
        """Call a function with the rules before they replace others, on the thread that replaces them."""
        self._followers.append(follower)

    def replace(self, loaded: LoadedRules) -> None:
        """Evaluate these rules from now on. Raises the error of a follower, and then changes nothing."""
        # First the followers that evaluate, which may have to read history for the rules: listed rules are in force.
        for follower in self._followers:
            follower(loaded)
        self.state = RulesState(loaded)
        self.replacements += 1

    def keep(self, failure: FailedLoad | None = None) -> None:
        """Evaluate the same rules, because those of the files cannot be loaded, or are the same."""
        self.state = RulesState(self.current, failure)
        self.failures += failure is not None

    def is_up_to_date(self) -> bool:
        """Return whether the rules in force are those of the files, as far as these were looked at."""
        return self.state.failure is None


def to_relative_problem(problem: RulebookProblem, path: Path) -> RulebookProblem:
    """Return a problem without the folder of the rulebooks at `path`, and without that of the packaged ones."""
    file, reason = problem.file, problem.reason
    # A problem with the folder as a whole has its name.
    file = path.name if file == str(path) else file
    for folder in (rulebook_root(path), packaged_rulebook_path("default").parent):
        # Reasons name other files, too.
        prefix = f"{folder}{os.sep}"
        file, reason = file.removeprefix(prefix), reason.replace(prefix, "")
    return replace(problem, file=file, reason=reason)


@dataclass(frozen=True, slots=True)
class ExplainedAction:
    """The verdict on an action, which is not recorded, and a page of the outcomes of guardrails."""

    result: CheckResult
    guardrails: pagination.Page[tuple[ListedGuardrail, GuardrailExplanation]]


class RuleExplainer:
    """Explains the outcomes of the rules in force for actions; `run_blocking` runs long work."""

    def __init__(
        self, rules: RulesInForce, checker: GuardrailChecker, clock: Callable[[], datetime], run_blocking: RunBlocking
    ) -> None:
        self._rules = rules
        self._checker = checker
        self._clock = clock
        self._run_blocking = run_blocking

    async def explain(
        self, action: Action, ids: Collection[str], request: pagination.PageRequest, reader: str
    ) -> ExplainedAction:
        """Return the verdict on an action, and a page of the guardrails with these ids, or of all without any.

        Related intents and outcomes are those that `reader` may read. Raises InvalidArgument for a context out of
        bounds, an unknown id and a token of another listing.
        """
        loaded = self._rules.current
        now = self._clock()
        if action.now is None:
            action = replace(action, now=now)
        snapshot = replace(self._checker.take_snapshot(), evaluator=loaded.evaluator)
        (action,) = await self._checker.add_facts(snapshot, [action], action.agent, reader)

        def explain_all() -> ExplainedAction:
            explainer = GuardrailExplainer(loaded.evaluator, loaded.rule_set.inputs, action)
            page = loaded.listing.explain_guardrails(request, ids, explainer.explain)
            return ExplainedAction(CheckResult(loaded.evaluator.evaluate(action), now), page)

        return await self._run_blocking(explain_all)
