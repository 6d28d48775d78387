"""List the guardrails in force and the inputs that they read, page by page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from cstp_grpc.guardrails.evaluation_plan import input_names_of
from cstp_grpc.guardrails.model import Guardrail, InputDeclaration, ParsedRulebook, RuleSet
from cstp_grpc.storage.pagination import (
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
        self._inputs = [ListedInput(rule_set.inputs[name], ids) for name, ids in readers.items()]

    def list_guardrails(self, request: PageRequest) -> Page[ListedGuardrail]:
        """Return a page in the order of the rule set. Raises InvalidArgument for a token of another listing."""
        return self._page("guardrails", self._guardrails, request, estimate_guardrail_bytes)

    def list_inputs(self, request: PageRequest) -> Page[ListedInput]:
        """Return a page of the inputs by name. Raises InvalidArgument for a token of another listing."""
        return self._page("inputs", self._inputs, request, estimate_input_bytes)

    def _page(
        self, kind: str, items: Sequence[ItemT], request: PageRequest, size_of: Callable[[ItemT], int]
    ) -> Page[ItemT]:
        # Of other rules a token would be a place in another list.
        conditions = (kind, self.version)
        start = int(decode_page_token(request.token, conditions, (int,))[0]) if request.token else 0
        # A made-up token may hold any number; a negative one would count from the end.
        found = items[max(start, 0) :][: request.limit]
        found = found[: count_within_budget(found, size_of)]
        end = max(start, 0) + len(found)
        return Page(tuple(found), encode_page_token(conditions, (end,)) if end < len(items) else "")


def estimate_guardrail_bytes(listed: ListedGuardrail) -> int:
    """Return about how many bytes a guardrail takes in a message."""
    rule = listed.guardrail
    texts = (rule.id, rule.name, rule.description, rule.suggestion, rule.owner, rule.when.source, listed.rulebook.name)
    return estimate_message_bytes((*texts, *rule.tags, *rule.match.categories, *listed.inputs))


def estimate_input_bytes(listed: ListedInput) -> int:
    """Return about how many bytes an input takes in a message."""
    declared = listed.declared
    # A default is as large as its JSON at most six times over; see MAX_BYTES.
    texts = (declared.name, declared.description, str(declared.default), *declared.values, *listed.guardrail_ids)
    return estimate_message_bytes(texts)
