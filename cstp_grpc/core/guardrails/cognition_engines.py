"""Convert the guardrails of cognition-engines, in both of its YAML dialects, to a rulebook.

The flat dialect has keys such as `condition_stakes` and `requires_code_review`, the nested one the maps `condition` and
`requires`. Rules that its programs skipped, which let actions through, are refused here or block; the notes say which.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.common.yaml_with_lines import YamlNode
from cstp_grpc.contract.enums import Enforcement, Severity
from cstp_grpc.core.guardrails import cognition_engines_conditions as dialect
from cstp_grpc.core.guardrails import yaml_document
from cstp_grpc.core.guardrails.inputs import InputType
from cstp_grpc.core.guardrails.parsing import RulebookProblem
from cstp_grpc.core.guardrails.rulebook import RulebookError, load_rule_set
from cstp_grpc.core.guardrails.rulebook_files import RulebookFile
from cstp_grpc.core.guardrails.rulebook_schema import API_VERSION

CONDITION_PREFIX: Final = "condition_"
REQUIREMENT_PREFIX: Final = "requires_"
RULE_KEYS: Final = ("id", "description", "scope", "action", "message", "condition", "requires")
ACTIONS: Final[Mapping[str, tuple[Severity, Enforcement]]] = {
    "block": (Severity.BLOCK, Enforcement.ENFORCE),
    "warn": (Severity.WARN, Enforcement.ENFORCE),
    # Only logged: a dry run is recorded too, and is not a warning.
    "log": (Severity.WARN, Enforcement.DRYRUN),
}
REFUSED_KEYS: Final[Mapping[str, str]] = {
    "conditions": "`conditions` was documented, but not read: the rule fired for every action; write condition_FIELD",
    "circuit_breakers": "circuit breakers are rules that read `history`; write one for each",
    "apiVersion": "is a rulebook already",
}
PLACEHOLDER: Final = re.compile(r"\{(\w+)\}", re.ASCII)
TEXT_VARIABLES: Final = frozenset({"category", "confidence", "description", "project"})
"""The fields of an action that a message can hold; stakes are numbers in expressions."""

ABSENT_BLOCKS: Final = "an action without the input of a condition was let through; here it counts as a match"
ABSENT_SKIPS: Final = "an action without the input of a condition is let through, as you asked"
TRUE_IS_TRUE: Final = 'a required true was met by any text, even "false"; here only by true'
NEVER_MET: Final = "`!=` was compared as a text, so that the rule never fired; here it does"
NOT_REPLACED: Final = "names in braces in the message that are not inputs of this file stay as they are"
ALWAYS_FIRES: Final = "has neither conditions nor requirements, and fires for every action, as before"
LOG_IS_DRYRUN: Final = "`action: log` is a warning in a dry run, which is reported as dryrunViolations"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A rulebook as YAML, with notes on changed behaviour: each note with the ids of its guardrails."""

    text: str
    notes: Mapping[str, Sequence[str]]


@dataclass(slots=True)
class CognitionEnginesGuardrail:
    """A guardrail of cognition-engines, with its fields in the order in which they are written."""

    node: YamlNode
    id: str
    description: str | None
    message: str | None
    projects: tuple[str, ...]
    action: str
    conditions: list[tuple[str, dialect.Comparison]] = field(default_factory=list)
    requirements: list[tuple[str, dialect.Comparison]] = field(default_factory=list)

    @property
    def uses(self) -> list[tuple[str, dialect.Comparison]]:
        return [*self.conditions, *self.requirements]


def convert_rulebook(file: str, content: bytes, *, skips_absent: bool = False) -> Conversion:
    """Convert a file of guardrails of cognition-engines.

    With `skips_absent`, conditions are not met by actions that lack their inputs, as before. Raises RulebookError with
    every reason why the file is not converted.
    """
    problems: list[RulebookProblem] = []

    def report(line: int, where: str, reason: str) -> None:
        problems.append(RulebookProblem(file, line, where, reason))

    document = yaml_document.read_document(content, lambda line, reason: report(line, "rulebook", reason))
    reader = CognitionEnginesReader(report)
    rules = reader.read(document) if document is not None else []
    types = reader.find_input_types(rules)
    if not rules and not problems:
        report(1, "rulebook", "holds no guardrails")
    if problems:
        raise RulebookError(problems)
    notes: dict[str, list[str]] = {}
    defaults = find_defaults(rules)
    converter = RuleConverter(types, defaults, notes, report, skips_absent=skips_absent)
    # First, because it fills the notes.
    guardrails = [line for rule in rules for line in converter.convert(rule)]
    name = reader.name or identifier_of(PurePath(file).stem) or "converted"
    lines = [
        *comment_lines("Converted from guardrails of cognition-engines."),
        *(line for note, ids in notes.items() for line in comment_lines(f"- {note}: {', '.join(ids)}")),
        f"apiVersion: {API_VERSION}",
        f"metadata: {{name: {format_flow_scalar(name)}, version: {quote_text(reader.version or '1')}}}",
        *input_lines(types, defaults),
        "guardrails:",
        *guardrails,
    ]
    text = "".join(f"{line}\n" for line in lines)
    check_conversion(text, rules, report)
    if problems:
        raise RulebookError(problems)
    return Conversion(text, notes)


def check_conversion(
    text: str, rules: Sequence[CognitionEnginesGuardrail], report: yaml_document.ReportProblem
) -> None:
    """Report why a converted rulebook cannot be loaded, so that every returned rulebook loads."""
    path = Path("converted.yaml")
    try:
        load_rule_set(path, [RulebookFile(path, text.encode())])
    except RulebookError as error:
        lines = {rule.id: rule.node.line for rule in rules}
        for each in error.problems:
            report(lines.get(each.where, 1), each.where, f"cannot be written as a rulebook: {each.reason}")


def identifier_of(text: str) -> str | None:
    return text if yaml_document.IDENTIFIER_PATTERN.fullmatch(text) else None


class CognitionEnginesReader:
    """Reads a file of guardrails and reports refused parts; `name` and `version` are those of a template."""

    def __init__(self, report: yaml_document.ReportProblem) -> None:
        self._report = report
        self._lines: dict[str, int] = {}
        self.name: str | None = None
        self.version: str | None = None

    def read(self, document: YamlNode) -> list[CognitionEnginesGuardrail]:
        """Return the guardrails: of a list, of the key `guardrails` of a map, or the only one."""
        if isinstance(document.value, list):
            return self._read_rules(document.value)
        entries = yaml_document.mapping_entries(document, "rulebook", self._report)
        if "id" in entries:
            return self._read_rules([document])
        for key, node in entries.items():
            if key not in ("guardrails", "template"):
                self._report(node.line, "rulebook", REFUSED_KEYS.get(key, f"unknown key `{key}`"))
        if template := entries.get("template"):
            fields = yaml_document.YamlFields(template, "template", self._report, ["name"], ["description", "version"])
            self.name, self.version = (
                identifier_of(fields.text("name")),
                identifier_of(fields.optional_text("version") or ""),
            )
        listed = entries.get("guardrails")
        if listed is None:
            return []
        if isinstance(listed.value, list):
            return self._read_rules(listed.value)
        self._report(listed.line, "rulebook", "`guardrails` must be a list")
        return []

    def _read_rules(self, nodes: Sequence[YamlNode]) -> list[CognitionEnginesGuardrail]:
        read = (self._read_rule(node, f"guardrails[{position}]") for position, node in enumerate(nodes))
        return [rule for rule in read if rule is not None]

    def _read_rule(self, node: YamlNode, where: str) -> CognitionEnginesGuardrail | None:
        entries = yaml_document.mapping_entries(node, where, self._report)
        named = entries.get("id")
        where = named.value if named is not None and isinstance(named.value, str) and named.value else where
        plain = {
            key: item for key, item in entries.items() if not key.startswith((CONDITION_PREFIX, REQUIREMENT_PREFIX))
        }
        for key in [key for key in plain if key in REFUSED_KEYS]:
            self._report(plain.pop(key).line, where, REFUSED_KEYS[key])
        fields = yaml_document.YamlFields(YamlNode(node.line, plain), where, self._report, ["id", "action"], RULE_KEYS)
        identifier = fields.identifier("id")
        if identifier in self._lines:
            self._report(node.line, identifier, f"was skipped: line {self._lines[identifier]} has the same id")
        self._lines.setdefault(identifier, node.line)
        action = fields.text("action")
        if action and action not in ACTIONS:
            fields.report_problem(f"`action` must be one of {', '.join(ACTIONS)}; {action} forbade nothing", "action")
        rule = CognitionEnginesGuardrail(
            node,
            identifier,
            fields.optional_text("description"),
            fields.optional_text("message"),
            tuple(sorted(fields.texts_or_text("scope"))),
            action,
        )
        for is_requirement, name, item in self._read_fields(entries, fields):
            self._add_field(rule, name, item, is_requirement=is_requirement)
        return rule if identifier and action in ACTIONS else None

    def _read_fields(
        self, entries: Mapping[str, YamlNode], fields: yaml_document.YamlFields
    ) -> Iterator[tuple[bool, str, YamlNode]]:
        """Yield the fields of both dialects: whether each is a requirement, its name and its comparison."""
        for is_requirement, key, prefix in (
            (False, "condition", CONDITION_PREFIX),
            (True, "requires", REQUIREMENT_PREFIX),
        ):
            nested = fields.get(key)
            value = nested.value if nested is not None else None
            # A text, or a map with `cel`, is in the expression language of later versions.
            if isinstance(value, str) or (isinstance(value, dict) and "cel" in value):
                fields.report_problem(
                    f"`{key}` is an expression; write it as `when`, in the language of rulebooks", key
                )
            elif nested is not None:
                found = yaml_document.mapping_entries(nested, fields.where, self._report)
                yield from ((is_requirement, name, item) for name, item in found.items())
            flat = ((name.removeprefix(prefix), item) for name, item in entries.items() if name.startswith(prefix))
            yield from ((is_requirement, name, item) for name, item in flat)

    def _add_field(self, rule: CognitionEnginesGuardrail, name: str, node: YamlNode, *, is_requirement: bool) -> None:
        try:
            comparison = (dialect.parse_requirement if is_requirement else dialect.parse_condition)(node.plain)
            dialect.check_field(name, comparison)
        except dialect.RefusedCondition as error:
            self._report(node.line, rule.id, f"{name}: {error}")
        else:
            (rule.requirements if is_requirement else rule.conditions).append((name, comparison))

    def find_input_types(self, rules: Sequence[CognitionEnginesGuardrail]) -> Mapping[str, InputType]:
        """Return the types of the inputs that guardrails read; report those that are compared with several."""
        types: dict[str, InputType] = {}
        for rule in rules:
            for name, comparison in rule.uses:
                if name not in dialect.ACTION_FIELDS and types.setdefault(name, comparison.type) is not comparison.type:
                    reason = f"{name} is compared with a {comparison.type} here and with a {types[name]} before"
                    self._report(rule.node.line, rule.id, reason)
        return types


def find_defaults(rules: Sequence[CognitionEnginesGuardrail]) -> Mapping[str, bool]:
    conditions = {name for rule in rules for name, _ in rule.conditions}
    required: dict[str, set[bool]] = {}
    for rule in rules:
        for name, comparison in rule.requirements:
            if isinstance(comparison.value, bool) and name not in conditions:
                required.setdefault(name, set()).add(comparison.value)
    return {name: not next(iter(values)) for name, values in required.items() if len(values) == 1}


class RuleConverter:
    """Converts guardrails whose fields are valid, and notes changes of behaviour."""

    def __init__(
        self,
        types: Mapping[str, InputType],
        defaults: Mapping[str, bool],
        notes: dict[str, list[str]],
        report: yaml_document.ReportProblem,
        *,
        skips_absent: bool,
    ) -> None:
        self._types = types
        self._defaults = defaults
        self._notes = notes
        self._report = report
        self._skips_absent = skips_absent

    def convert(self, rule: CognitionEnginesGuardrail) -> Iterator[str]:
        """Yield the lines of a guardrail as a rulebook has it."""
        conditions = [
            dialect.condition_expression(name, comparison, skips_absent=self._skips_absent)
            for name, comparison in rule.conditions
        ]
        failed = " || ".join(
            dialect.failure_expression(name, comparison, self._defaults) for name, comparison in rule.requirements
        )
        if failed:
            conditions.append(f"({failed})" if conditions and "||" in failed else failed)
        severity, enforcement = ACTIONS[rule.action]
        self._note_changes(rule)
        name = rule.description or rule.id
        yield f"  - id: {format_scalar(rule.id)}"
        yield f"    name: {format_scalar(name)}"
        if rule.projects:
            yield f"    scope: {{projects: [{', '.join(map(quote_text, rule.projects))}]}}"
        yield "    when: >-"
        yield f"      {' && '.join(conditions) or 'true'}"
        yield f"    severity: {severity}"
        if enforcement is not Enforcement.ENFORCE:
            yield f"    enforcement: {enforcement}"
        yield f"    message: {format_scalar(self._convert_message(rule, rule.message or name))}"

    def _note_changes(self, rule: CognitionEnginesGuardrail) -> None:
        if any(name not in dialect.ALWAYS_GIVEN for name, _ in rule.conditions):
            self._note(ABSENT_SKIPS if self._skips_absent else ABSENT_BLOCKS, rule)
        if any(comparison.value is True for _, comparison in rule.requirements):
            self._note(TRUE_IS_TRUE, rule)
        if any(comparison.operator == "!=" for _, comparison in rule.conditions):
            self._note(NEVER_MET, rule)
        if not rule.uses:
            self._note(ALWAYS_FIRES, rule)
        if rule.action == "log":
            self._note(LOG_IS_DRYRUN, rule)

    def _note(self, text: str, rule: CognitionEnginesGuardrail) -> None:
        if rule.id not in (ids := self._notes.setdefault(text, [])):
            ids.append(rule.id)

    def _convert_message(self, rule: CognitionEnginesGuardrail, text: str) -> str:
        """Return a message with expressions for names in braces, which were replaced by the values of the context."""

        def replace(match: re.Match[str]) -> str:
            name = match[1]
            if name in TEXT_VARIABLES:
                return f"${{action.{name}}}"
            if name in self._types:
                return f"${{context.{name}}}"
            self._note(NOT_REPLACED, rule)
            return match[0]

        if "$" in text and "{" in text:
            # A dollar before a brace begins an expression here, and was only a dollar there.
            self._report(rule.node.line, rule.id, "the message has both $ and {; write it without one of them")
            return text
        return PLACEHOLDER.sub(replace, text)


WIDTH: Final = 118
"""Columns of a comment."""
# A letter first, since YAML takes other beginnings for something else; no colon, no comment sign, no space at the end.
PLAIN_TEXT: Final = re.compile(r"[A-Za-z][A-Za-z0-9 ,.()'/%_-]*(?<! )")
# The words that YAML 1.1 or 1.2 reads as a bool or as nothing.
WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
"""Characters that JSON does not escape, but that YAML refuses or reads as a line break."""


def input_lines(types: Mapping[str, InputType], defaults: Mapping[str, bool]) -> Iterator[str]:
    if types:
        yield "inputs:"
    for name, kind in types.items():
        default = f", default: {json.dumps(defaults[name])}" if name in defaults else ""
        yield f"  {format_flow_scalar(name)}: {{type: {kind}{default}}}"


def comment_lines(text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
    return (f"# {line}" if number == 0 else f"#   {line}" for number, line in enumerate(lines))


def format_scalar(text: str) -> str:
    """Return a text as a YAML value, in quotes only where it needs them."""
    return text if PLAIN_TEXT.fullmatch(text) and text.lower() not in WORDS else quote_text(text)


def format_flow_scalar(text: str) -> str:
    """Return a text as a YAML key, or as a value within braces."""
    return text if "," not in text and format_scalar(text) == text else quote_text(text)


def quote_text(text: str) -> str:
    return ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))
