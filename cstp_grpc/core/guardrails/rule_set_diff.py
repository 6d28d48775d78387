"""Compare two rule sets: which guardrails and inputs were added, removed or changed, key by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.guardrails import model
from cstp_grpc.core.guardrails.cel_variables import RuleExpression
from cstp_grpc.core.guardrails.rulebook import is_same_json

ItemT = TypeVar("ItemT")
JsonObject = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A key whose value is another one: JSON values, None where the key is absent."""

    key: str
    old: object
    new: object


@dataclass(frozen=True, slots=True)
class ItemChange:
    """A guardrail or an input, by its id or name, with the keys that changed."""

    name: str
    changes: tuple[ValueChange, ...]


@dataclass(frozen=True, slots=True)
class ItemDiff:
    """Added, removed and changed items, by name; added and removed items are described as JSON objects."""

    added: Mapping[str, JsonObject]
    removed: Mapping[str, JsonObject]
    changed: tuple[ItemChange, ...]

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class RuleSetDiff:
    """The differences between two rule sets."""

    old_version: str
    new_version: str
    guardrails: ItemDiff
    inputs: ItemDiff

    @property
    def is_empty(self) -> bool:
        """Whether both give the same verdicts; the bytes of their files, and so their versions, may differ."""
        return self.guardrails.is_empty and self.inputs.is_empty


def compare_rule_sets(old: model.RuleSet, new: model.RuleSet) -> RuleSetDiff:
    return RuleSetDiff(
        old.version,
        new.version,
        compare_items(rules_by_id(old), rules_by_id(new), describe_guardrail, find_rule_changes),
        compare_items(
            old.inputs,
            new.inputs,
            describe_input,
            lambda one, other: find_value_changes(describe_input(one), describe_input(other)),
        ),
    )


def compare_items(
    old: Mapping[str, ItemT],
    new: Mapping[str, ItemT],
    describe: Callable[[ItemT], JsonObject],
    find_changes: Callable[[ItemT, ItemT], tuple[ValueChange, ...]],
) -> ItemDiff:
    common = ((name, find_changes(old[name], item)) for name, item in new.items() if name in old)
    return ItemDiff(
        added={name: describe(item) for name, item in new.items() if name not in old},
        removed={name: describe(item) for name, item in old.items() if name not in new},
        changed=tuple(ItemChange(name, changes) for name, changes in common if changes),
    )


def rules_by_id(rule_set: model.RuleSet) -> Mapping[str, tuple[model.ParsedRulebook, model.Guardrail]]:
    return {rule.id: (rulebook, rule) for rulebook in rule_set.rulebooks for rule in rulebook.guardrails}


def describe_guardrail(item: tuple[model.ParsedRulebook, model.Guardrail]) -> JsonObject:
    """Return the declaration of a guardrail, without the keys that are absent."""
    rulebook, rule = item
    match, scope = rule.match, rule.scope
    values = {
        "rulebook": rulebook.name,
        "name": rule.name,
        "description": rule.description,
        "match": sort_values(
            stakes=match.stakes, category=match.categories, agent=match.agents, project=match.projects
        ),
        "scope": sort_values(agents=scope.agents, projects=scope.projects),
        "when": rule.when.source or None,
        "severity": rule.severity.value,
        "enforcement": rule.enforcement.value,
        "expires": None if rule.expires is None else rule.expires.isoformat().replace("+00:00", "Z"),
        "owner": rule.owner or rulebook.owner,
        "tags": list(rule.tags) or None,
        "approvers": list(rule.approvers) or None,
        "message": rule.message,
        "suggestion": rule.suggestion,
    }
    return {key: value for key, value in values.items() if value is not None}


def sort_values(**values: frozenset[str]) -> JsonObject | None:
    """Return the sets that restrict a guardrail, in order; None if none does."""
    return {key: sorted(each) for key, each in values.items() if each} or None


def describe_input(declared: model.InputDeclaration) -> JsonObject:
    values = {
        "type": declared.type.value,
        "default": declared.default,
        "required": declared.is_required or None,
        "values": list(declared.values) or None,
        "description": declared.description,
    }
    return {key: value for key, value in values.items() if value is not None}


def find_rule_changes(
    old: tuple[model.ParsedRulebook, model.Guardrail], new: tuple[model.ParsedRulebook, model.Guardrail]
) -> tuple[ValueChange, ...]:
    changes = find_value_changes(describe_guardrail(old), describe_guardrail(new))
    named = {change.key for change in changes}
    # The same text may read parameters with other values, which are written into the evaluated expression.
    evaluated = find_value_changes(describe_evaluated(old[1]), describe_evaluated(new[1]))
    return (*changes, *(change for change in evaluated if change.key not in named))


def describe_evaluated(rule: model.Guardrail) -> JsonObject:
    """Return the expressions of a guardrail as they are evaluated, with the values of parameters."""
    return {
        "when": expression_text(rule.when),
        "message": template_text(rule.message_template),
        "suggestion": template_text(rule.suggestion_template),
    }


def template_text(template: model.TextTemplate | None) -> str | None:
    if template is None:
        return None
    first, *rest = template.parts
    pairs = zip(template.expressions, rest, strict=True)
    return first + "".join(f"${{{expression_text(expression)}}}{part}" for expression, part in pairs)


def expression_text(expression: RuleExpression) -> str:
    """Return an expression as it is evaluated, but for the tests for presence, as they are written."""
    text = expression.text
    for name in expression.presences:
        text = text.replace(f"has.{name} ", f"has({name})")
    return text


def find_value_changes(old: JsonObject, new: JsonObject) -> tuple[ValueChange, ...]:
    return tuple(
        ValueChange(key, old.get(key), new.get(key))
        for key in {**old, **new}
        if not is_same_json(old.get(key), new.get(key))
    )
