"""List the guardrails in force and the inputs that they read, page by page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from cstp_grpc.errors import InvalidArgument
from cstp_grpc.guardrails.evaluation_plan import input_names_of
from cstp_grpc.guardrails.explanation import GuardrailExplanation
from cstp_grpc.guardrails.model import Guardrail, InputDeclaration, ParsedRulebook, RuleSet
from cstp_grpc.storage.pagination import (
    MAX_BYTES,
    Page,
    PageRequest,
    count_within_budget,
    decode_page_token,
    encode_page_token,
    estimate_message_bytes,
)

ItemT = TypeVar("ItemT")


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

    def list_guardrails(self, request: PageRequest) -> Page[ListedGuardrail]:
        """Return a page in the order of the rule set. Raises InvalidArgument for a token of another listing."""
        return self._page("guardrails", self._guardrails, request, estimate_guardrail_bytes)

    def list_inputs(self, request: PageRequest) -> Page[ListedInput]:
        """Return a page of the inputs by name. Raises InvalidArgument for a token of another listing."""
        return self._page("inputs", self.inputs, request, estimate_input_bytes)

    def explain_guardrails(
        self,
        request: PageRequest,
        ids: Collection[str],
        explain: Callable[[Guardrail], GuardrailExplanation],
    ) -> Page[tuple[ListedGuardrail, GuardrailExplanation]]:
        """Return a page of explanations of the guardrails with these ids, or of all without any.

        Raises InvalidArgument for an id that no guardrail has, and for a token of another listing.
        """
        unknown = set(ids).difference(listed.guardrail.id for listed in self._guardrails)
        if unknown:
            raise InvalidArgument.field("guardrail_ids", f"no guardrail is called {', '.join(sorted(unknown))}")
        chosen = [listed for listed in self._guardrails if not ids or listed.guardrail.id in ids]
        # Explained one by one, as far as the page goes.
        start, conditions = self._start_of(("explanations", *sorted(ids)), request)
        explained: list[tuple[ListedGuardrail, GuardrailExplanation]] = []
        left = MAX_BYTES
        for listed in chosen[start:][: request.limit]:
            explanation = explain(listed.guardrail)
            left -= estimate_explanation_bytes(explanation)
            if left < 0 and explained:
                break
            explained.append((listed, explanation))
        end = start + len(explained)
        return Page(tuple(explained), encode_page_token(conditions, (end,)) if end < len(chosen) else "")

    def _page(
        self, kind: str, items: Sequence[ItemT], request: PageRequest, size_of: Callable[[ItemT], int]
    ) -> Page[ItemT]:
        start, conditions = self._start_of((kind,), request)
        found = items[start:][: request.limit]
        found = found[: count_within_budget(found, size_of)]
        end = start + len(found)
        return Page(tuple(found), encode_page_token(conditions, (end,)) if end < len(items) else "")

    def _start_of(self, kind: tuple[str, ...], request: PageRequest) -> tuple[int, tuple[str, ...]]:
        """Return the place at which a page starts, and the conditions of its listing, with which tokens are made."""
        # Of other rules a token would be a place in another list.
        conditions = (*kind, self.version)
        start = int(decode_page_token(request.token, conditions, (int,))[0]) if request.token else 0
        # A made-up token may hold any number; a negative one would count from the end.
        return max(start, 0), conditions


def estimate_guardrail_bytes(listed: ListedGuardrail) -> int:
    """Return about how many bytes a guardrail takes in a message."""
    rule = listed.guardrail
    texts = (rule.id, rule.name, rule.description, rule.suggestion, rule.owner, rule.when.source, listed.rulebook.name)
    return estimate_message_bytes((*texts, *rule.tags, *rule.match.categories, *rule.approvers, *listed.inputs))


def estimate_input_bytes(listed: ListedInput) -> int:
    """Return about how many bytes an input takes in a message."""
    declared = listed.declared
    # A default is as large as its JSON at most six times over; see MAX_BYTES.
    texts = (declared.name, declared.description, str(declared.default), *declared.values, *listed.guardrail_ids)
    return estimate_message_bytes(texts)


def estimate_explanation_bytes(explanation: GuardrailExplanation) -> int:
    """Return about how many bytes an explanation takes in a message."""
    rule, violation = explanation.guardrail, explanation.violation
    texts = [rule.id, rule.name, rule.when.source, explanation.reason]
    if violation is not None:
        texts += [violation.message, violation.suggestion]
    for part in explanation.parts:
        texts += [part.expression, part.value, part.error]
    for each in explanation.inputs:
        texts += [each.name, each.value, each.given_as, each.problem]
    # Each part and input is a message of its own, with some numbers beside its texts.
    return estimate_message_bytes(texts) + 16 * (len(explanation.parts) + len(explanation.inputs))
